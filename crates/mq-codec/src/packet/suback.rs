//! SUBACK (§3.9).

use super::{Body, read_reason};
use crate::{
    ByteStr, DecodeError, PacketId, PacketType, QoS, ReasonCode, Version,
    props::{Properties, properties},
    wire::{Reader, Sink},
};

/// A SUBACK packet: the answer to SUBSCRIBE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubAck {
    /// The packet identifier of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// Reason codes, one for each subscription of the SUBSCRIBE in its order: the granted QoS or a
    /// failure (§3.9.3).
    pub reasons: Vec<ReasonCode>,
    /// MQTT 5.0 properties of the packet.
    pub properties: SubAckProperties,
}

properties! {
    /// Properties of SUBACK (§3.9.2.1).
    SubAckProperties {
        /// Reason String: a diagnostic text for people and logs, which programs should not parse
        /// (§3.9.2.1.2).
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl SubAck {
    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let read_one = match version {
            Version::V5 => read_reason,
            Version::V3_1 | Version::V3_1_1 => read_return_code,
        };
        Ok(Self {
            packet_id: reader.packet_id()?,
            properties: SubAckProperties::read(reader, version)?,
            reasons: reader.list(DecodeError::Truncated, read_one)?,
        })
    }
}

/// Reads a return code of MQTT 3.1 or 3.1.1: a granted QoS, or 0x80 for a failure.
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

impl Body for SubAck {
    fn write(&self, version: Version, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        self.properties.write(version, sink);
        for reason in &self.reasons {
            sink.u8(if version < Version::V5 && reason.is_error() {
                0x80
            } else {
                *reason as u8
            });
        }
    }
}
