//! What one connection publishes with: where messages go, and what waits for room.

use std::sync::Arc;

use mq_codec::{QoS, TopicName};
use mq_proto::{Delivery, Message};

use super::Routing;
use crate::{
    auth::{Guard, Principal},
    mailbox::Push,
    memory::Ceiling,
    metrics::Metrics,
    router::{FanOut, SessionKey},
    session::Session,
    store::{Change, Journal, SessionChange, StoredMessage},
};

/// What a publisher keeps from message to message: its way to the store, buffers, and where the
/// last topic led.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) journal: Journal,
    pub(super) fan_out: FanOut,
    /// What `fan_out` is for; while that holds, the trie is not asked again.
    known: Option<Known>,
    /// The last message that somebody asked about, and the answer.
    permitted: Option<Permitted>,
    /// Mailboxes whose readers are to be told, once the whole read has been routed.
    tell: Vec<Arc<Session>>,
    /// Deliveries that found no room.
    pub(crate) waiting: Vec<(Arc<Session>, Delivery)>,
    /// Deliveries of the message at hand, until they are recorded.
    pub(super) ready: Vec<(Arc<Session>, Delivery)>,
    ceiling: Arc<Ceiling>,
    /// The message at hand as readers that lag get it: the same for all of them.
    kept: Option<Kept>,
    /// Receivers of the message at hand for whom it was dropped.
    lost: usize,
    /// Its acknowledgements can refuse a message (5.0).
    pub(crate) can_refuse: bool,
}

#[derive(Debug)]
struct Kept {
    of: Arc<Message>,
    message: Arc<Message>,
}

/// A topic, and the generations of the router and of the rules.
#[derive(Debug, Default)]
struct Known {
    topic: Vec<u8>,
    routes: u64,
    rules: u64,
}

/// Whether a message like that may be published, by the rules of that generation.
#[derive(Debug)]
struct Permitted {
    topic: Vec<u8>,
    qos: QoS,
    retain: bool,
    rules: u64,
    answer: bool,
}

impl Publisher {
    /// One that has published nothing yet.
    pub(super) fn new(journal: Journal, ceiling: Arc<Ceiling>) -> Self {
        Self {
            journal,
            ceiling,
            kept: None,
            lost: 0,
            can_refuse: false,
            fan_out: FanOut::default(),
            known: None,
            permitted: None,
            tell: Vec::new(),
            waiting: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// Tries again, in order, what found no room; what still finds none goes on waiting.
    pub(crate) fn retry(&mut self, metrics: &Metrics) {
        let waiting = core::mem::take(&mut self.waiting);
        for (session, delivery) in waiting {
            self.queue(metrics, &session, delivery);
        }
        self.kept = None;
    }

    /// Drops what found no room.
    pub(crate) fn give_up(&mut self, metrics: &Metrics) {
        for (session, delivery) in self.waiting.drain(..) {
            dropped(metrics, &session, &delivery, &mut self.journal);
        }
    }

    /// Wakes the readers of all that was queued.
    pub(crate) fn tell_readers(&mut self) {
        for session in self.tell.drain(..) {
            session.mailbox.tell();
        }
    }

    /// Whether the rules let `who` publish that.
    pub(super) fn may_publish(
        &mut self,
        guard: &Guard,
        who: &Principal,
        topic: &TopicName,
        (qos, retain): (QoS, bool),
    ) -> bool {
        let rules = guard.generation();
        if let Some(last) = &self.permitted
            && (last.rules, last.qos, last.retain) == (rules, qos, retain)
            && last.topic == topic.as_bytes()
        {
            return last.answer;
        }
        let answer = guard.may_publish(Some(who), topic, qos, retain);
        let mut buffer = self.permitted.take().map_or(Vec::new(), |last| last.topic);
        buffer.clear();
        buffer.extend_from_slice(topic.as_bytes());
        self.permitted = Some(Permitted {
            topic: buffer,
            qos,
            retain,
            rules,
            answer,
        });
        answer
    }

    /// Somebody else publishes from now on, or the same with other rights.
    pub(crate) fn forget_permission(&mut self) {
        self.permitted = None;
    }

    /// Finds the receivers, by memory or by the trie.
    pub(super) fn route(
        &mut self,
        routing: &Routing,
        guard: &Guard,
        topic: &TopicName,
        from: Option<SessionKey>,
    ) {
        let routes = routing.router.generation();
        let rules = guard.generation();
        let bytes = topic.as_bytes();
        if let Some(known) = &self.known
            && known.routes == routes
            && known.rules == rules
            && known.topic == bytes
        {
            return;
        }
        let ready = |key| {
            routing
                .session(key)
                .is_some_and(|session| session.mailbox.is_ready())
        };
        let constant = match &guard.authorizer {
            None => routing.router.route(bytes, from, &ready, &mut self.fan_out),
            Some(authorizer) => {
                let text = topic.as_str();
                let may_receive = |key| {
                    let session = routing.session(key);
                    session.is_some_and(|session| session.may_receive(&**authorizer, text))
                };
                let fan_out = &mut self.fan_out;
                let may_receive = Some(&may_receive as &dyn Fn(SessionKey) -> bool);
                routing
                    .router
                    .route_to(bytes, from, &ready, may_receive, fan_out)
            }
        };
        let known = self.known.get_or_insert_default();
        known.topic.clear();
        known.topic.extend_from_slice(bytes);
        known.rules = rules;
        // Generation 0 has no subscriptions and is never asked again once there is one.
        known.routes = if constant { routes } else { u64::MAX };
    }

    /// Records the deliveries that are ready together with `changes`, then queues them: whoever
    /// takes one finds it in the store.
    pub(super) fn queue_ready(&mut self, metrics: &Metrics, mut changes: Vec<Change>) {
        for (session, delivery) in &mut self.ready {
            if delivery.qos > QoS::AtMostOnce && self.journal.keeps(session) {
                delivery.tag = session.next_number();
                let change = SessionChange::Queued {
                    number: delivery.tag,
                    message: StoredMessage::new(delivery),
                };
                changes.push(Change::Session(session.client_id.clone(), change));
            }
        }
        self.journal.record(changes);
        let mut ready = core::mem::take(&mut self.ready);
        for (session, delivery) in ready.drain(..) {
            self.queue(metrics, &session, delivery);
        }
        self.ready = ready;
    }

    pub(super) fn queue(&mut self, metrics: &Metrics, session: &Arc<Session>, delivery: Delivery) {
        let (ceiling, kept) = (&self.ceiling, &mut self.kept);
        match session
            .mailbox
            .push(delivery, |message| keep(ceiling, kept, message))
        {
            Push::Queued { tell: true } => self.tell.push(Arc::clone(session)),
            Push::Queued { tell: false } => {}
            Push::Dropped(delivery) => {
                self.lost += 1;
                dropped(metrics, session, &delivery, &mut self.journal);
            }
            Push::Full(delivery) => self.waiting.push((Arc::clone(session), delivery)),
        }
    }

    /// The message at hand has been queued for all but those for whom it was dropped, whose number
    /// this is.
    pub(super) fn message_done(&mut self) -> usize {
        self.kept = None;
        core::mem::take(&mut self.lost)
    }
}

/// The message as it may wait for long: in memory of its own, so that it does not keep a whole read
/// buffer alive, and counted; made once for all that lag. `None` if there is no room for it.
fn keep(
    ceiling: &Arc<Ceiling>,
    kept: &mut Option<Kept>,
    message: &Arc<Message>,
) -> Option<Arc<Message>> {
    if let Some(kept) = kept
        && Arc::ptr_eq(&kept.of, message)
    {
        return Some(Arc::clone(&kept.message));
    }
    let counted = Arc::new(ceiling.keep(message)?);
    *kept = Some(Kept {
        of: Arc::clone(message),
        message: Arc::clone(&counted),
    });
    Some(counted)
}

/// A delivery that was promised to nobody, or could not be kept, is gone.
pub(crate) fn dropped(
    metrics: &Metrics,
    session: &Session,
    delivery: &Delivery,
    journal: &mut Journal,
) {
    metrics.dropped.add(1);
    unqueued(session, delivery, journal);
}

/// A delivery does not wait any more, and was not sent.
pub(crate) fn unqueued(session: &Session, delivery: &Delivery, journal: &mut Journal) {
    if delivery.tag > 0 {
        let number = delivery.tag;
        journal.record_of(session, SessionChange::Unqueued { number });
    }
}
