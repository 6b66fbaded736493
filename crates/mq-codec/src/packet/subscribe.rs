//! SUBSCRIBE (§3.8).

use super::Body;
use crate::{
    ByteStr, DecodeError, EncodeError, PacketId, PacketType, Subscription, SubscriptionId,
    SubscriptionOptions, Version,
    props::{Properties, properties},
    wire::{Reader, Sink},
};

/// A SUBSCRIBE packet: asks for subscriptions, at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscribe {
    /// The packet identifier, which SUBACK returns.
    pub packet_id: PacketId,
    /// The subscriptions; SUBACK answers in the same order.
    pub subscriptions: Vec<Subscription>,
    /// MQTT 5.0 properties of the packet.
    pub properties: SubscribeProperties,
}

properties! {
    /// Properties of SUBSCRIBE (§3.8.2.1).
    SubscribeProperties {
        /// Comes back with each message that one of these subscriptions matches.
        subscription_id: Option<SubscriptionId> = SUBSCRIPTION_IDENTIFIER,
        /// Names and values for the application.
        user_properties: Vec<(ByteStr, ByteStr)> = USER_PROPERTY,
    }
}

impl Subscribe {
    pub(super) fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        Ok(Self {
            packet_id: reader.packet_id()?,
            properties: SubscribeProperties::read(reader, version)?,
            subscriptions: reader.list(DecodeError::NoFilter, |reader| {
                let filter = reader.filter(version)?;
                let options = SubscriptionOptions::from_bits(reader.u8()?, version)?;
                if options.no_local && filter.shared().is_some() {
                    return Err(DecodeError::NoLocalOnShared);
                }
                Ok(Subscription { filter, options })
            })?,
        })
    }
}

impl Body for Subscribe {
    fn check(&self, _: Version) -> Result<(), EncodeError> {
        if self.subscriptions.is_empty() {
            return Err(EncodeError::NoFilter(PacketType::Subscribe));
        }
        Ok(())
    }

    fn write(&self, version: Version, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        self.properties.write(version, sink);
        for subscription in &self.subscriptions {
            sink.string(subscription.filter.as_byte_str());
            sink.u8(subscription.options.bits(version));
        }
    }
}
