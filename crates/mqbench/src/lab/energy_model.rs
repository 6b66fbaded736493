//! The energy that a run would have cost a publisher's board, by a model.
//!
//! Packets are those of the publisher's emulated link, bytes those of its client. Publisher and subscriber share
//! one process; CPU time is half of that process's, without the emulator's threads and without the thread that
//! keeps the schedule, which spins. On a machine that is not an ARM board it is multiplied by the profile's
//! factor, an assumption.

use std::time::{Duration, Instant};

use mq_energy::{
    average_power_uw,
    profile::{Activity, Profile},
};
use mq_measure::{convert::float, process::ProcessMeter, result::WireUse};

use crate::{clock::nanoseconds, testbed::Testbed};

/// The model at work, from the start of the schedule.
pub(super) struct EnergyModel<'a> {
    testbed: &'a Testbed,
    profile: Profile,
    process: ProcessMeter,
    began: Instant,
    /// The emulator's counts at the start.
    before: EmulatorCounts,
}

/// Counts of the emulator at one moment: CPU time of its threads, and packets of the publisher's link.
#[derive(Clone, Copy, Debug)]
struct EmulatorCounts {
    cpu_ns: u64,
    sent: u64,
    received: u64,
}

/// The result of the model.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct ModelledEnergy {
    pub(super) joules: f64,
    pub(super) power_w: f64,
    /// Power that the work adds to the board's idle power, which is nine tenths of all and more.
    pub(super) above_idle_w: f64,
    /// CPU time of the publisher a message, on this machine; `None` if no message arrived.
    pub(super) cpu_per_message_us: Option<f64>,
    /// `None` if no message arrived.
    pub(super) per_message_uj: Option<f64>,
    /// Energy a message that the work adds to the idle board's.
    pub(super) above_idle_per_message_uj: Option<f64>,
    /// The meter's name, as in `mqbench energy`.
    pub(super) meter: String,
}

impl EmulatorCounts {
    /// Reads the emulator's counts; `None` on a shared channel, which does not count by the receiver.
    fn of(testbed: &Testbed) -> Option<Self> {
        let (sent, received) = testbed.publisher_packets();
        Some(Self {
            cpu_ns: nanoseconds(testbed.cpu_time()),
            sent,
            received: received?,
        })
    }
}

impl<'a> EnergyModel<'a> {
    /// Starts the model; `None` if packets or CPU time are not known.
    pub(super) fn start(testbed: &'a Testbed, profile: &str) -> Option<Self> {
        Some(Self {
            testbed,
            profile: Profile::load(profile).ok()?,
            process: ProcessMeter::start_own().ok()?,
            began: Instant::now(),
            before: EmulatorCounts::of(testbed)?,
        })
    }

    /// Returns the energy until now, for work whose publisher has used `wire`, and a thread that spins `pacing_cpu_ns`;
    /// `None` if a count is not known.
    pub(super) fn end(
        self,
        wire: Option<WireUse>,
        pacing_cpu_ns: Option<u64>,
        delivered: u64,
    ) -> Option<ModelledEnergy> {
        let elapsed_ns = nanoseconds(self.began.elapsed());
        let after = EmulatorCounts::of(self.testbed)?;
        let wire = wire?;
        let used = CpuTimes {
            process: self.process.read().ok()?.cpu.total_ns,
            emulator: after.cpu_ns.saturating_sub(self.before.cpu_ns),
            pacing: pacing_cpu_ns?,
        };
        let factor = if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
            1.0
        } else {
            self.profile.elsewhere_cpu_factor.as_ref()?.value
        };
        let activity = Activity {
            elapsed_ns,
            cpu_ns: used.publisher_ns(factor),
            packets_sent: after.sent - self.before.sent,
            packets_received: after.received - self.before.received,
            bytes_sent: wire.bytes_sent,
            bytes_received: wire.bytes_received,
        };
        energy(&self.profile, &activity, used.publisher_ns(1.0), delivered)
    }
}

/// CPU time of this process, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct CpuTimes {
    process: u64,
    emulator: u64,
    pacing: u64,
}

impl CpuTimes {
    /// Returns the publisher's share of the CPU time, as on its board, in nanoseconds.
    fn publisher_ns(self, factor: f64) -> u64 {
        let others = self.emulator.saturating_add(self.pacing);
        let clients = Duration::from_nanos(self.process.saturating_sub(others));
        let publisher = Duration::try_from_secs_f64(clients.as_secs_f64() / 2.0 * factor);
        publisher.map_or(u64::MAX, nanoseconds)
    }
}

/// Computes the energy of an activity whose CPU time on this machine was `own_cpu_ns`.
fn energy(
    profile: &Profile,
    activity: &Activity,
    own_cpu_ns: u64,
    delivered: u64,
) -> Option<ModelledEnergy> {
    let energy_uj = profile.energy_uj(activity);
    let above_idle_uj = profile.energy_above_idle_uj(activity);
    let each = |of: f64| (delivered > 0).then(|| of / float(delivered));
    Some(ModelledEnergy {
        joules: energy_uj / 1e6,
        power_w: average_power_uw(energy_uj, activity.elapsed_ns)? / 1e6,
        above_idle_w: average_power_uw(above_idle_uj, activity.elapsed_ns)? / 1e6,
        cpu_per_message_us: each(float(own_cpu_ns) / 1e3),
        per_message_uj: each(energy_uj),
        above_idle_per_message_uj: each(above_idle_uj),
        meter: format!("model:{}", profile.name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publishers_cpu_time_is_half_of_the_clients() {
        let used = CpuTimes {
            process: 1_000,
            emulator: 300,
            pacing: 100,
        };
        assert_eq!(used.publisher_ns(1.0), 300);
        assert_eq!(used.publisher_ns(6.0), 1_800);
        let idle = CpuTimes {
            process: 10,
            ..used
        };
        assert_eq!(
            idle.publisher_ns(6.0),
            0,
            "clocks are read one after the other"
        );
    }

    #[test]
    fn power_is_the_energy_over_the_time_to_send() {
        let profile = Profile::load("pi-3b").unwrap();
        let activity = Activity {
            elapsed_ns: 10_000_000_000,
            cpu_ns: 2_000_000_000,
            packets_sent: 2_000,
            packets_received: 1_000,
            bytes_sent: 300_000,
            bytes_received: 100_000,
        };
        let found = energy(&profile, &activity, 400_000_000, 1_000).unwrap();
        // 14 J idle, 1.15 J of CPU, 36 mJ of packets, in 10 s.
        let joules = 14.0 + 1.15 + 0.036;
        assert!((found.joules - joules).abs() < 1e-9, "{found:?}");
        assert!((found.power_w - joules / 10.0).abs() < 1e-9, "{found:?}");
        let each = found.per_message_uj.unwrap();
        assert!((each - joules * 1e3).abs() < 1e-6, "{found:?}");
        assert!(
            (found.above_idle_w - 1.186 / 10.0).abs() < 1e-9,
            "{found:?}"
        );
        assert_eq!(found.cpu_per_message_us, Some(400.0));
        let added = found.above_idle_per_message_uj.unwrap();
        assert!((added - 1.186 * 1e3).abs() < 1e-6, "{found:?}");
        assert_eq!(found.meter, "model:pi-3b");
        assert_eq!(
            energy(&profile, &activity, 0, 0).unwrap().per_message_uj,
            None
        );
    }
}
