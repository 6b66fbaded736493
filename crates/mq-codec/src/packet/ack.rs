//! PUBACK, PUBREC, PUBREL and PUBCOMP (§3.4 to §3.7): four names for one layout.

use super::{Body, read_outcome, write_outcome};
use crate::{
    ByteStr, DecodeError, PacketId, ReasonCode, Sparse, Version,
    props::properties,
    wire::{Reader, Sink},
};

/// The content of PUBACK, PUBREC, PUBREL and PUBCOMP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ack {
    /// The packet identifier of the PUBLISH.
    pub packet_id: PacketId,
    /// Success, or the reason of a failure; before MQTT 5.0 read as success and not written.
    pub reason: ReasonCode,
    /// MQTT 5.0 properties of the packet.
    pub properties: Sparse<AckProperties>,
}

properties! {
    /// Properties of PUBACK, PUBREC, PUBREL and PUBCOMP (§3.4.2.2).
    AckProperties {
        /// Reason String: a diagnostic text for people and logs, which programs should not parse
        /// (§3.4.2.2.2).
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl Ack {
    /// Makes an acknowledgement without properties.
    #[must_use]
    pub fn new(packet_id: PacketId, reason: ReasonCode) -> Self {
        Self {
            packet_id,
            reason,
            properties: Sparse::empty(),
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let packet_id = reader.packet_id()?;
        let (reason, properties) = read_outcome(reader, version)?;
        Ok(Self {
            packet_id,
            reason,
            properties,
        })
    }
}

impl Body for Ack {
    fn write(&self, version: Version, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        write_outcome(self.reason, &self.properties, version, sink);
    }
}
