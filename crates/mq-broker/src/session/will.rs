//! A will while its client is connected or away.

use std::{sync::Arc, time::Duration};

use mq_codec::{PublishProperties, QoS, Will};
use mq_proto::{Delivery, Message};

use crate::{
    memory_limit::MemoryLimit,
    store::{StoreClock, StoredMessage, StoredWill},
};

/// A will as the broker keeps it: in memory of its own, which counts until the will is published or
/// forgotten.
#[derive(Debug)]
pub(crate) struct KeptWill {
    pub(crate) message: Message,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    delay: Duration,
}

impl KeptWill {
    /// Keeps a will; `None` if there is no room for it.
    pub(crate) fn new(will: Will, memory_limit: &Arc<MemoryLimit>) -> Option<Self> {
        let Will {
            topic,
            payload,
            qos,
            retain,
            properties,
        } = will;
        let message = Message {
            topic,
            payload,
            properties: PublishProperties {
                payload_is_utf8: properties.payload_is_utf8,
                message_expiry_interval: properties.message_expiry_interval,
                content_type: properties.content_type,
                response_topic: properties.response_topic,
                correlation_data: properties.correlation_data,
                user_properties: properties.user_properties,
                ..PublishProperties::default()
            }
            .into(),
        };
        let delay = properties.will_delay_interval.unwrap_or(0);
        Some(Self {
            message: memory_limit.keep(&message)?,
            qos,
            retain,
            delay: Duration::from_secs(delay.into()),
        })
    }

    /// Restores the will that a session had at another node: what was promised is kept, room or not.
    pub(crate) fn restore(will: StoredWill, memory_limit: &Arc<MemoryLimit>) -> Self {
        let StoredWill { message, delay } = will;
        Self {
            message: memory_limit.keep_anyway(&message.message),
            qos: message.qos,
            retain: message.retain,
            delay,
        }
    }

    /// Returns the form in which a cluster keeps it, whose clock that is.
    pub(crate) fn stored(&self, clock: StoreClock<'_>) -> StoredWill {
        let mut delivery = Delivery::new(Arc::new(self.message.clone()), self.qos);
        delivery.retain = self.retain;
        StoredWill {
            message: StoredMessage::new(&delivery, clock),
            delay: self.delay,
        }
    }

    /// Returns the time after the end of its connection at which it is published.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }
}
