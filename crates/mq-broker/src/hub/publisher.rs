//! What one connection publishes with: where messages go, and what waits for room.

use std::sync::Arc;

use mq_codec::QoS;
use mq_proto::{Delivery, Message};

use super::Routing;
use crate::{
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
    /// The topic that `fan_out` is for, and the router's generation; while both hold, the trie is
    /// not asked again.
    known: Option<(Vec<u8>, u64)>,
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

    /// Finds the receivers, by memory or by the trie.
    pub(super) fn route(&mut self, routing: &Routing, topic: &[u8], from: Option<SessionKey>) {
        let generation = routing.router.generation();
        if let Some((known, at)) = &self.known
            && *at == generation
            && known == topic
        {
            return;
        }
        let ready = |key| {
            routing
                .session(key)
                .is_some_and(|session| session.mailbox.is_ready())
        };
        let constant = routing.router.route(topic, from, &ready, &mut self.fan_out);
        let (known, at) = self.known.get_or_insert_default();
        known.clear();
        known.extend_from_slice(topic);
        // Generation 0 has no subscriptions and is never asked again once there is one.
        *at = if constant { generation } else { u64::MAX };
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
