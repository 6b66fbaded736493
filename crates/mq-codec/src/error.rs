//! Errors of decoding and encoding.

use crate::{PacketType, ReasonCode, StringError, TopicError, TopicErrorKind, Version};

/// Rule of the specification that received bytes break.
///
/// The connection cannot go on after such an error: the start of the next packet is unknown, or the
/// peer cannot be trusted. MQTT 5.0 reports it to the peer with [`reason_code`](Self::reason_code).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A variable byte integer, such as the remaining length, goes on after its fourth byte
    /// (§1.5.5).
    #[error("a variable byte integer is longer than four bytes")]
    VarintTooLong,
    /// A variable byte integer with more bytes than it needs `[MQTT-1.5.5-1]`.
    #[error("a variable byte integer is longer than it needs to be")]
    VarintNotMinimal,
    /// The whole packet, fixed header included, is larger than the
    /// [`Decoder`](crate::Decoder)'s limit `[MQTT-3.1.2-24]`, `[MQTT-3.2.2-15]`. The first bytes show
    /// it; the rest is never buffered.
    #[error("a packet of {size} bytes exceeds the limit of {limit}")]
    PacketTooLarge {
        /// The packet's size that the fixed header announces, in bytes.
        size: u32,
        /// The decoder's limit, in bytes.
        limit: u32,
    },
    /// Packet type 0, or 15 (AUTH) before MQTT 5.0.
    #[error("packet type {0} is reserved")]
    ReservedPacketType(u8),
    /// Flags of the fixed header that the type does not have `[MQTT-2.1.3-1]`.
    #[error("{packet} has the reserved flags {flags:#06b}")]
    ReservedFlags {
        /// The type of the packet.
        packet: PacketType,
        /// The four flag bits.
        flags: u8,
    },
    /// A field goes beyond the end of the packet.
    #[error("{0} ends inside a field")]
    Truncated(PacketType),
    /// The packet is longer than its fields.
    #[error("{0} goes on after its last field")]
    TrailingBytes(PacketType),
    /// A string field is not an MQTT string.
    #[error("{packet}: {error}")]
    String {
        /// The type of the packet.
        packet: PacketType,
        /// The rule of MQTT strings that the field breaks.
        error: StringError,
    },
    /// A packet identifier of 0 `[MQTT-2.2.1-3]`.
    #[error("{0} has packet identifier 0")]
    PacketIdZero(PacketType),
    /// QoS 3 `[MQTT-3.3.1-4]`.
    #[error("QoS 3 is reserved")]
    ReservedQos,
    /// DUP set on a QoS 0 PUBLISH `[MQTT-3.3.1-2]`.
    #[error("a PUBLISH of QoS 0 has DUP set")]
    DupWithQos0,
    /// A PUBLISH whose topic name is not valid; the variant holds the rule that it breaks.
    #[error("the topic name is not valid: {0}")]
    TopicName(TopicError),
    /// A will whose topic is not valid; the variant holds the rule that it breaks.
    #[error("the Will Topic is not valid: {0}")]
    WillTopic(TopicError),
    /// A PUBLISH or a will whose Response Topic is not valid `[MQTT-3.3.2-14]`; the variant holds the rule that it
    /// breaks.
    #[error("the Response Topic is not valid: {0}")]
    ResponseTopic(TopicError),
    /// A SUBSCRIBE or UNSUBSCRIBE with a topic filter that is not valid; the variant holds the rule that it breaks.
    #[error("the topic filter is not valid: {0}")]
    TopicFilter(TopicError),
    /// A PUBLISH without topic name and without topic alias (§3.3.2.1).
    #[error("a PUBLISH has neither topic name nor topic alias")]
    NoTopic,
    /// SUBSCRIBE or UNSUBSCRIBE without a topic filter `[MQTT-3.8.3-2]`, `[MQTT-3.10.3-2]`.
    #[error("{0} has no topic filter")]
    NoFilter(PacketType),
    /// Reserved bits in the subscription options `[MQTT-3.8.3-5]`, or a QoS or Retain Handling of
    /// 3 (§3.8.3.1).
    #[error("the subscription options {bits:#010b} have reserved bits or values")]
    ReservedSubscriptionOptions {
        /// The subscription options byte.
        bits: u8,
    },
    /// No Local on a shared subscription `[MQTT-3.8.3-4]`.
    #[error("a shared subscription asks for No Local")]
    NoLocalOnShared,
    /// A property identifier that the specification does not know (§2.2.2.2).
    #[error("{packet} has the unknown property {id:#04x}")]
    UnknownProperty {
        /// The type of the packet.
        packet: PacketType,
        /// The property identifier.
        id: u32,
    },
    /// A property that does not belong into this packet (§2.2.2.2).
    #[error("{packet} has the property {id:#04x}, which is not one of its own")]
    MisplacedProperty {
        /// The type of the packet.
        packet: PacketType,
        /// The property identifier.
        id: u32,
    },
    /// A property that may appear only once, and appears again.
    #[error("{packet} has the property {id:#04x} twice")]
    DuplicateProperty {
        /// The type of the packet.
        packet: PacketType,
        /// The property identifier.
        id: u32,
    },
    /// A property with a value outside its range.
    #[error("{packet} has a value that is not allowed for the property {id:#04x}")]
    PropertyValue {
        /// The type of the packet.
        packet: PacketType,
        /// The property identifier.
        id: u32,
    },
    /// A reason code (§2.4) or return code that the packet may not have.
    #[error("{packet} has the reason code {code:#04x}, which is not one of its own")]
    ReasonCode {
        /// The type of the packet.
        packet: PacketType,
        /// The reason code or return code as received.
        code: u8,
    },
    /// CONNECT names a protocol that is none of MQTT 3.1, 3.1.1 and 5.0 `[MQTT-3.1.2-2]`.
    #[error("the protocol level {level} of CONNECT is not supported")]
    UnsupportedProtocol {
        /// The level byte, also if the protocol name is wrong.
        level: u8,
    },
    /// Flags of CONNECT that contradict each other or are reserved `[MQTT-3.1.2-3]`.
    #[error("the connect flags {flags:#010b} are not valid")]
    ConnectFlags {
        /// The connect flags byte.
        flags: u8,
    },
    /// Authentication Data without an Authentication Method (§3.1.2.11.10).
    #[error("{0} has authentication data without an authentication method")]
    AuthenticationDataAlone(PacketType),
    /// AUTH without an Authentication Method, which only a success without properties may leave
    /// out (§3.15.2.2.2).
    #[error("AUTH has no authentication method")]
    NoAuthenticationMethod,
    /// Flags of CONNACK with reserved bits, or Session Present with a refusal `[MQTT-3.2.2-6]`.
    #[error("the connect acknowledge flags {flags:#010b} are not valid")]
    ConnAckFlags {
        /// The connect acknowledge flags byte.
        flags: u8,
    },
    /// The first packet of a connection is not CONNECT `[MQTT-3.1.0-1]`.
    #[error("the first packet is {0}, not CONNECT")]
    NotConnect(PacketType),
    /// CONNACK, SUBACK, UNSUBACK or PINGRESP, which only a server sends (§2.1.2), received by a server.
    /// The first byte shows it; the rest is not read.
    #[error("{0} received from a client, which only a server sends")]
    FromServerOnly(PacketType),
}

impl DecodeError {
    /// Returns the reason code that MQTT 5.0 has for the error in CONNACK or DISCONNECT (§4.13).
    #[must_use]
    pub fn reason_code(&self) -> ReasonCode {
        match self {
            Self::PacketTooLarge { .. } => ReasonCode::PacketTooLarge,
            Self::UnsupportedProtocol { .. } => ReasonCode::UnsupportedProtocolVersion,
            // Topic Name Invalid and Topic Filter Invalid are for what is correctly formed (§2.4).
            Self::TopicName(error)
            | Self::WillTopic(error)
            | Self::ResponseTopic(error)
            | Self::TopicFilter(error) => match error.kind() {
                TopicErrorKind::String(_) => ReasonCode::MalformedPacket,
                _ => ReasonCode::ProtocolError,
            },
            // Reserved bits are malformed, reserved values are a protocol error (§3.8.3.1).
            Self::ReservedSubscriptionOptions { bits } if bits & 0xC0 == 0 => {
                ReasonCode::ProtocolError
            }
            Self::PacketIdZero(_)
            | Self::NoTopic
            | Self::NoFilter(_)
            | Self::NoLocalOnShared
            | Self::DuplicateProperty { .. }
            | Self::PropertyValue { .. }
            | Self::AuthenticationDataAlone(_)
            | Self::NoAuthenticationMethod
            | Self::NotConnect(_)
            | Self::FromServerOnly(_) => ReasonCode::ProtocolError,
            _ => ReasonCode::MalformedPacket,
        }
    }
}

/// Error of encoding a packet; nothing of it was written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The remaining length would be above [`MAX_REMAINING_LENGTH`](crate::MAX_REMAINING_LENGTH).
    #[error("a packet of {size} bytes is too long: MQTT allows 268435455 after the fixed header")]
    PacketTooLong {
        /// The packet's remaining length, in bytes.
        size: usize,
    },
    /// A binary field, such as a password, is longer than 65,535 bytes.
    #[error("a binary field of {size} bytes in {packet} is too long: MQTT allows 65535")]
    BinaryTooLong {
        /// The type of the packet.
        packet: PacketType,
        /// The length of the field, in bytes.
        size: usize,
    },
    /// The version has no such packet: AUTH before 5.0.
    #[error("MQTT {version} has no {packet} packet")]
    NotInVersion {
        /// The type of the packet.
        packet: PacketType,
        /// The version that was to be written.
        version: Version,
    },
    /// A PUBLISH of QoS 1 or 2 without a packet identifier, or of QoS 0 with one `[MQTT-2.2.1-2]`.
    #[error("a PUBLISH of QoS {0} has the wrong kind of packet identifier")]
    PacketIdMismatch(crate::QoS),
    /// A PUBLISH without topic name whose version or properties have no topic alias either.
    #[error("a PUBLISH has neither topic name nor topic alias")]
    NoTopic,
    /// SUBSCRIBE or UNSUBSCRIBE without a topic filter.
    #[error("{0} has no topic filter")]
    NoFilter(PacketType),
}
