//! CONNACK (§3.2).

use core::num::{NonZeroU16, NonZeroU32};

use bytes::Bytes;

use super::{Body, read_reason};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketType, QoS, ReasonCode, Version,
    props::{Properties, properties},
    wire::{Reader, Sink, check_binary},
};

/// A CONNACK packet: the server's answer to CONNECT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnAck {
    /// `true` if the server resumes an earlier session (§3.2.2.1.1).
    pub session_present: bool,
    /// Success, or the reason of the refusal.
    pub reason: ReasonCode,
    /// MQTT 5.0 properties of the packet.
    pub properties: ConnAckProperties,
}

properties! {
    /// Properties of CONNACK (§3.2.2.3).
    ConnAckProperties {
        /// Replaces the session expiry that the client asked for; seconds.
        session_expiry_interval: Option<u32> = SESSION_EXPIRY_INTERVAL,
        /// QoS 1 and 2 messages that may be on their way to the server at once; 65,535 if absent.
        receive_maximum: Option<NonZeroU16> = RECEIVE_MAXIMUM,
        /// The highest QoS that the server takes; 2 if absent, and 2 is never sent.
        maximum_qos: Option<QoS> = MAXIMUM_QOS,
        /// Retain Available: `false` if the server supports no retained messages; `true` if absent
        /// (§3.2.2.3.5).
        retain_available: Option<bool> = RETAIN_AVAILABLE,
        /// The largest packet, in bytes, that the server takes; without limit if absent.
        maximum_packet_size: Option<NonZeroU32> = MAXIMUM_PACKET_SIZE,
        /// The client identifier that the server chose.
        assigned_client_identifier: Option<ByteStr> = ASSIGNED_CLIENT_IDENTIFIER,
        /// The greatest topic alias that the server takes; 0 if absent.
        topic_alias_maximum: Option<u16> = TOPIC_ALIAS_MAXIMUM,
        /// Reason String: a diagnostic text for people and logs, which programs should not parse
        /// (§3.2.2.3.9).
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
        /// Wildcard Subscription Available: `false` if topic filters must not have wildcards; `true` if
        /// absent (§3.2.2.3.11).
        wildcard_subscription_available: Option<bool> = WILDCARD_SUBSCRIPTION_AVAILABLE,
        /// Subscription Identifiers Available: `false` if the server supports none; `true` if absent
        /// (§3.2.2.3.12).
        subscription_identifiers_available: Option<bool> = SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        /// Shared Subscription Available: `false` if the server supports none; `true` if absent
        /// (§3.2.2.3.13).
        shared_subscription_available: Option<bool> = SHARED_SUBSCRIPTION_AVAILABLE,
        /// Replaces the keep-alive that the client asked for; seconds.
        server_keep_alive: Option<u16> = SERVER_KEEP_ALIVE,
        /// Response Information: the basis from which the client makes its response topics
        /// (§3.2.2.3.15).
        response_information: Option<ByteStr> = RESPONSE_INFORMATION,
        /// Another server to use.
        server_reference: Option<ByteStr> = SERVER_REFERENCE,
        /// The name of the extended authentication in use.
        authentication_method: Option<ByteStr> = AUTHENTICATION_METHOD,
        /// The last data of that authentication.
        authentication_data: Option<Bytes> = AUTHENTICATION_DATA,
    }
}

impl ConnAck {
    /// Builds a CONNACK without properties and with Session Present 0.
    #[must_use]
    pub fn new(reason: ReasonCode) -> Self {
        Self {
            session_present: false,
            reason,
            properties: ConnAckProperties::default(),
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let flags = reader.u8()?;
        // MQTT 3.1 has no Session Present and leaves the whole byte reserved.
        let session_present = flags & 1 != 0 && version > Version::V3_1;
        if flags > 1 && version > Version::V3_1 {
            return Err(DecodeError::ConnAckFlags { flags });
        }
        let reason = if version >= Version::V5 {
            read_reason(reader)?
        } else {
            let code = reader.u8()?;
            ReasonCode::from_connect_return_code(code).ok_or(DecodeError::ReasonCode {
                packet: PacketType::ConnAck,
                code,
            })?
        };
        if session_present && reason.is_error() {
            return Err(DecodeError::ConnAckFlags { flags });
        }
        Ok(Self {
            session_present,
            reason,
            properties: ConnAckProperties::read(reader, version)?,
        })
    }
}

impl Body for ConnAck {
    fn check(&self, _: Version) -> Result<(), EncodeError> {
        let data = self.properties.authentication_data.as_ref();
        check_binary(PacketType::ConnAck, data)
    }

    fn write(&self, version: Version, sink: &mut impl Sink) {
        let session_present = self.session_present && version > Version::V3_1;
        sink.u8(u8::from(session_present && !self.reason.is_error()));
        if version >= Version::V5 {
            sink.u8(self.reason as u8);
            self.properties.write(version, sink);
        } else {
            let code = self.reason.to_connect_return_code();
            // A reason without a code of its own is nearest to "server unavailable".
            sink.u8(code.unwrap_or(3));
        }
    }
}
