//! MQTT connections, in the client's or the server's role.

use std::{collections::VecDeque, mem, time::Instant};

use bytes::BytesMut;
use mq_codec::{
    Ack, ByteStr, ConnAck, Decoder, Disconnect, Packet, PacketId, PacketType, QoS, ReasonCode,
    Version,
};

use crate::{
    CloseReason, CommandError, Event, LaneId, Outbox, ProtocolError, ServerConfig, Session, Spread,
    alias::{ReceiveAliases, SendAliases},
    config::ClientConfig,
    keepalive::{Due, KeepAlive, Probes},
    limits::PeerLimits,
    seldom::SeldomMap,
};

mod authentication;
mod datagrams;
mod discard;
mod early;
#[cfg(feature = "mqtt-next")]
mod flows;
mod handshake;
mod incoming;
mod lanes;
#[cfg(not(feature = "mqtt-next"))]
mod no_flows;
mod outgoing;
mod requests;

use authentication::Turn;
use discard::Discarding;
pub use early::EarlyPackets;
#[cfg(feature = "mqtt-next")]
use flows::Flows;
use incoming::AckQueue;
use lanes::DataLane;
use outgoing::SendWindow;

/// Largest packet, in bytes, that a client takes before CONNACK has accepted it: AUTH, or CONNACK itself. A server that
/// has not proved yet that it is one gets no more memory.
const MAX_CONNACK_SIZE: u32 = 64 * 1024;

/// Role of this side in a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The side that sends CONNECT.
    Client,
    /// The side that answers with CONNACK.
    Server,
}

/// State machine of one MQTT connection.
///
/// The machine never blocks, never reads a clock and owns no socket. The owner calls, in this order and over
/// and over:
///
/// 1. [`handle_bytes`](Self::handle_bytes) when a link has received something,
///    [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) has
///    passed, [`handle_link_lost`](Self::handle_link_lost) when the link has ended;
/// 2. [`poll_event`](Self::poll_event) until it returns `None`, acting on each event, for example
///    with [`accept`](Self::accept), [`publish`](Self::publish) or [`ack`](Self::ack);
/// 3. writes what [`outbox`](Self::outbox) holds;
/// 4. waits for the link or for [`poll_timeout`](Self::poll_timeout).
///
/// ```text
///             connect()              CONNACK
/// client  Idle --------> Connecting ---------> Open ----> Closed
///             CONNECT                accept()
/// server  Idle --------> Connecting ---------> Open ----> Closed
/// ```
///
/// Every state goes to `Closed` when the peer breaks the protocol, is silent for too long,
/// disconnects or is refused; [`Event::Closed`] is then the last event. The session, which may go
/// on with another connection, is taken out with [`into_session`](Self::into_session).
#[derive(Debug)]
pub struct Connection {
    role: Role,
    state: State,
    version: Version,
    decoder: Decoder,
    session: Session,
    client_config: Option<Box<ClientConfig>>,
    server_config: Option<Box<ServerConfig>>,
    /// The deadline of CONNECT and AUTH (server) or CONNACK (client).
    handshake_deadline: Option<Instant>,
    /// The authentication method that CONNECT named (5.0).
    method: Option<Box<ByteStr>>,
    turn: Turn,
    /// Server: the packets to act on before the link's handshake is complete; `None` after it.
    early: Option<EarlyPackets>,
    keep_alive: KeepAlive,
    /// Server: the keep-alive that replaces the client's, in seconds.
    server_keep_alive: Option<u16>,
    /// `true` at a server if CONNECT asked for a session that ends with the connection.
    ends_session: bool,
    events: VecDeque<Event>,
    /// An error of the peer behind the packets of `events`: those packets count, and their answers leave
    /// first.
    failure: Option<ProtocolError>,
    outbox: Outbox,
    /// Incoming messages that wait for their acknowledgement.
    acks: AckQueue,
    /// Number of QoS 2 messages of earlier connections whose PUBREL was still due when this connection opened; they do
    /// not count against this connection's Receive Maximum.
    carried_incoming: usize,
    /// The window of outgoing messages.
    window: SendWindow,
    send_aliases: SendAliases,
    receive_aliases: ReceiveAliases,
    peer: PeerLimits,
    /// SUBSCRIBE and UNSUBSCRIBE packets that wait for their answer, and the lane on which each was sent.
    requests: SeldomMap<PacketId, LaneId>,
    /// The lanes besides the control lane that are in use.
    lanes: SeldomMap<LaneId, Box<DataLane>>,
    /// Messages whose payload is dropped as it is received, at most one a lane.
    discarding: SeldomMap<LaneId, Box<Discarding>>,
    /// The number of QoS 1 messages on data lanes that wait for their acknowledgement.
    lanes_at_qos1: usize,
    /// The number of QoS 2 messages on data lanes that are not of the session, and not released.
    lanes_at_qos2: usize,
    /// The part of `lanes_at_qos2` that was received on earlier lanes of its flows, and does not count against
    /// this connection's Receive Maximum.
    lanes_carried: usize,
    /// QoS 2 messages without an acknowledgement that the peer has repeated on another lane, and that lane.
    repeated: SeldomMap<PacketId, LaneId>,
    /// `true` if both sides count packet identifiers over all lanes.
    session_ids: bool,
    wants_datagrams: bool,
    #[cfg(feature = "mqtt-next")]
    flows: Flows,
    /// Server: the rule that CONNECT asked for, by which the server spreads its messages to the client over lanes
    /// that it opens; `None` if CONNECT asked for none.
    deliveries: Option<Spread>,
    /// Server: the identifier of the [`ping`](Self::ping) whose answer is due.
    ping: Option<PacketId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Connecting,
    Open,
    Closed,
}

impl Connection {
    /// Builds the client's side, before [`connect`](Self::connect).
    ///
    /// `session` is empty or comes from an earlier connection with the same client identifier.
    #[must_use]
    pub fn client(now: Instant, config: ClientConfig, mut session: Session) -> Self {
        // The lanes of the earlier connection have ended with it.
        session.leave_all_lanes();
        let version = config.connect.version;
        Self {
            role: Role::Client,
            version,
            decoder: Decoder::new(
                Some(version),
                MAX_CONNACK_SIZE.min(config.max_packet_size.get()),
            ),
            session,
            keep_alive: KeepAlive::client(now, 0, config.ping_timeout),
            acks: AckQueue::new(config.receive_maximum),
            window: SendWindow::new(config.max_inflight),
            receive_aliases: ReceiveAliases::new(if version >= Version::V5 {
                config.topic_alias_maximum
            } else {
                0
            }),
            client_config: Some(Box::new(config)),
            ..Self::blank(now)
        }
    }

    /// Builds the server's side of a link that has just been opened. The session is given to
    /// [`accept`](Self::accept).
    #[must_use]
    pub fn server(now: Instant, config: ServerConfig) -> Self {
        let max_size = config.max_connect_size.min(config.max_packet_size);
        let mut decoder = Decoder::new(None, max_size.get());
        if !config.allow_control_characters {
            decoder.refuse_disallowed_characters();
        }
        Self {
            role: Role::Server,
            decoder,
            handshake_deadline: Some(now + config.connect_timeout),
            acks: AckQueue::new(config.receive_maximum),
            window: SendWindow::new(config.max_inflight),
            server_config: Some(Box::new(config)),
            ..Self::blank(now)
        }
    }

    fn blank(now: Instant) -> Self {
        Self {
            role: Role::Server,
            state: State::Idle,
            version: Version::V5,
            decoder: Decoder::new(None, 0),
            session: Session::new(),
            client_config: None,
            server_config: None,
            handshake_deadline: None,
            method: None,
            turn: Turn::Nobody,
            early: None,
            keep_alive: KeepAlive::server(now, 0),
            server_keep_alive: None,
            ends_session: false,
            events: VecDeque::new(),
            failure: None,
            outbox: Outbox::new(),
            acks: AckQueue::new(core::num::NonZeroU16::MAX),
            carried_incoming: 0,
            window: SendWindow::new(core::num::NonZeroU16::MAX),
            send_aliases: SendAliases::default(),
            receive_aliases: ReceiveAliases::default(),
            peer: PeerLimits::default(),
            requests: SeldomMap::default(),
            lanes: SeldomMap::default(),
            discarding: SeldomMap::default(),
            lanes_at_qos1: 0,
            lanes_at_qos2: 0,
            lanes_carried: 0,
            repeated: SeldomMap::default(),
            session_ids: false,
            wants_datagrams: false,
            #[cfg(feature = "mqtt-next")]
            flows: Flows::default(),
            deliveries: None,
            ping: None,
        }
    }

    /// Returns the role of this side.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the version of the connection; a server knows it from [`Event::Connect`] on.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the peer's Maximum QoS: a server announces it in CONNACK (5.0); 2 before that and for a client.
    #[must_use]
    pub fn maximum_qos(&self) -> QoS {
        self.peer.maximum_qos
    }

    /// Returns the peer's Retain Available: `false` once a server has announced in CONNACK (5.0) that it
    /// supports no retained messages.
    #[must_use]
    pub fn retain_available(&self) -> bool {
        self.peer.retain_available
    }

    /// Returns `true` if CONNACK has accepted the connection and it has not ended since.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns `true` if the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Takes the complete packets off the front of `buffer`, the receive buffer of `lane`, and
    /// turns them into events and answers. An error of the peer ends the connection, with
    /// [`Event::Closed`], or on a data lane that lane, with [`Event::LaneFailed`].
    ///
    /// An incomplete packet stays in `buffer` until more bytes are received. A server also leaves everything
    /// after a CONNECT until CONNECT is answered, and everything on data lanes: call again, for each lane,
    /// after [`accept`](Self::accept). Each [`auth`](Self::auth) before that lets it take one packet, AUTH or
    /// DISCONNECT. Packets of early data that [`restrict_early`](Self::restrict_early) excludes stay in
    /// `buffer` as well.
    pub fn handle_bytes(&mut self, now: Instant, lane: LaneId, buffer: &mut BytesMut) {
        if self.state == State::Closed {
            buffer.clear();
            return;
        }
        if lane != LaneId::CONTROL {
            return self.handle_data_bytes(now, lane, buffer);
        }
        // A call without new bytes is no sign of life.
        let has_read = !buffer.is_empty();
        let before = buffer.len();
        if !self.take_control_head(buffer) {
            return;
        }
        let mut discarded = self.skip_payload(lane, buffer);
        while discarded.is_some() || !self.must_wait() && !self.is_too_early(buffer) {
            let result = match discarded.take() {
                Some(discarded) => self.discarded_received(now, lane, *discarded),
                None => match self.decoder.decode(buffer) {
                    Ok(None) => break,
                    Ok(Some(packet)) => self.handle_packet(now, lane, packet),
                    Err(error) => Err(error.into()),
                },
            };
            if let Err(error) = result {
                buffer.clear();
                if self.events.is_empty() {
                    self.fail(error);
                } else {
                    self.failure = Some(error);
                }
                return;
            }
        }
        if has_read {
            let under_way = self.under_way(lane, buffer);
            let had_packet = under_way < before;
            self.keep_alive.read(now, had_packet, under_way);
        }
    }

    /// Returns `true` if the bytes in the receive buffer must stay there for now.
    fn must_wait(&self) -> bool {
        match self.state {
            State::Closed => true,
            State::Connecting if self.role == Role::Server && self.turn != Turn::Client => true,
            State::Idle | State::Connecting | State::Open => self.failure.is_some(),
        }
    }

    fn handle_packet(
        &mut self,
        now: Instant,
        lane: LaneId,
        packet: Packet,
    ) -> Result<(), ProtocolError> {
        let packet_type = packet.packet_type();
        let unexpected = Err(ProtocolError::Unexpected(packet_type));
        match (self.role, self.state, packet) {
            (Role::Server, State::Idle, Packet::Connect(connect)) => {
                self.connect_received(now, connect);
            }
            (Role::Client, State::Connecting, Packet::ConnAck(ack)) => {
                self.connack_received(now, ack)?;
            }
            (_, State::Connecting | State::Open, Packet::Auth(auth)) => {
                self.auth_received(*auth)?;
            }
            // In the middle of an authentication.
            (Role::Server, State::Connecting, Packet::Disconnect(disconnect)) => {
                self.close(CloseReason::ByPeer(disconnect));
            }
            (_, State::Open, Packet::Publish(publish)) => {
                self.publish_received(now, lane, publish)?;
            }
            (_, State::Open, Packet::PubAck(ack)) => self.puback_received(now, &ack)?,
            (_, State::Open, Packet::PubRec(ack)) => self.pubrec_received(now, lane, &ack)?,
            (_, State::Open, Packet::PubRel(ack)) => self.pubrel_received(now, lane, &ack),
            (_, State::Open, Packet::PubComp(ack)) => self.pubcomp_received(now, &ack)?,
            (Role::Server, State::Open, Packet::Subscribe(subscribe)) => {
                self.events.push_back(Event::Subscribe { lane, subscribe });
            }
            (Role::Server, State::Open, Packet::Unsubscribe(unsubscribe)) => {
                self.events
                    .push_back(Event::Unsubscribe { lane, unsubscribe });
            }
            (Role::Client, State::Open, Packet::SubAck(ack)) => self.suback_received(*ack)?,
            (Role::Client, State::Open, Packet::UnsubAck(ack)) => self.unsuback_received(*ack)?,
            (Role::Server, State::Open, Packet::PingReq) => {
                if let Some(lane) = self.answers_on(lane) {
                    self.send_on(now, lane, &Packet::PingResp);
                }
            }
            // Any byte has counted as life already.
            (Role::Client, State::Open, Packet::PingResp) => {
                self.events.push_back(Event::PingResp);
            }
            (role, State::Open, Packet::Disconnect(disconnect)) => {
                if role == Role::Client && self.version < Version::V5 {
                    return unexpected;
                }
                let expiry = disconnect.properties.session_expiry_interval;
                if role == Role::Server && self.ends_session && expiry.unwrap_or(0) > 0 {
                    // Not a valid DISCONNECT, so it says no goodbye either.
                    return Err(ProtocolError::SessionExpiry);
                }
                self.close(CloseReason::ByPeer(disconnect));
            }
            _ => return unexpected,
        }
        Ok(())
    }

    /// Sends PINGREQ if it is due at `now`, or ends a connection whose peer was silent for too
    /// long (§3.1.2.10). Calling it early or often does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.state == State::Closed {
            return;
        }
        if self.handshake_due().is_some_and(|at| at <= now) {
            self.close(CloseReason::ConnectTimeout);
            return;
        }
        if self.state != State::Open {
            return;
        }
        self.expire_flows(now);
        match self.keep_alive.due(now) {
            Due::Nothing => {}
            Due::Ping => self.send(now, &Packet::PingReq),
            Due::Dead => {
                self.say_goodbye(ReasonCode::KeepAliveTimeout);
                self.close(CloseReason::KeepAliveTimeout);
            }
        }
    }

    /// Restarts the peer's keep-alive at `now`: the owner does not read the link for now, so silence is not the
    /// peer's fault.
    pub fn excuse_silence(&mut self, now: Instant) {
        self.keep_alive.excused(now);
    }

    /// Client: sends PINGREQ before the keep-alive requires it, from now on. May be called at any time, and
    /// often.
    pub fn probe(&mut self, probes: Probes) {
        self.keep_alive.probe(probes);
    }

    /// Sends a packet now, on the control lane, that the peer answers: [`Event::PingResp`] follows once the
    /// peer has read everything before it there. A client sends PINGREQ. A server, which has no such packet,
    /// sends PUBREL for an identifier that is not in use, and its client answers with PUBCOMP (§4.3.3). Returns
    /// `true` if the packet was sent.
    pub fn ping(&mut self, now: Instant) -> bool {
        if self.state != State::Open {
            return false;
        }
        if self.role == Role::Client {
            self.send(now, &Packet::PingReq);
            return true;
        }
        if self.ping.is_none()
            && let Some(id) = self.unused_id()
        {
            self.ping = Some(id);
            self.send(now, &Packet::PubRel(Ack::new(id, ReasonCode::Success)));
            return true;
        }
        false
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout); `None` for never.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Idle | State::Connecting => self.handshake_due(),
            State::Open => {
                let due = self.keep_alive.next().into_iter();
                due.chain(self.next_flow_expiry()).min()
            }
            State::Closed => None,
        }
    }

    /// Returns the handshake's deadline. A server's counts while a packet of the client is due: CONNECT or
    /// AUTH.
    fn handshake_due(&self) -> Option<Instant> {
        let is_client_due = self.state == State::Idle || self.turn == Turn::Client;
        self.handshake_deadline
            .filter(|_| self.role == Role::Client || is_client_due)
    }

    /// Ends a connection whose link has ended, in whatever way; [`Event::Closed`] follows unless it came
    /// already.
    pub fn handle_link_lost(&mut self) {
        self.close(CloseReason::LinkLost);
    }

    /// Returns the next event. Act on it before the next call.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty()
            && let Some(error) = self.failure.take()
        {
            self.fail(error);
        }
        if self.events.len() == 1
            && let Event::Connect(_) | Event::Subscribe { .. } | Event::Unsubscribe { .. } =
                self.events[0]
        {
            // Behind these a client may be idle for long, and need no room for events.
            return mem::take(&mut self.events).pop_front();
        }
        self.events.pop_front()
    }

    /// Returns `true` if [`poll_event`](Self::poll_event) has an event.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || self.failure.is_some()
    }

    /// Returns the approximate number of bytes that the peer makes this connection hold: topics of aliases,
    /// identifiers of QoS 2 messages that it has not released, data lanes, flows, and the heads of packets
    /// whose payload is dropped.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let identifiers = self.session.incoming.len() + self.lanes_at_qos2;
        let identifiers = identifiers * 2 * size_of::<(PacketId, bool)>();
        let lanes: usize = self.lanes.values().map(|lane| lane.held_bytes()).sum();
        let flows = self.session.flow_bytes();
        let aliases = self.receive_aliases.bytes() + self.send_aliases.bytes();
        aliases + identifiers + lanes + flows + self.discarding_bytes()
    }

    /// Returns the number of sent QoS 1 and 2 messages that are not complete.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.session.in_flight()
    }

    /// Returns the payload bytes of sent QoS 1 and 2 messages that may have to be sent again.
    #[must_use]
    pub fn in_flight_bytes(&self) -> usize {
        self.session.in_flight_bytes()
    }

    /// Returns `true` if the peer has broken the protocol and the next [`poll_event`](Self::poll_event) ends
    /// the connection. Until that call the packets before the error can be answered.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.events.is_empty() && self.failure.is_some()
    }

    /// Returns the bytes to write, in order. The owner takes bytes off its front as the link takes them, and
    /// stops giving commands while it is long: the connection does not bound it.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Sends DISCONNECT, where the connection is open and the role may send it in its version, and
    /// ends the connection. Before 5.0 only clients send it.
    pub fn disconnect(&mut self, disconnect: Disconnect) {
        if self.state == State::Closed {
            return;
        }
        let reason = disconnect.reason;
        let may_send = self.role == Role::Client || self.version >= Version::V5;
        if self.state == State::Open && may_send {
            let mut packet = Box::new(disconnect);
            if self
                .write_last(&Packet::Disconnect(packet.clone()))
                .is_err()
            {
                // A DISCONNECT without its texts is better than none `[MQTT-3.14.2-3]`, `[MQTT-3.14.2-4]`.
                packet.properties.reason_string = None;
                packet.properties.user_properties.clear();
                // If it is still too large, the link just ends.
                let _ = self.write_last(&Packet::Disconnect(packet));
            }
        }
        self.close(CloseReason::Local(reason));
    }

    /// Ends the connection and returns the session for the next connection. The session does not hold
    /// received messages that were not acknowledged: the peer sends them again.
    #[must_use]
    pub fn into_session(mut self) -> Session {
        self.session.forget_unacknowledged();
        self.session
    }

    /// Ends the connection for an error of the peer; sends the reason first, if the version can.
    fn fail(&mut self, error: ProtocolError) {
        self.note_close_code(&error);
        let reason = error.reason_code();
        match (self.role, self.state) {
            (Role::Server, State::Idle) => self.refuse_malformed_connect(reason),
            (Role::Server, State::Connecting) => self.refuse_authentication(reason),
            _ => self.say_goodbye(reason),
        }
        self.close(CloseReason::Protocol(error));
    }

    /// Refuses a client before CONNACK, where there is no DISCONNECT `[MQTT-3.14.0-1]`.
    fn refuse_authentication(&mut self, reason: ReasonCode) {
        let reason = if reason.is_allowed_in(PacketType::ConnAck) {
            reason
        } else {
            ReasonCode::ProtocolError
        };
        // If the client does not take so large a packet, the link just ends.
        let _ = self.write_last(&Packet::from(ConnAck::new(reason)));
    }

    fn say_goodbye(&mut self, reason: ReasonCode) {
        if self.version >= Version::V5 && self.state != State::Idle {
            // Reasons that only a server's CONNACK may have become the general one.
            let reason = if reason.is_allowed_in(PacketType::Disconnect) {
                reason
            } else {
                ReasonCode::ProtocolError
            };
            let goodbye = Packet::Disconnect(Box::new(Disconnect::new(reason)));
            // If the peer does not take so large a packet, the link just ends.
            let _ = self.write_last(&goodbye);
        }
    }

    fn close(&mut self, reason: CloseReason) {
        // Whichever end comes first counts.
        self.failure = None;
        if self.state != State::Closed {
            self.state = State::Closed;
            self.handshake_deadline = None;
            self.events.push_back(Event::Closed(reason));
        }
    }

    /// Appends a packet without fields of the user's, so that encoding cannot fail.
    fn send(&mut self, now: Instant, packet: &Packet) {
        self.send_on(now, LaneId::CONTROL, packet);
    }

    fn send_on(&mut self, now: Instant, lane: LaneId, packet: &Packet) {
        let sent = self.try_send(now, lane, packet);
        debug_assert_eq!(sent, Ok(()), "{packet:?}");
    }

    fn try_send(
        &mut self,
        now: Instant,
        lane: LaneId,
        packet: &Packet,
    ) -> Result<(), CommandError> {
        self.write(lane, packet)?;
        self.keep_alive.sent(now);
        Ok(())
    }

    /// Appends the last packet of the connection.
    fn write_last(&mut self, packet: &Packet) -> Result<(), CommandError> {
        self.write(LaneId::CONTROL, packet)
    }

    fn write(&mut self, lane: LaneId, packet: &Packet) -> Result<(), CommandError> {
        let version = self.version;
        self.begin_own_flow(lane);
        let before = self.outbox.position();
        self.outbox
            .put(lane, |out| packet.encode(version, out))
            .map_err(CommandError::Encode)?;
        // Checked after the fact, which costs nothing where there is no limit.
        let size = self.outbox.position() - before;
        let checked = self.check_size(|| usize::try_from(size).unwrap_or(usize::MAX));
        if checked.is_err() {
            self.outbox.cut(before);
        }
        checked
    }

    /// Checks that the peer takes a packet of that size, in bytes; the size is asked for only if there is a limit.
    /// A client that waits for CONNACK keeps what its server did not take before until it knows the new limit.
    fn check_size(&self, size: impl FnOnce() -> usize) -> Result<(), CommandError> {
        let earlier = self
            .limits_before_connack()
            .and_then(|limits| limits.maximum_packet_size);
        let Some(limit) = self.peer.maximum_packet_size.or(earlier) else {
            return Ok(());
        };
        let size = size();
        if size <= limit as usize {
            Ok(())
        } else if earlier.is_some() {
            Err(CommandError::NotConnected)
        } else {
            Err(CommandError::TooLarge { size, limit })
        }
    }

    /// Client: returns the server's limits on the connection before, which count until CONNACK announces new
    /// ones.
    fn limits_before_connack(&self) -> Option<&PeerLimits> {
        let is_due = self.role == Role::Client && self.state == State::Connecting;
        self.session.server_limits.as_deref().filter(|_| is_due)
    }
}
