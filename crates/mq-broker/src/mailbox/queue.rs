//! The part of a mailbox that its lock protects.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use mq_proto::{Delivery, Message};

use super::{
    limits::{BACKPRESSURE_TIMEOUT, MailboxLimits},
    live::Live,
    tail::{self, Tail},
};
use crate::{
    delivery::DeliveryTag as _,
    memory_limit::{MemoryLimit, message_weight, texts_weight},
    sync::Instant,
};

/// The most messages that may wait for a connected reader before it lags; the rest counts against the memory limit of
/// all sessions. Below it nothing is counted or copied, except a message with a large payload or long text. Such a
/// message counts for every reader, and each message for a session without a connection.
pub(super) const UNCOUNTED_MESSAGES: usize = 64;
const UNCOUNTED_PAYLOAD_BYTES: usize = 64 * 1024;

/// The largest payload that may wait uncounted, in bytes: a quarter of the largest read.
pub(crate) const SMALL_PAYLOAD_BYTES: usize = MAX_READ / 4;

/// The most read buffers that uncounted messages may keep. One read mostly has many messages of devices, and a message
/// whose reader takes it at once keeps no buffer for long.
const UNCOUNTED_BUFFERS: u8 = 4;

/// The largest read of a publisher's link, in bytes: that of mq-transport, on which the models of mailboxes do not
/// depend.
const MAX_READ: usize = 64 * 1024;

/// Bytes of topic and properties of a message that may wait uncounted: hardly any device has more.
const UNCOUNTED_TEXT_BYTES: usize = 512;

/// Bytes of a message's place in a queue, besides the message.
pub(super) const ENTRY_BYTES: usize = size_of::<Delivery>();

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Messages in memory.
    pub(super) messages: VecDeque<Delivery>,
    /// The number of `messages` that are taken first, before live ones.
    front: usize,
    /// Messages that overtake the others of `messages` and the tail, while many wait.
    live: Option<Box<Live>>,
    /// Payload bytes of the messages in memory.
    bytes: usize,
    /// The messages after `messages`, in the store.
    pub(super) tail: Tail,
    pub(super) reader: Reader,
    pub(super) reader_waker: ReaderWaker,
    /// `true` if the reader has many unacknowledged bytes.
    pub(super) is_behind: bool,
    /// `true` if the reader was woken and has not taken messages since.
    pub(super) reader_woken: bool,
    /// The number of messages in memory that count against the memory limit as entries.
    counted: u32,
    /// Bytes of messages that count while there is no reader, and did not count when they were queued.
    away_bytes: u32,
    /// The read buffers that the uncounted messages keep.
    buffers: ReadBuffers,
    /// The state from the moment at which a message found no room until the reader has taken half of the messages that
    /// waited then.
    pub(super) full: Option<Box<Full>>,
    /// The number of times that the reader has recovered (taken half of a full mailbox) since it connected.
    pub(super) recoveries: u32,
    /// The time at which the reader last took a message, or connected.
    pub(super) taken_at: Option<Instant>,
}

/// The waker of the reader. One reader waits at a time, and under the queue's lock anyway: the list of waiters of
/// tokio's `Notify` took a tenth of the broker's time for a message.
#[derive(Debug, Default)]
pub(super) struct ReaderWaker {
    /// `true` if there was a signal that the reader has not polled yet.
    is_signalled: bool,
    waiting: Option<Waker>,
}

/// The state of a mailbox's reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Reader {
    /// No connection takes from the mailbox.
    #[default]
    Away,
    Connected,
    /// Connected, and to be disconnected.
    ToBeEvicted,
    /// The session has ended.
    Ended,
}

/// A mailbox that was found full.
#[derive(Debug)]
pub(super) struct Full {
    since: Instant,
    /// The number of messages that waited.
    len: usize,
    /// `true` once no publisher waits any more.
    is_backpressure_over: bool,
    /// Messages that the reader has taken since `progress_at`.
    taken: usize,
    /// The time at which the reader had last taken half of `len`, or `since`.
    pub(super) progress_at: Instant,
}

/// A count of the read buffers that messages are views of, as far as adjacent messages show: those of one buffer are in
/// one block of [`MAX_READ`] bytes or in two adjacent ones.
#[derive(Debug, Default)]
struct ReadBuffers {
    /// The lowest bits of the last message's block.
    last: u32,
    count: u8,
}

impl ReadBuffers {
    /// Returns the count with that message queued as well.
    fn with(&self, message: &Message) -> u8 {
        let is_other = block(message).wrapping_sub(self.last).wrapping_add(1) > 2;
        self.count + u8::from(is_other)
    }

    fn add(&mut self, message: &Message) {
        self.count = self.with(message);
        self.last = block(message);
    }
}

/// Returns the number of the block of memory that a message keeps a read buffer in.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lowest bits tell neighbours apart"
)]
fn block(message: &Message) -> u32 {
    let bytes = match &*message.payload {
        [] => message.topic.as_bytes(),
        payload => payload,
    };
    (bytes.as_ptr().addr() / MAX_READ) as u32
}

impl ReaderWaker {
    /// Signals the reader. Returns the waker to call once the lock is free.
    #[must_use]
    pub(super) fn signal(&mut self) -> Option<Waker> {
        self.is_signalled = true;
        self.waiting.take()
    }

    /// Returns ready once for all signals since the last time.
    pub(super) fn poll_signal(&mut self, context: &Context<'_>) -> Poll<()> {
        if core::mem::take(&mut self.is_signalled) {
            return Poll::Ready(());
        }
        match &self.waiting {
            Some(waiting) if waiting.will_wake(context.waker()) => {}
            _ => self.waiting = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Drops the reader's waker, which would keep the task of a connection that has ended.
    pub(super) fn leave(&mut self) {
        self.waiting = None;
    }
}

impl Queue {
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.reader, Reader::Connected | Reader::ToBeEvicted)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_memory() == 0 && self.tail.is_empty()
    }

    /// Returns the number of messages in memory.
    pub(super) fn in_memory(&self) -> usize {
        let live = self.live.as_ref();
        self.messages.len() + live.map_or(0, |live| live.messages().len())
    }

    /// Returns the payload bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn fits(&self, limits: MailboxLimits, delivery: &Delivery) -> bool {
        self.messages.len() < limits.messages
            && (self.bytes + delivery.message.payload.len() <= limits.bytes
                || self.messages.is_empty())
    }

    /// Returns `true` if the reader lags once that message is queued, or is disconnected, or if the message counts in
    /// any case.
    fn must_count(&self, message: &Message) -> bool {
        self.is_behind
            || !self.is_connected()
            || self.in_memory() >= UNCOUNTED_MESSAGES
            || self.bytes + message.payload.len() > UNCOUNTED_PAYLOAD_BYTES
            || message.payload.len() > SMALL_PAYLOAD_BYTES
            || texts_weight(message) > UNCOUNTED_TEXT_BYTES
            || self.buffers.with(message) > UNCOUNTED_BUFFERS
    }

    /// Queues a message; returns `true` if the reader must be woken. Fails at the memory limit.
    pub(super) fn admit(
        &mut self,
        memory_limit: &MemoryLimit,
        delivery: Delivery,
        keep: &mut impl FnMut(&Arc<Message>) -> Option<Arc<Message>>,
    ) -> Result<bool, Delivery> {
        let delivery = self.counted(memory_limit, delivery, keep)?;
        self.goes_behind(&delivery);
        self.messages.push_back(delivery);
        Ok(self.must_wake())
    }

    /// Lets messages overtake the others from now on, if enough of them wait.
    pub(super) fn note_backlog(&mut self) {
        let is_backlog = self.messages.len() >= UNCOUNTED_MESSAGES && self.is_connected();
        // The topics of messages that an earlier broker left in the tail are not known.
        if is_backlog && self.live.is_none() && self.tail.is_empty() {
            self.begin_live();
        }
    }

    fn begin_live(&mut self) {
        let others = self.messages.iter().skip(self.front);
        self.live = Some(Box::new(Live::beside(others)));
    }

    /// Counts a message that is put after the others, or into the tail. If live messages may have its topic, they go
    /// first.
    fn goes_behind(&mut self, delivery: &Delivery) {
        if let Some(live) = &mut self.live
            && live.count(delivery)
        {
            self.live_first();
        }
    }

    /// Queues a message before those that wait, if none of its topic does; returns `true` if the reader must be woken.
    pub(super) fn admit_live(
        &mut self,
        memory_limit: &MemoryLimit,
        delivery: Delivery,
        keep: &mut impl FnMut(&Arc<Message>) -> Option<Arc<Message>>,
    ) -> Result<bool, Delivery> {
        let live = self.live.as_ref();
        let takes = live.is_some_and(|live| live.takes(&delivery));
        if !takes || self.front > 0 || !self.is_connected() {
            return Err(delivery);
        }
        let delivery = self.counted(memory_limit, delivery, keep)?;
        let number = delivery.number();
        if let Some(live) = &mut self.live {
            live.push(delivery, number);
        }
        Ok(self.must_wake())
    }

    /// Counts a message that is added in memory. Fails at the memory limit.
    fn counted(
        &mut self,
        memory_limit: &MemoryLimit,
        mut delivery: Delivery,
        keep: &mut impl FnMut(&Arc<Message>) -> Option<Arc<Message>>,
    ) -> Result<Delivery, Delivery> {
        if self.must_count(&delivery.message) {
            // No reader has more than is left for all others: one that has stopped leaves room for
            // those that lag for a moment.
            if self.bytes > memory_limit.left() || !memory_limit.take(ENTRY_BYTES) {
                return Err(delivery);
            }
            let Some(message) = keep(&delivery.message) else {
                memory_limit.give(ENTRY_BYTES);
                return Err(delivery);
            };
            delivery.message = message;
            delivery.set_counted();
            self.counted += 1;
        } else {
            self.buffers.add(&delivery.message);
        }
        self.bytes += delivery.message.payload.len();
        Ok(delivery)
    }

    /// Puts a message into the tail that the store's call at `position` recorded under that number.
    /// `lets_live_overtake` is `true` if later ones of other topics may overtake it.
    pub(super) fn spilled(
        &mut self,
        number: u64,
        delivery: &Delivery,
        position: u64,
        lets_live_overtake: bool,
    ) {
        if self.tail.is_empty() {
            if let Some(live) = &mut self.live {
                live.forget_below(number);
            } else if lets_live_overtake {
                self.begin_live();
            }
        }
        self.tail.add(number, tail::weight(delivery), position);
        self.goes_behind(delivery);
    }

    /// Records that the store's call at `position` has removed the message of that number from the store's queue.
    pub(super) fn unqueued(&mut self, number: u64, position: u64) {
        let live = self.live.as_mut();
        if live.is_some_and(|live| live.is_unqueued(number)) && !self.tail.is_empty() {
            self.tail.cover(number, position);
        }
    }

    /// Moves the live messages before all others; no further message is live until they were taken.
    fn live_first(&mut self) {
        let Some(live) = &mut self.live else {
            return;
        };
        let live = live.take_all();
        if live.is_empty() {
            return;
        }
        let front: Vec<_> = self.messages.drain(..self.front).collect();
        self.front += live.len();
        for delivery in front.into_iter().chain(live).rev() {
            self.messages.push_front(delivery);
        }
    }

    /// Removes, and returns, all messages in memory but those for which `keep` returns `true`.
    pub(super) fn retain(&mut self, keep: impl Fn(&Delivery) -> bool) -> VecDeque<Delivery> {
        self.live_first();
        let mut removed = VecDeque::new();
        let front = core::mem::take(&mut self.front);
        let messages = core::mem::take(&mut self.messages);
        for (index, delivery) in messages.into_iter().enumerate() {
            let is_in_front = index < front;
            if keep(&delivery) {
                self.front += usize::from(is_in_front);
                self.messages.push_back(delivery);
                continue;
            }
            if let Some(live) = &mut self.live
                && !is_in_front
            {
                live.uncount(&delivery);
            }
            removed.push_back(delivery);
        }
        removed
    }

    /// Returns `true` if the reader must be woken.
    pub(super) fn must_wake(&mut self) -> bool {
        let must_wake = self.is_connected() && !self.reader_woken;
        self.reader_woken |= must_wake;
        must_wake
    }

    /// Queues a message of an earlier broker, or one that was in the store, without regard to the bounds.
    pub(super) fn restore(&mut self, memory_limit: &Arc<MemoryLimit>, delivery: Delivery) {
        self.bytes += delivery.message.payload.len();
        let mut counted = Delivery {
            message: Arc::new(memory_limit.keep_anyway(&delivery.message)),
            ..delivery
        };
        counted.set_counted();
        self.messages.push_back(counted);
    }

    pub(super) fn take(&mut self, count: usize, to: &mut VecDeque<Delivery>, now: Instant) {
        self.taken_at = Some(now);
        for _ in 0..count {
            let Some(delivery) = self.next() else {
                break;
            };
            to.push_back(delivery);
        }
        if self.messages.is_empty() && self.tail.is_empty() {
            self.live_first();
            self.live = None;
        }
        if self.in_memory() == 0 {
            self.buffers = ReadBuffers::default();
        }
        // A reader that waits for the store must be woken for live messages.
        if self.is_empty() || (self.in_memory() == 0 && self.live.is_some()) {
            self.reader_woken = false;
        }
    }

    fn next(&mut self) -> Option<Delivery> {
        let delivery = match &mut self.live {
            Some(live) if self.front == 0 => live.next(&mut self.messages),
            _ => self.messages.pop_front(),
        }?;
        self.front = self.front.saturating_sub(1);
        self.bytes -= delivery.message.payload.len();
        Some(delivery)
    }

    pub(super) fn pop(&mut self, memory_limit: &MemoryLimit) -> Option<Delivery> {
        if let Some(live) = &mut self.live {
            live.let_others();
        }
        let delivery = self.next()?;
        self.give_back(memory_limit);
        Some(delivery)
    }

    pub(super) fn put_back(&mut self, unsent: impl DoubleEndedIterator<Item = Delivery>) {
        for delivery in unsent.rev() {
            self.messages.push_front(delivery);
            self.front += 1;
        }
    }

    /// Counts again, after messages were added or removed anywhere in the queue.
    pub(super) fn count_again(&mut self, memory_limit: &MemoryLimit) {
        let live = self.live.iter().flat_map(|live| live.messages());
        let sizes = self.messages.iter().chain(live);
        self.bytes = sizes.map(|delivery| delivery.message.payload.len()).sum();
        self.give_back(memory_limit);
    }

    /// Returns the memory of removed entries to the limit.
    pub(super) fn give_back(&mut self, memory_limit: &MemoryLimit) {
        if let Some(gone) = self.counted.checked_sub(self.entries()) {
            memory_limit.give(gone as usize * ENTRY_BYTES);
            self.counted -= gone;
        }
    }

    /// Returns the number of messages in memory.
    fn entries(&self) -> u32 {
        u32::try_from(self.in_memory()).unwrap_or(u32::MAX)
    }

    /// Counts everything that waits, room or not, for a session whose reader has left. A message that several sessions
    /// have counts in equal parts for each of them.
    pub(super) fn reader_left(&mut self, memory_limit: &MemoryLimit) {
        self.reader_came(memory_limit);
        let entries = self.entries().saturating_sub(self.counted);
        memory_limit.take_anyway(entries as usize * ENTRY_BYTES);
        self.counted += entries;
        let uncounted = self.messages.iter().filter(|one| !one.is_counted());
        let bytes: usize = uncounted
            .map(|one| message_weight(&one.message) / Arc::strong_count(&one.message))
            .sum();
        self.away_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        memory_limit.take_anyway(self.away_bytes as usize);
    }

    /// Ends the count of what a reader may have uncounted.
    pub(super) fn reader_came(&mut self, memory_limit: &MemoryLimit) {
        memory_limit.give(core::mem::take(&mut self.away_bytes) as usize);
    }

    /// Empties the queue; returns the messages that were in memory.
    pub(super) fn clear(&mut self, memory_limit: &MemoryLimit) -> VecDeque<Delivery> {
        self.live_first();
        let messages = core::mem::take(&mut self.messages);
        self.front = 0;
        self.live = None;
        self.tail = Tail::default();
        self.count_again(memory_limit);
        self.reader_came(memory_limit);
        messages
    }

    pub(super) fn took_nothing_for(&self, time: Duration) -> bool {
        self.taken_at.is_none_or(|at| at.elapsed() >= time)
    }

    /// Records that a message has found no room. Returns `true` if its publisher waits.
    pub(super) fn is_waited_for(&mut self) -> bool {
        let full = self.full();
        if full.since.elapsed() >= BACKPRESSURE_TIMEOUT {
            full.is_backpressure_over = true;
        }
        !full.is_backpressure_over
    }

    pub(super) fn end_backpressure(&mut self) {
        self.full().is_backpressure_over = true;
    }

    fn full(&mut self) -> &mut Full {
        let len = self.messages.len();
        self.full.get_or_insert_with(|| {
            let now = Instant::now();
            Box::new(Full {
                since: now,
                len,
                is_backpressure_over: false,
                taken: 0,
                progress_at: now,
            })
        })
    }

    /// Records that the reader has taken `count` messages. Returns `true` if it has taken half of the messages that
    /// waited when the mailbox was found full.
    pub(super) fn taken(&mut self, count: usize) -> bool {
        let Some(full) = &mut self.full else {
            return false;
        };
        if self.messages.len() <= full.len / 2 {
            self.full = None;
            self.recoveries = self.recoveries.saturating_add(1);
            return true;
        }
        full.taken += count;
        if full.taken >= full.len.div_ceil(2) {
            full.taken = 0;
            full.progress_at = Instant::now();
        }
        false
    }
}
