//! The state that a bridge publishes of its connection: mosquitto's notifications.

use mq_codec::{QoS, TopicName, Will};
use mq_proto::{Delivery, Message};

/// The QoS of the state: subscribers with a lasting session receive each change.
pub(crate) const QOS: QoS = QoS::AtLeastOnce;

/// The state of a bridge that publishes it.
#[derive(Clone, Debug)]
pub(crate) struct PublishedState {
    pub(crate) topic: TopicName,
    /// `true` if the state is published at the remote broker as well.
    pub(super) is_published_there: bool,
}

impl PublishedState {
    /// Builds the state message ("1" connected, "0" not), published at this and at the remote
    /// broker.
    pub(crate) fn message(&self, is_connected: bool) -> Message {
        let text = if is_connected { "1" } else { "0" };
        Message::new(self.topic.clone(), text)
    }

    /// Returns the will by which the remote broker publishes the loss of the connection, if the
    /// state is published there.
    pub(super) fn will(&self) -> Option<Will> {
        let message = self.message(false);
        self.is_published_there.then(|| Will {
            topic: message.topic,
            payload: message.payload,
            qos: QOS,
            retain: true,
            properties: mq_codec::WillProperties::default(),
        })
    }

    /// Returns the state as a delivery to the remote broker, if it is published there.
    pub(super) fn delivery(&self, is_connected: bool, qos: QoS) -> Option<Delivery> {
        let message = self.message(is_connected);
        self.is_published_there.then(|| Delivery {
            retain: true,
            ..Delivery::new(message, qos)
        })
    }
}
