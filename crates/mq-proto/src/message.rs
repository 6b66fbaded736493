//! A message and its delivery to one receiver.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use mq_codec::{PublishProperties, QoS, Sparse, SubscriptionId, TopicName, whole_seconds};

/// A message, immutable and shared by all its receivers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// The topic name that the message is published to; never empty.
    pub topic: TopicName,
    /// The application's bytes.
    pub payload: Bytes,
    /// PUBLISH properties. Topic alias and subscription identifiers belong to one connection and are ignored
    /// here.
    pub properties: Sparse<PublishProperties>,
}

/// A message on its way to one receiver, with what differs between receivers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The message, shared.
    pub message: Arc<Message>,
    /// The QoS at which the message is sent.
    pub qos: QoS,
    /// The RETAIN flag.
    pub retain: bool,
    /// Identifiers of the receiver's subscriptions that the message matched; from server to client only.
    pub subscription_ids: Vec<SubscriptionId>,
    /// Time at which the message expires. The remaining time replaces the Message Expiry Interval of the
    /// message when it is sent `[MQTT-3.3.2-6]`.
    pub expires_at: Option<Instant>,
    /// A mark of the owner's, kept with the delivery. The connection neither sends nor reads it.
    pub tag: u64,
}

impl Message {
    /// Builds a message without properties.
    #[must_use]
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        Self {
            topic,
            payload: payload.into(),
            properties: Sparse::empty(),
        }
    }

    /// Copies a message that shares a read buffer into memory of its own, so that it does not keep the buffer
    /// alive.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self {
            topic: self.topic.detached(),
            payload: Bytes::copy_from_slice(&self.payload),
            properties: if self.properties.is_untouched() {
                Sparse::empty()
            } else {
                self.properties.detached().into()
            },
        }
    }
}

impl Delivery {
    /// Builds a delivery at `qos`, not retained, with tag 0. It does not expire by itself: a Message Expiry
    /// Interval among the message's properties is sent unchanged.
    #[must_use]
    pub fn new(message: impl Into<Arc<Message>>, qos: QoS) -> Self {
        Self {
            message: message.into(),
            qos,
            retain: false,
            subscription_ids: Vec::new(),
            expires_at: None,
            tag: 0,
        }
    }

    /// Returns the Message Expiry Interval to send at `now`, in seconds: the remaining time rounded up, and
    /// never more than the message's own interval, whatever the order of the caller's instants.
    pub(crate) fn expiry_interval(&self, now: Instant) -> Option<u32> {
        let whole = self.message.properties.message_expiry_interval;
        let Some(at) = self.expires_at else {
            return whole;
        };
        let seconds = whole_seconds(at.saturating_duration_since(now));
        Some(whole.map_or(seconds, |whole| whole.min(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_detached_message_keeps_no_buffer_alive() {
        let buffer = Bytes::from(vec![b'x'; 400]);
        let text = |at: usize| mq_codec::ByteStr::from_bytes(buffer.slice(at..at + 50)).unwrap();
        let mut message = Message::new(TopicName::new("t").unwrap(), buffer.slice(..50));
        message.properties.response_topic = Some(text(50));
        message.properties.content_type = Some(text(100));
        message.properties.correlation_data = Some(buffer.slice(150..200));
        message.properties.user_properties = vec![(text(200), text(250))];
        let detached = message.detached();
        assert_eq!(detached, message);
        drop(message);
        assert!(buffer.is_unique());
    }

    #[test]
    fn what_is_left_is_rounded_up_and_never_grows() {
        let now = Instant::now();
        let mut message = Message::default();
        message.properties.message_expiry_interval = Some(2);
        let mut delivery = Delivery::new(message, QoS::AtMostOnce);
        assert_eq!(delivery.expiry_interval(now), Some(2));
        // The deadline was reckoned a moment after `now` was read.
        delivery.expires_at = Some(now + Duration::from_millis(2_001));
        assert_eq!(delivery.expiry_interval(now), Some(2));
        assert_eq!(
            delivery.expiry_interval(now + Duration::from_millis(1_500)),
            Some(1)
        );
        assert_eq!(
            delivery.expiry_interval(now + Duration::from_secs(9)),
            Some(0)
        );
    }
}
