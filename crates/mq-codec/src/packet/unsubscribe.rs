//! UNSUBSCRIBE (§3.10).

use bytes::BytesMut;

use super::{Body, Versioned, encode_body};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketId, PacketType, TopicFilter, Version,
    props::properties,
    wire::{Reader, Sink},
};

/// An UNSUBSCRIBE packet: ends subscriptions, at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsubscribe {
    /// Returns in UNSUBACK.
    pub packet_id: PacketId,
    /// The filters, letter by letter as they were subscribed to.
    pub filters: Vec<TopicFilter>,
    /// MQTT 5.0 properties.
    pub properties: UnsubscribeProperties,
}

properties! {
    /// Properties of UNSUBSCRIBE (§3.10.2.1).
    UnsubscribeProperties {
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl Unsubscribe {
    pub(super) fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        if self.filters.is_empty() {
            return Err(EncodeError::NoFilter(PacketType::Unsubscribe));
        }
        encode_body(
            PacketType::Unsubscribe,
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
            UnsubscribeProperties::read(reader)?
        } else {
            UnsubscribeProperties::default()
        };
        let mut filters = Vec::with_capacity(1);
        while !reader.is_empty() {
            let filter = TopicFilter::received(reader.string()?, version);
            filters.push(filter.map_err(DecodeError::TopicFilter)?);
        }
        if filters.is_empty() {
            return Err(DecodeError::NoFilter(PacketType::Unsubscribe));
        }
        Ok(Self {
            packet_id,
            filters,
            properties,
        })
    }
}

impl Body for Versioned<'_, Unsubscribe> {
    fn write(&self, sink: &mut impl Sink) {
        sink.packet_id(self.packet.packet_id);
        if self.version >= Version::V5 {
            self.packet.properties.write(sink);
        }
        for filter in &self.packet.filters {
            sink.string(filter.as_byte_str());
        }
    }
}
