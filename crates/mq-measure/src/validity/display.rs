//! A warning in one line: what is wrong; what to do.

use std::fmt;

use super::Warning;
use crate::convert;

impl fmt::Display for Warning {
    #[expect(clippy::too_many_lines, reason = "one arm a warning, and nothing else")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GeneratorLate {
                p99_late_ns,
                interval_ns,
            } => write!(
                f,
                "the generator was late: 1 % of the messages by {} or more, at an interval of {}; \
                 lower the rate, or give the generator a core of its own",
                Nanos(*p99_late_ns),
                Nanos(*interval_ns)
            ),
            Self::CpuSaturated { process, share } => write!(
                f,
                "{process} used {:.0} % of its CPU, so its limit was measured; lower the rate, or \
                 read the result as the greatest throughput",
                share * 100.0
            ),
            Self::TooFewSamples {
                percentile,
                count,
                needed,
            } => write!(
                f,
                "p{percentile} of {count} samples is nearly their maximum; send at least {needed} \
                 messages, or do not use it"
            ),
            Self::ClockResolution {
                resolution_ns,
                median_ns,
            } => write!(
                f,
                "the clock steps by {}, the median latency is {}; use a finer clock",
                Nanos(*resolution_ns),
                Nanos(*median_ns)
            ),
            Self::ClockUncertain {
                uncertainty_ns,
                effect_ns,
            } => write!(
                f,
                "the clocks' offset is uncertain by {}, the effect is {}; synchronise the clocks \
                 better, or measure the round trip on one clock",
                Nanos(*uncertainty_ns),
                Nanos(*effect_ns)
            ),
            Self::ClockExtrapolated { messages } => write!(
                f,
                "the clocks were not compared while {messages} messages were under way; compare \
                 them from before a run until after it"
            ),
            Self::ClockStepped { at_ns, by_ns } => write!(
                f,
                "a clock was set by {}{} at {}.{:03} s since 1970, and what was measured around \
                 that time is uncertain by as much; let the clocks come into step before a run",
                if *by_ns < 0 { "-" } else { "" },
                Nanos(by_ns.unsigned_abs()),
                at_ns / 1_000_000_000,
                at_ns / 1_000_000 % 1_000
            ),
            Self::ClocksDisagree {
                offset_ns,
                uncertainty_ns,
                bound_ns,
            } => write!(
                f,
                "the clocks differ by {} ± {}, but chrony has both within {} of UTC; look whether \
                 they follow the same server",
                Nanos(offset_ns.unsigned_abs()),
                Nanos(*uncertainty_ns),
                Nanos(*bound_ns)
            ),
            Self::ClocksNotCompared => write!(
                f,
                "the logs are of two machines, and how their clocks differ is not known; measure \
                 it with mqbench clock, and give the file to join"
            ),
            Self::NegativeLatencies { count } => write!(
                f,
                "{count} messages seem to have arrived before they were sent; synchronise the \
                 clocks of sender and receiver"
            ),
            Self::LostMessages { lost, sent } => write!(
                f,
                "{lost} of {sent} messages were lost, and latencies are of the others only; use \
                 QoS 1, wait longer at the end, or report the loss with the latency"
            ),
            Self::DuplicateMessages {
                duplicates,
                received,
            } => write!(
                f,
                "{duplicates} duplicates of {received} messages arrived, and the first of each \
                 counts; check for reconnections, or use QoS 2"
            ),
            Self::ReorderedMessages {
                reordered,
                received,
            } => write!(
                f,
                "{reordered} of {received} messages arrived out of order; use one lane a topic if \
                 order matters"
            ),
            Self::UnknownMessages { count } => write!(
                f,
                "{count} messages arrived that this run did not send; use a topic of its own for \
                 each run"
            ),
            Self::TimedOut { phase, after_ns } => write!(
                f,
                "{phase} did not end within {}; allow more time, or look at the broker's log",
                Nanos(*after_ns)
            ),
            Self::KernelCongestionControl { tcp, quic } => write!(
                f,
                "TCP used {tcp} and QUIC {quic} as congestion control; choose the same for both"
            ),
            Self::NoIntendedTimes => write!(
                f,
                "latencies count from the actual send time, which hides waiting; use a schedule \
                 (open loop) to count from the intended one"
            ),
            Self::HistogramSaturated { count } => write!(
                f,
                "{count} latencies were longer than one hour and count as that in percentiles; \
                 check the clocks"
            ),
            Self::LinkOffProfile {
                quantity,
                configured,
                measured,
            } => write!(
                f,
                "the link's {quantity} is {measured} instead of {configured}; check for offloads \
                 and for other traffic"
            ),
            Self::EnergyGaps {
                missing_ns,
                window_ns,
            } => write!(
                f,
                "{} of {} were not measured, so there is no energy; look at the meter's notes",
                Nanos(*missing_ns),
                Nanos(*window_ns)
            ),
            Self::DebugBuild => write!(f, "this is a debug build; measure with --release"),
            Self::CpuGovernor { governor } => write!(
                f,
                "the CPU governor is {governor}, so its frequency changes; set it to performance"
            ),
            Self::Emulated { host, found } => {
                match host {
                    Some(host) => write!(f, "host {host} is emulated")?,
                    None => write!(f, "this machine is emulated")?,
                }
                write!(
                    f,
                    " ({found}), and no time is that of the machine it stands for; measure on a \
                     real one"
                )
            }
        }
    }
}

/// Nanoseconds in the unit that reads best.
struct Nanos(u64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = convert::float(self.0);
        match self.0 {
            0..1_000 => write!(f, "{} ns", self.0),
            1_000..1_000_000 => write!(f, "{:.1} µs", ns / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} ms", ns / 1e6),
            _ => write!(f, "{:.1} s", ns / 1e9),
        }
    }
}
