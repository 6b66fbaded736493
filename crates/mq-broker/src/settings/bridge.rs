//! The settings of a bridge to a remote broker.

use std::{num::NonZeroU32, time::Duration};

use mq_codec::{QoS, Version};
use mq_transport::{Address, ConnectOptions};

use crate::{
    Secret,
    mailbox::{DEFAULT_EQUAL_PER_S, Overflow},
};

/// A bridge to another broker.
#[derive(Clone, Debug)]
pub struct BridgeSettings {
    /// What it is called here; its session is that of the client identifier `$bridge/NAME`.
    pub name: String,
    /// Where the other broker is, the preferred address first; at least one. Without encryption only on this
    /// machine, unless [`plaintext`](Self::plaintext) says otherwise.
    pub addresses: Vec<Address>,
    /// Whether addresses of other machines may be without encryption. Default no.
    pub plaintext: bool,
    /// Trust, client certificate, early data and the like. Early data (0-RTT) carries CONNECT alone, of a session
    /// that goes on, which is safe to repeat. Default: with early data.
    pub connect: ConnectOptions,
    /// How long an address has to answer, up to CONNACK. Default 10 s.
    pub connect_timeout: Duration,
    /// The longest wait before it connects again. The first is 0.5 s, each further one twice as long, until a
    /// connection has lasted; up to half of a wait is left out by chance. Default 30 s.
    pub longest_wait: Duration,
    /// The client identifier at the other broker, which no two brokers may have. Default: `bridge-NAME-` and the
    /// 12 digits of the [`BrokerId`](crate::store::BrokerId) in the store. Without a store: the name of the machine or,
    /// where that has none, other digits at each start; the session there then ends an hour after its connection
    /// and, before 5.0, with it. In a cluster: `bridge-NAME`.
    pub client_id: Option<String>,
    /// The user at the other broker.
    pub user_name: Option<String>,
    /// Its password, or a token.
    pub password: Option<Secret>,
    /// Default 5.0.
    pub version: Version,
    /// Whole seconds. Default 60 s.
    pub keep_alive: Duration,
    /// Whether both sessions, here and there, end with the connection: nothing waits for the next one. Default no.
    pub clean: bool,
    /// When it connects. Default: at once, and always.
    pub start: BridgeStart,
    /// What it carries; at least one.
    pub topics: Vec<BridgeTopic>,
    /// The bridges that a message may have passed before this one (5.0). Default 8. None passes the same broker
    /// twice.
    pub max_hops: u8,
    /// Messages a second of equal topic and payload that go from one bridge to this one; more are taken for a loop, dropped
    /// and counted, so that it ends. While more come, one a second goes out. Default 20. Messages that no bridge has
    /// brought to this broker are not bounded.
    pub equal_per_s: NonZeroU32,
    /// What may wait for it. Default: as for every session.
    pub queue: BridgeQueue,
    /// Who is told whether it is connected. Default: subscribers of this broker.
    pub notifications: BridgeNotifications,
    /// The topic that tells it. Default: mosquitto's, `$SYS/broker/connection/CLIENTID/state`, with the client
    /// identifier at the other broker.
    pub notification_topic: Option<String>,
}

/// Who is told whether a bridge is connected, by a retained message: `1` while the other broker has let it in, `0`
/// otherwise. Both are sent at QoS 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BridgeNotifications {
    /// Nobody.
    Off,
    /// Subscribers of this broker. No store keeps it: a broker that starts says what is so.
    #[default]
    Here,
    /// Those of the other broker as well, where the bridge's client publishes it, and has the `0` as its will. A
    /// broker that takes no retained messages, no QoS 1 or no client's message under `$SYS/` may refuse the bridge.
    Both,
}

/// Bounds of the messages that wait for a bridge. An absent one is that of every session, in [`Quotas`](crate::Quotas).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BridgeQueue {
    /// Messages in memory.
    pub messages: Option<usize>,
    /// Their payload bytes.
    pub bytes: Option<usize>,
    /// What becomes of QoS 1 and 2 messages beyond that.
    pub overflow: Option<Overflow>,
    /// Bytes that [`Overflow::Spill`] puts into the store.
    pub spill_bytes: Option<usize>,
    /// Messages that have waited for longer are dropped and counted, when it is their turn. A message that expires
    /// (5.0) after a longer time has no more than this left at the other broker. Absent: none is too old.
    pub age: Option<Duration>,
}

/// When a bridge connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BridgeStart {
    /// At once, and again whenever a connection has ended.
    #[default]
    Automatic,
    /// While something waits here. A connection that has carried nothing for so long ends. Messages from there come
    /// only meanwhile.
    Lazy(Duration),
}

/// Topics that a bridge carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgeTopic {
    /// A topic filter, without the prefixes. May be empty if they are whole topics.
    pub pattern: String,
    /// Default: out.
    pub direction: Direction,
    /// The highest QoS. Default 1.
    pub qos: QoS,
    /// What topics begin with here, before the part that the pattern matches. Default: nothing.
    pub local_prefix: String,
    /// What they begin with there in its place. Default: nothing.
    pub remote_prefix: String,
}

/// Which way a bridge carries messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From here to the other broker.
    Out,
    /// From the other broker to here.
    In,
    /// Either way.
    Both,
}

impl BridgeTopic {
    /// The defaults for a pattern.
    #[must_use]
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            direction: Direction::Out,
            qos: QoS::AtLeastOnce,
            local_prefix: String::new(),
            remote_prefix: String::new(),
        }
    }
}

impl BridgeSettings {
    /// The defaults.
    #[must_use]
    pub fn new(name: impl Into<String>, addresses: Vec<Address>, topics: Vec<BridgeTopic>) -> Self {
        Self {
            name: name.into(),
            addresses,
            plaintext: false,
            connect: ConnectOptions::new().early_data(true),
            connect_timeout: Duration::from_secs(10),
            longest_wait: Duration::from_secs(30),
            client_id: None,
            user_name: None,
            password: None,
            version: Version::V5,
            keep_alive: Duration::from_mins(1),
            clean: false,
            start: BridgeStart::Automatic,
            topics,
            max_hops: 8,
            equal_per_s: DEFAULT_EQUAL_PER_S,
            queue: BridgeQueue::default(),
            notifications: BridgeNotifications::default(),
            notification_topic: None,
        }
    }
}
