//! What one connection publishes with: where messages go, and what waits for room.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::{PacketId, QoS, ReasonCode, TopicName};
use mq_proto::{Delivery, FlowId, Message};

use super::Routing;
use crate::{
    auth::{Guard, Principal},
    clock,
    delivery::Marks as _,
    journal::Journal,
    mailbox::{Patience, Push, RECOVERY},
    memory_limit::MemoryLimit,
    metrics::Metrics,
    router::{FanOut, SessionKey, Who},
    session::Session,
    store::{Change, SessionChange, StoredMessage, User},
    workers::WorkerChannels,
};

/// What a publisher keeps from message to message: its journal, buffers, and the receivers of the
/// last topic.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) journal: Journal,
    pub(super) fan_out: FanOut,
    /// In a cluster: which members of shared subscriptions here get the message at hand.
    pub(super) only: Option<Vec<SessionKey>>,
    /// In a cluster: sessions here that do not get the message at hand.
    pub(super) late: Vec<SessionKey>,
    /// The topic that `fan_out` is of. While it stays the same, the trie is not asked again.
    known: Option<Box<Known>>,
    /// The last answer of the rules, and the message that it was about.
    permitted: Option<Box<Permitted>>,
    /// Sessions whose readers are to be woken, once the whole read has been routed.
    tell: Vec<Arc<Session>>,
    /// Deliveries that found no room, all of one message.
    pub(crate) waiting: Vec<(Arc<Session>, Delivery)>,
    /// Since when the first of them waits.
    pub(crate) waiting_since: Option<Instant>,
    /// The publisher has waited in vain, and waits for no other reader until then.
    impatient_until: Option<Instant>,
    /// Deliveries of the message at hand, until they are recorded.
    pub(super) ready: Vec<(Arc<Session>, Delivery)>,
    memory_limit: Arc<MemoryLimit>,
    worker_channels: Arc<WorkerChannels>,
    /// The message at hand as all readers that lag get it.
    kept: Option<Kept>,
    pub(super) at_hand: AtHand,
    /// Whether its acknowledgements can refuse a message (5.0).
    pub(crate) can_refuse: bool,
}

#[derive(Debug)]
struct Kept {
    of: Arc<Message>,
    message: Arc<Message>,
}

/// What becomes of the message at hand.
#[derive(Debug, Default)]
pub(super) struct AtHand {
    pub(super) receivers: u32,
    /// Receivers for which it was dropped.
    pub(super) lost: u32,
    pub(super) retained: bool,
    /// The packet identifier by which the store knows it, at QoS 2, and the flow that keeps it.
    pub(super) received: Option<(PacketId, Option<FlowId>)>,
    /// Its topic, if it may have to be refused.
    pub(super) topic: Option<Box<TopicName>>,
}

impl AtHand {
    /// A message that no receiver gets.
    pub(super) fn refused(topic: &TopicName) -> Self {
        Self {
            receivers: 1,
            lost: 1,
            topic: Some(Box::new(topic.clone())),
            ..Self::default()
        }
    }

    /// A message that the cluster has; who gets it is not known here.
    pub(super) fn passed_on() -> Self {
        Self {
            receivers: 1,
            ..Self::default()
        }
    }
}

/// A topic, and the generations of the router and of the rules.
#[derive(Debug, Default)]
struct Known {
    topic: Vec<u8>,
    routes: u64,
    rules: u64,
}

/// Whether a message like that may be published, by the rules of that generation.
#[derive(Debug, Default)]
struct Permitted {
    topic: Vec<u8>,
    qos: QoS,
    retain: bool,
    rules: u64,
    answer: bool,
}

impl Publisher {
    /// A publisher that has published nothing yet.
    pub(super) fn new(
        journal: Journal,
        memory_limit: Arc<MemoryLimit>,
        worker_channels: Arc<WorkerChannels>,
    ) -> Self {
        Self {
            only: None,
            late: Vec::new(),
            journal,
            memory_limit,
            worker_channels,
            kept: None,
            at_hand: AtHand::default(),
            can_refuse: false,
            fan_out: FanOut::default(),
            known: None,
            permitted: None,
            tell: Vec::new(),
            waiting: Vec::new(),
            waiting_since: None,
            impatient_until: None,
            ready: Vec::new(),
        }
    }

    /// As [`Hub::retry`](super::Hub::retry), within the lock that it takes.
    pub(super) fn retry(&mut self, metrics: &Metrics, is_over: bool) {
        if is_over {
            self.impatient_until = Some(clock::now() + RECOVERY);
        }
        let patience = if is_over {
            Patience::Over
        } else {
            Patience::Some
        };
        let waiting = core::mem::take(&mut self.waiting);
        for (session, delivery) in waiting {
            self.try_queue(metrics, &session, delivery, patience);
        }
        self.kept = None;
        if self.waiting.is_empty() {
            self.waiting_since = None;
        }
    }

    /// Lets the publisher wait for readers again, once its time of impatience is over.
    pub(crate) fn recover(&mut self, now: Instant) {
        if self.impatient_until.is_some_and(|until| until <= now) {
            self.impatient_until = None;
        }
    }

    /// Ends a message that has no publisher to wait, such as a will. Deliveries without room go to
    /// the store where the mailbox spills, and are dropped elsewhere. No reader is made to leave
    /// for it.
    pub(super) fn finish(&mut self, metrics: &Metrics) {
        if self.waiting.is_empty() {
            return self.give_up(metrics);
        }
        let waiting = core::mem::take(&mut self.waiting);
        for (session, delivery) in waiting {
            if session.mailbox.spills() {
                self.try_queue(metrics, &session, delivery, Patience::Over);
            } else {
                dropped(metrics, &session, &delivery, &mut self.journal);
            }
        }
        self.give_up(metrics);
    }

    /// Whether `reader` is the one that the first delivery waits for; both may be none.
    pub(crate) fn waits_for(&self, reader: Option<&Arc<Session>>) -> bool {
        let first = self.waiting.first().map(|(session, _)| session);
        first.map(Arc::as_ptr) == reader.map(Arc::as_ptr)
    }

    /// Drops the deliveries that found no room.
    pub(crate) fn give_up(&mut self, metrics: &Metrics) {
        for (session, delivery) in self.waiting.drain(..) {
            dropped(metrics, &session, &delivery, &mut self.journal);
        }
        self.waiting_since = None;
        self.done();
    }

    /// Wakes the readers of all that was queued.
    pub(crate) fn tell_readers(&mut self) {
        if !self.tell.is_empty() {
            self.worker_channels.wake(self.tell.drain(..));
        }
    }

    /// Whether the rules let `who` publish such a message.
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
        let last = self.permitted.get_or_insert_default();
        last.topic.clear();
        last.topic.extend_from_slice(topic.as_bytes());
        (last.rules, last.qos, last.retain) = (rules, qos, retain);
        last.answer = answer;
        answer
    }

    /// Forgets the last answer of the rules: the client has other rights.
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
        let ready = |key| routing.is_ready(key);
        let authorizer = guard.authorizer.as_deref();
        let text = topic.as_str();
        let may_receive = authorizer.map(|rules| move |key| routing.may_receive(key, rules, text));
        let may_receive = may_receive
            .as_ref()
            .map(|may_receive| may_receive as &dyn Fn(SessionKey) -> bool);
        let who = Who {
            may_receive,
            members: self.only.as_deref(),
        };
        let to = &mut self.fan_out;
        let constant = routing.router.route_to(bytes, from, &ready, who, to);
        let known = self.known.get_or_insert_default();
        known.topic.clear();
        known.topic.extend_from_slice(bytes);
        known.rules = rules;
        // Generation 0 has no subscriptions and is never asked again once there is one.
        known.routes = if constant { routes } else { u64::MAX };
    }

    /// Records the ready deliveries together with `changes`, then queues them. A reader that takes
    /// one finds it in the store.
    pub(super) fn queue_ready(&mut self, metrics: &Metrics, mut changes: Vec<Change>) {
        for (session, delivery) in &mut self.ready {
            if delivery.qos > QoS::AtMostOnce && self.journal.keeps(session) {
                changes.push(queued(session, delivery));
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
        let patience = match self.impatient_until {
            None => Patience::Some,
            Some(_) => Patience::Earned,
        };
        self.try_queue(metrics, session, delivery, patience);
    }

    fn try_queue(
        &mut self,
        metrics: &Metrics,
        session: &Arc<Session>,
        delivery: Delivery,
        patience: Patience,
    ) {
        let (memory_limit, kept) = (&self.memory_limit, &mut self.kept);
        let mailbox = &session.mailbox;
        let pushed = mailbox.push(delivery, patience, |message| {
            keep(memory_limit, kept, message)
        });
        match pushed {
            Push::Queued { tell: true } => self.tell.push(Arc::clone(session)),
            Push::Queued { tell: false } => {}
            Push::Displaced { tell, oldest } => {
                if tell {
                    self.tell.push(Arc::clone(session));
                }
                for delivery in oldest {
                    dropped(metrics, session, &delivery, &mut self.journal);
                }
            }
            Push::Dropped(delivery) => {
                self.at_hand.lost += 1;
                dropped(metrics, session, &delivery, &mut self.journal);
            }
            Push::Evict(delivery) => {
                self.at_hand.lost += 1;
                dropped(metrics, session, &delivery, &mut self.journal);
                session.remind();
            }
            Push::Spill(delivery) => self.spill(metrics, session, delivery),
            Push::Full(delivery) => {
                self.waiting_since.get_or_insert_with(clock::now);
                self.waiting.push((Arc::clone(session), delivery));
            }
        }
    }

    /// Puts a message into the store that has no room in memory.
    fn spill(&mut self, metrics: &Metrics, session: &Arc<Session>, mut delivery: Delivery) {
        if delivery.number().is_none() {
            let mut changes = Vec::new();
            if !session.is_kept() {
                // The session ends with its connection, and after a crash with the broker. Another
                // publisher may record the same at the same time, which changes nothing.
                let expiry = Some(Duration::ZERO);
                let user = session.user().unwrap_or(User::Anonymous);
                let change = SessionChange::Attached { expiry, user };
                changes.push(Change::Session(session.client_id.clone(), change));
            }
            changes.push(queued(session, &mut delivery));
            self.journal.record(changes);
            // Only now: the store ignores changes of a session that has not begun there.
            session.keep();
        }
        let number = delivery.number().expect("it has one by now");
        metrics.spilled.add(1);
        let position = self.journal.position();
        if session.mailbox.spilled(number, &delivery, position) {
            self.tell.push(Arc::clone(session));
        }
    }

    /// The answer to the publisher of a message, once no delivery of it waits for room. A refused
    /// message's topic comes with it.
    pub(crate) fn outcome(&mut self, from: &Session) -> (ReasonCode, Option<TopicName>) {
        let AtHand {
            receivers,
            lost,
            retained,
            received,
            ref mut topic,
        } = self.at_hand;
        let topic = topic.take().map(|topic| *topic);
        self.done();
        if receivers == 0 {
            return (ReasonCode::NoMatchingSubscribers, None);
        }
        if lost < receivers || retained || !self.can_refuse {
            return (ReasonCode::Success, None);
        }
        // No receiver had room for it.
        if let Some((packet_id, flow)) = received {
            self.journal
                .record_of(from, SessionChange::ReceivedReleased { packet_id, flow });
        }
        (ReasonCode::QuotaExceeded, topic)
    }

    /// Ends the message at hand: no delivery of it waits for room, and nobody asks for its outcome.
    pub(crate) fn done(&mut self) {
        self.kept = None;
        self.at_hand.lost = 0;
    }
}

/// Numbers a delivery, and makes the change that records it as queued.
pub(super) fn queued(session: &Session, delivery: &mut Delivery) -> Change {
    let number = session.next_number();
    delivery.set_number(number);
    let message = StoredMessage::new(delivery);
    let change = SessionChange::Queued { number, message };
    Change::Session(session.client_id.clone(), change)
}

/// Copies a message that may wait for long into memory of its own, so that it keeps no read buffer
/// alive, and counts it. All readers that lag share the copy. `None` if there is no room for it.
fn keep(
    memory_limit: &Arc<MemoryLimit>,
    kept: &mut Option<Kept>,
    message: &Arc<Message>,
) -> Option<Arc<Message>> {
    if let Some(kept) = kept
        && Arc::ptr_eq(&kept.of, message)
    {
        return Some(Arc::clone(&kept.message));
    }
    let counted = Arc::new(memory_limit.keep(message)?);
    *kept = Some(Kept {
        of: Arc::clone(message),
        message: Arc::clone(&counted),
    });
    Some(counted)
}

/// Counts a delivery as dropped, and records that it no longer waits.
pub(crate) fn dropped(
    metrics: &Metrics,
    session: &Session,
    delivery: &Delivery,
    journal: &mut Journal,
) {
    metrics.dropped.add(1);
    unqueued(session, delivery, journal);
}

/// Records that a delivery has expired, and counts it if it was too old for its mailbox.
pub(crate) fn expired(
    metrics: &Metrics,
    session: &Session,
    delivery: &Delivery,
    journal: &mut Journal,
) {
    if session.mailbox.count_expired() {
        metrics.dropped.add(1);
    }
    unqueued(session, delivery, journal);
}

/// Records that a delivery no longer waits, without having been sent.
pub(crate) fn unqueued(session: &Session, delivery: &Delivery, journal: &mut Journal) {
    if let Some(number) = delivery.number() {
        journal.record_of(session, SessionChange::Unqueued { number });
        session.mailbox.unqueued(number, journal.position());
    }
}
