//! Reason codes (MQTT 5.0 §2.4) and the return codes of 3.1 and 3.1.1.

use core::fmt;

use crate::{PacketType, Version};

macro_rules! reason_codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal, $text:literal, [$($packet:ident)*];)*) => {
        /// A reason code of MQTT 5.0 (§2.4, table 2-6).
        ///
        /// Codes below 0x80 mean success; `code as u8` is the byte on the wire. The older versions'
        /// CONNACK return codes are mapped to the reason codes of the same meaning.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum ReasonCode {
            $($(#[doc = $doc])+ $name = $value,)*
        }

        impl ReasonCode {
            /// Returns the reason code of `byte`, if the specification defines one.
            #[must_use]
            pub fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($value => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the specification's name of the code, in lower case.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns `true` if the specification allows the code in packets of the type `packet`
            /// (table 2-6).
            #[must_use]
            pub fn is_allowed_in(self, packet: PacketType) -> bool {
                match self {
                    $(Self::$name => matches!(packet, $(PacketType::$packet)|*),)*
                }
            }
        }
    };
}

reason_codes! {
    /// Success; normal disconnection in DISCONNECT; QoS 0 granted in SUBACK.
    Success = 0x00, "success", [ConnAck PubAck PubRec PubRel PubComp SubAck UnsubAck Auth Disconnect];
    /// The subscription is accepted with a maximum QoS of 1.
    GrantedQos1 = 0x01, "granted QoS 1", [SubAck];
    /// The subscription is accepted with a maximum QoS of 2.
    GrantedQos2 = 0x02, "granted QoS 2", [SubAck];
    /// The client disconnects and wants its will published.
    DisconnectWithWill = 0x04, "disconnect with will message", [Disconnect];
    /// The message was accepted, but its topic has no subscriber.
    NoMatchingSubscribers = 0x10, "no matching subscribers", [PubAck PubRec];
    /// The client had no such subscription.
    NoSubscriptionExisted = 0x11, "no subscription existed", [UnsubAck];
    /// The authentication goes on with another step.
    ContinueAuthentication = 0x18, "continue authentication", [Auth];
    /// A new authentication begins.
    ReAuthenticate = 0x19, "re-authenticate", [Auth];
    /// An error that the sender does not name.
    UnspecifiedError = 0x80, "unspecified error", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    /// The packet could not be parsed.
    MalformedPacket = 0x81, "malformed packet", [ConnAck Disconnect];
    /// The packet was out of place or contradicts the protocol.
    ProtocolError = 0x82, "protocol error", [ConnAck Disconnect];
    /// The packet is valid, but this implementation does not accept it.
    ImplementationSpecificError = 0x83, "implementation specific error", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    /// The version of MQTT is not supported.
    UnsupportedProtocolVersion = 0x84, "unsupported protocol version", [ConnAck];
    /// The client identifier is valid but not allowed.
    ClientIdentifierNotValid = 0x85, "client identifier not valid", [ConnAck];
    /// User name or password are wrong.
    BadUserNameOrPassword = 0x86, "bad user name or password", [ConnAck];
    /// The client may not do this.
    NotAuthorized = 0x87, "not authorized", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    /// The server is not available.
    ServerUnavailable = 0x88, "server unavailable", [ConnAck];
    /// The server is busy; try again later.
    ServerBusy = 0x89, "server busy", [ConnAck Disconnect];
    /// The client was banned.
    Banned = 0x8A, "banned", [ConnAck];
    /// The server is shutting down.
    ServerShuttingDown = 0x8B, "server shutting down", [Disconnect];
    /// The authentication method is not supported or not the one in use.
    BadAuthenticationMethod = 0x8C, "bad authentication method", [ConnAck Disconnect];
    /// Nothing was received for one and a half times the keep-alive.
    KeepAliveTimeout = 0x8D, "keep alive timeout", [Disconnect];
    /// Another connection uses the same client identifier.
    SessionTakenOver = 0x8E, "session taken over", [Disconnect];
    /// The topic filter is well formed but not accepted.
    TopicFilterInvalid = 0x8F, "topic filter invalid", [SubAck UnsubAck Disconnect];
    /// The topic name is well formed but not accepted.
    TopicNameInvalid = 0x90, "topic name invalid", [ConnAck PubAck PubRec Disconnect];
    /// The packet identifier is already in use.
    PacketIdentifierInUse = 0x91, "packet identifier in use", [PubAck PubRec SubAck UnsubAck];
    /// The packet identifier is not known.
    PacketIdentifierNotFound = 0x92, "packet identifier not found", [PubRel PubComp];
    /// More QoS 1 and 2 messages than the Receive Maximum were sent.
    ReceiveMaximumExceeded = 0x93, "receive maximum exceeded", [Disconnect];
    /// The topic alias is 0, above the maximum, or unknown.
    TopicAliasInvalid = 0x94, "topic alias invalid", [Disconnect];
    /// The packet is larger than its receiver takes.
    PacketTooLarge = 0x95, "packet too large", [ConnAck Disconnect];
    /// Messages arrive too fast.
    MessageRateTooHigh = 0x96, "message rate too high", [Disconnect];
    /// An implementation or administrative limit was exceeded.
    QuotaExceeded = 0x97, "quota exceeded", [ConnAck PubAck PubRec SubAck Disconnect];
    /// The connection was closed by an administrator.
    AdministrativeAction = 0x98, "administrative action", [Disconnect];
    /// The payload does not match its Payload Format Indicator.
    PayloadFormatInvalid = 0x99, "payload format invalid", [ConnAck PubAck PubRec Disconnect];
    /// Retained messages are not supported.
    RetainNotSupported = 0x9A, "retain not supported", [ConnAck Disconnect];
    /// The QoS is above the Maximum QoS.
    QosNotSupported = 0x9B, "QoS not supported", [ConnAck Disconnect];
    /// The client should use another server for now.
    UseAnotherServer = 0x9C, "use another server", [ConnAck Disconnect];
    /// The client should use another server from now on.
    ServerMoved = 0x9D, "server moved", [ConnAck Disconnect];
    /// Shared subscriptions are not supported.
    SharedSubscriptionsNotSupported = 0x9E, "shared subscriptions not supported", [SubAck Disconnect];
    /// Connections are made too fast.
    ConnectionRateExceeded = 0x9F, "connection rate exceeded", [ConnAck Disconnect];
    /// The connection has reached the maximum time that it is allowed.
    MaximumConnectTime = 0xA0, "maximum connect time", [Disconnect];
    /// Subscription identifiers are not supported.
    SubscriptionIdentifiersNotSupported = 0xA1, "subscription identifiers not supported", [SubAck Disconnect];
    /// Wildcard subscriptions are not supported.
    WildcardSubscriptionsNotSupported = 0xA2, "wildcard subscriptions not supported", [SubAck Disconnect];
}

impl ReasonCode {
    /// Returns `true` for 0x80 and above: the code reports a failure (§2.4).
    #[must_use]
    pub fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// Returns the SUBACK reason code that grants a subscription at `qos`.
    #[must_use]
    pub fn granted(qos: crate::QoS) -> Self {
        match qos {
            crate::QoS::AtMostOnce => Self::Success,
            crate::QoS::AtLeastOnce => Self::GrantedQos1,
            crate::QoS::ExactlyOnce => Self::GrantedQos2,
        }
    }

    /// Returns the CONNACK return code of MQTT 3.1 and 3.1.1 (§3.2.2.3 there) with the meaning of this
    /// reason code. `None` if there is none; then no CONNACK is sent (`[MQTT-3.2.2-6]` of 3.1.1).
    #[must_use]
    pub fn to_connect_return_code(self) -> Option<u8> {
        Some(match self {
            code if !code.is_error() => 0,
            Self::UnsupportedProtocolVersion => 1,
            Self::ClientIdentifierNotValid => 2,
            Self::ServerUnavailable
            | Self::ServerBusy
            | Self::ServerShuttingDown
            | Self::QuotaExceeded
            | Self::UseAnotherServer
            | Self::ServerMoved
            | Self::ConnectionRateExceeded => 3,
            Self::BadUserNameOrPassword => 4,
            Self::NotAuthorized | Self::Banned | Self::BadAuthenticationMethod => 5,
            _ => return None,
        })
    }

    /// Returns the version of the CONNACK with which a server answers a malformed CONNECT for this reason; `None` if it closes
    /// the connection without an answer. `named` is the version that the CONNECT had named before its error, as
    /// [`Decoder::version`](crate::Decoder::version) has it.
    #[must_use]
    pub fn malformed_connect_version(self, named: Option<Version>) -> Option<Version> {
        match named {
            // §4.13.1
            Some(Version::V5) => Some(Version::V5),
            // A client whose version is unknown or too new understands MQTT 3.1.1's answer best
            // `[MQTT-3.1.2-2]`; garbage gets none.
            None if self == Self::UnsupportedProtocolVersion => Some(Version::V3_1_1),
            // 3.1.1's `[MQTT-3.1.4-1]`
            _ => None,
        }
    }

    /// Returns the reason code for a CONNACK return code of MQTT 3.1 and 3.1.1; `None` above 5.
    #[must_use]
    pub fn from_connect_return_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Success,
            1 => Self::UnsupportedProtocolVersion,
            2 => Self::ClientIdentifierNotValid,
            3 => Self::ServerUnavailable,
            4 => Self::BadUserNameOrPassword,
            5 => Self::NotAuthorized,
            _ => return None,
        })
    }
}

/// Displays the name and the number, such as `not authorized (0x87)`.
impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#04x})", self.name(), *self as u8)
    }
}
