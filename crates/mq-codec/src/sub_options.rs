//! One entry of a SUBSCRIBE packet.

use crate::{DecodeError, QoS, TopicFilter, Version};

/// A topic filter with its options: one entry of SUBSCRIBE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscription {
    /// What to subscribe to.
    pub filter: TopicFilter,
    /// The options.
    pub options: SubscriptionOptions,
}

/// Subscription options (§3.8.3.1). MQTT 3.1 and 3.1.1 have the QoS only.
///
/// Default: QoS 0, everything else off. A [`QoS`] converts into options with that QoS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubscriptionOptions {
    /// The highest QoS at which messages are wanted.
    pub qos: QoS,
    /// Do not deliver this client's own messages.
    pub no_local: bool,
    /// Keep the RETAIN flag as the publisher set it.
    pub retain_as_published: bool,
    /// Which retained messages to send when the subscription is made.
    pub retain_handling: RetainHandling,
}

/// When a subscription gets the retained messages (§3.8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum RetainHandling {
    /// Whenever the subscription is made.
    #[default]
    Send = 0,
    /// Only if the subscription did not exist before.
    SendIfNew = 1,
    /// Never.
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
    /// The byte that stands behind the filter in SUBSCRIBE (§3.8.3.1).
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

    /// The options of the byte.
    ///
    /// # Errors
    /// [`DecodeError::ReservedSubscriptionOptions`] for any other byte.
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
