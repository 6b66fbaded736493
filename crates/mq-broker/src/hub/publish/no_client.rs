//! Messages that no client has sent just now: wills, and the broker's own.

use mq_codec::{QoS, Will};
use mq_proto::{Message, Received};

use super::{Publisher, RoutedMessage};
use crate::{
    clock,
    hooks::{HookClient, HookPublish, PublishAnswer},
    hub::{Hub, OWN_TOPIC},
    journal::Journal,
    lock::read,
    session::{KeptWill, Session},
};

impl Hub {
    /// Copies a client's will into memory of its own; `None` if there is no room for it.
    pub(crate) fn keep_will(&self, will: Will) -> Option<KeptWill> {
        KeptWill::new(will, &self.memory.all)
    }

    /// Records the will of a session, or that it has none, in the cluster, if this is a node of one.
    pub(crate) fn record_will(
        &self,
        session: &Session,
        will: Option<&KeptWill>,
        journal: &mut Journal,
    ) {
        if let Some(cluster) = &self.cluster {
            let will = will.map(|will| Box::new(will.stored(self.store_clock())));
            journal.note_recorded(cluster.record_will(&session.client_id, will));
        }
    }

    /// Publishes a will, if its owner still may. Nobody waits for room here: a full mailbox spills
    /// it to the store at once, or drops it.
    pub(in crate::hub) fn publish_will(&self, session: &Session, will: KeptWill) {
        self.publish_allowed_will(session, will);
        if let Some(cluster) = &self.cluster {
            cluster.record_published_will(&session.client_id);
        }
    }

    fn publish_allowed_will(&self, session: &Session, will: KeptWill) {
        let KeptWill {
            message,
            qos,
            retain,
            ..
        } = will;
        let refuse = |reason| {
            self.metrics.not_authorized.add(1);
            self.refused_publish(session, &message.topic, reason, clock::now());
        };
        if self.is_own_topic(&message.topic, &session.client_id) {
            return refuse(OWN_TOPIC);
        }
        let who = session.principal();
        let access_control = &self.access_control;
        if !access_control.may_publish(who.as_ref(), &message.topic, qos, retain) {
            return refuse("will not authorized");
        }
        let mut received = Received {
            retain,
            ..Received::own(message, qos)
        };
        if let Some(called) = &self.hooks {
            let client = HookClient::new(&session.client_id, who.as_ref());
            let publish = HookPublish {
                message: &received.message,
                qos,
                retain,
            };
            match called.on_publish(client, publish) {
                PublishAnswer::Deliver => {}
                PublishAnswer::Replace(message) => received.message = message,
                PublishAnswer::Refuse(_) | PublishAnswer::Drop => return,
            }
        }
        let mut publisher = self.publisher();
        publisher.is_of_will = true;
        let routed = self.publish(Some(session), received, clock::now(), &mut publisher);
        self.finish(routed, publisher);
    }

    /// Publishes a message of the broker's own, and makes it the topic's retained one. Nobody waits for room.
    pub(crate) fn publish_own(&self, message: Message, qos: QoS) {
        // Not in the store: the next broker publishes its own.
        self.retained
            .retain_anyway(&message, qos, None, &self.metrics);
        let received = Received::own(message, qos);
        let mut publisher = self.publisher();
        let routed = self.publish(None, received, clock::now(), &mut publisher);
        self.finish(routed, publisher);
    }

    /// Ends a message that has no publisher to wait.
    fn finish(&self, mut routed: RoutedMessage, mut publisher: Publisher) {
        // No session ends meanwhile.
        let routing = read(&self.routing);
        publisher.delivering(&self.metrics, &mut routed).finish();
        drop(routing);
        publisher.wake_readers();
    }
}
