//! SUBACK (§3.9).

use bytes::BytesMut;

use super::{Body, Versioned, ack::read_reason, encode_body};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketId, PacketType, QoS, ReasonCode, Version,
    props::properties,
    wire::{Reader, Sink},
};

/// A SUBACK packet: the answer to SUBSCRIBE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubAck {
    /// The identifier of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// One for each subscription, in order: a granted QoS or a failure.
    pub reasons: Vec<ReasonCode>,
    /// MQTT 5.0 properties.
    pub properties: SubAckProperties,
}

properties! {
    /// Properties of SUBACK (§3.9.2.1).
    SubAckProperties {
        /// For humans and logs.
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl SubAck {
    pub(super) fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        encode_body(
            PacketType::SubAck,
            &Versioned {
                packet: self,
                version,
            },
            out,
        )
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let packet_id = reader.packet_id()?;
        let properties = if version >= Version::V5 {
            SubAckProperties::read(reader)?
        } else {
            SubAckProperties::default()
        };
        let mut reasons = Vec::with_capacity(1);
        while !reader.is_empty() {
            reasons.push(if version >= Version::V5 {
                read_reason(reader)?
            } else {
                read_return_code(reader)?
            });
        }
        if reasons.is_empty() {
            return Err(DecodeError::Truncated(PacketType::SubAck));
        }
        Ok(Self {
            packet_id,
            reasons,
            properties,
        })
    }
}

/// Before 5.0: a granted QoS or 0x80.
fn read_return_code(reader: &mut Reader<'_>) -> Result<ReasonCode, DecodeError> {
    match reader.u8()? {
        0x80 => Ok(ReasonCode::UnspecifiedError),
        code => QoS::from_bits(code)
            .map(ReasonCode::granted)
            .ok_or(DecodeError::ReasonCode {
                packet: PacketType::SubAck,
                code,
            }),
    }
}

impl Body for Versioned<'_, SubAck> {
    fn write(&self, sink: &mut impl Sink) {
        sink.packet_id(self.packet.packet_id);
        if self.version >= Version::V5 {
            self.packet.properties.write(sink);
        }
        for reason in &self.packet.reasons {
            sink.u8(if self.version < Version::V5 && reason.is_error() {
                0x80
            } else {
                *reason as u8
            });
        }
    }
}
