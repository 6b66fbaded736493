//! The result of a comparison as JSON: what `mqbench compare` writes and reads back.
//!
//! Its JSON schema is `docs/spec/compare.schema.json`; a test holds the two together.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::Manifest;
use crate::process::Usage;
use crate::stats::Interval;
use crate::topics::TopicFigures;
use crate::{Counts, Error, Summary, Validity, Warning, json};

/// The `schema` of a [`RunResult`] that this version writes and reads.
pub const SCHEMA: &str = "mq-compare/1";

/// Result of a comparison: the same MQTT work done over several transports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Program, machine, configuration.
    pub manifest: Manifest,
    /// The work: rate, payload, QoS and so on, an object in the words of the command.
    pub parameters: Value,
    /// The transports, in the order of the command line.
    pub transports: Vec<TransportResult>,
    /// Differences between the transports, with their confidence intervals.
    pub comparisons: Vec<Comparison>,
    /// The warnings about the whole comparison.
    pub validity: Validity,
}

/// Result of one transport over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportResult {
    /// The transport's name: `tcp`, `tls`, `quic`, `quic-repeat`, `ws` or `wss`.
    pub transport: String,
    /// Policy by which small QUIC datagrams are repeated; `None` for none.
    #[serde(default)]
    pub repeat: Option<String>,
    /// The broker's address.
    pub url: String,
    /// Summary of the latencies from the intended send time; `None` if nothing arrived.
    pub latency: Option<Summary>,
    /// Summary of the latencies from the actual send time; `None` if nothing arrived.
    pub latency_from_send: Option<Summary>,
    /// DL's estimate of the round trip, see [`LastSendEstimator`](crate::LastSendEstimator);
    /// `None` if there was no round trip.
    pub rtt_last: Option<Summary>,
    /// Counts of the messages of all rounds.
    pub counts: Counts,
    /// Traffic of the connections; `None` if it was not counted.
    pub wire: Option<WireUse>,
    /// Packets of the publisher's host on its link; `None` without an emulated link.
    pub publisher_host: Option<HostPackets>,
    /// Messages that the other stations sent meanwhile; `None` without a shared channel.
    pub neighbours_sent: Option<u64>,
    /// The figures of several topics; `None` with one.
    #[serde(default)]
    pub topics: Option<TopicFigures>,
    /// CPU time and memory of the processes.
    pub processes: Vec<ProcessUse>,
    /// Connection times, for each kind of connection.
    pub connect: Vec<ConnectTimes>,
    /// The transport's rounds, in order.
    pub rounds: Vec<Round>,
    /// The warnings about this transport.
    pub warnings: Vec<Warning>,
}

/// Traffic of the measured connections below the application: TCP payload with retransmissions, or UDP payload. Bytes
/// are the application's where the system does not count those below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireUse {
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Packets sent, with acknowledgements and retransmissions, as S22 §5.2 counts; `None` if not
    /// known.
    pub packets_sent: Option<u64>,
    /// Packets received; `None` if not known.
    pub packets_received: Option<u64>,
}

/// Packets of a host while a transport had its turn, with those for connecting and for acknowledgements.
/// They are counted before the link loses any, as S22 §5.2 counts in the publisher's capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostPackets {
    /// Packets sent.
    pub sent: u64,
    /// Packets sent to the host; `None` on a shared channel, which counts by the sender.
    pub received: Option<u64>,
    /// The time over which they were counted.
    pub elapsed_ns: u64,
}

/// Resources that a process used while a transport was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessUse {
    /// The process's part: `broker`, or `clients` for the measuring process.
    pub role: String,
    /// CPU time, user and system, to the nanosecond.
    pub cpu_ns: u64,
    /// CPU time in user mode, in ticks of mostly 10 ms.
    pub user_ns: u64,
    /// CPU time in the kernel, in ticks of mostly 10 ms.
    pub system_ns: u64,
    /// The most memory that was resident since the process began.
    pub peak_rss_bytes: u64,
    /// The time over which it was measured.
    pub elapsed_ns: u64,
}

impl ProcessUse {
    /// Makes the entry of the process that has `role`, from its `usage`.
    #[must_use]
    pub fn new(role: &str, usage: &Usage) -> Self {
        Self {
            role: role.to_owned(),
            cpu_ns: usage.cpu.total_ns,
            user_ns: usage.cpu.user_ns,
            system_ns: usage.cpu.system_ns,
            peak_rss_bytes: usage.memory.peak_rss_bytes,
            elapsed_ns: u64::try_from(usage.elapsed.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Kind of connection: the transport's handshake, and how much of a session it resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConnectKind {
    /// TCP alone.
    #[serde(rename = "tcp")]
    Tcp,
    /// A full handshake of TLS or QUIC.
    #[serde(rename = "full")]
    Full,
    /// Resumed with a ticket, without early data.
    #[serde(rename = "resumed")]
    Resumed,
    /// Resumed, with CONNECT in early data that the broker accepted.
    #[serde(rename = "0-rtt")]
    ZeroRtt,
}

/// Connection times of one kind of connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectTimes {
    /// Way in which the connections were made: over TCP alone, or by a handshake in full, resumed, or with 0-RTT.
    pub kind: ConnectKind,
    /// Number of connections that succeeded and turned out to be of this kind.
    pub count: u64,
    /// Number of further connections that failed or turned out to be of another kind; they are not in `count`, and in
    /// neither summary.
    pub failed: u64,
    /// Time from the start of connecting until data can be sent.
    pub usable: Option<Summary>,
    /// Time from the start of connecting until CONNACK. DL's `T_Connection` (eq. 1) counts from CONNECT instead.
    pub connack: Option<Summary>,
}

/// Result of one round of one transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Number of the round, from 0.
    pub round: u32,
    /// The transport's turn in the round, from 0: the order changes so that drift hits all alike.
    pub turn: u32,
    /// Summary of the latencies from the intended send time; `None` if nothing arrived.
    pub latency: Option<Summary>,
    /// Time from the first send to the last arrival: S21's Δ where the loop was closed, Fig. 6a.
    pub duration_ns: u64,
    /// Counts of the round's messages.
    pub counts: Counts,
}

/// A transport against another in one quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The compared quantity: `mean delay` or `median connection time`, with one value a round.
    pub quantity: String,
    /// The transport that is compared.
    pub transport: String,
    /// The transport that it is compared with.
    pub baseline: String,
    /// mean(transport) / mean(baseline), W20's ξ with QUIC and TCP; below 1 is better. `None` if
    /// there are too few values.
    pub ratio: Option<Interval>,
}

impl RunResult {
    /// Writes the result as JSON, indented, with a line break at the end.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Json`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        json::save(self, path)
    }

    /// Reads what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Format`] if its schema is another; [`Error::Json`].
    pub fn load(path: &Path) -> Result<Self, Error> {
        json::load(path, SCHEMA)
    }
}
