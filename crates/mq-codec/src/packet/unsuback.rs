//! UNSUBACK (§3.11).

use bytes::BytesMut;

use super::{Body, Versioned, ack::read_reason, encode_body};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketId, PacketType, ReasonCode, Version,
    props::properties,
    wire::{Reader, Sink},
};

/// An UNSUBACK packet: the answer to UNSUBSCRIBE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsubAck {
    /// The identifier of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// One for each filter, in order; before MQTT 5.0 none.
    pub reasons: Vec<ReasonCode>,
    /// MQTT 5.0 properties.
    pub properties: UnsubAckProperties,
}

properties! {
    /// Properties of UNSUBACK (§3.11.2.1).
    UnsubAckProperties {
        /// For humans and logs.
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl UnsubAck {
    pub(super) fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        encode_body(
            PacketType::UnsubAck,
            &Versioned {
                packet: self,
                version,
            },
            out,
        )
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let packet_id = reader.packet_id()?;
        let mut properties = UnsubAckProperties::default();
        let mut reasons = Vec::new();
        if version >= Version::V5 {
            properties = UnsubAckProperties::read(reader)?;
            while !reader.is_empty() {
                reasons.push(read_reason(reader)?);
            }
            if reasons.is_empty() {
                return Err(DecodeError::Truncated(PacketType::UnsubAck));
            }
        }
        Ok(Self {
            packet_id,
            reasons,
            properties,
        })
    }
}

impl Body for Versioned<'_, UnsubAck> {
    fn write(&self, sink: &mut impl Sink) {
        sink.packet_id(self.packet.packet_id);
        if self.version >= Version::V5 {
            self.packet.properties.write(sink);
            for reason in &self.packet.reasons {
                sink.u8(*reason as u8);
            }
        }
    }
}
