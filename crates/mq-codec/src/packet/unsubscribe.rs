//! UNSUBSCRIBE (§3.10).

use super::Body;
use crate::{
    ByteStr, DecodeError, EncodeError, PacketId, PacketType, TopicFilter, Version,
    props::{Properties, properties},
    wire::{Reader, Sink},
};

/// An UNSUBSCRIBE packet: ends subscriptions, at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsubscribe {
    /// The packet identifier, which UNSUBACK returns.
    pub packet_id: PacketId,
    /// The filters, in exactly the form of the subscription.
    pub filters: Vec<TopicFilter>,
    /// MQTT 5.0 properties of the packet.
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
    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        Ok(Self {
            packet_id: reader.packet_id()?,
            properties: UnsubscribeProperties::read(reader, version)?,
            filters: reader.list(DecodeError::NoFilter, |reader| reader.filter(version))?,
        })
    }
}

impl Body for Unsubscribe {
    fn check(&self, _: Version) -> Result<(), EncodeError> {
        if self.filters.is_empty() {
            return Err(EncodeError::NoFilter(PacketType::Unsubscribe));
        }
        Ok(())
    }

    fn write(&self, version: Version, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        self.properties.write(version, sink);
        for filter in &self.filters {
            sink.string(filter.as_byte_str());
        }
    }
}
