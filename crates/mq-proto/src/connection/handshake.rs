//! CONNECT and CONNACK, both roles.

use core::num::{NonZeroU16, NonZeroU32};
use std::time::Instant;

use mq_codec::{ByteStr, ConnAck, Connect, Packet, QoS, ReasonCode, Version};

use super::{Connection, Role, State, Turn};
use crate::{
    CloseReason, CommandError, Event, ProtocolError, Session, Spread,
    alias::{ReceiveAliases, SendAliases},
    config::{ClientConfig, DataLanes, ServerConfig},
    keepalive::KeepAlive,
    limits::PeerLimits,
};

impl Connection {
    /// Server: returns the spread over lanes that the server opens which CONNECT asked for (5.0, a user
    /// property).
    #[must_use]
    pub fn deliveries(&self) -> Option<Spread> {
        self.deliveries
    }

    /// Client: sends CONNECT.
    ///
    /// Messages and subscriptions from before CONNACK go right behind CONNECT, which §3.1.4
    /// allows, so that they can travel as early data with a resumed TLS or QUIC handshake; see
    /// [`publish`](Self::publish) for the limits.
    ///
    /// # Errors
    /// [`CommandError::NotConnected`] on a second call, and on a server;
    /// [`CommandError::Encode`] if a field is too long.
    pub fn connect(&mut self, now: Instant) -> Result<(), CommandError> {
        let (State::Idle, Some(config)) = (self.state, &self.client_config) else {
            return Err(CommandError::NotConnected);
        };
        let connect = announced_by_client(config);
        let deadline = now + config.connack_timeout;
        let method = connect.properties.authentication_method.clone();
        self.keep_alive = KeepAlive::client(now, connect.keep_alive, config.ping_timeout);
        #[cfg(feature = "mqtt-next")]
        if config.lanes == DataLanes::Flows {
            self.begin_control_flow();
        }
        self.try_send(now, crate::LaneId::CONTROL, &Packet::from(connect))?;
        self.handshake_deadline = Some(deadline);
        self.agree_on_method(method);
        self.state = State::Connecting;
        Ok(())
    }

    /// Server: accepts the client, with `session` as its state and `ack` as the answer.
    ///
    /// `ack.session_present` says whether `session` is an earlier one, whose messages in flight are then
    /// sent again. This call adds to `ack` (5.0) the receive maximum, maximum packet size, topic alias
    /// maximum, maximum QoS, retain availability and server keep-alive of the configuration, and the
    /// authentication method of CONNECT. Then call [`handle_bytes`](Self::handle_bytes) again with the
    /// bytes behind CONNECT.
    ///
    /// # Errors
    /// [`CommandError::NotConnected`] if there is no CONNECT to answer; [`CommandError::Encode`] or
    /// [`CommandError::TooLarge`] if the answer cannot be sent. `session` is then dropped.
    pub fn accept(
        &mut self,
        now: Instant,
        session: Session,
        mut ack: ConnAck,
    ) -> Result<(), CommandError> {
        let (State::Connecting, Some(config)) = (self.state, &self.server_config) else {
            return Err(CommandError::NotConnected);
        };
        self.decoder
            .set_max_packet_size(config.max_packet_size.get());
        if self.version >= Version::V5 {
            announce_by_server(config, &mut ack);
            if self.server_keep_alive.is_some() {
                ack.properties.server_keep_alive = self.server_keep_alive;
            }
            // `[MQTT-4.12.0-5]`
            ack.properties
                .authentication_method
                .clone_from(&self.method.as_deref().cloned());
            if self.session_ids {
                ack.properties
                    .user_properties
                    .push(mark(SESSION_IDS_PROPERTY));
            }
        }
        self.try_send(now, crate::LaneId::CONTROL, &Packet::from(ack))?;
        self.session = session;
        self.session.leave_all_lanes();
        self.open(now);
        Ok(())
    }

    /// Server: refuses the client with `ack`, whose reason is an error, and ends the connection.
    /// Does nothing if there is no CONNECT to answer. Sends no CONNACK if the version has no code for
    /// the reason.
    pub fn refuse(&mut self, ack: ConnAck) {
        if self.state == State::Connecting && self.role == Role::Server {
            if self.version >= Version::V5 || ack.reason.to_connect_return_code().is_some() {
                // If the client does not take so large a packet, the link just ends.
                let _ = self.write_last(&Packet::from(ack.clone()));
            }
            self.close(CloseReason::Refused(Box::new(ack)));
        }
    }

    /// Server: refuses an invalid CONNECT. Before 5.0 only some reasons have an answer.
    pub(super) fn refuse_malformed_connect(&mut self, reason: ReasonCode) {
        let Some(version) = reason.malformed_connect_version(self.decoder.version()) else {
            return;
        };
        self.version = version;
        // A few bytes; no limit of the client is known yet.
        let _ = self.write_last(&Packet::from(ConnAck::new(reason)));
    }

    pub(super) fn connect_received(&mut self, now: Instant, connect: Box<Connect>) {
        self.version = connect.version;
        self.agree_on_method(connect.properties.authentication_method.clone());
        self.state = State::Connecting;
        if let Some(config) = &self.server_config {
            let properties = &connect.properties;
            self.peer.maximum_packet_size = properties.maximum_packet_size.map(NonZeroU32::get);
            self.window
                .limit(properties.receive_maximum.unwrap_or(NonZeroU16::MAX));
            if config.use_topic_aliases {
                let maximum = properties.topic_alias_maximum.unwrap_or(0);
                // Each alias keeps its topic in memory, so the peer does not choose how many.
                self.send_aliases = SendAliases::new(maximum.min(config.topic_alias_maximum));
            }
            let mut keep_alive = connect.keep_alive;
            if self.version >= Version::V5 {
                self.ends_session = properties.session_expiry_interval.unwrap_or(0) == 0;
                self.receive_aliases = ReceiveAliases::new(config.topic_alias_maximum);
                self.server_keep_alive = config
                    .max_keep_alive
                    .filter(|maximum| keep_alive == 0 || keep_alive > *maximum);
                keep_alive = self.server_keep_alive.unwrap_or(keep_alive);
            }
            self.keep_alive = KeepAlive::server(now, keep_alive);
        }
        let mut connect = connect;
        self.session_ids = take_mark(
            &mut connect.properties.user_properties,
            SESSION_IDS_PROPERTY,
        );
        self.wants_datagrams =
            take_mark(&mut connect.properties.user_properties, DATAGRAMS_PROPERTY);
        self.deliveries = take_deliveries(&mut connect.properties.user_properties);
        self.events.push_back(Event::Connect(connect));
    }

    pub(super) fn connack_received(
        &mut self,
        now: Instant,
        mut ack: Box<ConnAck>,
    ) -> Result<(), ProtocolError> {
        self.handshake_deadline = None;
        if ack.reason.is_error() {
            self.close(CloseReason::Refused(ack));
            return Ok(());
        }
        let Some(config) = &self.client_config else {
            return Err(ProtocolError::Unexpected(mq_codec::PacketType::ConnAck));
        };
        if ack.session_present && config.connect.clean_start {
            return Err(ProtocolError::SessionPresent);
        }
        self.decoder
            .set_max_packet_size(config.max_packet_size.get());
        self.session_ids = config.lanes != DataLanes::None
            && take_mark(&mut ack.properties.user_properties, SESSION_IDS_PROPERTY);
        let properties = &ack.properties;
        // `[MQTT-4.12.0-5]`, `[MQTT-4.12.0-6]`; a missing method is tolerated.
        if properties.authentication_method.is_some()
            && properties.authentication_method.as_ref() != self.method.as_deref()
        {
            return Err(ProtocolError::AuthenticationMethod);
        }
        self.peer = PeerLimits {
            receive_maximum: properties.receive_maximum.unwrap_or(NonZeroU16::MAX),
            maximum_packet_size: properties.maximum_packet_size.map(NonZeroU32::get),
            maximum_qos: properties.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            retain_available: properties.retain_available.unwrap_or(true),
        };
        if let Some(size) = self.peer.maximum_packet_size
            && size < LEAST_PACKET_SIZE
        {
            return Err(ProtocolError::MaximumPacketSize(size));
        }
        self.session.server_limits = Some(Box::new(self.peer.clone()));
        self.window.limit(self.peer.receive_maximum);
        if config.use_topic_aliases {
            let maximum = properties.topic_alias_maximum.unwrap_or(0);
            self.send_aliases = SendAliases::new(maximum.min(MAX_SEND_ALIASES));
        }
        let keep_alive = properties
            .server_keep_alive
            .unwrap_or(config.connect.keep_alive);
        self.keep_alive = KeepAlive::client(now, keep_alive, config.ping_timeout);
        let session_present = ack.session_present;
        self.events.push_back(Event::Connected(ack));
        let had = self.window.carried_over(&self.session);
        if !session_present {
            self.session.peer_forgot();
        }
        let resent = self.window.carried_over(&self.session);
        self.open(now);
        if !session_present && had > 0 {
            self.events.push_back(Event::SessionLost { resent });
        }
        Ok(())
    }

    /// Opens the connection after the handshake, and sends the messages in flight of an earlier connection
    /// again.
    fn open(&mut self, now: Instant) {
        self.state = State::Open;
        self.turn = Turn::Nobody;
        self.handshake_deadline = None;
        self.carried_incoming = self.session.incoming.len();
        self.resume_flows(now);
        self.window.resume(&self.session);
        self.send_again(now);
    }
}

/// Least Maximum Packet Size of a server, in bytes, with which a client goes on: an acknowledgement with its reason code
/// has as many, and cannot be left out.
const LEAST_PACKET_SIZE: u32 = 5;

/// The greatest number of topic aliases that a client uses, whatever the server would allow: each keeps a topic
/// in memory.
const MAX_SEND_ALIASES: u16 = 64;

/// Returns CONNECT with the values of the configuration.
fn announced_by_client(config: &ClientConfig) -> Connect {
    let mut connect = config.connect.clone();
    if connect.version >= Version::V5 {
        let properties = &mut connect.properties;
        properties.receive_maximum = Some(config.receive_maximum);
        properties.maximum_packet_size = Some(config.max_packet_size);
        properties.topic_alias_maximum = Some(config.topic_alias_maximum);
        if config.lanes != DataLanes::None {
            properties.user_properties.push(mark(SESSION_IDS_PROPERTY));
        }
        if config.datagrams {
            properties.user_properties.push(mark(DATAGRAMS_PROPERTY));
        }
        if let Some(spread) = config.deliveries {
            let asked = mark((DELIVERIES_PROPERTY, &spread.to_string()));
            properties.user_properties.push(asked);
        }
    }
    connect
}

/// The user property by which two sides agree that packet identifiers are unique over all lanes of a
/// session.
const SESSION_IDS_PROPERTY: (&str, &str) = ("mq-packet-ids", "session");

/// The user property by which a client asks for QoS 0 messages in datagrams.
const DATAGRAMS_PROPERTY: (&str, &str) = ("mq-datagrams", "qos0");

/// The user property by which a client asks for its messages on lanes that the server opens. Its value is a
/// [`Spread`].
const DELIVERIES_PROPERTY: &str = "mq-deliveries";

fn mark(mark: (&str, &str)) -> (ByteStr, ByteStr) {
    let text = |text: &str| ByteStr::new(text).expect("a few letters");
    (text(mark.0), text(mark.1))
}

/// Removes a user property that the application does not see; returns `true` if it was there.
fn take_mark(properties: &mut Vec<(ByteStr, ByteStr)>, mark: (&str, &str)) -> bool {
    let before = properties.len();
    properties.retain(|(name, value)| (name.as_str(), value.as_str()) != mark);
    properties.len() < before
}

/// Removes [`DELIVERIES_PROPERTY`], which the application does not see, and returns its value. A value that is
/// no [`Spread`] stays, like any property that is not known here.
fn take_deliveries(properties: &mut Vec<(ByteStr, ByteStr)>) -> Option<Spread> {
    let asked = |(name, value): &(ByteStr, ByteStr)| {
        let is_it = name.as_str() == DELIVERIES_PROPERTY;
        is_it.then(|| value.as_str().parse().ok()).flatten()
    };
    let spread = properties.iter().find_map(asked);
    properties.retain(|property| asked(property).is_none());
    spread
}

/// Adds the values of the configuration to CONNACK.
fn announce_by_server(config: &ServerConfig, ack: &mut ConnAck) {
    let properties = &mut ack.properties;
    properties.receive_maximum = Some(config.receive_maximum);
    properties.maximum_packet_size = Some(config.max_packet_size);
    if config.topic_alias_maximum > 0 {
        properties.topic_alias_maximum = Some(config.topic_alias_maximum);
    }
    if config.maximum_qos < QoS::ExactlyOnce {
        properties.maximum_qos = Some(config.maximum_qos);
    }
    if !config.retain_available {
        properties.retain_available = Some(false);
    }
}
