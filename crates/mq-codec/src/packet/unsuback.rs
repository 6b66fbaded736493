//! UNSUBACK (§3.11).

use super::{Body, read_reason};
use crate::{
    ByteStr, DecodeError, PacketId, ReasonCode, Version,
    props::{Properties, properties},
    wire::{Reader, Sink},
};

/// An UNSUBACK packet: the answer to UNSUBSCRIBE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsubAck {
    /// The packet identifier of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// Reason codes, one for each filter of the UNSUBSCRIBE in its order (§3.11.3); none before MQTT
    /// 5.0.
    pub reasons: Vec<ReasonCode>,
    /// MQTT 5.0 properties of the packet.
    pub properties: UnsubAckProperties,
}

properties! {
    /// Properties of UNSUBACK (§3.11.2.1).
    UnsubAckProperties {
        /// Reason String: a diagnostic text for people and logs, which programs should not parse
        /// (§3.11.2.1.2).
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl UnsubAck {
    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        Ok(Self {
            packet_id: reader.packet_id()?,
            properties: UnsubAckProperties::read(reader, version)?,
            reasons: match version {
                Version::V5 => reader.list(DecodeError::Truncated, read_reason)?,
                Version::V3_1 | Version::V3_1_1 => Vec::new(),
            },
        })
    }
}

impl Body for UnsubAck {
    fn write(&self, version: Version, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        self.properties.write(version, sink);
        if version >= Version::V5 {
            for reason in &self.reasons {
                sink.u8(*reason as u8);
            }
        }
    }
}
