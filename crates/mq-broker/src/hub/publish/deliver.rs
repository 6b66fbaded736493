//! The deliveries of a message: recorded, queued in the mailboxes, and those that found no room.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::QoS;
use mq_proto::{Delivery, Message};

use super::{Publication, RoutedMessage, outcome::SharedCopy};
use crate::{
    clock,
    delivery::DeliveryTag as _,
    hub::{Nodes, dropped, queued},
    journal::Journal,
    mailbox::{BACKPRESSURE_PAUSE, Backpressure, Push},
    memory_limit::MemoryLimit,
    metrics::Metrics,
    router::{LaneSlot, Target},
    session::Session,
    store::{Change, LogPosition, SessionChange, User},
    workers::WorkerChannels,
};

/// The part of a publisher that writes to mailboxes, and wakes their readers.
#[derive(Debug)]
pub(super) struct MailboxWriter {
    /// Deliveries of one message that are recorded before they are queued; empty between two messages.
    ready: Vec<(Arc<Session>, Delivery)>,
    /// Sessions whose readers are to be woken, once the whole read has been routed.
    to_wake: Vec<Arc<Session>>,
    /// The publisher has waited in vain, and waits for no other reader until then.
    backpressure_off_until: Option<Instant>,
    memory_limit: Arc<MemoryLimit>,
    worker_channels: Arc<WorkerChannels>,
}

impl MailboxWriter {
    pub(super) fn new(
        memory_limit: &Arc<MemoryLimit>,
        worker_channels: &Arc<WorkerChannels>,
    ) -> Self {
        Self {
            ready: Vec::new(),
            to_wake: Vec::new(),
            backpressure_off_until: None,
            memory_limit: Arc::clone(memory_limit),
            worker_channels: Arc::clone(worker_channels),
        }
    }

    pub(super) fn resume_backpressure(&mut self, now: Instant) {
        if self
            .backpressure_off_until
            .is_some_and(|until| until <= now)
        {
            self.backpressure_off_until = None;
        }
    }

    pub(super) fn wake_readers(&mut self) {
        if !self.to_wake.is_empty() {
            self.worker_channels.wake(self.to_wake.drain(..));
        }
    }
}

impl Publication {
    /// Returns its delivery to one receiver.
    pub(super) fn delivery(&self, target: &Target, session: &Session) -> Delivery {
        let mut delivery = Delivery::new(Arc::clone(&self.message), self.qos.min(target.qos));
        if target.is_shared {
            delivery.set_shared();
        }
        if target.lane != LaneSlot::CONTROL {
            delivery.set_lane(target.lane);
        }
        if !target.subscription_ids.is_empty() {
            delivery.subscription_ids = target.subscription_ids.to_vec();
        }
        delivery.retain = self.retain && target.retain_as_published;
        delivery.expires_at = session.mailbox.expires_at(self.expires_at, self.now);
        delivery
    }
}

/// The step that puts the deliveries of one message into mailboxes.
pub(in crate::hub) struct Delivering<'a> {
    metrics: &'a Metrics,
    journal: &'a mut Journal,
    writer: &'a mut MailboxWriter,
    routed: &'a mut RoutedMessage,
}

impl<'a> Delivering<'a> {
    pub(super) fn new(
        metrics: &'a Metrics,
        journal: &'a mut Journal,
        writer: &'a mut MailboxWriter,
        routed: &'a mut RoutedMessage,
    ) -> Self {
        Self {
            metrics,
            journal,
            writer,
            routed,
        }
    }

    /// Adds a delivery. Without a store it is queued at once; else by
    /// [`record_and_queue`](Self::record_and_queue).
    pub(super) fn add(&mut self, session: &Arc<Session>, delivery: Delivery) {
        if self.journal.has_store() {
            self.add_ready(session, delivery);
        } else {
            self.queue(session, delivery);
        }
    }

    /// Adds a delivery that is queued by [`record_and_queue`](Self::record_and_queue).
    pub(in crate::hub) fn add_ready(&mut self, session: &Arc<Session>, delivery: Delivery) {
        self.writer.ready.push((Arc::clone(session), delivery));
    }

    /// Records the deliveries that were added together with `changes`, then queues them. A reader that takes one finds
    /// it in the store.
    pub(in crate::hub) fn record_and_queue(&mut self, mut changes: Vec<Change>) {
        self.collect_changes(&mut changes);
        self.journal.record(changes);
        self.queue_ready();
    }

    /// Does it for a message of the cluster, which gets its place in the logs with the changes.
    pub(super) fn record_logged_and_queue(
        &mut self,
        cluster: &dyn Nodes,
        origin: LogPosition,
        mut changes: Vec<Change>,
    ) {
        self.collect_changes(&mut changes);
        self.journal
            .note_recorded(cluster.record_logged(origin, changes));
        self.queue_ready();
    }

    /// Numbers the deliveries that the store keeps, and adds their changes.
    fn collect_changes(&mut self, changes: &mut Vec<Change>) {
        let clock = self.journal.store_clock();
        for (session, delivery) in &mut self.writer.ready {
            if delivery.qos > QoS::AtMostOnce && self.journal.records_session(session) {
                changes.push(queued(session, delivery, clock));
            }
        }
    }

    fn queue_ready(&mut self) {
        let mut ready = core::mem::take(&mut self.writer.ready);
        for (session, delivery) in ready.drain(..) {
            self.queue(&session, delivery);
        }
        // Its memory is for the next message.
        self.writer.ready = ready;
    }

    fn queue(&mut self, session: &Arc<Session>, delivery: Delivery) {
        let backpressure = match self.writer.backpressure_off_until {
            None => Backpressure::Wait,
            Some(_) => Backpressure::WaitIfTrusted,
        };
        self.try_queue(session, delivery, backpressure);
    }

    fn try_queue(
        &mut self,
        session: &Arc<Session>,
        delivery: Delivery,
        backpressure: Backpressure,
    ) {
        let memory_limit = &self.writer.memory_limit;
        let shared_copy = &mut self.routed.shared_copy;
        let keep = |message: &Arc<Message>| copy_for_laggards(memory_limit, shared_copy, message);
        match session.mailbox.push(delivery, backpressure, keep) {
            Push::Queued { must_wake } => self.wake_later(session, must_wake),
            Push::Displaced { must_wake, oldest } => {
                self.wake_later(session, must_wake);
                for delivery in oldest {
                    dropped(self.metrics, session, &delivery, self.journal);
                }
            }
            Push::Dropped(delivery) => self.lose(session, &delivery),
            Push::Evict(delivery) => {
                self.lose(session, &delivery);
                session.remind();
            }
            Push::Spill(delivery) => self.spill(session, delivery),
            Push::Full(delivery) => {
                let waiting_since = &mut self.routed.waiting_since;
                waiting_since.get_or_insert_with(clock::now);
                let undelivered = &mut self.routed.undelivered;
                undelivered.push((Arc::clone(session), delivery));
            }
        }
    }

    fn wake_later(&mut self, session: &Arc<Session>, must_wake: bool) {
        if must_wake {
            self.writer.to_wake.push(Arc::clone(session));
        }
    }

    /// Counts the message as lost to one receiver.
    fn lose(&mut self, session: &Session, delivery: &Delivery) {
        self.routed.outcome.lost += 1;
        self.routed.outcome.lacked_room |= delivery.qos > QoS::AtMostOnce;
        dropped(self.metrics, session, delivery, self.journal);
    }

    /// Puts a message into the store that has no room in memory.
    fn spill(&mut self, session: &Arc<Session>, mut delivery: Delivery) {
        if delivery.number().is_none() {
            let mut changes = Vec::new();
            if !session.is_persistent() {
                // The session ends with its connection, and after a crash with the broker. Another
                // publisher may record the same at the same time, which changes nothing.
                let expiry = Some(Duration::ZERO);
                let user = session.user().unwrap_or(User::Anonymous);
                let change = SessionChange::Attached { expiry, user };
                changes.push(Change::Session(session.client_id.clone(), change));
            }
            changes.push(queued(session, &mut delivery, self.journal.store_clock()));
            self.journal.record(changes);
            // Only now: the store ignores changes of a session that has not begun there.
            session.make_persistent();
        }
        let number = delivery.number().expect("it has one by now");
        self.metrics.spilled.add(1);
        let position = self.journal.position().0;
        let must_wake = session.mailbox.spilled(number, &delivery, position);
        self.wake_later(session, must_wake);
    }

    /// Tries the deliveries again that found no room. If `is_over`, the overflow policy decides about those that still
    /// find none, and the publisher waits for no other reader for a while.
    pub(super) fn retry(&mut self, is_over: bool) {
        let backpressure = if is_over {
            self.writer.backpressure_off_until = Some(clock::now() + BACKPRESSURE_PAUSE);
            Backpressure::TimedOut
        } else {
            Backpressure::Wait
        };
        for (session, delivery) in core::mem::take(&mut self.routed.undelivered) {
            self.try_queue(&session, delivery, backpressure);
        }
        self.routed.shared_copy = None;
        if self.routed.undelivered.is_empty() {
            self.routed.waiting_since = None;
        }
    }

    /// Ends the message whose deliveries were queued; others may follow. Deliveries without room go on waiting.
    pub(in crate::hub) fn next_message(&mut self) {
        self.routed.shared_copy = None;
    }

    /// Ends a message that has no publisher to wait, such as a will. Deliveries without room go to
    /// the store where the mailbox spills, and are dropped elsewhere. No reader is made to leave
    /// for it.
    pub(in crate::hub) fn finish(mut self) {
        for (session, delivery) in core::mem::take(&mut self.routed.undelivered) {
            if session.mailbox.spills() {
                self.try_queue(&session, delivery, Backpressure::TimedOut);
            } else {
                dropped(self.metrics, &session, &delivery, self.journal);
            }
        }
        for (session, delivery) in self.routed.undelivered.drain(..) {
            dropped(self.metrics, &session, &delivery, self.journal);
        }
        self.routed.waiting_since = None;
        self.routed.shared_copy = None;
    }
}

/// Copies a message that may wait for long into memory of its own, so that it keeps no read buffer
/// alive, and counts it. All readers that lag share the copy. `None` if there is no room for it.
fn copy_for_laggards(
    memory_limit: &Arc<MemoryLimit>,
    shared_copy: &mut Option<SharedCopy>,
    message: &Arc<Message>,
) -> Option<Arc<Message>> {
    if let Some(shared) = shared_copy
        && Arc::ptr_eq(&shared.of, message)
    {
        return Some(Arc::clone(&shared.copy));
    }
    let copy = Arc::new(memory_limit.keep(message)?);
    *shared_copy = Some(SharedCopy {
        of: Arc::clone(message),
        copy: Arc::clone(&copy),
    });
    Some(copy)
}
