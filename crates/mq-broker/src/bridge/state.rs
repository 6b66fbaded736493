//! What a bridge says of its connection: mosquitto's notifications.

use mq_codec::{QoS, TopicName, Will};
use mq_proto::{Delivery, Message};

/// Before and behind the client identifier in the topic of a bridge's state, by mosquitto's name for it.
const BEFORE: &str = "$SYS/broker/connection/";
const BEHIND: &str = "/state";

/// Subscribers with a session that is kept learn of each change.
pub(crate) const QOS: QoS = QoS::AtLeastOnce;

/// The topic of the state of the bridge that is that client of the other broker.
pub(super) fn topic_of(client_id: &str) -> String {
    format!("{BEFORE}{client_id}{BEHIND}")
}

/// Whether it is the topic by which a bridge of another broker, that client here, tells its state.
pub(crate) fn is_state_of(topic: &str, client_id: &str) -> bool {
    let name = topic.strip_prefix(BEFORE);
    name.and_then(|name| name.strip_suffix(BEHIND)) == Some(client_id)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_has_the_topic_of_its_own_client_identifier_and_no_other() {
        for client_id in ["edge-7", "a/b", "ä", ""] {
            let topic = topic_of(client_id);
            assert!(is_state_of(&topic, client_id), "{topic}");
            assert!(!is_state_of(&topic, "edge-8"), "{topic}");
        }
        assert_eq!(topic_of("edge-7"), "$SYS/broker/connection/edge-7/state");
        for topic in [
            "$SYS/broker/connection/edge-7",
            "$SYS/broker/connection/edge-7/state/x",
            "$SYS/broker/edge-7/state",
            "edge-7",
        ] {
            assert!(!is_state_of(topic, "edge-7"), "{topic}");
        }
    }
}
