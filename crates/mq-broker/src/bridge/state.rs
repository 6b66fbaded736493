//! What a bridge says of its connection: mosquitto's notifications.

use mq_codec::{QoS, TopicName, Will};
use mq_proto::{Delivery, Message};

/// Subscribers with a session that is kept learn of each change.
pub(crate) const QOS: QoS = QoS::AtLeastOnce;

/// A bridge that tells of its connection.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) topic: TopicName,
    /// Whether the other broker is told as well.
    pub(super) is_told_there: bool,
}

impl State {
    /// What it says of itself, here and there.
    pub(crate) fn message(&self, is_connected: bool) -> Message {
        let text = if is_connected { "1" } else { "0" };
        Message::new(self.topic.clone(), text)
    }

    /// Says at the other broker that the connection is lost, if anything is said there.
    pub(super) fn will(&self) -> Option<Will> {
        let message = self.message(false);
        self.is_told_there.then(|| Will {
            topic: message.topic,
            payload: message.payload,
            qos: QOS,
            retain: true,
            properties: mq_codec::WillProperties::default(),
        })
    }

    /// What the other broker gets of a state, if anything is said there.
    pub(super) fn delivery(&self, is_connected: bool, qos: QoS) -> Option<Delivery> {
        let message = self.message(is_connected);
        self.is_told_there.then(|| Delivery {
            retain: true,
            ..Delivery::new(message, qos)
        })
    }
}
