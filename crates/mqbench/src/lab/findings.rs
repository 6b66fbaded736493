//! The results of a run, collected step by step, until they are its outcome.

use std::time::{Duration, Instant};

use mq_measure::{
    Counts, LatencyRecorder, Sample, Samples, Summary, Validity, context::emulated, convert::float,
    manifest::LinkContext, recorder::encode, schedule::Lateness, topics::Topics, validity,
};

use super::{energy_model::ModelledEnergy, metered_energy};
use crate::{
    campaign::{
        cell::{Cell, one},
        record::Outcome,
    },
    clock::nanoseconds,
    testbed::CarriedFrames,
    units::ns_to_ms,
    workload::{handover, reconnect::Attempt},
};

/// The results of a run, collected step by step.
#[derive(Default)]
pub(super) struct Findings {
    /// The outcome as far as it is known before the run ends.
    pub(super) so_far: Outcome,
    pub(super) validity: Validity,
    /// The times of each message, since the Unix epoch; empty for patterns without.
    pub(super) samples: Samples,
}

impl Findings {
    /// Makes the findings of a run on this machine, none yet; warns if the machine is itself emulated.
    pub(super) fn new_local() -> Self {
        let mut findings = Self::default();
        let emulated = validity::emulated(None, emulated().as_deref());
        findings.validity.note(emulated);
        findings
    }

    /// Makes the outcome of a run that began at `began` and ended as `went` says.
    pub(super) fn outcome(
        self,
        went: anyhow::Result<()>,
        link: LinkContext,
        began: Instant,
    ) -> Outcome {
        Outcome {
            link,
            warnings: self.validity.warnings,
            error: went.err().map(|error| format!("{error:#}")),
            elapsed_ns: nanoseconds(began.elapsed()),
            ..self.so_far
        }
    }

    pub(super) fn set_metric(&mut self, metric: &str, value: f64) {
        self.so_far.metrics.insert(metric.to_owned(), value);
    }

    /// Adds the counts of messages on a schedule, and their lateness.
    pub(super) fn add_counts(&mut self, counts: Counts, lateness: &Lateness, interval_ns: u64) {
        self.so_far.counts = counts;
        self.set_metric("lost", float(counts.lost));
        self.validity.extend(validity::counts(&counts));
        self.validity.note(lateness.warning(interval_ns));
    }

    /// Adds a modelled energy, if there is one.
    pub(super) fn add_energy(&mut self, energy: Option<ModelledEnergy>) {
        let Some(energy) = energy else {
            return;
        };
        self.set_metric("energy_j", energy.joules);
        self.set_metric("power_w", energy.power_w);
        self.set_metric("power_above_idle_w", energy.above_idle_w);
        for (metric, value) in [
            ("publisher_cpu_per_message", energy.cpu_per_message_us),
            ("energy_per_message_uj", energy.per_message_uj),
            (
                "energy_above_idle_per_message_uj",
                energy.above_idle_per_message_uj,
            ),
        ] {
            if let Some(value) = value {
                self.set_metric(metric, value);
            }
        }
        self.so_far.energy_meter = Some(energy.meter);
    }

    /// Adds the rate at which messages on a schedule arrived, and the figures of several topics; none with one. The
    /// link's own delay is not known where it changes.
    pub(super) fn add_arrivals(&mut self, cell: &Cell, samples: &Samples) {
        if let Some(window) = metered_energy::sending_window(samples) {
            let arrived = samples.0.iter().filter(|one| one.received_ns.is_some());
            let seconds = Duration::from_nanos(window.duration_ns()).as_secs_f64();
            let arrived = float(arrived.count() as u64);
            self.set_metric("arrived_per_second", arrived / seconds);
        }
        if cell.topics == one() {
            return;
        }
        let mut topics = Topics::new(cell.topics);
        topics.add(samples);
        let link = cell.one_way().filter(|_| cell.handover.is_none());
        let figures = topics.figures(link.map(nanoseconds));
        for (metric, value) in [
            (
                "inter_topic_spread",
                figures.inter_topic_spread_ns.map(ns_as_ms),
            ),
            ("spike_isolation_ratio", figures.spike_isolation_ratio),
            (
                "topic_above_link_mean",
                figures.above_link_mean_ns.map(ns_as_ms),
            ),
            (
                "topic_above_link_worst",
                figures.above_link_worst_ns.map(ns_as_ms),
            ),
            ("late_share", figures.late_share),
            ("late_through_others", figures.late_through_others),
        ] {
            if let Some(value) = value {
                self.set_metric(metric, value);
            }
        }
    }

    /// Adds what a link, `link` or `uplink`, carried for so many messages.
    pub(super) fn add_carried(&mut self, link: &str, carried: CarriedFrames, messages: u64) {
        let each = |of: u64| float(of) / float(messages);
        let name = |of: &str| format!("{link}_{of}_per_message");
        self.set_metric(&name("bytes"), each(carried.bytes));
        self.set_metric(&name("packets"), each(carried.packets));
        self.set_metric(&name("wakes"), each(carried.after_quiet));
    }

    /// Adds the figures of a hand-over or an outage.
    pub(super) fn add_interruption(&mut self, figures: &handover::Figures) {
        if let Some(gap) = figures.gap_ns {
            self.set_metric("gap", ns_to_ms(gap));
        }
        self.set_metric("late", float(figures.late));
    }

    /// Adds the results of messages that were each sent when its predecessor had arrived.
    pub(super) fn add_stop_and_wait(
        &mut self,
        delta: Duration,
        samples: &Samples,
    ) -> anyhow::Result<()> {
        self.set_metric("delta", ns_to_ms(nanoseconds(delta)));
        self.add_distribution("latency", &samples.latencies_sent_ns())?;
        self.so_far.counts = Counts {
            sent: samples.0.len() as u64,
            received: samples.0.len() as u64,
            ..Counts::default()
        };
        Ok(())
    }

    /// Adds the results of messages with a connection each, which was dialled at the intended time. The first
    /// connection had a full handshake.
    pub(super) fn add_reconnects(&mut self, samples: &Samples) -> anyhow::Result<()> {
        let again = samples.0.iter().skip(1);
        let again: Vec<_> = again.filter_map(Sample::latency_intended_ns).collect();
        self.add_mean("delta_dagger", &again)?;
        // W20 counts the first connection as well.
        let sent = samples.0.iter();
        let sent: Vec<_> = sent
            .map(|sample| sample.sent_ns - sample.intended_ns)
            .collect();
        if let Some((first, later)) = sent.split_first() {
            self.add_mean("dial_to_sent_first", &[*first])?;
            self.add_mean("dial_to_sent_later", later)?;
        }
        self.add_mean("dial_to_sent", &sent)
    }

    /// Adds the share of the connections after the first whose SYN brought the broker data.
    pub(super) fn add_data_in_syn(&mut self, attempts: &[Attempt]) {
        let again = attempts.get(1..).unwrap_or_default();
        let taken = again.iter().filter(|attempt| attempt.data_in_syn).count();
        if !again.is_empty() {
            let share = float(taken as u64) / float(again.len() as u64);
            self.set_metric("data_in_syn", share);
        }
    }

    /// Adds the times of connections, each dialled at its intended time, and the number of failed ones.
    pub(super) fn add_connections(&mut self, attempts: &Samples) -> anyhow::Result<()> {
        let connack = attempts.latencies_intended_ns();
        let failed = attempts.0.len() - connack.len();
        let connected = attempts.0.iter();
        let connected = connected.filter(|one| one.received_ns.is_some());
        let connected: Vec<_> = connected
            .map(|one| one.sent_ns.saturating_sub(one.intended_ns))
            .collect();
        self.add_distribution("dial_to_connect", &connected)?;
        self.add_distribution("connack", &connack)?;
        self.add_distribution("connect_to_connack", &attempts.latencies_sent_ns())?;
        self.set_metric("failed", float(failed as u64));
        Ok(())
    }

    /// Adds a distribution, with its mean under the distribution's own name.
    fn add_mean(&mut self, name: &str, values_ns: &[u64]) -> anyhow::Result<()> {
        self.add_distribution(name, values_ns)?;
        if let Some(mean) = self.so_far.metrics.remove(&format!("{name}_mean")) {
            self.set_metric(name, mean);
        }
        Ok(())
    }

    /// Adds a distribution, with the metrics whose names begin with its name.
    pub(super) fn add_distribution(&mut self, name: &str, values_ns: &[u64]) -> anyhow::Result<()> {
        let mut recorder = LatencyRecorder::new();
        recorder.extend(values_ns.iter().copied());
        self.so_far
            .histograms
            .insert(name.to_owned(), encode(&recorder)?);
        if let Some(summary) = Summary::from_samples(values_ns) {
            self.set_metric(&format!("{name}_mean"), summary.mean_ns / 1e6);
            for (part, ns) in [
                ("p50", summary.p50_ns),
                ("p95", summary.p95_ns),
                ("p99", summary.p99_ns),
                ("max", summary.max_ns),
            ] {
                self.set_metric(&format!("{name}_{part}"), ns_to_ms(ns));
            }
            self.set_metric(&format!("{name}_rsd"), summary.rsd);
        }
        Ok(())
    }
}

fn ns_as_ms(ns: f64) -> f64 {
    ns / 1e6
}
