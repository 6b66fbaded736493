//! The settings of a bridge to a remote broker.

use std::{num::NonZeroU32, time::Duration};

use mq_codec::{QoS, Version};
use mq_transport::{Address, ConnectOptions};

use crate::{
    Secret,
    mailbox::{DEFAULT_EQUAL_PER_S, Overflow},
};

/// A bridge to a remote broker.
#[derive(Clone, Debug)]
pub struct BridgeSettings {
    /// The bridge's name at this broker, where its session has the client identifier
    /// `$bridge/NAME`.
    pub name: String,
    /// Addresses of the remote broker, the preferred one first; at least one. An address without
    /// encryption must be on this machine, unless [`plaintext`](Self::plaintext) is set.
    pub addresses: Vec<Address>,
    /// `true` if addresses of other machines may be without encryption. Default `false`.
    pub plaintext: bool,
    /// Trust, client certificate, early data and other options. Early data (0-RTT) carries CONNECT
    /// alone, of a session that continues, which is safe to repeat. Default: with early data.
    pub connect: ConnectOptions,
    /// The time that an address has to answer, up to CONNACK. Default 10 s.
    pub connect_timeout: Duration,
    /// The longest wait before a reconnection. The first wait is 0.5 s, each further one twice as
    /// long, until a connection has lasted; a random part of up to half of each is left out.
    /// Default 30 s.
    pub longest_wait: Duration,
    /// The client identifier at the remote broker, where no other broker may have it. Default:
    /// `bridge-NAME-` and the 12 digits of the [`BrokerId`](crate::store::BrokerId) in the store.
    /// Without a store: the name of the machine or, where that has none, other digits at each
    /// start; the session at the remote broker then ends an hour after its connection and, before
    /// 5.0, with it. In a cluster: `bridge-NAME`.
    pub client_id: Option<String>,
    /// The user name at the remote broker.
    pub user_name: Option<String>,
    /// The user's password, or a token.
    pub password: Option<Secret>,
    /// The version of MQTT. Default 5.0.
    pub version: Version,
    /// The keep-alive, in whole seconds. Default 60 s.
    pub keep_alive: Duration,
    /// `true` if both sessions, at this and at the remote broker, end with the connection: nothing
    /// waits for the next one. Default `false`.
    pub clean: bool,
    /// The condition on which the bridge connects. Default: at once, and always.
    pub start: BridgeStart,
    /// The topics that the bridge carries; at least one.
    pub topics: Vec<BridgeTopic>,
    /// The bridges that a message may have passed before this one (5.0). Default 8. No message
    /// passes the same broker twice.
    pub max_hops: u8,
    /// Messages of equal topic and payload that the bridge carries each second; more are taken for
    /// a loop, dropped and counted, so that it ends. While more arrive, one a second is carried.
    /// Default 20. Messages that no bridge has brought to this broker are not bounded.
    pub equal_per_s: NonZeroU32,
    /// Bounds of the messages that wait for the bridge. Default: as for every session.
    pub queue: BridgeQueue,
    /// The brokers that publish the bridge's state. Default: this broker.
    pub notifications: BridgeNotifications,
    /// The topic of the bridge's state. Default: mosquitto's,
    /// `$SYS/broker/connection/CLIENTID/state`, with the client identifier at the remote broker.
    pub notification_topic: Option<String>,
}

/// The brokers that publish the bridge's state, a retained message at QoS 1: `1` while the remote
/// broker has accepted the bridge's connection, `0` otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum BridgeNotifications {
    /// The state is not published.
    Off,
    /// This broker publishes the state. No store keeps it: a broker that starts publishes the
    /// present state.
    #[default]
    Here,
    /// Both brokers publish the state: the bridge's client publishes it at the remote broker, and
    /// has the `0` as its will. A broker that supports no retained messages or no QoS 1, or takes
    /// no message under `$SYS/` from a client, may refuse the bridge.
    Both,
}

/// Bounds of the messages that wait for a bridge. An absent one is that of every session, in [`Quotas`](crate::Quotas).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BridgeQueue {
    /// Messages in memory.
    pub messages: Option<usize>,
    /// Their payload bytes.
    pub bytes: Option<usize>,
    /// The policy for QoS 1 and 2 messages beyond these bounds.
    pub overflow: Option<Overflow>,
    /// Bytes that [`Overflow::Spill`] puts into the store.
    pub spill_bytes: Option<usize>,
    /// The longest time that a message waits: an older one is dropped and counted when it is its
    /// turn. A message that expires (5.0) after a longer time has no more than this left at the
    /// remote broker. `None` is no bound.
    pub age: Option<Duration>,
}

/// The condition on which a bridge connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum BridgeStart {
    /// The bridge connects at once, and again whenever a connection has ended.
    #[default]
    Automatic,
    /// The bridge connects while messages wait for it. A connection that has carried nothing for so long ends. Messages
    /// of the remote broker arrive only while the bridge is connected.
    Lazy(Duration),
}

/// Topics that a bridge carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgeTopic {
    /// A topic filter, without the prefixes. May be empty if the prefixes are whole topics.
    pub pattern: String,
    /// The direction. Default [`Direction::Out`].
    pub direction: Direction,
    /// The highest QoS. Default 1.
    pub qos: QoS,
    /// Prefix of the topics at this broker, before the part that the pattern matches. Default:
    /// none.
    pub local_prefix: String,
    /// Prefix that replaces it at the remote broker. Default: none.
    pub remote_prefix: String,
}

/// The direction in which a bridge carries messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Messages go from this broker to the remote one.
    Out,
    /// Messages go from the remote broker to this one.
    In,
    /// Messages go in both directions.
    Both,
}

impl BridgeTopic {
    /// Returns the defaults for a pattern.
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
    /// Returns the defaults.
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
