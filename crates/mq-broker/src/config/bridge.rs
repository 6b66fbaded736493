//! The `[[bridge]]` tables.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use mq_codec::{QoS, Version};
use mq_transport::{
    Address, ClientIdentity, CongestionControl, ConnectOptions, Repeat, Scheme, Trust,
};
use serde::Deserialize;

use super::{
    Mistakes, no_store, read_secret, set,
    tables::{OverflowName, milliseconds},
};
use crate::{
    BridgeNotifications, BridgeQueue, BridgeSettings, BridgeStart, BridgeTopic, Direction,
    Overflow, Settings,
};

/// A `[[bridge]]` table: a remote broker that this one is a client of; see [`BridgeSettings`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeConfig {
    /// The bridge's name at this broker.
    pub name: String,
    /// URLs of the remote broker, the preferred one first.
    pub address: Vec<String>,
    /// See [`BridgeSettings::plaintext`].
    #[serde(default)]
    pub plaintext: bool,
    /// The client identifier at the remote broker; `bridge-NAME-` and digits of this broker if
    /// absent.
    pub client_id: Option<String>,
    /// The user name at the remote broker.
    pub user_name: Option<String>,
    /// A file with the password or token, and nothing else but an end of line.
    pub password_file: Option<PathBuf>,
    /// Authorities that sign the remote broker's certificate; the system's if absent.
    pub ca: Option<PathBuf>,
    /// The only certificate that is trusted, by its SHA-256 fingerprint.
    pub fingerprint: Option<String>,
    /// The name in the remote broker's certificate; that of the address if absent.
    pub server_name: Option<String>,
    /// The client certificate, with its chain.
    pub certificate: Option<PathBuf>,
    /// The private key of the client certificate.
    pub key: Option<PathBuf>,
    /// `true` if CONNECT may be early data (0-RTT); `true` if absent.
    pub early_data: Option<bool>,
    /// `reno`, `cubic` or `bbr`, over QUIC and TCP; see [`ConnectOptions::congestion`].
    pub congestion: Option<String>,
    /// Milliseconds that a round trip over QUIC takes until one is measured; see [`initial_rtt`](mq_transport::QuicOptions::initial_rtt).
    pub initial_rtt_ms: Option<f64>,
    /// The repetition of packets over QUIC; see [`repeat`](mq_transport::QuicOptions::repeat).
    pub repeat: Option<String>,
    /// `5.0`, `3.1.1` or `3.1`; 5.0 if absent.
    pub mqtt: Option<String>,
    /// The keep-alive, in seconds; 60 if absent.
    pub keep_alive_s: Option<u16>,
    /// Seconds that an address has to answer, up to CONNACK; 10 if absent.
    pub connect_timeout_s: Option<u64>,
    /// The longest wait before a reconnection, in seconds; 30 if absent.
    pub reconnect_max_s: Option<NonZeroU32>,
    /// `true` if both sessions end with the connection; see [`BridgeSettings::clean`].
    #[serde(default)]
    pub clean: bool,
    /// `automatic`, the default, or `lazy`.
    pub start: Option<Start>,
    /// Seconds without a message after which a lazy bridge disconnects; 60 if absent.
    pub idle_timeout_s: Option<u64>,
    /// See [`BridgeSettings::max_hops`].
    pub max_hops: Option<u8>,
    /// See [`BridgeSettings::equal_per_s`].
    pub equal_per_s: Option<NonZeroU32>,
    /// `true` if the bridge's state is published in a retained message; `true` if absent.
    pub notifications: Option<bool>,
    /// `true` if only this broker publishes the state; `true` if absent.
    pub notifications_local_only: Option<bool>,
    /// See [`BridgeSettings::notification_topic`].
    pub notification_topic: Option<String>,
    /// Bounds of the messages that wait for the bridge.
    #[serde(default)]
    pub queue: QueueConfig,
    /// The topics that the bridge carries.
    pub topic: Vec<TopicConfig>,
}

/// A `[bridge.queue]` table; see [`BridgeQueue`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// Messages in memory.
    pub messages: Option<usize>,
    /// Their payload bytes.
    pub bytes: Option<usize>,
    /// The policy for QoS 1 and 2 messages beyond these bounds.
    pub overflow: Option<OverflowName>,
    /// Payload bytes that wait in the store.
    pub spill_bytes: Option<usize>,
    /// Seconds after which a message that waits is dropped.
    pub age_s: Option<NonZeroU32>,
}

/// The condition on which a bridge connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// The bridge connects at once, and always.
    Automatic,
    /// The bridge connects while messages wait for it.
    Lazy,
}

/// A `[[bridge.topic]]` table; see [`BridgeTopic`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicConfig {
    /// A topic filter, without the prefixes.
    #[serde(default)]
    pub pattern: String,
    /// `out`, the default, `in` or `both`.
    pub direction: Option<Direction>,
    /// The highest QoS; 1 if absent.
    pub qos: Option<u8>,
    /// Prefix of the topics at this broker.
    #[serde(default)]
    pub local_prefix: String,
    /// Prefix that replaces it at the remote broker.
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
        let timeout = self.connect_timeout_s.map(Duration::from_secs);
        set(&mut settings.connect_timeout, timeout);
        if let Some(seconds) = self.reconnect_max_s {
            settings.longest_wait = Duration::from_secs(seconds.get().into());
        }
        settings.clean = self.clean;
        settings.start = match (self.start, self.idle_timeout_s) {
            (Some(Start::Lazy), timeout) => {
                BridgeStart::Lazy(Duration::from_secs(timeout.unwrap_or(60)))
            }
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
