//! The record of a run.

use std::collections::BTreeMap;

use mq_energy::{Note, Window};
use mq_measure::{Counts, Warning, manifest::LinkContext};
use serde::{Deserialize, Serialize};

use super::{cell::Cell, transport_parameters::TransportParameters};

/// A run of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The campaign's name.
    pub(crate) campaign: String,
    /// Factor and level, as the campaign's file writes them.
    pub(crate) levels: BTreeMap<String, String>,
    /// Number of the repetition, from 0.
    pub(crate) repetition: u32,
    /// Number of the attempt, from 1: a disturbed run is repeated.
    pub(crate) attempt: u32,
    pub(crate) seed: u64,
    pub(crate) cell: Cell,
    pub(crate) outcome: Outcome,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outcome {
    /// Figures of the whole run, by their names in [`METRICS`].
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Distributions within the run, by their names: HdrHistograms of nanoseconds with three digits, in the V2
    /// format, deflated, base64.
    pub(crate) histograms: BTreeMap<String, String>,
    pub(crate) counts: Counts,
    pub(crate) link: LinkContext,
    /// The parameters of the transports; `None` in records of an earlier version, which do not have them.
    #[serde(rename = "stack", default, skip_serializing_if = "Option::is_none")]
    pub(crate) transport_parameters: Option<TransportParameters>,
    /// The warnings about the run.
    pub(crate) warnings: Vec<Warning>,
    /// The error that ended the run early.
    pub(crate) error: Option<String>,
    pub(crate) elapsed_ns: u64,
    /// The meter of the energy among the metrics, such as `model:pi-3b`; `None` without energy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) energy_meter: Option<String>,
    /// The meter's reading; `None` if the energy was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) energy_reading: Option<MeterReading>,
    /// The name of the run's files in the folders `samples` and `pcap` of the results; `None` if none was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<String>,
    /// Time from the start of the schedule to the last arrival, since 1970, by the sender's clock; `None` without a
    /// schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sending: Option<Window>,
}

/// A meter's reading of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeterReading {
    /// Part of the machine whose energy is measured, such as the current through the sensor.
    pub(crate) scope: String,
    /// The time that the energy covers, since 1970, by the clock of the machine that read the meter.
    pub(crate) window: Window,
    /// Largest error of the window against the readings' clock, in nanoseconds.
    pub(crate) uncertainty_ns: u64,
    /// The file with the readings, in the folder `meters` of the results, if they are kept.
    pub(crate) journal: Option<String>,
    /// Remarks on the recording.
    pub(crate) notes: Vec<Note>,
}

impl Record {
    /// Makes the first run of a cell of no campaign.
    #[cfg(test)]
    pub(crate) fn of(cell: Cell, outcome: Outcome) -> Self {
        Self {
            campaign: String::new(),
            levels: BTreeMap::new(),
            repetition: 0,
            attempt: 1,
            seed: 0,
            cell,
            outcome,
        }
    }

    /// Returns the round-trip time that QUIC assumed before its first measurement; `None` if nothing spoke QUIC, or in
    /// records of an earlier version, which do not have it.
    pub(crate) fn initial_rtt_ns(&self) -> Option<u64> {
        let parameters = self.outcome.transport_parameters.as_ref();
        let recorded = parameters.map(|all| all.quic.initial_rtt_ns);
        let rtt = recorded.or(self.cell.initial_rtt_ns);
        rtt.filter(|_| self.cell.has_quic())
    }
}

impl Outcome {
    /// Returns true if the run failed, the machine was too busy, or the meter has gaps: such a run is repeated. Losses
    /// and slow messages are findings, and no reason to repeat.
    pub(crate) fn is_disturbed(&self) -> bool {
        let of_emulated = |warning: &Warning| matches!(warning, Warning::Emulated { .. });
        // An emulated machine is always late: a repetition would be late as well.
        let is_emulated = self.warnings.iter().any(of_emulated);
        let by_machine = |warning: &Warning| match warning {
            Warning::GeneratorLate { .. } => !is_emulated,
            Warning::LinkOffProfile { .. } | Warning::EnergyGaps { .. } => true,
            _ => false,
        };
        self.error.is_some() || self.warnings.iter().any(by_machine)
    }
}

/// The list of metrics, one a line.
macro_rules! metrics {
    ($($name:literal [$unit:literal] $what:literal;)*) => { &[$(($name, $unit, $what)),*] };
}

/// Returns true if a plot or a claim can ask for it: a metric's name, with `xi_w20:`, `xi_s21:` or `spread:` before it or
/// without.
pub(crate) fn is_metric(asked: &str) -> bool {
    let name = match asked.split_once(':') {
        Some((prefix, name)) if METRIC_PREFIXES.contains(&prefix) => name,
        _ => asked,
    };
    METRICS.iter().any(|(known, ..)| *known == name)
}

/// The words before the colon of a metric that is computed from another one's runs.
pub(crate) const METRIC_PREFIXES: [&str; 3] = ["xi_w20", "xi_s21", "spread"];

/// The metrics of a run's energy, by a meter or by a model; a run without energy has none of them.
pub(crate) const ENERGY_METRICS: [&str; 3] = ["energy_j", "power_w", "energy_per_message_uj"];

/// The metrics of energy that need a model of the idle board.
pub(crate) const MODEL_ENERGY_METRICS: [&str; 2] =
    ["power_above_idle_w", "energy_above_idle_per_message_uj"];

/// Returns true if a metric is an energy or a power.
pub(crate) fn is_energy(metric: &str) -> bool {
    ENERGY_METRICS.contains(&metric) || MODEL_ENERGY_METRICS.contains(&metric)
}

/// Figures of a run: name, unit, what it is.
pub(crate) const METRICS: &[(&str, &str, &str)] = metrics! {
    "latency_mean" ["ms"] "publisher to subscriber, mean (S22 §5.1)";
    "latency_p50" ["ms"] "publisher to subscriber, median";
    "latency_p95" ["ms"] "publisher to subscriber, 95th percentile";
    "latency_p99" ["ms"] "publisher to subscriber, 99th percentile";
    "latency_max" ["ms"] "publisher to subscriber, maximum";
    "latency_rsd" [""] "jitter: standard deviation / mean (S22 §5.1)";
    "delta" ["ms"] "Δ: first message sent until last received (S21 Fig. 6a)";
    "delta_dagger" ["ms"] "Δ†: dial of a later connection until its message is received, mean (S21 Fig. 6b)";
    "dial_to_sent" ["ms"] "dial until the PUBLISH is sent, first connection and later ones, mean (W20 §IV)";
    "dial_to_sent_first" ["ms"] "the same of the first connection, which makes a full handshake";
    "dial_to_sent_later" ["ms"] "the same of the later connections, mean";
    "data_in_syn" [""] "connections after the first whose SYN brought the broker data, over all of these";
    "connack_mean" ["ms"] "dial until CONNACK, mean (DL eq. 1 counts from CONNECT)";
    "connect_to_connack_mean" ["ms"] "CONNECT sent until CONNACK, mean (DL eq. 1); with 0-RTT, CONNECT is sent before the handshake";
    "dial_to_connect_p50" ["ms"] "dial until CONNECT is sent, median: the handshakes of the transport and of TLS (LW26)";
    "dial_to_connect_p95" ["ms"] "dial until CONNECT is sent, 95th percentile";
    "rtt_mean" ["ms"] "job until its result, matched by sequence, mean (DL eq. 2)";
    "rtt_last_mean" ["ms"] "job until a result as DL timed it: from the last job sent, mean";
    "packets_per_second" ["1/s"] "packets that the publisher's host sends (S22 §5.2)";
    "arrived_per_second" ["1/s"] "messages on a schedule that arrived, over the time from the first one's turn until the last one arrived; of `load`, over the measured 5 s";
    "air_time_share" [""] "time in which the channel was in use, over the time from the first measured message to the last";
    "collision_rate" [""] "frames on the channel that collided, over all transmissions of all stations in that time";
    "retries_per_frame" [""] "transmissions on the channel that were not the first of their frame, over those that were, in that time";
    "neighbour_messages" [""] "messages that the other stations of the channel got through in that time; of `periodic`, that they sent";
    "packets_per_message" [""] "packets that the publisher's host sends, over its messages or connections";
    "link_bytes_per_message" [""] "bytes of whole frames on the publisher's link, both ways, over its messages or connections";
    "link_packets_per_message" [""] "packets on that link, in the same way";
    "link_wakes_per_message" [""] "packets on that link before which their direction carried none for 10 ms, in the same way: a radio wakes for them";
    "publisher_cpu_per_message" ["µs"] "CPU time of the publisher for each message that arrived: half of that of the process that has both clients, without the emulator's";
    "clock_uncertainty" ["ms"] "the most that a delay between two hosts is wrong by";
    "energy_j" ["J"] "energy while messages were sent";
    "power_w" ["W"] "energy over the time to send all packets (S22 §5.2)";
    "energy_per_message_uj" ["µJ"] "energy for each message that arrived";
    "power_above_idle_w" ["W"] "the part of the power that the work adds to the idle board, by a model";
    "energy_above_idle_per_message_uj" ["µJ"] "the same part of the energy for each message that arrived, by a model";
    "inter_topic_spread" ["ms"] "several topics: largest difference between two topics' mean delays in 100 ms, mean (LW26)";
    "spike_isolation_ratio" [""] "several topics: share of the 100 ms windows with a spike in which all topics spike (LW26)";
    "topic_above_link_mean" ["ms"] "several topics: a topic's mean delay above the link's own, mean over topics";
    "topic_above_link_worst" ["ms"] "several topics: the same of the topic that fares worst";
    "late_share" [""] "several topics: messages that took 5 ms longer than the link's own delay, over those that arrived";
    "late_through_others" [""] "several topics: messages that were late behind another topic's message, over those that arrived";
    "gap" ["ms"] "longest time without an arrival at the subscriber, of a run with a hand-over or an outage";
    "late" [""] "messages that arrived more than 500 ms after they were due, of a run with a hand-over or an outage";
    "uplink_bytes_per_message" [""] "bytes of whole frames on the link to the last host of a row, both ways, while messages were sent, over the messages";
    "uplink_packets_per_message" [""] "packets on that link, in the same way";
    "uplink_wakes_per_message" [""] "packets on that link after 10 ms without one in their direction, in the same way";
    "lost" [""] "messages that did not arrive";
    "failed" [""] "connections that failed, or were not of the kind that was asked for; of `storm`, devices that did not come back";
    "sent_to_broker" ["B"] "`half-open`: bytes of frames that the clients have sent until all are in their phase, for each";
    "sent_by_broker" ["B"] "`half-open`: bytes of frames that the broker has sent to them, for each";
    "client_cpu" ["µs"] "`half-open`: CPU time of the broker until all clients are in their phase, for each";
    "client_memory" ["KiB"] "`half-open`: resident memory that the broker then has more than before, for each";
    "vanished_cpu" ["µs"] "`half-open`: CPU time of the broker in three keep-alives since the clients have vanished, for each";
    "vanished_memory" ["KiB"] "`half-open`: resident memory that the broker has more than before at their end, for each";
    "cpu_per_message" ["µs"] "`load`: CPU time of the broker for each message that a subscriber received";
    "broker_peak_memory" ["MiB"] "`load`: most resident memory of the broker";
    "clients_peak_memory" ["MiB"] "`load`: most resident memory of the process that has all clients";
    "back_50" ["ms"] "`storm`: the restarted broker is ready until half of the devices are connected again";
    "back_99" ["ms"] "`storm`: the restarted broker is ready until 99 % of the devices are connected again";
    "back_all" ["ms"] "`storm`: the restarted broker is ready until all devices are connected again";
    "broker_down" ["ms"] "`storm`: SIGTERM until the restarted broker is ready";
    "broker_cpu_s" ["s"] "`storm`: CPU time of the restarted broker, from its start until 99 % of the devices are back";
    "client_cpu_s" ["s"] "`storm`: CPU time of all devices together in the same time";
    "back_full" [""] "`storm`: devices that came back with a full handshake";
    "back_resumed" [""] "`storm`: devices that came back with a ticket, and without early data";
    "back_early" [""] "`storm`: devices whose early data was accepted";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_is_late_and_not_disturbed() {
        let late = Warning::GeneratorLate {
            p99_late_ns: 2_000_000,
            interval_ns: 1_000_000,
        };
        let emulated = Warning::Emulated {
            host: Some("pi-2".to_owned()),
            found: "its processor is QEMU's".to_owned(),
        };
        let mut outcome = Outcome {
            warnings: vec![late],
            ..Outcome::default()
        };
        assert!(outcome.is_disturbed());
        outcome.warnings.push(emulated);
        assert!(!outcome.is_disturbed());
        outcome.error = Some("the broker ended".to_owned());
        assert!(outcome.is_disturbed());
    }
}
