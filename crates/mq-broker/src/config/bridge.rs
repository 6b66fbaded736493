//! The `[[bridge]]` tables.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use mq_codec::{QoS, Version};
use mq_transport::{
    Address, ClientIdentity, CongestionControl, ConnectOptions, Repeat, Scheme, Trust,
};
use serde::Deserialize;

use super::{
    Mistakes, NO_MESSAGE, OverflowName, no_store, read_secret, seconds_from, set,
    tables::milliseconds,
};
use crate::{
    BridgeNotifications, BridgeQueue, BridgeSettings, BridgeStart, BridgeTopic, Direction,
    Overflow, Settings,
};

/// A `[[bridge]]` table: a remote broker that this one is a client of ([`BridgeSettings`]).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BridgeConfig {
    /// The bridge's name at this broker, of letters, digits, `-`, `_` and `.`. Required.
    pub name: String,
    /// URLs of the remote broker, the preferred one first; at least one.
    pub address: Vec<String>,
    /// `true` if `tcp://` and `ws://` addresses may lead to other machines. Default: `false`.
    #[serde(default)]
    pub plaintext: bool,
    /// The client identifier at the remote broker. Default: `bridge-NAME-` and 12 digits of this broker; see
    /// [`BridgeSettings::client_id`].
    pub client_id: Option<String>,
    /// The user name at the remote broker. Default: none.
    pub user_name: Option<String>,
    /// File with the password or token, and nothing else but an end of line. Default: none.
    pub password_file: Option<PathBuf>,
    /// File with the authorities that sign the remote broker's certificate, PEM. Default: the system's.
    pub ca: Option<PathBuf>,
    /// SHA-256 fingerprint of the only certificate that is trusted, in the place of `ca`: 64 hexadecimal digits.
    /// Default: none.
    pub fingerprint: Option<String>,
    /// The name in the remote broker's certificate. Default: the host of the address.
    pub server_name: Option<String>,
    /// File with the client certificate and its chain, PEM; needs `key`. Default: none.
    pub certificate: Option<PathBuf>,
    /// File with the private key of `certificate`, PEM. Default: none.
    pub key: Option<PathBuf>,
    /// `true` if CONNECT may be early data (0-RTT). Default: `true`.
    pub early_data: Option<bool>,
    /// Congestion control over QUIC and TCP: `reno`, `cubic` or `bbr`. Default: CUBIC over QUIC, the system's over
    /// TCP.
    pub congestion: Option<String>,
    /// Round-trip time over QUIC in milliseconds that is assumed until one is measured, from 0.001 to 60,000.
    /// Default: 333; see `QuicOptions::initial_rtt`.
    pub initial_rtt_ms: Option<f64>,
    /// Policy by which small datagrams over QUIC are sent a second time, a [`Repeat`] as text. Default: `off`.
    pub repeat: Option<String>,
    /// The version of MQTT: `5.0`, `3.1.1` or `3.1`. Default: `5.0`.
    pub mqtt: Option<String>,
    /// The keep-alive, in seconds. Default: 60.
    pub keep_alive_s: Option<u16>,
    /// Seconds that an address has to answer, up to CONNACK. Default: 10.
    pub connect_timeout_s: Option<u32>,
    /// The longest wait before a reconnection, in seconds, 1 at least; the first is 0.5 s. Default: 30.
    pub reconnect_max_s: Option<NonZeroU32>,
    /// `true` if the sessions at both brokers end with the connection: nothing waits for the next one. Default:
    /// `false`.
    #[serde(default)]
    pub clean: bool,
    /// Condition on which the bridge connects: `automatic` or `lazy`. Default: `automatic`.
    pub start: Option<Start>,
    /// Seconds without a message after which a bridge with `start = "lazy"` disconnects. Default: 60.
    pub idle_timeout_s: Option<u32>,
    /// Bridges that a message may have passed before this one (5.0), from 0 to 255. Default: 8.
    pub max_hops: Option<u8>,
    /// Messages of equal topic and payload that the bridge carries each second, 1 at least; more count as a loop and
    /// are dropped. Default: 20; see [`BridgeSettings::equal_per_s`].
    pub equal_per_s: Option<NonZeroU32>,
    /// `true` if the bridge's state is published in a retained message. Default: `true`.
    pub notifications: Option<bool>,
    /// `true` if only this broker publishes the state. Default: `true`.
    pub notifications_local_only: Option<bool>,
    /// Topic of the bridge's state. Default: `$SYS/broker/connection/CLIENTID/state`, with the client identifier at
    /// the remote broker.
    pub notification_topic: Option<String>,
    /// Bounds of the messages that wait for the bridge. Default: those of every session.
    #[serde(default)]
    pub queue: QueueConfig,
    /// Topics that the bridge carries; at least one.
    pub topic: Vec<TopicConfig>,
}

/// A `[bridge.queue]` table: bounds of the messages that wait for a bridge ([`BridgeQueue`]). An absent key has the
/// value of `[limits]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct QueueConfig {
    /// Messages that wait in memory: 1 at least.
    pub messages: Option<usize>,
    /// Payload bytes that wait in memory.
    pub bytes: Option<usize>,
    /// Policy for QoS 1 and 2 messages beyond these bounds: `spill`, `evict`, `drop-oldest` or `wait`.
    pub overflow: Option<OverflowName>,
    /// Bytes that may wait in the store.
    pub spill_bytes: Option<usize>,
    /// Seconds after which a message that waits is dropped, 1 at least. Default: no bound.
    pub age_s: Option<NonZeroU32>,
}

/// The condition on which a bridge connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Start {
    /// The bridge connects at once, and always.
    Automatic,
    /// The bridge connects while messages wait for it.
    Lazy,
}

/// A `[[bridge.topic]]` table: topics that a bridge carries ([`BridgeTopic`]).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TopicConfig {
    /// Topic filter, without the prefixes; may be empty if the prefixes are whole topics.
    #[serde(default)]
    pub pattern: String,
    /// Direction of the messages: `out`, `in` or `both`. Default: `out`.
    pub direction: Option<Direction>,
    /// Highest QoS at which messages are carried: 0, 1 or 2. Default: 1.
    pub qos: Option<u8>,
    /// Prefix of the topics at this broker. Default: none.
    #[serde(default)]
    pub local_prefix: String,
    /// Prefix that replaces `local_prefix` at the remote broker. Default: none.
    #[serde(default)]
    pub remote_prefix: String,
}

impl BridgeConfig {
    pub(super) fn apply(self, settings: &mut Settings, mistakes: &mut Mistakes) {
        let table = format!("bridge {:?}: ", self.name);
        let others = &settings.bridges;
        let bridge = mistakes.within(table, |mistakes| {
            if others.iter().any(|other| other.name == self.name) {
                mistakes.push("two bridges have this name");
            }
            let bridge = self.into_settings(mistakes);
            if bridge.queue.overflow == Some(Overflow::Spill) && settings.store.is_none() {
                mistakes.push(format!("queue.overflow: {}", no_store(settings)));
            }
            if bridge.queue.messages == Some(0) {
                mistakes.push(format!("queue.messages: {NO_MESSAGE}"));
            }
            let mut told = others.iter().map(BridgeSettings::state_topic);
            if let Some(topic) = bridge.state_topic()
                && told.any(|other| other.as_ref() == Some(&topic))
            {
                mistakes.push(format!(
                    "another one tells its state under {topic:?} too: give one a `notification_topic`"
                ));
            }
            bridge
        });
        settings.bridges.extend(bridge);
    }

    /// Returns the settings of the table; those of keys that are wrong have their defaults.
    fn into_settings(self, mistakes: &mut Mistakes) -> BridgeSettings {
        let before = mistakes.all.len();
        let addresses = self.address.iter().filter_map(|url| {
            let address = url.parse::<Address>();
            mistakes.note(address.map_err(|error| format!("address: {error}")))
        });
        let addresses = addresses.collect();
        let topics = self
            .topic
            .into_iter()
            .map(|topic| topic.into_topic(mistakes));
        let topics = topics.collect();
        let mut settings = BridgeSettings::new(self.name, addresses, topics);
        settings.plaintext = self.plaintext;
        settings.client_id = self.client_id;
        settings.user_name = self.user_name;
        if let Some(path) = self.password_file {
            settings.password = mistakes.note(read_secret(&path)).map(Into::into);
        }
        let connect = &mut settings.connect;
        connect.trust = match (self.ca, self.fingerprint) {
            (Some(ca), fingerprint) => {
                if fingerprint.is_some() {
                    mistakes.push("give ca or fingerprint, not both");
                }
                Trust::ca_file(ca)
            }
            (None, Some(fingerprint)) => Trust::Fingerprint(fingerprint),
            (None, None) => Trust::System,
        };
        connect.server_name = self.server_name;
        connect.identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some(ClientIdentity::new(certificate, key)),
            (None, None) => None,
            _ => {
                mistakes.push("give certificate and key, or neither");
                None
            }
        };
        set(&mut connect.early_data, self.early_data);
        let mut addresses = settings.addresses.iter();
        let is_quic = addresses.any(|address| address.scheme == Scheme::Quic);
        recover(
            connect,
            is_quic,
            self.congestion,
            self.initial_rtt_ms,
            self.repeat,
            mistakes,
        );
        if let Some(version) = self.mqtt {
            match version.as_str() {
                "5.0" | "5" => settings.version = Version::V5,
                "3.1.1" => settings.version = Version::V3_1_1,
                "3.1" => settings.version = Version::V3_1,
                _ => mistakes.push(format!("mqtt: {version:?} is not 5.0, 3.1.1 or 3.1")),
            }
        }
        let seconds = |seconds: u16| Duration::from_secs(seconds.into());
        set(&mut settings.keep_alive, self.keep_alive_s.map(seconds));
        let timeout = self.connect_timeout_s.map(seconds_from);
        set(&mut settings.connect_timeout, timeout);
        if let Some(seconds) = self.reconnect_max_s {
            settings.longest_wait = Duration::from_secs(seconds.get().into());
        }
        settings.clean = self.clean;
        settings.start = match (self.start, self.idle_timeout_s) {
            (Some(Start::Lazy), timeout) => BridgeStart::Lazy(seconds_from(timeout.unwrap_or(60))),
            (_, timeout) => {
                if timeout.is_some() {
                    mistakes.push("idle_timeout_s is for `start = \"lazy\"`");
                }
                BridgeStart::Automatic
            }
        };
        set(&mut settings.max_hops, self.max_hops);
        set(&mut settings.equal_per_s, self.equal_per_s);
        settings.notifications = match (self.notifications, self.notifications_local_only) {
            (Some(false), _) => BridgeNotifications::Off,
            (_, Some(false)) => BridgeNotifications::Both,
            _ => BridgeNotifications::Here,
        };
        settings.notification_topic = self.notification_topic;
        settings.queue = self.queue.into_queue();
        // A check of what is left after a mistake would find what follows from that.
        if mistakes.all.len() == before {
            mistakes.note(settings.check().map(drop));
        }
        settings
    }
}

/// Sets how the bridge's connections recover from loss.
fn recover(
    connect: &mut ConnectOptions,
    is_quic: bool,
    congestion: Option<String>,
    initial_rtt_ms: Option<f64>,
    repeat: Option<String>,
    mistakes: &mut Mistakes,
) {
    if !is_quic && (initial_rtt_ms.is_some() || repeat.is_some()) {
        mistakes.push("initial_rtt_ms and repeat are for addresses over quic://");
    }
    if let Some(control) = congestion {
        let control = control.parse::<CongestionControl>();
        connect.congestion = mistakes.note(control.map_err(|error| format!("congestion: {error}")));
    }
    let quic = &mut connect.quic;
    let time = milliseconds("initial_rtt_ms", initial_rtt_ms);
    set(&mut quic.initial_rtt, mistakes.note(time).flatten());
    if let Some(policy) = repeat {
        let policy = policy.parse::<Repeat>();
        let policy = policy.map_err(|error| format!("repeat: {error}"));
        set(&mut quic.repeat, mistakes.note(policy));
    }
}

impl QueueConfig {
    fn into_queue(self) -> BridgeQueue {
        let age = self.age_s.map(NonZeroU32::get);
        BridgeQueue {
            messages: self.messages,
            bytes: self.bytes,
            overflow: self.overflow.map(Into::into),
            spill_bytes: self.spill_bytes,
            age: age.map(|seconds| Duration::from_secs(seconds.into())),
        }
    }
}

impl TopicConfig {
    fn into_topic(self, mistakes: &mut Mistakes) -> BridgeTopic {
        let mut topic = BridgeTopic::new(self.pattern);
        set(&mut topic.direction, self.direction);
        if let Some(qos) = self.qos {
            match QoS::from_bits(qos) {
                Some(qos) => topic.qos = qos,
                None => mistakes.push(format!("topic.qos: {qos} is not 0, 1 or 2")),
            }
        }
        topic.local_prefix = self.local_prefix;
        topic.remote_prefix = self.remote_prefix;
        topic
    }
}
