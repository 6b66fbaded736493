//! The events of a connection.

use std::time::{Duration, Instant};

use mq_codec::{
    Auth, ConnAck, Connect, Disconnect, PacketId, QoS, ReasonCode, SubAck, Subscribe,
    SubscriptionId, UnsubAck, Unsubscribe,
};

use crate::{Delivery, FlowId, LaneId, Message, ProtocolError};

/// Something that happened on a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Server: a client sent CONNECT. Answer with [`accept`](crate::Connection::accept) or
    /// [`refuse`](crate::Connection::refuse), or where CONNECT names a method, first with
    /// [`auth`](crate::Connection::auth). Packets behind CONNECT are decoded only after the answer.
    Connect(Box<Connect>),
    /// Client: the server accepted.
    Connected(Box<ConnAck>),
    /// Client: the server lost the session, so the messages in flight were sent again as new messages.
    /// Comes right after [`Connected`](Self::Connected). A QoS 2 message among them may arrive twice,
    /// as the server forgot whether it had it.
    SessionLost {
        /// How many messages are sent again. QoS 2 messages whose PUBREC had come are not sent again:
        /// they count as complete, without [`Acked`](Self::Acked).
        resent: usize,
    },
    /// A message arrived.
    Publish(Received),
    /// A message arrived whose payload was dropped
    /// ([`discard_payload`](crate::Connection::discard_payload)); it is empty here. The ticket refuses the message.
    Discarded(Received),
    /// A QoS 1 or 2 message of this side is complete, or was refused.
    Acked {
        /// The packet identifier that [`publish`](crate::Connection::publish) returned.
        packet_id: PacketId,
        /// Success, or why the peer refused it.
        reason: ReasonCode,
        /// The message; `None` for a QoS 2 message whose PUBREC had come, which is no longer kept.
        delivery: Option<Delivery>,
    },
    /// PUBREC came for a QoS 2 message that was sent: the receiver has it, and PUBREL is in the
    /// outbox. [`Acked`](Self::Acked) follows.
    Released {
        /// The packet identifier that [`publish`](crate::Connection::publish) returned.
        packet_id: PacketId,
    },
    /// PUBREL came for a QoS 2 message that was received and acknowledged: its identifier is free
    /// again, and PUBCOMP is in the outbox.
    IncomingReleased {
        /// The same as [`AckTicket::packet_id`].
        packet_id: PacketId,
        /// The same as [`AckTicket::flow`].
        flow: Option<FlowId>,
    },
    /// Server: answer with [`suback`](crate::Connection::suback), on the same lane.
    Subscribe {
        /// The lane that it came on.
        lane: LaneId,
        /// The packet.
        subscribe: Subscribe,
    },
    /// Client: the answer to [`subscribe`](crate::Connection::subscribe).
    SubAck(SubAck),
    /// Server: answer with [`unsuback`](crate::Connection::unsuback), on the same lane.
    Unsubscribe {
        /// The lane that it came on.
        lane: LaneId,
        /// The packet.
        unsubscribe: Unsubscribe,
    },
    /// Client: the answer to [`unsubscribe`](crate::Connection::unsubscribe).
    UnsubAck(UnsubAck),
    /// Client: the data lane of a SUBSCRIBE has ended before the answer, which does not come any more. Ask
    /// again.
    RequestLost {
        /// The packet identifier that [`subscribe_on`](crate::Connection::subscribe_on) returned.
        packet_id: PacketId,
    },
    /// The answer to [`ping`](crate::Connection::ping), or to a PINGREQ that a client sent by itself.
    PingResp,
    /// A step of an enhanced authentication (5.0, §4.12). Answer with
    /// [`auth`](crate::Connection::auth); a server may also accept or refuse the client. To a client,
    /// [`ReasonCode::Success`] is the end of a re-authentication.
    Auth(Auth),
    /// The peer broke the protocol on a data lane, which has ended; the connection goes on.
    LaneFailed {
        /// The lane.
        lane: LaneId,
        /// What the peer did.
        error: ProtocolError,
    },
    /// Server: a lane has begun as a flow, or has taken over a flow of an earlier lane. What is kept of the flow
    /// goes on on this lane.
    FlowBegan {
        /// The flow.
        flow: FlowId,
        /// The lane.
        lane: LaneId,
        /// How long some of it will be kept after the lane, if it ends out of order; `None` if nothing will.
        expiry: Option<Duration>,
    },
    /// Server: a flow has no lane any more, or is forgotten.
    FlowEnded(FlowEnd),
    /// The connection is over: the last event. Write the rest of the outbox, then close the link.
    Closed(CloseReason),
}

/// What is left of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEnd {
    /// The flow.
    pub flow: FlowId,
    /// Whether its subscriptions are kept, and their messages wait for its next lane. If not, they have ended.
    pub keeps_subscriptions: bool,
    /// Until when something of it is kept; `None` if nothing is.
    pub expires_at: Option<Instant>,
}

/// A message that arrived.
#[derive(Debug)]
pub struct Received {
    /// The message, its topic alias resolved.
    pub message: Message,
    /// The QoS that it was sent at.
    pub qos: QoS,
    /// Its RETAIN flag.
    pub retain: bool,
    /// Its DUP flag.
    pub dup: bool,
    /// Client: the subscriptions that it matched (5.0).
    pub subscription_ids: Vec<SubscriptionId>,
    /// The lane that it came on.
    pub lane: LaneId,
    /// For QoS 1 and 2: the ticket that acknowledges the message. `None` for QoS 0.
    pub ticket: Option<AckTicket>,
}

impl Received {
    /// A message at `qos` that no packet has brought: of the owner's own, on the control lane, not retained, and without
    /// the duty to acknowledge it.
    #[must_use]
    pub fn own(message: Message, qos: QoS) -> Self {
        Self {
            message,
            qos,
            retain: false,
            dup: false,
            subscription_ids: Vec::new(),
            lane: LaneId::CONTROL,
            ticket: None,
        }
    }
}

/// The duty to acknowledge one received message.
///
/// The connection sends PUBACK or PUBREC only when its owner gives the ticket back with
/// [`Connection::ack`](crate::Connection::ack), once the message is safely stored or delivered.
/// Tickets may come back in any order; acknowledgements leave in the order of the messages
/// `[MQTT-4.6.0-2]`. A ticket that is dropped leaves its message unacknowledged; the peer sends it
/// again when the session is resumed.
#[must_use = "an unused ticket leaves the message unacknowledged"]
#[derive(Debug)]
pub struct AckTicket {
    pub(crate) slot: u64,
    pub(crate) packet_id: PacketId,
    pub(crate) qos: QoS,
    /// The lane of the acknowledgement.
    pub(crate) lane: LaneId,
    pub(crate) of_session: bool,
    /// The flow that keeps the exchange.
    pub(crate) flow: Option<FlowId>,
}

impl AckTicket {
    /// The packet identifier of the message.
    #[must_use]
    pub fn packet_id(&self) -> PacketId {
        self.packet_id
    }

    /// The flow that keeps the exchange, if one does: then it outlives its lane as long as that.
    #[must_use]
    pub fn flow(&self) -> Option<FlowId> {
        self.flow
    }

    /// Whether the exchange belongs to the session, which outlives lanes and connections. If not, the peer
    /// counts packet identifiers by lane, and the exchange ends with its lane.
    #[must_use]
    pub fn is_of_session(&self) -> bool {
        self.of_session
    }
}

/// Why a connection ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent DISCONNECT.
    ByPeer(Box<Disconnect>),
    /// [`disconnect`](crate::Connection::disconnect) was called.
    Local(ReasonCode),
    /// Client: the server refused the connection. Server: [`refuse`](crate::Connection::refuse).
    Refused(Box<ConnAck>),
    /// The peer broke the protocol.
    Protocol(ProtocolError),
    /// Nothing was received for longer than the keep-alive allows (§3.1.2.10).
    KeepAliveTimeout,
    /// CONNECT or CONNACK did not come in time.
    ConnectTimeout,
    /// The link ended without a DISCONNECT.
    LinkLost,
}

impl core::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::ByPeer(disconnect) => write!(f, "the peer disconnected: {}", disconnect.reason),
            Self::Local(reason) => write!(f, "disconnected: {reason}"),
            Self::Refused(ack) => write!(f, "the connection was refused: {}", ack.reason),
            Self::Protocol(error) => write!(f, "the peer broke the protocol: {error}"),
            Self::KeepAliveTimeout => f.write_str("the peer was silent for too long"),
            Self::ConnectTimeout => f.write_str("the peer did not connect in time"),
            Self::LinkLost => f.write_str("the link was lost"),
        }
    }
}
