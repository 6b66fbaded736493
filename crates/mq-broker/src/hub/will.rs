//! Wills: kept while their clients are connected or away, published when they are due.

use std::{sync::Arc, time::Duration};

use mq_codec::{PublishProperties, QoS, Will};
use mq_proto::{Message, Received};

use super::{Hub, read};
use crate::{ceiling::Ceiling, clock, session::Session};

/// A will as the broker keeps it: in memory of its own, which counts until it was published or is
/// forgotten.
#[derive(Debug)]
pub(crate) struct KeptWill {
    message: Message,
    qos: QoS,
    retain: bool,
    delay: Duration,
}

impl KeptWill {
    /// `None` if there is no room for it.
    fn new(will: Will, ceiling: &Arc<Ceiling>) -> Option<Self> {
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
            message: ceiling.keep(&message)?,
            qos,
            retain,
            delay: Duration::from_secs(delay.into()),
        })
    }

    /// How long after its connection's end it is published.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }
}

impl Hub {
    /// Keeps a client's will; `None` if there is no room for it.
    pub(crate) fn keep_will(&self, will: Will) -> Option<KeptWill> {
        KeptWill::new(will, &self.ceiling)
    }

    /// Publishes a will, if its owner still may. Nobody waits for room here: a mailbox that is full
    /// goes on in the store at once, or drops it.
    pub(super) fn publish_will(&self, session: &Session, will: KeptWill) {
        let KeptWill {
            message,
            qos,
            retain,
            ..
        } = will;
        let who = session.principal();
        if !self
            .guard
            .may_publish(who.as_ref(), &message.topic, qos, retain)
        {
            self.metrics.not_authorized.add(1);
            let reason = "will not authorized";
            return self.refused_publish(session, &message.topic, reason, clock::now());
        }
        let received = Received {
            message,
            qos,
            retain,
            dup: false,
            subscription_ids: Vec::new(),
            ticket: None,
        };
        let mut publisher = self.publisher();
        self.publish(Some(session), received, clock::now(), &mut publisher);
        // No session ends meanwhile.
        let routing = read(&self.routing);
        publisher.finish(&self.metrics);
        drop(routing);
        publisher.tell_readers();
    }
}
