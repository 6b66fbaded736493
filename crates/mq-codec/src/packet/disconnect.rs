//! DISCONNECT (§3.14).

use bytes::BytesMut;

use super::{Body, Versioned, ack::read_reason, encode_body};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketType, ReasonCode, Version,
    props::properties,
    wire::{Reader, Sink},
};

/// A DISCONNECT packet: the last of a connection. Before MQTT 5.0 only clients send it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disconnect {
    /// Why; always success before MQTT 5.0.
    pub reason: ReasonCode,
    /// MQTT 5.0 properties.
    pub properties: DisconnectProperties,
}

properties! {
    /// Properties of DISCONNECT (§3.14.2.2).
    DisconnectProperties {
        /// From the client: seconds that the session lives on, instead of CONNECT's.
        session_expiry_interval: Option<u32> = SESSION_EXPIRY_INTERVAL,
        /// For humans and logs.
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
        /// Another server to use.
        server_reference: Option<ByteStr> = SERVER_REFERENCE,
    }
}

impl Disconnect {
    /// A DISCONNECT without properties.
    #[must_use]
    pub fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            properties: DisconnectProperties::default(),
        }
    }

    pub(super) fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        encode_body(
            PacketType::Disconnect,
            &Versioned {
                packet: self,
                version,
            },
            out,
        )
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let mut disconnect = Self::new(ReasonCode::Success);
        // Reason code and properties may be left out at the end (§3.14.2.1).
        if version >= Version::V5 && !reader.is_empty() {
            disconnect.reason = read_reason(reader)?;
            if !reader.is_empty() {
                disconnect.properties = DisconnectProperties::read(reader)?;
            }
        }
        Ok(disconnect)
    }
}

impl Body for Versioned<'_, Disconnect> {
    fn write(&self, sink: &mut impl Sink) {
        let no_properties = self.packet.properties.is_empty();
        let plain = self.packet.reason == ReasonCode::Success && no_properties;
        if self.version < Version::V5 || plain {
            return;
        }
        sink.u8(self.packet.reason as u8);
        if !no_properties {
            self.packet.properties.write(sink);
        }
    }
}
