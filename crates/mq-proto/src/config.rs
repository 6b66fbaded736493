//! The configuration of a connection.

use core::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use mq_codec::{Connect, MAX_REMAINING_LENGTH, QoS};
use mq_lane::Spread;

/// The largest packet that MQTT can carry: remaining length and a fixed header of five bytes.
const LARGEST_PACKET: u32 = MAX_REMAINING_LENGTH + 5;

/// Configuration of a client's connection.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The CONNECT to send. The packet's receive maximum, maximum packet size and topic alias maximum are replaced by
    /// the fields below.
    pub connect: Connect,
    /// Greatest number of QoS 1 and 2 messages that may be unacknowledged by the server at once; the server's Receive
    /// Maximum (§4.9) counts where it is smaller. Default 100: enough to fill a link of 100 ms at 1,000 messages a
    /// second.
    pub max_inflight: NonZeroU16,
    /// Greatest number of QoS 1 and 2 messages that the server may send before the first is acknowledged (5.0). Default
    /// 1,000.
    pub receive_maximum: NonZeroU16,
    /// The largest packet taken, in bytes, fixed header included; up to CONNACK 64 KiB at most. Default:
    /// what MQTT can carry, 256 MiB.
    pub max_packet_size: NonZeroU32,
    /// Greatest number of topic aliases that the server may use (5.0, §3.3.2.3.4). Default 16.
    pub topic_alias_maximum: u16,
    /// `true` to use the topic aliases that the server allows (5.0), 64 at most. Default `true`.
    pub use_topic_aliases: bool,
    /// Kind of data lanes that this client opens. Default [`DataLanes::None`].
    pub lanes: DataLanes,
    /// `true` if CONNECT asks for QoS 0 messages in datagrams (5.0, a user property). Default `false`.
    pub datagrams: bool,
    /// Spread that CONNECT asks for: the server then sends messages on lanes that it opens itself (5.0, a user
    /// property). `None` does not ask for such lanes. The link has to grant them to the server. Default `None`.
    pub deliveries: Option<Spread>,
    /// Time within which CONNACK has to be received, counted from [`connect`](crate::Connection::connect).
    /// Default 20 s.
    pub connack_timeout: Duration,
    /// Time after PINGREQ within which its answer or any other byte has to be received. Default 20 s.
    pub ping_timeout: Duration,
}

/// The data lanes of a client.
///
/// A client that has data lanes says in CONNECT (5.0, as a user property) that its packet identifiers are unique over
/// all lanes, so that a broken lane ends no exchange at a server that knows what it means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum DataLanes {
    /// No data lanes: the link has none, or this client opens none.
    #[default]
    None,
    /// Data lanes that carry packets alone.
    Plain,
    /// Data lanes that are flows. Each lane, the control lane as well, begins with the head of a flow, for a server
    /// with which the link has agreed on that, as by the application protocol `MQTT-next`. These flows are always new,
    /// and nothing of them is kept.
    #[cfg(feature = "mqtt-next")]
    Flows,
}

impl ClientConfig {
    /// Returns the default configuration around `connect`.
    #[must_use]
    pub fn new(connect: Connect) -> Self {
        Self {
            connect,
            max_inflight: NonZeroU16::MIN.saturating_add(99),
            receive_maximum: NonZeroU16::MIN.saturating_add(999),
            max_packet_size: NonZeroU32::MIN.saturating_add(LARGEST_PACKET - 1),
            topic_alias_maximum: 16,
            use_topic_aliases: true,
            lanes: DataLanes::None,
            datagrams: false,
            deliveries: None,
            connack_timeout: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(20),
        }
    }
}

/// Configuration of a server's connection to one client.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Time within which CONNECT has to be received, counted from [`server`](crate::Connection::server).
    /// Default 10 s.
    pub connect_timeout: Duration,
    /// Greatest number of QoS 1 and 2 messages that the client may send before the first is acknowledged; announced to
    /// and enforced on 5.0 clients. Default 1,024.
    pub receive_maximum: NonZeroU16,
    /// Greatest number of QoS 1 and 2 messages that may be unacknowledged by the client at once; the client's own
    /// Receive Maximum (§4.9) counts where it is smaller. Default 1,024.
    pub max_inflight: NonZeroU16,
    /// The largest packet taken, in bytes, fixed header included. Default 1 MiB.
    pub max_packet_size: NonZeroU32,
    /// The largest packet taken from a client before it is accepted, in bytes, fixed header included: CONNECT
    /// with its will, and AUTH. A larger one is refused with 0x95. Default 64 KiB, far more than a will and a
    /// token need; any stranger can make the server hold this much.
    pub max_connect_size: NonZeroU32,
    /// Greatest number of topic aliases that the client may use, and that the server uses (5.0, §3.3.2.3.4): each keeps
    /// a topic in memory. Default 64.
    pub topic_alias_maximum: u16,
    /// `true` to use the topic aliases that the client allows (5.0). Default `true`.
    pub use_topic_aliases: bool,
    /// The highest QoS at which a client may publish; a client that goes above it is disconnected
    /// `[MQTT-3.2.2-11]`. Default 2.
    pub maximum_qos: QoS,
    /// `false` if clients must not publish retained messages: a client that does is disconnected
    /// `[MQTT-3.2.2-14]`. Default `true`.
    pub retain_available: bool,
    /// `true` if strings of clients may have control characters and Unicode noncharacters. If `false`, such a
    /// packet is malformed (§1.5.4). Default `false`: otherwise any publisher could disconnect subscribers that
    /// refuse such characters (§5.4.9).
    pub allow_control_characters: bool,
    /// The longest keep-alive in seconds: replaces the client's if that is longer or 0 (5.0, §3.2.2.3.14). Default
    /// `None`: no limit.
    pub max_keep_alive: Option<u16>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            receive_maximum: NonZeroU16::MIN.saturating_add(1023),
            max_inflight: NonZeroU16::MIN.saturating_add(1023),
            max_packet_size: NonZeroU32::MIN.saturating_add((1 << 20) - 1),
            max_connect_size: NonZeroU32::MIN.saturating_add((1 << 16) - 1),
            topic_alias_maximum: 64,
            use_topic_aliases: true,
            maximum_qos: QoS::ExactlyOnce,
            retain_available: true,
            allow_control_characters: false,
            max_keep_alive: None,
        }
    }
}
