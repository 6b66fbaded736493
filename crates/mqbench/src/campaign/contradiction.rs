//! Keys of a cell that contradict each other.

use mq_client::Spread;
use mq_netem::Link;

use super::{
    cell::{Cell, Tickets, Transport, one},
    pattern::Pattern,
};
use crate::{
    mqtt::MqttVersion,
    testbed::Topology,
    workload::{half_open::Phase, handover::OnHandover, resumption::Resumption},
};

/// Greatest number of devices of a storm. An address of Linux has 28,232 ports for clients, and a port stays taken for
/// a while when its connection has ended.
const MOST_DEVICES: u64 = 20_000;

impl Cell {
    /// Returns a contradiction between keys, with the key that is to blame; `None` if all keys agree.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        if self.pattern.is_on_broker_host()
            && let Some(contradiction) = self.contradicts_loopback()
        {
            return Some(contradiction);
        }
        if self.medium.is_some() && self.link.is_some() {
            return Some((
                "medium",
                "there is a link already: one way to the broker".into(),
            ));
        }
        if self.medium.is_none() && self.stations > 1 {
            return Some(("stations", "only a medium has more than one".into()));
        }
        if self.medium.is_none() && self.retries.is_some() {
            return Some(("retries", "only a medium has retries".into()));
        }
        if self.loss.is_some() && self.link.is_none() && self.medium.is_none() {
            return Some((
                "loss",
                "it needs a `link` or a `medium`, which loses packets".into(),
            ));
        }
        if self.topology == Topology::Shared && self.sub_link.is_some() {
            return Some(("sub_link", "the topology `shared` has one link".into()));
        }
        if self.topology != Topology::Publisher && self.medium.is_some() {
            let why = "the subscriber of a medium has a host and a sub_link";
            return Some(("topology", why.into()));
        }
        if self.handover.is_some() && (self.pattern != Pattern::Periodic || self.link.is_none()) {
            let why = "it takes the pattern `periodic`, and a link to leave";
            return Some(("handover", why.into()));
        }
        if self.handover.is_some() && self.topology != Topology::Publisher {
            let why = "the publisher alone changes its network: the topology is `publisher`";
            return Some(("handover", why.into()));
        }
        if let Some(contradiction) = self.contradicts_row() {
            return Some(contradiction);
        }
        if let Some(contradiction) = self.contradicts_coap() {
            return Some(contradiction);
        }
        if let Some(contradiction) = self.contradicts_half_open() {
            return Some(contradiction);
        }
        let returns = self.on_handover == OnHandover::Reconnect;
        if returns && self.handover.is_none() {
            let why = "`reconnect` needs a `handover`, the link that the publisher changes to";
            return Some(("on_handover", why.into()));
        }
        let takes_them = self.pattern.has_bursts_and_topics();
        if self.burst != one() && !takes_them {
            return Some(("burst", "it takes the pattern `periodic` or `load`".into()));
        }
        if self.topics != one() && !takes_them {
            return Some((
                "topics",
                "they take the pattern `periodic` or `load`".into(),
            ));
        }
        if self.pattern == Pattern::Load && !self.messages.is_multiple_of(2) {
            let why = "half of the clients publish, so that their number is even";
            return Some(("messages", why.into()));
        }
        if self.pattern == Pattern::Load && self.topology != Topology::Shared {
            let why = "all clients of `load` are on one host: the topology is `shared`";
            return Some(("topology", why.into()));
        }
        let quic_only = [
            ("streams", self.streams != Spread::Control),
            ("deliveries", self.deliveries != Spread::Control),
            ("datagrams", self.datagrams),
        ];
        let quic_only = quic_only.into_iter().find(|(_, given)| *given);
        if let Some((key, _)) = quic_only
            && self.transport != Transport::Quic
        {
            return Some((key, "only QUIC has them".into()));
        }
        if self.deliveries != Spread::Control && self.mqtt != MqttVersion::V5 {
            let why = "they are for MQTT 5, in which a client asks for them";
            return Some(("deliveries", why.into()));
        }
        if self.datagrams && (self.qos > 0 || self.mqtt != MqttVersion::V5) {
            let why = "they are for QoS 0 and MQTT 5, in which a client asks for them";
            return Some(("datagrams", why.into()));
        }
        if let Some(contradiction) = self.contradicts_resumption() {
            return Some(contradiction);
        }
        self.overload().map(|problem| ("interval", problem))
    }

    /// Returns a key that a `CoAP` thing and server do not take.
    fn contradicts_coap(&self) -> Option<(&'static str, String)> {
        if self.pattern != Pattern::Coap {
            return None;
        }
        let given = [
            ("qos", self.qos > 1, "CoAP has messages of QoS 0 and 1"),
            ("medium", self.medium.is_some(), "a CoAP thing has a link"),
            (
                "topology",
                self.topology != Topology::Publisher,
                "the link is the CoAP thing's",
            ),
            (
                "burst",
                self.burst != one(),
                "CoAP has one message under way",
            ),
            ("topics", self.topics != one(), "CoAP has one resource here"),
            (
                "messages",
                self.messages > u64::from(u16::MAX),
                "CoAP has 65535 identifiers",
            ),
        ];
        let (key, _, why) = given.into_iter().find(|(_, given, _)| *given)?;
        Some((key, why.to_owned()))
    }

    /// Returns a key of connections that resume an earlier one, which the cell's pattern or transport does not take.
    fn contradicts_resumption(&self) -> Option<(&'static str, String)> {
        let returns = self.on_handover == OnHandover::Reconnect;
        let resumes = returns || self.pattern.reconnects();
        if self.resumption != Resumption::Full && !resumes {
            let why = "this pattern connects once: connect, reconnect and storm resume";
            return Some(("resumption", why.into()));
        }
        if self.resumption != Resumption::Full && self.transport == Transport::Tcp {
            return Some(("resumption", "plain TCP has no sessions to resume".into()));
        }
        if self.resumption == Resumption::ZeroRtt
            && self.transport == Transport::Tls
            && self.tls_version.as_deref() == Some("1.2")
        {
            return Some(("tls_version", "TLS 1.2 has no early data".into()));
        }
        if self.tcp_fast_open.is_used() && self.transport == Transport::Quic {
            return Some(("tcp_fast_open", "QUIC does not run over TCP".into()));
        }
        if self.tcp_fast_open.is_used() && self.pattern != Pattern::Reconnect {
            let why =
                "its cookie comes with an earlier connection: it takes the pattern `reconnect`";
            return Some(("tcp_fast_open", why.into()));
        }
        if self.tickets == Tickets::Lost && !self.pattern.restarts_broker() {
            let why = "this pattern restarts no broker: storm does";
            return Some(("tickets", why.into()));
        }
        if self.tickets == Tickets::Lost && self.resumption == Resumption::Full {
            let why = "a full handshake uses no tickets: set resumption";
            return Some(("tickets", why.into()));
        }
        None
    }

    /// Returns a key that clients which vanish do not take, or that only they take.
    fn contradicts_half_open(&self) -> Option<(&'static str, String)> {
        if self.pattern != Pattern::HalfOpen {
            let why = "the clients of `half-open` alone vanish";
            return self.phase.map(|_| ("phase", why.into()));
        }
        if self.link.is_none() || self.topology != Topology::Publisher {
            let why = "`half-open` takes the topology `publisher`, and a link that carries nothing in the end";
            return Some(("link", why.into()));
        }
        match (self.phase(), self.transport) {
            (Phase::Opened, Transport::Quic) => {
                Some(("phase", "QUIC opens no TCP connection".into()))
            }
            (Phase::Secured, Transport::Tcp) => {
                Some(("phase", "plain TCP has no TLS handshake".into()))
            }
            _ => None,
        }
    }

    /// Returns a key that clients on the broker's host do not take: they have no link, and one address together.
    fn contradicts_loopback(&self) -> Option<(&'static str, String)> {
        let given = [
            ("link", self.link.is_some()),
            ("sub_link", self.sub_link.is_some()),
            ("medium", self.medium.is_some()),
            ("loss", self.loss.is_some()),
            ("topology", self.topology != Topology::Publisher),
        ];
        if let Some((key, _)) = given.into_iter().find(|(_, given)| *given) {
            let why = "a storm has no link: its devices are on the broker's host";
            return Some((key, why.into()));
        }
        (self.messages > MOST_DEVICES).then(|| {
            let why = format!(
                "a storm has {MOST_DEVICES} devices at most: all have one address, and a port each"
            );
            ("messages", why)
        })
    }

    /// Returns the problem of a publisher that sends more than its link carries; `None` if the link carries it.
    fn overload(&self) -> Option<String> {
        if !self.pattern.is_scheduled() {
            return None;
        }
        let links = self.link.iter().chain(&self.uplink);
        let links = links.filter_map(|name| Link::load(name).ok());
        let rates = links.filter_map(|link| link.up.rate);
        let rate = rates.map(mq_netem::Rate::bits_per_second).min()?;
        // The headers of a small message: Ethernet, IP, TCP or UDP, TLS or QUIC, MQTT.
        let bits = (self.size as u128 + 120) * 8 * 1_000_000_000 * u128::from(self.burst.get());
        let offered = bits / u128::from(self.interval_ns.max(1));
        (offered > rate.into()).then(|| {
            format!("that is about {offered} bit/s, and the link carries {rate}: wait longer")
        })
    }
}
