//! The part of a mailbox that is behind its lock.

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
    memory_limit::{MemoryLimit, texts_weight},
    sync::Instant,
};

/// A connected reader with more than this waiting lags, and the rest counts against the memory limit of all
/// sessions together. Below it nothing is counted or copied, but for a message with a large payload or much text. Such a
/// message counts for every reader, and each for one that is away.
pub(super) const UNCOUNTED_MESSAGES: usize = 64;
const UNCOUNTED_PAYLOAD_BYTES: usize = 64 * 1024;

/// The largest payload that may wait uncounted, in bytes: a quarter of the largest read.
pub(crate) const SMALL_PAYLOAD_BYTES: usize = MAX_READ / 4;

/// Read buffers that uncounted messages may keep. The messages of devices mostly come many to a read, and one whose reader
/// takes it at once keeps none for long.
const UNCOUNTED_BUFFERS: u8 = 4;

/// The largest read of a publisher's link, in bytes: that of mq-transport, on which the models of mailboxes do not depend.
const MAX_READ: usize = 64 * 1024;

/// Bytes of topic and properties of a message that may wait uncounted: hardly any device has more.
const UNCOUNTED_TEXT_BYTES: usize = 512;

/// Bytes of a message's place in a queue, besides the message.
pub(super) const ENTRY_BYTES: usize = size_of::<Delivery>();

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In memory.
    pub(super) messages: VecDeque<Delivery>,
    /// So many of `messages` come first, whatever is live.
    front: usize,
    /// Messages that overtake the others of `messages` and the tail, while there are many.
    live: Option<Box<Live>>,
    /// Payload bytes in memory.
    bytes: usize,
    /// The messages after `messages`, in the store.
    pub(super) tail: Tail,
    pub(super) reader: Reader,
    pub(super) reader_waker: ReaderWaker,
    /// `true` if the reader has many unacknowledged bytes.
    pub(super) is_behind: bool,
    /// `true` if the reader was woken and has not looked yet.
    pub(super) reader_woken: bool,
    /// The number of messages in memory that count against the memory limit as entries.
    counted: usize,
    /// The read buffers behind the others.
    buffers: ReadBuffers,
    /// From the moment that a message found no room until the reader has worked off half of what
    /// waited then.
    pub(super) full: Option<Box<Full>>,
    /// Times that the reader has done so since it connected.
    pub(super) recoveries: u32,
    /// The time at which the reader took something last, or connected.
    pub(super) taken_at: Option<Instant>,
}

/// Wakes the reader. One reader waits at a time, and under the queue's lock anyway: the list of
/// waiters of tokio's `Notify` cost a tenth of what a message costs the broker.
#[derive(Debug, Default)]
pub(super) struct ReaderWaker {
    /// `true` if there was a signal that the reader has not polled yet.
    is_signalled: bool,
    waiting: Option<Waker>,
}

/// The state of a mailbox's reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Reader {
    /// No connection takes from it.
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
    /// Messages that waited.
    len: usize,
    /// No publisher waits any more.
    is_backpressure_over: bool,
    /// Messages that the reader has taken since `progress_at`.
    taken: usize,
    /// The time at which the reader had last taken half of `len`, or `since`.
    pub(super) progress_at: Instant,
}

/// A count of the read buffers that messages are views of, as far as neighbours tell: those of one buffer are in one block
/// of [`MAX_READ`] bytes or in two beside each other.
#[derive(Debug, Default)]
struct ReadBuffers {
    /// The lowest bits of the last message's block.
    last: u32,
    count: u8,
}

impl ReadBuffers {
    /// Returns the count once that message waits.
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
    /// Signals. Returns the waker to call once the lock is free.
    #[must_use]
    pub(super) fn signal(&mut self) -> Option<Waker> {
        self.is_signalled = true;
        self.waiting.take()
    }

    /// Ready once for all signals since the last time.
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

    /// Forgets the reader: a waker would keep the task of a connection that has ended.
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

    /// Messages in memory.
    pub(super) fn in_memory(&self) -> usize {
        let live = self.live.as_ref();
        self.messages.len() + live.map_or(0, |live| live.messages().len())
    }

    /// Payload bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn fits(&self, limits: MailboxLimits, delivery: &Delivery) -> bool {
        self.messages.len() < limits.messages
            && (self.bytes + delivery.message.payload.len() <= limits.bytes
                || self.messages.is_empty())
    }

    /// Returns `true` if the reader lags once that message is queued, or is away, or the message counts in any case.
    fn must_count(&self, message: &Message) -> bool {
        self.is_behind
            || !self.is_connected()
            || self.in_memory() >= UNCOUNTED_MESSAGES
            || self.bytes + message.payload.len() > UNCOUNTED_PAYLOAD_BYTES
            || message.payload.len() > SMALL_PAYLOAD_BYTES
            || texts_weight(message) > UNCOUNTED_TEXT_BYTES
            || self.buffers.with(message) > UNCOUNTED_BUFFERS
    }

    /// Queues a message; whether the reader has to be woken. Fails at the memory limit.
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

    /// From here on messages may go past the others, if so many wait that it matters.
    pub(super) fn note_backlog(&mut self) {
        let is_backlog = self.messages.len() >= UNCOUNTED_MESSAGES && self.is_connected();
        // Topics of what an earlier broker left in the tail are not known.
        if is_backlog && self.live.is_none() && self.tail.is_empty() {
            self.begin_live();
        }
    }

    fn begin_live(&mut self) {
        let others = self.messages.iter().skip(self.front);
        self.live = Some(Box::new(Live::beside(others)));
    }

    /// A message is put behind the others, or into the tail.
    fn goes_behind(&mut self, delivery: &Delivery) {
        if let Some(live) = &mut self.live
            && live.count(delivery)
        {
            self.live_first();
        }
    }

    /// Queues a message past those that wait, if none of its topic does; whether the reader has to be woken.
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

    /// Counts a message that comes into memory. Fails at the memory limit.
    fn counted(
        &mut self,
        memory_limit: &MemoryLimit,
        mut delivery: Delivery,
        keep: &mut impl FnMut(&Arc<Message>) -> Option<Arc<Message>>,
    ) -> Result<Delivery, Delivery> {
        if self.must_count(&delivery.message) {
            // No reader has more than is left for all others: one that has stopped leaves room for
            // those that are behind for a moment.
            if self.bytes > memory_limit.left() || !memory_limit.take(ENTRY_BYTES) {
                return Err(delivery);
            }
            let Some(message) = keep(&delivery.message) else {
                memory_limit.give(ENTRY_BYTES);
                return Err(delivery);
            };
            delivery.message = message;
            self.counted += 1;
        } else {
            self.buffers.add(&delivery.message);
        }
        self.bytes += delivery.message.payload.len();
        Ok(delivery)
    }

    /// Puts a message into the tail that the store's call at `position` recorded under that number. `lets_live_overtake` if
    /// later ones of other topics may go past it.
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

    /// The store's call at `position` has taken the message of that number out of the queue there.
    pub(super) fn unqueued(&mut self, number: u64, position: u64) {
        let live = self.live.as_mut();
        if live.is_some_and(|live| live.is_unqueued(number)) && !self.tail.is_empty() {
            self.tail.cover(number, position);
        }
    }

    /// What is live goes before all others, and nothing more is live until it has gone.
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

    /// Takes out, and returns, all messages in memory but those that `keep` wants.
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

    /// Returns `true` if the reader has to be woken.
    pub(super) fn must_wake(&mut self) -> bool {
        let must_wake = self.is_connected() && !self.reader_woken;
        self.reader_woken |= must_wake;
        must_wake
    }

    /// Queues a message of an earlier broker's, or one that was in the store, room or not.
    pub(super) fn restore(&mut self, memory_limit: &Arc<MemoryLimit>, delivery: Delivery) {
        self.bytes += delivery.message.payload.len();
        self.messages.push_back(Delivery {
            message: Arc::new(memory_limit.keep_anyway(&delivery.message)),
            ..delivery
        });
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
        // A reader that waits for the store has to hear of what is live.
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

    /// Counts anew, after messages have come back or gone anywhere in the queue.
    pub(super) fn count_again(&mut self, memory_limit: &MemoryLimit) {
        let live = self.live.iter().flat_map(|live| live.messages());
        let sizes = self.messages.iter().chain(live);
        self.bytes = sizes.map(|delivery| delivery.message.payload.len()).sum();
        self.give_back(memory_limit);
    }

    /// Entries that have gone do not count any more.
    pub(super) fn give_back(&mut self, memory_limit: &MemoryLimit) {
        if let Some(gone) = self.counted.checked_sub(self.in_memory()) {
            memory_limit.give(gone * ENTRY_BYTES);
            self.counted -= gone;
        }
    }

    /// Empties it; returns what was in memory.
    pub(super) fn clear(&mut self, memory_limit: &MemoryLimit) -> VecDeque<Delivery> {
        self.live_first();
        let messages = core::mem::take(&mut self.messages);
        self.front = 0;
        self.live = None;
        self.tail = Tail::default();
        self.count_again(memory_limit);
        messages
    }

    pub(super) fn took_nothing_for(&self, time: Duration) -> bool {
        self.taken_at.is_none_or(|at| at.elapsed() >= time)
    }

    /// A message has found no room. Returns whether its publisher waits.
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

    /// The reader has taken so many messages. Returns whether it has worked off half of what waited
    /// when the mailbox was found full.
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
