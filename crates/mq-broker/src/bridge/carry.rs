//! A message on its way over a bridge: its topic at either broker, and the marks of the brokers
//! that it has passed.

use std::sync::Arc;

use mq_codec::Version;
use mq_proto::{Delivery, Message, Received};

use super::Bridge;
use crate::broker_mark::{BrokerMark, bridges_passed};

impl Bridge {
    /// Returns a delivery as the remote broker receives it; `None` if it is not sent: no rule sends
    /// its topic (any more), or it has passed this broker, or too many.
    pub(crate) fn sent(&self, delivery: &Delivery) -> Option<Delivery> {
        let topic = self.topics.name_there(&delivery.message.topic)?;
        // A message that another bridge has brought to this broker may be sent on.
        if !self.mark.stays(&delivery.message) && !self.may_pass(&delivery.message) {
            return None;
        }
        let mut message = Message {
            topic,
            ..Message::clone(&delivery.message)
        };
        if self.version() >= Version::V5 {
            self.mark.leave(&mut message);
        }
        // The remote broker receives no expiry that the limits of this broker's queue have set.
        let expires = message.properties.message_expiry_interval.is_some();
        Some(Delivery {
            expires_at: delivery.expires_at.filter(|_| expires),
            message: Arc::new(message),
            ..delivery.clone()
        })
    }

    /// Gives a message of the remote broker the topic that it is published under at this broker.
    /// `from` is the remote broker's mark, if it has sent one.
    ///
    /// # Errors
    /// The reason for which the message is not accepted.
    pub(crate) fn received(
        &self,
        from: Option<&BrokerMark>,
        received: &mut Received,
    ) -> Result<(), &'static str> {
        let message = &mut received.message;
        let topic = self.topics.name_here(&message.topic);
        message.topic = topic.ok_or("topic that the bridge does not take")?;
        if !self.may_pass(message) {
            return Err("message that was here, or has passed too many bridges");
        }
        if let Some(from) = from {
            from.leave(message);
        }
        self.mark.arrive(message);
        Ok(())
    }

    /// Returns `true` if a message has not passed this broker before, nor too many brokers.
    fn may_pass(&self, message: &Message) -> bool {
        bridges_passed(message) < self.max_hops.into() && !self.mark.is_on(message)
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::{QoS, TopicName};
    use mq_proto::ServerConfig;

    use super::*;
    use crate::{
        bridge::Origin,
        settings::{BridgeSettings, BridgeTopic, Direction},
    };

    fn bridge(version: Version) -> Bridge {
        let topic = |direction, pattern: &str, remote: &str| BridgeTopic {
            direction,
            remote_prefix: remote.to_owned(),
            ..BridgeTopic::new(pattern)
        };
        let topics = vec![
            topic(Direction::Out, "up/#", "edge/"),
            topic(Direction::In, "down/#", "edge/"),
        ];
        let address = "quic://cloud.example".parse().unwrap();
        let mut settings = BridgeSettings::new("cloud", vec![address], topics);
        settings.version = version;
        settings.max_hops = 2;
        Bridge::new(
            &settings,
            &ServerConfig::default(),
            &Origin::Cluster,
            BrokerMark::random(),
        )
        .unwrap()
    }

    fn message(topic: &str) -> Message {
        Message::new(TopicName::new(topic).unwrap(), "x")
    }

    fn received(message: Message) -> Received {
        Received::own(message, QoS::AtMostOnce)
    }

    #[test]
    fn a_message_passes_no_broker_twice_and_not_too_many() {
        let bridges: Vec<_> = (0..3).map(|_| bridge(Version::V5)).collect();
        let mut here = message("up/1");
        for (passed, bridge) in bridges.iter().enumerate() {
            let sent = bridge.sent(&Delivery::new(here.clone(), QoS::AtLeastOnce));
            if passed == 2 {
                assert_eq!(sent, None, "one bridge too many");
                break;
            }
            let sent = Message::clone(&sent.unwrap().message);
            assert_eq!(sent.topic.as_str(), "edge/up/1");
            assert_eq!(sent.properties.user_properties.len(), 1);
            here = Message {
                topic: TopicName::new("up/1").unwrap(),
                ..sent.clone()
            };
            let again = bridge.sent(&Delivery::new(here.clone(), QoS::AtLeastOnce));
            assert_eq!(again, None, "it was here");
            let mut back = received(Message {
                topic: TopicName::new("edge/down/1").unwrap(),
                ..sent
            });
            assert!(bridge.received(None, &mut back).is_err(), "it was here");
        }
        // What one bridge of a broker has brought another one takes away, and nothing brings it back.
        let mut arrived = received(message("edge/down/1"));
        bridges[0].received(None, &mut arrived).unwrap();
        assert_eq!(arrived.message.topic.as_str(), "down/1");
        let mut here = arrived.message;
        here.topic = TopicName::new("up/1").unwrap();
        let sent = bridges[0].sent(&Delivery::new(here, QoS::AtLeastOnce));
        // Also by a bridge of another make, which marks nothing.
        let mut again = Message::clone(&sent.clone().unwrap().message);
        again.topic = TopicName::new("up/1").unwrap();
        assert_eq!(
            bridges[0].sent(&Delivery::new(again, QoS::AtLeastOnce)),
            None
        );
        let mut back = received(Message::clone(&sent.unwrap().message));
        back.message.topic = TopicName::new("edge/down/1").unwrap();
        assert!(bridges[0].received(None, &mut back).is_err());
    }

    #[test]
    fn a_message_that_a_bridge_fetches_has_the_mark_of_the_broker_that_it_comes_from() {
        let [one, two] = [(); 2].map(|()| bridge(Version::V5));
        let mut fetched = received(message("edge/down/1"));
        two.received(Some(&one.mark), &mut fetched).unwrap();
        assert!(one.mark.is_on(&fetched.message) && two.mark.stays(&fetched.message));
        assert_eq!(bridges_passed(&fetched.message), 1);
        fetched.message.topic = TopicName::new("edge/down/1").unwrap();
        let why = one.received(Some(&two.mark), &mut fetched).unwrap_err();
        assert!(why.contains("was here"), "{why}");
    }

    #[test]
    fn before_5_0_nothing_is_marked_and_other_topics_do_not_pass() {
        let bridge = bridge(Version::V3_1_1);
        let sent = bridge.sent(&Delivery::new(message("up/1"), QoS::AtMostOnce));
        assert!(sent.unwrap().message.properties.is_untouched());
        assert_eq!(
            bridge.sent(&Delivery::new(message("down/1"), QoS::AtMostOnce)),
            None
        );
        let mut back = received(message("edge/up/1"));
        let why = bridge.received(None, &mut back).unwrap_err();
        assert!(why.contains("does not take"), "{why}");
    }
}
