//! SUBSCRIBE (§3.8).

use bytes::BytesMut;

use super::{Body, Versioned, encode_body};
use crate::{
    ByteStr, DecodeError, EncodeError, PacketId, PacketType, Subscription, SubscriptionId,
    SubscriptionOptions, TopicFilter, Version,
    props::properties,
    wire::{Reader, Sink},
};

/// A SUBSCRIBE packet: asks for subscriptions, at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscribe {
    /// Returns in SUBACK.
    pub packet_id: PacketId,
    /// What is asked for; SUBACK answers in the same order.
    pub subscriptions: Vec<Subscription>,
    /// MQTT 5.0 properties.
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
    pub(super) fn encode(&self, version: Version, out: &mut BytesMut) -> Result<(), EncodeError> {
        if self.subscriptions.is_empty() {
            return Err(EncodeError::NoFilter(PacketType::Subscribe));
        }
        encode_body(
            PacketType::Subscribe,
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
            SubscribeProperties::read(reader)?
        } else {
            SubscribeProperties::default()
        };
        let mut subscriptions = Vec::with_capacity(1);
        while !reader.is_empty() {
            let filter = TopicFilter::received(reader.string()?, version)
                .map_err(DecodeError::TopicFilter)?;
            let options = SubscriptionOptions::from_bits(reader.u8()?, version)?;
            if options.no_local && filter.shared().is_some() {
                return Err(DecodeError::NoLocalOnShared);
            }
            subscriptions.push(Subscription { filter, options });
        }
        if subscriptions.is_empty() {
            return Err(DecodeError::NoFilter(PacketType::Subscribe));
        }
        Ok(Self {
            packet_id,
            subscriptions,
            properties,
        })
    }
}

impl Body for Versioned<'_, Subscribe> {
    fn write(&self, sink: &mut impl Sink) {
        sink.packet_id(self.packet.packet_id);
        if self.version >= Version::V5 {
            self.packet.properties.write(sink);
        }
        for subscription in &self.packet.subscriptions {
            sink.string(subscription.filter.as_byte_str());
            sink.u8(subscription.options.bits(self.version));
        }
    }
}
