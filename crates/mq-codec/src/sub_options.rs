//! Subscriptions: topic filters with their options, as SUBSCRIBE lists them (§3.8.3).

use crate::{DecodeError, QoS, TopicFilter, Version};

/// A topic filter with its options: one entry of SUBSCRIBE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscription {
    /// The topic filter to subscribe to.
    pub filter: TopicFilter,
    /// The QoS, and the other options of MQTT 5.0.
    pub options: SubscriptionOptions,
}

/// Subscription options (§3.8.3.1). MQTT 3.1 and 3.1.1 have the QoS only.
///
/// Default: QoS 0, everything else off. A [`QoS`] converts into options with that QoS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubscriptionOptions {
    /// The highest QoS at which messages are delivered.
    pub qos: QoS,
    /// No Local: `true` if the client's own messages are not delivered to it.
    pub no_local: bool,
    /// Retain As Published: `true` if delivered messages keep the RETAIN flag that the publisher set.
    pub retain_as_published: bool,
    /// Retain Handling: the condition for retained messages to be sent after SUBSCRIBE.
    pub retain_handling: RetainHandling,
}

/// Condition for a SUBSCRIBE to be answered with retained messages too (Retain Handling, §3.8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum RetainHandling {
    /// Retained messages are sent on each SUBSCRIBE, also if the subscription exists already.
    #[default]
    Send = 0,
    /// Retained messages are sent only if the subscription did not exist before.
    SendIfNew = 1,
    /// No retained messages are sent.
    DoNotSend = 2,
}

impl From<QoS> for SubscriptionOptions {
    fn from(qos: QoS) -> Self {
        Self {
            qos,
            ..Self::default()
        }
    }
}

impl SubscriptionOptions {
    /// Returns the options byte, which follows the filter in SUBSCRIBE (§3.8.3.1); before 5.0 the QoS
    /// alone.
    #[must_use]
    pub fn bits(self, version: Version) -> u8 {
        let qos = self.qos as u8;
        if version < Version::V5 {
            return qos;
        }
        qos | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | (self.retain_handling as u8) << 4
    }

    /// Returns the options of an options byte.
    ///
    /// # Errors
    /// [`DecodeError::ReservedSubscriptionOptions`] if the byte has a bit or a value that `version`
    /// reserves.
    pub fn from_bits(bits: u8, version: Version) -> Result<Self, DecodeError> {
        let invalid = DecodeError::ReservedSubscriptionOptions { bits };
        let Some(qos) = QoS::from_bits(bits & 0b11) else {
            return Err(invalid);
        };
        let reserved = if version < Version::V5 { 0xFC } else { 0xC0 };
        if bits & reserved != 0 {
            return Err(invalid);
        }
        Ok(Self {
            qos,
            no_local: bits & 0b100 != 0,
            retain_as_published: bits & 0b1000 != 0,
            retain_handling: match bits >> 4 & 0b11 {
                0 => RetainHandling::Send,
                1 => RetainHandling::SendIfNew,
                2 => RetainHandling::DoNotSend,
                _ => return Err(invalid),
            },
        })
    }
}
