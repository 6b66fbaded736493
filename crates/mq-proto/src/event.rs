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
    /// Client: the server accepted the connection.
    Connected(Box<ConnAck>),
    /// Client: the server lost the session, so the messages in flight were sent again as new messages.
    /// Comes right after [`Connected`](Self::Connected). A QoS 2 message among them may arrive twice,
    /// as the server forgot whether it had it.
    SessionLost {
        /// The number of messages that are sent again. QoS 2 messages whose PUBREC was received are not among
        /// them: they count as complete, without [`Acked`](Self::Acked).
        resent: usize,
    },
    /// A PUBLISH was received.
    Publish(Received),
    /// A PUBLISH was received whose payload was dropped
    /// ([`discard_payload`](crate::Connection::discard_payload)); it is empty here. The ticket refuses the
    /// message.
    Discarded(Received),
    /// A QoS 1 or 2 message of this side is complete, or was refused.
    Acked {
        /// The packet identifier that [`publish`](crate::Connection::publish) returned.
        packet_id: PacketId,
        /// Success, or the peer's reason for refusing the message.
        reason: ReasonCode,
        /// The message that is complete or was refused. `None` for a QoS 2 message whose PUBREC was received: it is
        /// no longer kept.
        delivery: Option<Delivery>,
    },
    /// PUBREC was received for a QoS 2 message: the receiver has it, and PUBREL is in the outbox.
    /// [`Acked`](Self::Acked) follows.
    Released {
        /// The packet identifier that [`publish`](crate::Connection::publish) returned.
        packet_id: PacketId,
        /// The message, which is no longer kept.
        delivery: Delivery,
    },
    /// PUBREL was received for a QoS 2 message that was received and acknowledged: its identifier is free
    /// again, and PUBCOMP is in the outbox.
    IncomingReleased {
        /// The packet identifier of the message; see [`AckTicket::packet_id`].
        packet_id: PacketId,
        /// The flow that kept the exchange; see [`AckTicket::flow`].
        flow: Option<FlowId>,
    },
    /// Server: a client sent SUBSCRIBE. Answer with [`suback`](crate::Connection::suback), on the same lane.
    Subscribe {
        /// The lane on which SUBSCRIBE was received.
        lane: LaneId,
        /// The SUBSCRIBE packet.
        subscribe: Subscribe,
    },
    /// Client: the answer to [`subscribe`](crate::Connection::subscribe).
    SubAck(SubAck),
    /// Server: a client sent UNSUBSCRIBE. Answer with [`unsuback`](crate::Connection::unsuback), on the same
    /// lane.
    Unsubscribe {
        /// The lane on which UNSUBSCRIBE was received.
        lane: LaneId,
        /// The UNSUBSCRIBE packet.
        unsubscribe: Unsubscribe,
    },
    /// Client: the answer to [`unsubscribe`](crate::Connection::unsubscribe).
    UnsubAck(UnsubAck),
    /// Client: the data lane of a SUBSCRIBE has ended before SUBACK, which will not be received any more.
    /// Subscribe again.
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
        /// The data lane that has ended.
        lane: LaneId,
        /// The rule of the protocol that the peer broke.
        error: ProtocolError,
    },
    /// Server: a lane has begun as a flow, or has taken over a flow of an earlier lane. State that is kept of the
    /// flow continues on this lane.
    FlowBegan {
        /// The flow that the lane belongs to.
        flow: FlowId,
        /// The lane that has begun.
        lane: LaneId,
        /// Time for which state of the flow is kept after an end of the lane that is not in order; `None` if no
        /// state is kept.
        expiry: Option<Duration>,
    },
    /// Server: the lane of a flow has ended, or the flow was forgotten. [`FlowEnd`] names the state that is kept of it.
    FlowEnded(FlowEnd),
    /// The connection is over: the last event. Write the rest of the outbox, then close the link.
    Closed(CloseReason),
}

/// State of a flow that has no lane any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEnd {
    /// The flow without a lane.
    pub flow: FlowId,
    /// `true` if the flow's subscriptions are kept, and their messages wait for its next lane; `false` if they have
    /// ended.
    pub keeps_subscriptions: bool,
    /// Time until which state of the flow is kept; `None` if no state is kept.
    pub expires_at: Option<Instant>,
}

/// A PUBLISH that was received.
#[derive(Debug)]
pub struct Received {
    /// The message, with its topic name in place of a topic alias.
    pub message: Message,
    /// The QoS at which the message was sent.
    pub qos: QoS,
    /// The RETAIN flag of the PUBLISH.
    pub retain: bool,
    /// The DUP flag of the PUBLISH.
    pub dup: bool,
    /// Client: identifiers of the subscriptions that the message matched (5.0).
    pub subscription_ids: Vec<SubscriptionId>,
    /// The lane on which the PUBLISH was received; the control lane for a datagram.
    pub lane: LaneId,
    /// The ticket that acknowledges a QoS 1 or 2 message; `None` for QoS 0.
    pub ticket: Option<AckTicket>,
}

impl Received {
    /// Builds a message at `qos` that no packet has brought: the owner's own, on the control lane, not
    /// retained, and without a ticket.
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
/// The connection sends PUBACK or PUBREC only when its owner returns the ticket with
/// [`Connection::ack`](crate::Connection::ack), once the message is safely stored or delivered. Tickets may be
/// returned in any order; acknowledgements leave in the order of the messages `[MQTT-4.6.0-2]`. A ticket that
/// is dropped leaves its message unacknowledged; the peer sends it again when the session is resumed.
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
    /// Returns the packet identifier of the message to be acknowledged.
    #[must_use]
    pub fn packet_id(&self) -> PacketId {
        self.packet_id
    }

    /// Returns the flow that keeps the exchange, if any: the exchange then outlives its lane for as long as the
    /// flow is kept.
    #[must_use]
    pub fn flow(&self) -> Option<FlowId> {
        self.flow
    }

    /// Returns `true` if the exchange belongs to the session, which outlives lanes and connections. If `false`,
    /// the peer counts packet identifiers by lane, and the exchange ends with its lane.
    #[must_use]
    pub fn is_of_session(&self) -> bool {
        self.of_session
    }
}

/// Reason for the end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent DISCONNECT.
    ByPeer(Box<Disconnect>),
    /// [`disconnect`](crate::Connection::disconnect) was called.
    Local(ReasonCode),
    /// Client: the server refused the connection. Server: [`refuse`](crate::Connection::refuse) was called.
    Refused(Box<ConnAck>),
    /// The peer broke the protocol.
    Protocol(ProtocolError),
    /// Nothing was received for longer than the keep-alive allows (§3.1.2.10).
    KeepAliveTimeout,
    /// CONNECT or CONNACK was not received in time.
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
