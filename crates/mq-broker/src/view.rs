//! Views of a running broker for operators, and bans.
//!
//! [`Broker::clients`](crate::Broker::clients) and similar methods return pages of these types, and
//! the admin socket returns them as JSON. Identifiers, users, filters and topics come from clients:
//! show them with [`Escaped`]. No type here has a password, a token or a payload.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use crate::escaped::Escaped;

/// The most items of a page.
pub const LARGEST_PAGE: usize = 1_000;

/// A query for one page of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Query {
    /// The text that an item must contain; empty for all. For retained messages it is a topic
    /// filter.
    pub matching: String,
    /// The place after which the page begins: [`Page::next`] of the page before; `None` for the
    /// beginning.
    pub after: Option<String>,
    /// The most items of the page, from 1 to [`LARGEST_PAGE`]; a value beyond a bound counts as the
    /// bound. Default 100.
    pub limit: usize,
}

impl Query {
    /// Returns the most items of the page, within its bounds.
    pub(crate) fn most(&self) -> usize {
        self.limit.clamp(1, LARGEST_PAGE)
    }
}

impl Default for Query {
    fn default() -> Self {
        Self {
            matching: String::new(),
            after: None,
            limit: 100,
        }
    }
}

/// Page of a list, with its items in the list's order.
///
/// An item that exists while all pages are read occurs once. A page ends early when its texts are
/// long, at 256 KiB of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Page<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// [`Query::after`] for the next page; `None` on the last page.
    pub next: Option<String>,
}

/// The cluster as one of its nodes sees it. For a broker without a cluster every field is absent or
/// 0.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cluster {
    /// The node's name.
    pub node: Option<String>,
    /// The number of the node's present life: each start begins a new one.
    pub life: Option<u64>,
    /// `true` if the node has left the cluster: it acknowledges nothing any more.
    pub has_left: bool,
    /// `true` if the servers have confirmed nothing for a lease, such as without a majority.
    /// Messages of QoS 1 and 2 are not acknowledged meanwhile.
    pub majority_lost: bool,
    /// The part of the servers' storage that is in use, in percent; `None` if its size is unknown.
    pub storage_percent: Option<u8>,
    /// `true` if the servers' storage is full: messages of QoS 1 and 2 are refused.
    pub storage_full: bool,
    /// Sessions that this node owns.
    pub sessions: usize,
    /// Messages of the node's clients that are not in their log yet.
    pub messages_waiting: usize,
    /// The time since the oldest of these messages was sent to its log, in milliseconds.
    pub waiting_ms: u64,
    /// Milliseconds by which the wall clock of its machine is ahead of the servers' time; negative if it is behind.
    pub clock_offset_ms: i64,
    /// The reason for which the time of the cluster is not known, if it is not. Sessions that may be over are not adopted
    /// then.
    pub clock_problem: Option<String>,
    /// All nodes that this one knows, itself among them, by name.
    pub nodes: Vec<ClusterNode>,
    /// The logs, by number.
    pub logs: Vec<ClusterLog>,
}

/// A node, as another node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClusterNode {
    /// The node's name.
    pub name: String,
    /// The number of the node's present life: each start begins a new one.
    pub life: u64,
    /// The time since the node's last sign of life, in milliseconds.
    pub heard_ms: u64,
    /// `true` if the node's life is over: it left in order, or other nodes have taken over its
    /// sessions.
    pub is_over: bool,
}

/// A log, as a node has read it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClusterLog {
    /// The log's number, from 0.
    pub shard: u16,
    /// The number of the last entry that the node has read.
    pub read: u64,
    /// Entries of the log that the servers have lost, as their storage was set back or damaged, as the node has seen since it
    /// began.
    pub lost_entries: u64,
    /// Entries after the last one read; `None` if the servers do not report it.
    pub behind: Option<u64>,
    /// Messages of the node's clients that are not in the log yet.
    pub messages_waiting: usize,
}

/// The status of a cluster, as one of its nodes sees it.
pub(crate) trait ClusterStatus: fmt::Debug + Send + Sync {
    /// Returns the status as far as the node itself knows it.
    fn own_status(&self) -> Cluster;

    /// Returns the reason why no client should be sent to the node, if there is one.
    fn why_not_ready(&self) -> Option<String>;

    /// Returns the status with the servers' part of it, within 2 s.
    fn full_status(&self) -> Pin<Box<dyn Future<Output = Cluster> + Send + '_>>;
}

/// The kind of a connection's handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Handshake {
    /// The transport has none.
    None,
    /// The handshake has not ended yet: the client was accepted by early data.
    Pending,
    /// The handshake was made with certificates.
    Full,
    /// The handshake resumed an earlier connection by its ticket.
    Resumed,
}

/// A connected client.
///
/// The fields from `in_flight` on are its connection's own. They are `None` if the connection does not
/// answer within 500 ms, and where the transport does not count them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Client {
    /// The client identifier.
    pub client_id: String,
    /// The user; `None` for a client without a proven user name.
    pub user: Option<String>,
    /// The transport, such as `quic`.
    pub transport: String,
    /// The peer's address; `None` on `mem`.
    pub peer: Option<SocketAddr>,
    /// The version of MQTT: `3.1`, `3.1.1` or `5.0`.
    pub mqtt_version: String,
    /// The time at which the client was accepted; in JSON seconds since 1970.
    #[serde(rename = "connected_at_s", with = "unix_seconds")]
    pub connected_at: SystemTime,
    /// Clean Start, or before 5.0 Clean Session (§3.1.2.4).
    pub clean_start: bool,
    /// The time that the session outlives the connection, as granted in CONNACK; `None` for ever.
    #[serde(rename = "session_expiry_s", with = "seconds")]
    pub session_expiry: Option<Duration>,
    /// The granted keep-alive; `None` for none.
    #[serde(rename = "keep_alive_s", with = "seconds")]
    pub keep_alive: Option<Duration>,
    /// Messages that wait for the session in memory.
    pub queue: usize,
    /// Messages for the client that were dropped since the session began.
    pub dropped: u64,
    /// The number of the session's subscriptions.
    pub subscriptions: usize,
    /// Messages of QoS 1 and 2 in flight to the client.
    pub in_flight: Option<usize>,
    /// The kind of the handshake.
    pub handshake: Option<Handshake>,
    /// `true` if the broker accepted early data (0-RTT) on the connection.
    pub early_data: Option<bool>,
    /// The smoothed round-trip time; in JSON microseconds.
    #[serde(rename = "rtt_us", with = "microseconds")]
    pub rtt: Option<Duration>,
    /// QUIC packets to the client that were declared lost.
    pub packets_lost: Option<u64>,
    /// TCP segments to the client that were retransmitted.
    pub packets_retransmitted: Option<u64>,
    /// Messages received on this connection.
    pub messages_received: Option<u64>,
    /// Messages sent on this connection.
    pub messages_sent: Option<u64>,
    /// Application bytes received on this connection.
    pub bytes_received: Option<u64>,
    /// Application bytes sent on this connection.
    pub bytes_sent: Option<u64>,
}

/// A session without a connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Session {
    /// The client identifier.
    pub client_id: String,
    /// The user; `None` for a client without one, or if the store does not know it.
    pub user: Option<String>,
    /// The time at which the session ends, in JSON seconds since 1970; `None` for never.
    #[serde(rename = "ends_at_s", with = "maybe_unix_seconds")]
    pub ends_at: Option<SystemTime>,
    /// Messages that wait for the session in memory.
    pub queue: usize,
    /// Messages for the session that were dropped since it began.
    pub dropped: u64,
    /// The number of the session's subscriptions.
    pub subscriptions: usize,
}

/// A subscription of a session, connected or not.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Subscription {
    /// The filter; of a shared subscription with `$share/` and the group.
    pub filter: String,
    /// The session's client identifier.
    pub client_id: String,
    /// The maximum QoS: 0, 1 or 2.
    pub qos: u8,
}

/// A retained message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Retained {
    /// The topic of the message.
    pub topic: String,
    /// The QoS that it was published at.
    pub qos: u8,
    /// The size of its payload.
    pub payload_bytes: usize,
}

/// Topics by the rate of their messages.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TopicRates {
    /// The busiest first.
    pub items: Vec<TopicRate>,
    /// The time that the rates are over, in seconds.
    pub seconds: f64,
    /// `true` if quiet topics are missing: more were in use than the broker counts, or their names
    /// are longer than 1 KiB.
    pub is_partial: bool,
    /// The end of the time that was counted; in JSON seconds since 1970.
    #[serde(rename = "at_s", with = "unix_seconds")]
    pub at: SystemTime,
}

impl Default for TopicRates {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            seconds: 0.0,
            is_partial: false,
            at: SystemTime::UNIX_EPOCH,
        }
    }
}

/// The rate of one topic's messages from clients.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TopicRate {
    /// The topic of the messages.
    pub topic: String,
    /// Messages a second.
    pub messages_per_s: f64,
    /// Bytes of their payloads a second.
    pub payload_bytes_per_s: f64,
}

/// A request that the broker refused, or a client that it disconnected, as in a line of the log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Refusal {
    /// The refusal's number, from 1 since the broker's start.
    pub number: u64,
    /// The time of the refusal; in JSON seconds since 1970.
    #[serde(rename = "at_s", with = "unix_seconds")]
    pub at: SystemTime,
    /// The kind of refusal, as the log's line begins, such as `refused a log-in`.
    pub what: String,
    /// The client identifier, at most 128 characters of it.
    pub client_id: Option<String>,
    /// The user name, as the client gave it.
    pub user: Option<String>,
    /// The topic or the filter.
    pub topic: Option<String>,
    /// The peer's address.
    pub peer: Option<SocketAddr>,
    /// The reason of the refusal.
    pub reason: String,
}

/// The client, user or address that a ban refuses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Banned {
    /// A client identifier.
    Client(String),
    /// A user name.
    User(String),
    /// An IPv4 address, or the IPv6 network of 64 bits that an address is in.
    Address(IpAddr),
}

/// Writes the ban's kind and name, such as `client sensor-7`.
impl fmt::Display for Banned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(id) => write!(f, "client {id}"),
            Self::User(name) => write!(f, "user {name}"),
            Self::Address(address) => write!(f, "address {address}"),
        }
    }
}

/// A ban.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ban {
    /// The client, user or address that is banned.
    #[serde(flatten)]
    pub banned: Banned,
    /// The end of the ban; in JSON seconds since 1970.
    #[serde(rename = "ends_at_s", with = "unix_seconds")]
    pub ends_at: SystemTime,
}

/// The longest ban, in minutes: 30 days. Use access rules for a longer one.
pub const LONGEST_BAN_MINUTES: u32 = 30 * 24 * 60;

/// The reason for which a ban is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CannotBan {
    /// The ban has no time, or more than [`LONGEST_BAN_MINUTES`].
    #[error("a ban lasts from 1 to {LONGEST_BAN_MINUTES} minutes")]
    Minutes,
    /// The list has 10,000 bans already.
    #[error("too many bans are in force")]
    TooMany,
}

/// No client of that identifier is connected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no client {} is connected", Escaped(.0))]
#[non_exhaustive]
pub struct NotConnected(pub String);

fn since_1970(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

macro_rules! as_number {
    ($name:ident, $type:ty, $wire:ty, $to:expr, $from:expr) => {
        mod $name {
            use super::*;

            pub(super) fn serialize<S: serde::Serializer>(
                value: &$type,
                to: S,
            ) -> Result<S::Ok, S::Error> {
                let number: $wire = $to(*value);
                number.serialize(to)
            }

            pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
                from: D,
            ) -> Result<$type, D::Error> {
                Ok($from(<$wire>::deserialize(from)?))
            }
        }
    };
}

fn from_1970(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

as_number!(unix_seconds, SystemTime, u64, since_1970, from_1970);
as_number!(
    maybe_unix_seconds,
    Option<SystemTime>,
    Option<u64>,
    |at: Option<SystemTime>| at.map(since_1970),
    |seconds: Option<u64>| seconds.map(from_1970)
);
as_number!(
    seconds,
    Option<Duration>,
    Option<u64>,
    |time: Option<Duration>| time.map(|time| time.as_secs()),
    |seconds: Option<u64>| seconds.map(Duration::from_secs)
);
as_number!(
    microseconds,
    Option<Duration>,
    Option<u64>,
    |time: Option<Duration>| time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
    |micros: Option<u64>| micros.map(Duration::from_micros)
);
