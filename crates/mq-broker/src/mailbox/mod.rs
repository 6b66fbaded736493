//! A mailbox: a bounded queue of one session, which many connections fill and one empties.
//!
//! ```text
//!               push                       take
//! publishers --------> messages (memory) --------> the reader's connection
//!       \                    ^ loaded
//!        \  Push::Spill      |
//!         +----------> tail (store)
//! ```
//!
//! In a bridge's mailbox messages of other topics overtake those that wait ([`live`]).

mod limits;
mod live;
mod queue;
mod tail;

use std::{
    collections::VecDeque,
    ops::RangeInclusive,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use mq_codec::QoS;
use mq_proto::{Delivery, Message};

use crate::{
    memory_limit::MemoryLimit,
    store::Spilled,
    sync::{
        Instant, Mutex, MutexGuard, Notified, Notify,
        atomic::{AtomicU64, Ordering},
    },
};
pub(crate) use limits::{
    BACKPRESSURE_PAUSE, BACKPRESSURE_TIMEOUT, DEFAULT_EQUAL_PER_S, MailboxRules, OverflowPolicy,
};
pub use limits::{MailboxLimits, Overflow};
pub(crate) use queue::SMALL_PAYLOAD_BYTES;
use queue::{Queue, Reader, UNCOUNTED_MESSAGES};

/// Time after which a reader that takes nothing, and whose queue in the store is full, is disconnected.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// Recoveries (a reader takes half of a full mailbox) since its connection from which on a reader
/// counts as merely slow: publishers still wait for it. A reader that took a message within
/// `SLOW_READER_IDLE` counts so as well.
const TRUSTED_RECOVERIES: u32 = 32;
const SLOW_READER_IDLE: Duration = Duration::from_millis(10);

/// A reader also lags with more bytes than this in flight. A full window of small messages is less.
pub(crate) const UNCOUNTED_UNACKNOWLEDGED_BYTES: usize = 128 * 1024;

/// The most bytes of one read from the store.
const MAX_READ_BYTES: usize = 128 * 1024;

/// The most messages dropped at a time to make room below the memory limit of all sessions. They
/// may be shared with other readers, so that dropping more would not help.
const MAX_DISPLACED: usize = 16;

/// The messages that wait for one session. A mailbox outlives connections.
///
/// While the session is connected, a message without room waits with its publisher for
/// [`BACKPRESSURE_TIMEOUT`]; then [`OverflowPolicy`] decides. While it is not connected, the policy
/// decides at once, and QoS 0 is dropped. A mailbox is also full for a reader that lags, while it
/// has more than is left below the memory limit of all sessions; then QoS 0 is dropped at once.
#[derive(Debug)]
pub(crate) struct Mailbox {
    rules: Arc<MailboxRules>,
    memory_limit: Arc<MemoryLimit>,
    queue: Mutex<Queue>,
    /// Notified when there is room again, or when the reader has disconnected.
    emptied: Notify,
    dropped: AtomicU64,
}

/// Messages to be read from the store.
#[derive(Debug)]
pub(crate) struct RangeToRead {
    /// The numbers of the messages.
    pub(crate) numbers: RangeInclusive<u64>,
    /// The store's call that must be settled before all of them are in the store.
    pub(crate) position: u64,
    /// The most bytes to read, but one message in any case.
    pub(crate) bytes: usize,
}

/// The messages that waited when the session ended.
#[derive(Debug)]
pub(crate) struct LeftMessages {
    pub(crate) in_memory: VecDeque<Delivery>,
    /// Numbers of the messages in the store.
    pub(crate) in_store: Vec<RangeInclusive<u64>>,
}

/// The messages that wait for a session, counted at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MailboxLoad {
    /// Messages in memory.
    pub(crate) messages: usize,
    /// Payload bytes of the messages in memory.
    pub(crate) bytes: usize,
    /// Messages after those, in the store alone.
    pub(crate) spilled: usize,
    /// Their approximate bytes in the store, as [`Quotas::spill_bytes`](crate::Quotas::spill_bytes)
    /// counts them.
    pub(crate) spilled_bytes: usize,
}

/// The back-pressure of a full mailbox on a publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backpressure {
    /// The publisher waits.
    Wait,
    /// The publisher has waited in vain lately, and waits only for a reader that is merely slow.
    WaitIfTrusted,
    /// The publisher has waited for long enough. If there is still no room, no publisher waits for
    /// the reader any more, and the policy decides.
    TimedOut,
}

/// The result of a [`push`](Mailbox::push).
#[derive(Debug)]
pub(crate) enum Push {
    /// The message is queued. If `must_wake`, the reader must be woken with
    /// [`Mailbox::wake_reader`].
    Queued { must_wake: bool },
    /// The message is queued, and the oldest ones were dropped and counted to make room.
    Displaced {
        must_wake: bool,
        oldest: Vec<Delivery>,
    },
    /// The message was dropped and counted.
    Dropped(Delivery),
    /// The message was dropped and counted, and the reader must be disconnected.
    Evict(Delivery),
    /// The message must be put into the store; [`Mailbox::spilled`] queues it then.
    Spill(Delivery),
    /// The mailbox has no room: wait for it with [`Mailbox::room`].
    Full(Delivery),
}

impl Mailbox {
    pub(crate) fn new(rules: &Arc<MailboxRules>, memory_limit: Arc<MemoryLimit>) -> Self {
        Self {
            rules: Arc::clone(rules),
            memory_limit,
            queue: Mutex::default(),
            emptied: Notify::new(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Returns the bound on equal messages a second; 0 for none.
    pub(crate) fn equal_per_s(&self) -> u32 {
        self.rules.equal_per_s
    }

    /// Returns the time at which a message that arrives now is dropped, if its own expiry is
    /// `of_message`.
    pub(crate) fn expires_at(
        &self,
        of_message: Option<std::time::Instant>,
        now: std::time::Instant,
    ) -> Option<std::time::Instant> {
        let too_old = self.rules.age.and_then(|age| now.checked_add(age));
        [of_message, too_old].into_iter().flatten().min()
    }

    /// Counts a message that was taken and has expired, if this mailbox counts them.
    pub(crate) fn count_expired(&self) -> bool {
        self.dropped
            .fetch_add(u64::from(self.rules.age.is_some()), Ordering::Relaxed);
        self.rules.age.is_some()
    }

    /// Queues a message if there is room. For a reader that lags `keep` makes a copy that counts,
    /// or `None` if the memory limit is reached.
    pub(crate) fn push(
        &self,
        delivery: Delivery,
        backpressure: Backpressure,
        mut keep: impl FnMut(&Arc<Message>) -> Option<Arc<Message>>,
    ) -> Push {
        let mut queue = self.lock();
        let is_qos0 = delivery.qos == QoS::AtMostOnce;
        if queue.reader == Reader::Ended || (!queue.is_connected() && is_qos0) {
            // MQTT does not require a session without a connection to keep QoS 0 (§4.1).
            return self.dropped_one(delivery);
        }
        let mut delivery = delivery;
        if self.rules.lets_live_overtake && !is_qos0 {
            queue.note_backlog();
            match queue.admit_live(&self.memory_limit, delivery, &mut keep) {
                Ok(must_wake) => return Push::Queued { must_wake },
                Err(back) => delivery = back,
            }
        }
        if !is_qos0 && !queue.tail.is_empty() {
            // The message must not overtake those in the store.
            return self.spill(&mut queue, delivery);
        }
        let mut no_memory = false;
        let delivery = if queue.fits(self.rules.limits, &delivery) {
            no_memory = true;
            match queue.admit(&self.memory_limit, delivery, &mut keep) {
                Ok(must_wake) => return Push::Queued { must_wake },
                Err(delivery) => delivery,
            }
        } else {
            delivery
        };
        let connected = queue.is_connected();
        if connected {
            if is_qos0 && no_memory {
                return self.dropped_one(delivery);
            }
            let is_over = match backpressure {
                Backpressure::TimedOut => true,
                Backpressure::WaitIfTrusted => {
                    queue.full.is_none()
                        && queue.recoveries < TRUSTED_RECOVERIES
                        && queue.took_nothing_for(SLOW_READER_IDLE)
                }
                Backpressure::Wait => false,
            };
            // A reader that has taken nothing for so long already is not merely slower.
            if is_over || (is_qos0 && queue.took_nothing_for(BACKPRESSURE_TIMEOUT)) {
                queue.end_backpressure();
            }
            if queue.is_waited_for() {
                return Push::Full(delivery);
            }
        }
        if is_qos0 {
            return self.dropped_one(delivery);
        }
        match self.rules.policy.overflow {
            Overflow::Wait if connected => Push::Full(delivery),
            Overflow::Wait => self.dropped_one(delivery),
            Overflow::Evict => self.evict(&mut queue, delivery),
            Overflow::Spill => self.spill(&mut queue, delivery),
            Overflow::DropOldest => self.displace(&mut queue, delivery, &mut keep),
        }
    }

    fn dropped_one(&self, delivery: Delivery) -> Push {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        Push::Dropped(delivery)
    }

    fn evict(&self, queue: &mut Queue, delivery: Delivery) -> Push {
        if queue.reader != Reader::Connected {
            return self.dropped_one(delivery);
        }
        queue.reader = Reader::ToBeEvicted;
        self.dropped.fetch_add(1, Ordering::Relaxed);
        Push::Evict(delivery)
    }

    fn spill(&self, queue: &mut Queue, delivery: Delivery) -> Push {
        let bytes = queue.tail.bytes().saturating_add(tail::weight(&delivery));
        if bytes > self.rules.policy.spill_bytes {
            // One that has come to work it off gets the time for it.
            return if queue.took_nothing_for(STALLED_AFTER) {
                self.evict(queue, delivery)
            } else {
                self.dropped_one(delivery)
            };
        }
        Push::Spill(delivery)
    }

    /// Makes room by dropping the messages that have waited longest.
    fn displace(
        &self,
        queue: &mut Queue,
        mut delivery: Delivery,
        keep: &mut impl FnMut(&Arc<Message>) -> Option<Arc<Message>>,
    ) -> Push {
        let mut oldest = Vec::new();
        while !queue.fits(self.rules.limits, &delivery)
            && let Some(gone) = queue.pop(&self.memory_limit)
        {
            oldest.push(gone);
        }
        let mut tries = 0..MAX_DISPLACED;
        let must_wake = loop {
            match queue.admit(&self.memory_limit, delivery, keep) {
                Ok(must_wake) => break must_wake,
                Err(back) => delivery = back,
            }
            let Some(gone) = tries.next().and_then(|_| queue.pop(&self.memory_limit)) else {
                // The rest of the memory belongs to other sessions.
                oldest.push(delivery);
                break false;
            };
            oldest.push(gone);
        };
        self.dropped
            .fetch_add(oldest.len() as u64, Ordering::Relaxed);
        Push::Displaced { must_wake, oldest }
    }

    /// Queues a message that the store's call at `position` recorded under that number. `delivery`
    /// is that of [`Push::Spill`]. Returns `true` if the reader has to be woken.
    pub(crate) fn spilled(&self, number: u64, delivery: &Delivery, position: u64) -> bool {
        let mut queue = self.lock();
        queue.spilled(number, delivery, position, self.rules.lets_live_overtake);
        queue.must_wake()
    }

    /// Records that the store's call at `position` has removed the message of that number from the
    /// session's queue.
    pub(crate) fn unqueued(&self, number: u64, position: u64) {
        if self.rules.lets_live_overtake {
            self.lock().unqueued(number, position);
        }
    }

    /// Returns `true` if the queue may continue in the store.
    pub(crate) fn spills(&self) -> bool {
        self.rules.policy.overflow == Overflow::Spill
    }

    /// Takes messages that were read from the store: all that have these numbers.
    pub(crate) fn add_read(
        &self,
        numbers: RangeInclusive<u64>,
        messages: impl Iterator<Item = Delivery>,
    ) {
        let mut queue = self.lock();
        for delivery in messages {
            queue.tail.loaded(tail::weight(&delivery));
            queue.restore(&self.memory_limit, delivery);
        }
        queue.tail.remove(numbers);
    }

    /// Wakes the reader. Separate from [`push`](Self::push) so that a publisher can queue all its
    /// messages first, and the reader takes them in one batch.
    pub(crate) fn wake_reader(&self) {
        let waiting = self.lock().reader_waker.signal();
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    /// Resolves when room was made or the reader has disconnected.
    ///
    /// Create the future, `enable` it, and only then [`push`](Self::push) once more, so that room
    /// made in between is not missed.
    pub(crate) fn room(&self) -> Notified<'_> {
        self.emptied.notified()
    }

    /// Connects a reader; returns `true` if there is something to take.
    pub(crate) fn connect(&self) -> bool {
        let mut queue = self.lock();
        queue.reader = Reader::Connected;
        queue.reader_came(&self.memory_limit);
        queue.reader_woken = false;
        queue.full = None;
        queue.recoveries = 0;
        queue.taken_at = Some(Instant::now());
        !queue.is_empty()
    }

    /// Disconnects the reader and puts back the messages that it took and did not send, except QoS
    /// 0.
    pub(crate) fn disconnect(&self, unsent: impl DoubleEndedIterator<Item = Delivery>) {
        let mut queue = self.lock();
        queue.reader = Reader::Away;
        queue.reader_waker.leave();
        queue.put_back(unsent);
        let lost = queue.retain(|delivery| delivery.qos > QoS::AtMostOnce);
        let lost = lost.len();
        queue.count_again(&self.memory_limit);
        queue.reader_left(&self.memory_limit);
        drop(queue);
        self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        // Publishers that wait for room learn that there is no reader.
        self.emptied.notify_waiters();
    }

    /// Moves at most `count` messages to `to`, expired ones too. A reader with many
    /// `unacknowledged` bytes lags, although it takes every message.
    ///
    /// Returns the messages to be read from the store next, once few wait in memory: as many as
    /// there is room for, and one at least.
    pub(crate) fn take(
        &self,
        count: usize,
        to: &mut VecDeque<Delivery>,
        unacknowledged: usize,
        now: Instant,
    ) -> Option<RangeToRead> {
        let mut queue = self.lock();
        queue.is_behind = unacknowledged > UNCOUNTED_UNACKNOWLEDGED_BYTES;
        let before = to.len();
        queue.take(count, to, now);
        queue.give_back(&self.memory_limit);
        let has_room = queue.taken(to.len() - before);
        // Where publishers wait without a limit, any room is announced; else the reader has its
        // time to take half of the queue undisturbed.
        let must_notify =
            has_room || (self.rules.policy.overflow == Overflow::Wait && queue.full.is_some());
        // Decided under the same lock: a reader that was woken has either more in memory to take,
        // or this to read.
        let few = queue.messages.len() < UNCOUNTED_MESSAGES;
        let first = few.then(|| queue.tail.first()).flatten();
        drop(queue);
        if must_notify {
            self.emptied.notify_waiters();
        }
        let (numbers, position) = first?;
        Some(RangeToRead {
            numbers,
            position,
            bytes: self.memory_limit.left().clamp(1, MAX_READ_BYTES),
        })
    }

    /// Removes, and returns, all messages but those for which `keep` returns `true`. Messages in
    /// the store stay there.
    pub(crate) fn remove_unless(&self, keep: impl Fn(&Delivery) -> bool) -> VecDeque<Delivery> {
        let mut queue = self.lock();
        let removed = queue.retain(keep);
        queue.count_again(&self.memory_limit);
        drop(queue);
        self.emptied.notify_waiters();
        removed
    }

    /// Puts messages that were taken and not sent back to the front.
    pub(crate) fn put_back(&self, unsent: impl DoubleEndedIterator<Item = Delivery>) {
        let mut queue = self.lock();
        queue.put_back(unsent);
        queue.count_again(&self.memory_limit);
        if !queue.is_connected() {
            queue.reader_left(&self.memory_limit);
        }
    }

    /// Returns the time for which a publisher has waited for room while the reader has not taken
    /// half of the queue. `None` if nothing waits for the reader: then the room is missing elsewhere.
    pub(crate) fn no_progress_for(&self, now: Instant) -> Option<Duration> {
        let queue = self.lock();
        let full = queue.full.as_ref().filter(|_| !queue.is_empty())?;
        Some(now.saturating_duration_since(full.progress_at))
    }

    /// Returns `true` if the reader must be evicted: a push has decided so, or it has made no
    /// progress for `timeout`.
    pub(crate) fn is_to_be_evicted(&self, now: Instant, timeout: Option<Duration>) -> bool {
        if self.lock().reader == Reader::ToBeEvicted {
            return true;
        }
        let waits = self.rules.policy.overflow == Overflow::Wait;
        let stopped_for = self.no_progress_for(now).filter(|_| waits);
        timeout.is_some_and(|timeout| stopped_for.is_some_and(|stopped| stopped >= timeout))
    }

    /// Adds the messages that an earlier broker had queued, whatever the limits are now. `spilled`
    /// stays in the store for now.
    pub(crate) fn restore(
        &self,
        messages: impl Iterator<Item = Delivery>,
        spilled: Option<Spilled>,
    ) {
        let mut queue = self.lock();
        for delivery in messages {
            queue.restore(&self.memory_limit, delivery);
        }
        if let Some(spilled) = spilled {
            queue.tail.restore(spilled);
        }
    }

    /// Returns ready once after a call of [`wake_reader`](Self::wake_reader). For one reader at a
    /// time.
    pub(crate) fn poll_woken(&self, context: &Context<'_>) -> Poll<()> {
        self.lock().reader_waker.poll_signal(context)
    }

    /// Returns `true` if a connection takes from the mailbox and it is less than half full: a good
    /// choice for a shared subscription.
    pub(crate) fn is_ready(&self) -> bool {
        let queue = self.lock();
        queue.reader == Reader::Connected
            && queue.tail.is_empty()
            && queue.messages.len() <= self.rules.limits.messages / 2
    }

    /// Ends the mailbox with its session: returns the messages that wait, and accepts none any
    /// more.
    pub(crate) fn end(&self) -> LeftMessages {
        let mut queue = self.lock();
        queue.reader = Reader::Ended;
        let waiting = LeftMessages {
            in_store: queue.tail.all(),
            in_memory: queue.clear(&self.memory_limit),
        };
        drop(queue);
        self.emptied.notify_waiters();
        waiting
    }

    /// Returns the numbers of the messages in the store.
    pub(crate) fn in_store(&self) -> Vec<RangeInclusive<u64>> {
        self.lock().tail.all()
    }

    /// Returns `true` once the session has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().reader == Reader::Ended
    }

    /// Returns the number of messages waiting in memory.
    pub(crate) fn len(&self) -> usize {
        self.lock().in_memory()
    }

    /// Counts the messages that wait.
    pub(crate) fn load(&self) -> MailboxLoad {
        let queue = self.lock();
        MailboxLoad {
            messages: queue.in_memory(),
            bytes: queue.bytes(),
            spilled: queue.tail.count(),
            spilled_bytes: queue.tail.bytes(),
        }
    }

    /// Returns the number of messages dropped since the session began.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves the queue consistent: every change here is complete in itself.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.lock().clear(&self.memory_limit);
    }
}

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod tests;
