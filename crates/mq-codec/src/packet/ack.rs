//! PUBACK, PUBREC, PUBREL and PUBCOMP (§3.4 to §3.7): four names for one layout.

use bytes::BytesMut;

use super::{Body, Versioned, encode_body};
use crate::{
    ByteStr, DecodeError, Empty, EncodeError, PacketId, PacketType, ReasonCode, Sparse, Version,
    props::properties,
    wire::{Reader, Sink},
};

/// The content of PUBACK, PUBREC, PUBREL and PUBCOMP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ack {
    /// The identifier of the PUBLISH that it is about.
    pub packet_id: PacketId,
    /// Success, or why not; before MQTT 5.0 read as success and not written.
    pub reason: ReasonCode,
    /// MQTT 5.0 properties.
    pub properties: Sparse<AckProperties>,
}

properties! {
    /// Properties of PUBACK, PUBREC, PUBREL and PUBCOMP (§3.4.2.2).
    AckProperties {
        /// For humans and logs.
        reason_string: Option<ByteStr> = REASON_STRING,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl Empty for AckProperties {
    fn empty() -> &'static Self {
        static EMPTY: AckProperties = AckProperties {
            reason_string: None,
            user_properties: Vec::new(),
        };
        &EMPTY
    }
}

impl Ack {
    /// An acknowledgement without properties.
    #[must_use]
    pub fn new(packet_id: PacketId, reason: ReasonCode) -> Self {
        Self {
            packet_id,
            reason,
            properties: Sparse::empty(),
        }
    }

    pub(super) fn encode(
        &self,
        packet: PacketType,
        version: Version,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        encode_body(
            packet,
            &Versioned {
                packet: self,
                version,
            },
            out,
        )
    }

    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let mut ack = Self::new(reader.packet_id()?, ReasonCode::Success);
        // The reason code may be left out if it is success (§3.4.2.1), and so may the properties.
        if version >= Version::V5 && !reader.is_empty() {
            ack.reason = read_reason(reader)?;
            if !reader.is_empty() {
                ack.properties = AckProperties::read(reader)?.into();
            }
        }
        Ok(ack)
    }
}

/// A reason code that the packet may have.
pub(super) fn read_reason(reader: &mut Reader<'_>) -> Result<ReasonCode, DecodeError> {
    let packet = reader.packet;
    let code = reader.u8()?;
    ReasonCode::from_byte(code)
        .filter(|reason| reason.is_allowed_in(packet))
        .ok_or(DecodeError::ReasonCode { packet, code })
}

impl Body for Versioned<'_, Ack> {
    fn write(&self, sink: &mut impl Sink) {
        sink.packet_id(self.packet.packet_id);
        if self.version < Version::V5 {
            return;
        }
        let no_properties =
            self.packet.properties.is_untouched() || self.packet.properties.is_empty();
        if self.packet.reason == ReasonCode::Success && no_properties {
            return;
        }
        sink.u8(self.packet.reason as u8);
        if !no_properties {
            self.packet.properties.write(sink);
        }
    }
}
