//! A cell of a campaign: a combination of levels, run once.

use std::{num::NonZeroU32, time::Duration};

use mq_client::{QuicStreams, Spread};
use mq_codec::QoS;
use mq_netem::Link;
use mq_transport::{AckFrequency, CongestionControl, CryptoOptions, QuicOptions, Repeat, Scheme};
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use crate::{
    clock::nanoseconds,
    mqtt::MqttVersion,
    testbed::{Network, TcpTuning, Topology},
    workload::{half_open::Phase, handover::OnHandover, resumption::Resumption},
};

/// Configuration of a cell with the keys of a campaign file, every default filled in.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cell {
    pub(crate) pattern: Pattern,
    pub(crate) transport: Transport,
    /// The link of the topology; `None` for a perfect link.
    pub(crate) link: Option<String>,
    /// The subscriber's link; `None` for the topology's link.
    pub(crate) sub_link: Option<String>,
    pub(crate) topology: Topology,
    /// The link from each host of a row to the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uplink: Option<String>,
    /// Packet loss in every shaped direction of `uplink`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uplink_loss: Option<String>,
    /// Duration of the outage in which the last uplink carries nothing, in the middle of the messages; `None` for no
    /// outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outage_ns: Option<u64>,
    /// Transport of the bridges of a row; `None` for QUIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bridge: Option<Transport>,
    /// Number of hosts in the row; `None` for two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tiers: Option<u8>,
    /// A shared medium instead of the publisher's link.
    pub(crate) medium: Option<String>,
    /// Number of publishers on the medium.
    pub(crate) stations: u8,
    /// Packet loss in every shaped direction of `link`, or frame error rate of `medium`.
    pub(crate) loss: Option<String>,
    /// Greatest number of MAC retries of a frame; `None` for the medium's own.
    pub(crate) retries: Option<u8>,
    /// Number of messages, or of jobs; for `connect` and `reconnect` of connections, for `storm` of devices.
    pub(crate) messages: u64,
    /// Length of a payload, in bytes.
    pub(crate) size: usize,
    pub(crate) interval_ns: u64,
    /// Number of messages that are due together, every interval.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) burst: NonZeroU32,
    /// Number of topics to which messages are published in turn.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) topics: NonZeroU32,
    /// Assignment of messages and subscriptions to the client's QUIC streams.
    #[serde(default, skip_serializing_if = "is_default", with = "text")]
    pub(crate) streams: Spread,
    /// Assignment of messages to the broker's own QUIC streams, as the client requests it.
    #[serde(default, skip_serializing_if = "is_default", with = "text")]
    pub(crate) deliveries: Spread,
    /// `true` if QoS 0 messages are sent as QUIC datagrams.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) datagrams: bool,
    pub(crate) qos: u8,
    pub(crate) mqtt: MqttVersion,
    #[serde(with = "text")]
    pub(crate) tcp_congestion: CongestionControl,
    #[serde(with = "text")]
    pub(crate) quic_congestion: CongestionControl,
    /// The version of TLS over TCP; `None` for the newest, 1.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_version: Option<String>,
    /// Key-exchange group of TLS and QUIC; `None` for X25519.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Bytes by which the broker's certificate is larger than one of P-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate_padding: Option<u16>,
    /// Round-trip time that QUIC assumes before its first measurement; `None` in records of an earlier version, which
    /// do not have it.
    pub(crate) initial_rtt_ns: Option<u64>,
    /// Policy by which small QUIC datagrams are repeated, of clients and broker.
    #[serde(default, skip_serializing_if = "is_default", with = "text")]
    pub(crate) repeat: Repeat,
    /// `true` if clients and broker probe for a larger QUIC path MTU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) mtu_discovery: bool,
    /// QUIC's initial congestion window in packets of 1,200 bytes; `None` for the default of its congestion control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) initial_window: Option<u32>,
    /// Reordering threshold in packets after which QUIC declares a packet lost; `None` for 3 (RFC 9002 §6.1.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) packet_threshold: Option<u32>,
    /// Reordering threshold in round-trip times after which QUIC declares a packet lost; `None` for 1.125 (RFC 9002
    /// §6.1.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_threshold: Option<f32>,
    /// Longest delay of an acknowledgement that QUIC requests of its peer; `None` for the peer's own 25 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_ack_delay_ns: Option<u64>,
    /// TCP's minimum retransmission timeout; `None` for the kernel's 200 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tcp_rto_min_ns: Option<u64>,
    /// `true` if TCP's retransmission timeouts are linear in thin flows, without exponential backoff.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tcp_thin: bool,
    /// TCP Fast Open of clients and broker.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) tcp_fast_open: FastOpen,
    pub(crate) resumption: Resumption,
    /// The link that replaces `link` at the publisher's host for the second half of the messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handover: Option<String>,
    /// The publisher's reaction to the hand-over.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) on_handover: OnHandover,
    /// MQTT's keep-alive; `None` for a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keep_alive_s: Option<u16>,
    /// The phase in which the clients of `half-open` vanish; `None` for a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<Phase>,
    /// Fate of the broker's session tickets in the restart of `storm`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) tickets: Tickets,
}

/// Fate of a broker's session tickets when it is restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tickets {
    /// The next broker reads the tickets from a file.
    #[default]
    Kept,
    /// The next broker accepts no earlier ticket.
    Lost,
}

/// TCP Fast Open of a cell's clients and broker (RFC 7413).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FastOpen {
    /// None.
    #[default]
    Off,
    /// With a cookie that the first connection brings.
    Kept,
    /// With a cookie that the broker's host takes no more after the first connection.
    Lost,
}

impl FastOpen {
    pub(crate) fn is_used(self) -> bool {
        self != Self::Off
    }
}

/// The transport that carries MQTT.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    Tcp,
    Tls,
    Quic,
}

impl Transport {
    pub(crate) fn scheme(self) -> Scheme {
        match self {
            Self::Tcp => Scheme::Tcp,
            Self::Tls => Scheme::Tls,
            Self::Quic => Scheme::Quic,
        }
    }
}

impl Default for Cell {
    /// Returns S22's workload (table 3) over TLS, on a perfect network.
    fn default() -> Self {
        Self {
            pattern: Pattern::Periodic,
            transport: Transport::Tls,
            link: None,
            sub_link: None,
            topology: Topology::Publisher,
            uplink: None,
            uplink_loss: None,
            outage_ns: None,
            bridge: None,
            tiers: None,
            medium: None,
            stations: 1,
            loss: None,
            retries: None,
            messages: 1000,
            size: 100,
            interval_ns: 1_000_000_000,
            burst: one(),
            topics: one(),
            streams: Spread::Control,
            deliveries: Spread::Control,
            datagrams: false,
            qos: 0,
            // The version of all four papers' clients.
            mqtt: MqttVersion::V3_1_1,
            // The default of nearly every kernel, and the same for QUIC.
            tcp_congestion: CongestionControl::Cubic,
            quic_congestion: CongestionControl::Cubic,
            tls_version: None,
            group: None,
            certificate_padding: None,
            initial_rtt_ns: Some(nanoseconds(QuicOptions::default().initial_rtt)),
            repeat: Repeat::Off,
            mtu_discovery: false,
            initial_window: None,
            packet_threshold: None,
            time_threshold: None,
            max_ack_delay_ns: None,
            tcp_rto_min_ns: None,
            tcp_thin: false,
            tcp_fast_open: FastOpen::Off,
            resumption: Resumption::Full,
            handover: None,
            on_handover: OnHandover::Stay,
            keep_alive_s: None,
            phase: None,
            tickets: Tickets::Kept,
        }
    }
}

impl Cell {
    /// Describes the network that the cell runs in.
    pub(crate) fn network(&self) -> Result<Network, mq_netem::Error> {
        let [publisher, subscriber] = self.links();
        if self.topology.is_row() {
            return Network::row(
                publisher.as_deref(),
                &self.uplinks(),
                subscriber.as_deref(),
                self.topology == Topology::Direct,
                self.outage(),
            );
        }
        let Some(medium) = &self.medium else {
            let network =
                Network::links(self.topology, publisher.as_deref(), subscriber.as_deref())?;
            return match &self.handover {
                None => Ok(network),
                Some(next) => network.with_next_link(&self.changed(next)),
            };
        };
        let retries = self.retries.map(|retries| format!("retries={retries}"));
        let medium = with_changes(medium, [self.lossy("frame_error_rate"), retries]);
        Network::channel(&medium, self.stations, self.sub_link.as_deref())
    }

    /// Returns the names of the publisher's link and the subscriber's, with their changes.
    pub(crate) fn links(&self) -> [Option<String>; 2] {
        let link = self.link.as_ref();
        let link = link.map(|name| self.changed(name));
        let own = self.sub_link.as_deref();
        let subscriber = self.topology.subscriber_link(link.as_deref(), own);
        let subscriber = subscriber.map(str::to_owned);
        [link, subscriber]
    }

    /// Returns a link's name, with the cell's own loss.
    fn changed(&self, link: &str) -> String {
        with_changes(link, [self.lossy("loss"), None])
    }

    fn lossy(&self, key: &str) -> Option<String> {
        self.loss.as_ref().map(|loss| format!("{key}={loss}"))
    }

    /// Returns the links' own delay from publisher to subscriber; `None` on a channel, whose delay depends on its use.
    pub(crate) fn one_way(&self) -> Option<Duration> {
        let up = Link::load(self.link.as_ref()?).ok()?;
        let down = match &self.sub_link {
            Some(name) => Link::load(name).ok()?.down.delay,
            None if matches!(self.topology, Topology::Both | Topology::Shared) => up.down.delay,
            None => Duration::ZERO,
        };
        let between = self.uplinks();
        let between = between.iter().flatten().map(|name| Link::load(name).ok());
        let between: Option<Duration> = between.map(|link| Some(link?.up.delay)).sum();
        Some(up.up.delay + between? + down)
    }

    pub(crate) fn scheme(&self) -> Scheme {
        self.transport.scheme()
    }

    /// Returns the congestion control of the cell's transport.
    pub(crate) fn congestion(&self) -> CongestionControl {
        self.congestion_of(self.transport)
    }

    pub(crate) fn congestion_of(&self, transport: Transport) -> CongestionControl {
        match transport {
            Transport::Tcp | Transport::Tls => self.tcp_congestion,
            Transport::Quic => self.quic_congestion,
        }
    }

    /// Returns true if the clients or the bridges speak QUIC.
    pub(crate) fn has_quic(&self) -> bool {
        let is_bridged = self.topology == Topology::Fog && self.tiers() > 1;
        self.transport == Transport::Quic
            || is_bridged && self.bridge_transport() == Transport::Quic
    }

    /// Returns QUIC's settings for clients and broker: loss recovery, acknowledgements and initial window.
    pub(crate) fn quic(&self) -> QuicOptions {
        let mut quic = QuicOptions {
            repeat: self.repeat,
            ack_frequency: self
                .max_ack_delay_ns
                .map(|ns| AckFrequency::within(Duration::from_nanos(ns))),
            initial_window: self.initial_window,
            mtu_discovery: self.mtu_discovery,
            ..QuicOptions::default()
        };
        if let Some(rtt) = self.initial_rtt_ns {
            quic.initial_rtt = Duration::from_nanos(rtt);
        }
        if let Some(packets) = self.packet_threshold {
            quic.packet_threshold = packets;
        }
        if let Some(factor) = self.time_threshold {
            quic.time_threshold = factor;
        }
        quic
    }

    /// Returns the TLS options that the clients offer in a handshake.
    pub(crate) fn crypto(&self) -> anyhow::Result<CryptoOptions> {
        let mut crypto = CryptoOptions::default();
        if let Some(version) = &self.tls_version {
            let version = version.parse()?;
            (crypto.min_version, crypto.max_version) = (version, version);
        }
        if let Some(group) = &self.group {
            crypto.key_exchange_groups = vec![group.parse()?];
        }
        Ok(crypto)
    }

    /// Returns the loss-recovery settings of TCP in all hosts.
    pub(crate) fn tcp_tuning(&self) -> TcpTuning {
        TcpTuning {
            rto_min: self.tcp_rto_min_ns.map(Duration::from_nanos),
            thin: self.tcp_thin,
            fast_open: self.tcp_fast_open.is_used(),
        }
    }

    pub(crate) fn streams(&self) -> anyhow::Result<QuicStreams> {
        Ok(self.streams.to_string().parse()?)
    }

    pub(crate) fn qos(&self) -> QoS {
        QoS::from_bits(self.qos).unwrap_or(QoS::AtMostOnce)
    }

    pub(crate) fn keep_alive(&self) -> Duration {
        Duration::from_secs(self.keep_alive_s.unwrap_or(60).into())
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.unwrap_or_default()
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns)
    }

    /// Returns how many connections the clients of a run hold at once.
    pub(crate) fn connections(&self) -> u64 {
        match self.pattern {
            Pattern::Storm | Pattern::HalfOpen | Pattern::Load => self.messages,
            // A publisher and a subscriber each.
            _ => 2 * u64::from(self.stations),
        }
    }
}

pub(super) fn with_changes(name: &str, changes: [Option<String>; 2]) -> String {
    let mut name = name.to_owned();
    for change in changes.into_iter().flatten() {
        name.push(if name.contains('@') { ',' } else { '@' });
        name.push_str(&change);
    }
    name
}

pub(crate) fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_one(number: &NonZeroU32) -> bool {
    *number == one()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Options of a client as their text, such as `probe`.
mod text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
