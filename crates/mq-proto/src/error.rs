//! Errors: of the peer, and of commands.

use mq_codec::{DecodeError, EncodeError, PacketId, PacketType, ReasonCode};

use crate::{FlowError, LaneId};

/// A violation of MQTT by the peer, which ends the connection, or on a data lane that lane.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Bytes that are no valid packet.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A packet at a time or from a role that may not send it, such as a second CONNECT
    /// `[MQTT-3.1.0-2]`.
    #[error("{0} is not allowed here")]
    Unexpected(PacketType),
    /// A SUBACK or UNSUBACK to no SUBSCRIBE or UNSUBSCRIBE that waits for it.
    #[error("{packet} answers packet identifier {id}, which nothing waits for")]
    UnknownRequest {
        /// The type of the answer.
        packet: PacketType,
        /// The packet identifier of the answer.
        id: PacketId,
    },
    /// A topic alias of 0 or above the announced maximum `[MQTT-3.3.2-8]`, `[MQTT-3.3.2-9]`.
    #[error("topic alias {alias} is not from 1 to the announced maximum of {maximum}")]
    TopicAlias {
        /// The topic alias of the PUBLISH.
        alias: u16,
        /// The announced Topic Alias Maximum; 0 if aliases are not allowed.
        maximum: u16,
    },
    /// A topic alias that no earlier PUBLISH has set, without a topic name (§3.3.2.3.4).
    #[error("topic alias {0} stands for no topic")]
    UnknownTopicAlias(u16),
    /// An answer to a message in flight that is not the next packet of its QoS (§4.3).
    #[error("{packet} is no answer to the message in flight under packet identifier {id}")]
    WrongAnswer {
        /// The type of the answer.
        packet: PacketType,
        /// The packet identifier of the answer.
        id: PacketId,
    },
    /// A DISCONNECT of a client that asks to keep a session which its CONNECT did not ask to keep (§3.14.2.2.2).
    #[error("DISCONNECT asks for a session expiry and CONNECT did not")]
    SessionExpiry,
    /// More unacknowledged QoS 1 and 2 messages than the announced Receive Maximum, which the variant
    /// holds `[MQTT-3.3.4-7]`, `[MQTT-3.3.4-9]`.
    #[error("more than {0} messages were sent without waiting for an acknowledgement")]
    ReceiveMaximum(u16),
    /// A PUBLISH of a client with a subscription identifier `[MQTT-3.3.4-6]`.
    #[error("a client's PUBLISH has a subscription identifier")]
    SubscriptionId,
    /// A QoS above the announced maximum `[MQTT-3.2.2-11]`.
    #[error("the QoS is above the announced maximum")]
    Qos,
    /// A retained message to a server that announced not to take any `[MQTT-3.2.2-14]`.
    #[error("retained messages are not available")]
    Retain,
    /// AUTH or CONNACK with an authentication method other than CONNECT's `[MQTT-4.12.0-5]`,
    /// `[MQTT-4.12.1-1]`.
    #[error("the authentication method is not that of CONNECT")]
    AuthenticationMethod,
    /// A CONNACK with Session Present 1 to a CONNECT with Clean Start 1 `[MQTT-3.2.2-2]`, `[MQTT-3.2.2-4]`.
    #[error("a session is present, and CONNECT asked for a clean start")]
    SessionPresent,
    /// A CONNACK whose Maximum Packet Size has no room for an acknowledgement: the size in bytes.
    #[error("the server takes packets of {0} bytes at most, and an acknowledgement has more")]
    MaximumPacketSize(u32),
    /// A data lane that the peer ended in the middle of a packet.
    #[error("{0} ends in the middle of a packet")]
    Incomplete(LaneId),
    /// A flow that is against the rules of the MQTT-next draft.
    #[error(transparent)]
    Flow(#[from] FlowError),
}

impl ProtocolError {
    /// Returns the reason code that MQTT 5.0 has for the error in DISCONNECT (§4.13).
    #[must_use]
    pub fn reason_code(&self) -> ReasonCode {
        match self {
            Self::Decode(error) => error.reason_code(),
            Self::TopicAlias { .. } => ReasonCode::TopicAliasInvalid,
            Self::ReceiveMaximum(_) => ReasonCode::ReceiveMaximumExceeded,
            Self::Qos => ReasonCode::QosNotSupported,
            Self::Retain => ReasonCode::RetainNotSupported,
            // A valid packet, with which this side cannot go on.
            Self::MaximumPacketSize(_) => ReasonCode::ImplementationSpecificError,
            Self::Unexpected(_)
            | Self::UnknownTopicAlias(_)
            | Self::WrongAnswer { .. }
            | Self::SessionExpiry
            | Self::UnknownRequest { .. }
            | Self::SubscriptionId
            | Self::AuthenticationMethod
            | Self::SessionPresent
            | Self::Incomplete(_)
            | Self::Flow(_) => ReasonCode::ProtocolError,
        }
    }
}

/// Error of a command that was not carried out, and has left the connection as it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The connection is not open yet, or is over, or the command belongs to the other role.
    #[error("the connection is not open")]
    NotConnected,
    /// The send window is full; try again after the next [`Event::Acked`](crate::Event::Acked).
    #[error("the send window is full: too many messages are unacknowledged")]
    WindowFull,
    /// The packet is larger than the peer's Maximum Packet Size `[MQTT-3.1.2-24]`, `[MQTT-3.2.2-15]`.
    #[error("a packet of {size} bytes is larger than the peer's maximum of {limit}")]
    TooLarge {
        /// The size of the whole packet in bytes.
        size: usize,
        /// The peer's Maximum Packet Size in bytes.
        limit: u32,
    },
    /// The server's Maximum QoS is lower than the message's QoS `[MQTT-3.2.2-11]`.
    #[error("the server's maximum QoS is lower")]
    QosNotSupported,
    /// The server supports no retained messages `[MQTT-3.2.2-14]`.
    #[error("the server takes no retained messages")]
    RetainNotSupported,
    /// All 65,535 packet identifiers are in use.
    #[error("all packet identifiers are in use")]
    NoPacketId,
    /// The packet cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}
