//! Wills: kept while their clients are connected or away, published when they are due.

use mq_codec::Will;
use mq_proto::Received;

use super::{Hub, OWN_TOPIC, Publisher, read};
use crate::{
    clock,
    journal::Journal,
    session::{KeptWill, Session},
    store::{Change, SessionChange},
};

impl Hub {
    /// Keeps a client's will; `None` if there is no room for it.
    pub(crate) fn keep_will(&self, will: Will) -> Option<KeptWill> {
        KeptWill::new(will, &self.memory_limit)
    }

    /// Has the cluster, if it is one of its nodes, know the will of a session from now on, and whether it has one.
    pub(crate) fn note_will(
        &self,
        session: &Session,
        will: Option<&KeptWill>,
        journal: &mut Journal,
    ) {
        if self.is_one_of_many() {
            let will = will.map(|will| Box::new(will.stored()));
            let change = SessionChange::Will(will);
            journal.record(vec![Change::Session(session.client_id.clone(), change)]);
        }
    }

    /// Publishes a will, if its owner still may. Nobody waits for room here: a full mailbox spills
    /// it to the store at once, or drops it.
    pub(super) fn publish_will(&self, session: &Session, will: KeptWill) {
        self.publish_allowed_will(session, will);
        if self.is_one_of_many() {
            let change = SessionChange::WillPublished;
            let change = Change::Session(session.client_id.clone(), change);
            self.journal().record(vec![change]);
        }
    }

    fn publish_allowed_will(&self, session: &Session, will: KeptWill) {
        let KeptWill {
            message,
            qos,
            retain,
            ..
        } = will;
        if self.own_topics.has(&message.topic, &session.client_id) {
            self.metrics.not_authorized.add(1);
            return self.refused_publish(session, &message.topic, OWN_TOPIC, clock::now());
        }
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
            retain,
            ..Received::own(message, qos)
        };
        let mut publisher = self.publisher();
        self.publish(Some(session), received, clock::now(), &mut publisher);
        self.finish(publisher);
    }

    /// Ends a message that has no publisher to wait.
    pub(super) fn finish(&self, mut publisher: Publisher) {
        // No session ends meanwhile.
        let routing = read(&self.routing);
        publisher.finish(&self.metrics);
        drop(routing);
        publisher.tell_readers();
    }
}
