//! The part of a mailbox that is behind its lock.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use mq_proto::{Delivery, Message};

use super::{
    limits::{MailboxLimits, PATIENCE},
    tail::Tail,
};
use crate::{ceiling::Ceiling, sync::Instant};

/// A reader with more than this waiting lags, and the rest counts against the ceiling of all
/// sessions together. Below it nothing is counted or copied. A larger message counts for every
/// reader.
pub(super) const FREE_MESSAGES: usize = 64;
const FREE_BYTES: usize = 64 * 1024;

/// What a message takes in a queue, besides itself.
pub(super) const ENTRY: usize = size_of::<Delivery>();

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In memory.
    pub(super) messages: VecDeque<Delivery>,
    /// Payload bytes of `messages`.
    bytes: usize,
    /// Behind `messages`, in the store.
    pub(super) tail: Tail,
    pub(super) reader: Reader,
    pub(super) bell: Bell,
    /// Whether the reader has many unacknowledged bytes.
    pub(super) is_behind: bool,
    /// Whether the reader was told and has not looked yet.
    pub(super) told: bool,
    /// How many of `messages` count against the ceiling as entries.
    counted: usize,
    /// From the moment that a message found no room until the reader has worked off half of what
    /// waited then.
    pub(super) full: Option<Box<Full>>,
    /// How often the reader has done that since it came.
    pub(super) worked_off: u32,
    /// When the reader took something last, or came.
    pub(super) taken_at: Option<Instant>,
}

/// Wakes the reader. One reader waits at a time, and under the queue's lock anyway: the list of
/// waiters of tokio's `Notify` cost a tenth of what a message costs the broker.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// It has rung, and nobody has heard it yet.
    rung: bool,
    waiting: Option<Waker>,
}

/// Where the reader of a mailbox is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Reader {
    /// No connection takes from it.
    #[default]
    Away,
    Connected,
    /// Connected, and it has to leave.
    Condemned,
    /// The session has ended.
    Ended,
}

/// A mailbox that was found full.
#[derive(Debug)]
pub(super) struct Full {
    since: Instant,
    /// How many messages waited.
    len: usize,
    /// No publisher waits any more.
    out_of_patience: bool,
    /// How many the reader has taken since `progress_at`.
    taken: usize,
    /// When the reader had last taken half of `len`, or `since`.
    pub(super) progress_at: Instant,
}

impl Bell {
    /// Rings. Returns the waker to call once the lock is free.
    #[must_use]
    pub(super) fn ring(&mut self) -> Option<Waker> {
        self.rung = true;
        self.waiting.take()
    }

    /// Ready once for all that has rung since the last time.
    pub(super) fn poll_rung(&mut self, context: &Context<'_>) -> Poll<()> {
        if core::mem::take(&mut self.rung) {
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
        matches!(self.reader, Reader::Connected | Reader::Condemned)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.tail.is_empty()
    }

    pub(super) fn fits(&self, limits: MailboxLimits, delivery: &Delivery) -> bool {
        self.messages.len() < limits.messages
            && (self.bytes + delivery.message.payload.len() <= limits.bytes
                || self.messages.is_empty())
    }

    /// Whether the reader lags once that message has come.
    fn lags(&self, size: usize) -> bool {
        self.is_behind || self.messages.len() >= FREE_MESSAGES || self.bytes + size > FREE_BYTES
    }

    /// Queues a message; whether the reader has to be told. Fails at the ceiling.
    pub(super) fn admit(
        &mut self,
        ceiling: &Ceiling,
        mut delivery: Delivery,
        keep: &mut impl FnMut(&Arc<Message>) -> Option<Arc<Message>>,
    ) -> Result<bool, Delivery> {
        if self.lags(delivery.message.payload.len()) {
            // No reader has more than is left for all others: one that has stopped leaves room for
            // those that are behind for a moment.
            if self.bytes > ceiling.left() || !ceiling.take(ENTRY) {
                return Err(delivery);
            }
            let Some(message) = keep(&delivery.message) else {
                ceiling.give(ENTRY);
                return Err(delivery);
            };
            delivery.message = message;
            self.counted += 1;
        }
        self.bytes += delivery.message.payload.len();
        self.messages.push_back(delivery);
        Ok(self.told_now())
    }

    /// Whether the reader has to be told that there is something.
    pub(super) fn told_now(&mut self) -> bool {
        let tell = self.is_connected() && !self.told;
        self.told |= tell;
        tell
    }

    /// Queues a message of an earlier broker's, or one that was in the store, room or not.
    pub(super) fn restore(&mut self, ceiling: &Arc<Ceiling>, delivery: Delivery) {
        self.bytes += delivery.message.payload.len();
        self.messages.push_back(Delivery {
            message: Arc::new(ceiling.keep_anyway(&delivery.message)),
            ..delivery
        });
    }

    pub(super) fn take(&mut self, count: usize, to: &mut VecDeque<Delivery>, now: Instant) {
        self.taken_at = Some(now);
        for _ in 0..count {
            let Some(delivery) = self.messages.pop_front() else {
                break;
            };
            self.bytes -= delivery.message.payload.len();
            to.push_back(delivery);
        }
        if self.is_empty() {
            self.told = false;
        }
    }

    pub(super) fn pop(&mut self, ceiling: &Ceiling) -> Option<Delivery> {
        let delivery = self.messages.pop_front()?;
        self.bytes -= delivery.message.payload.len();
        self.give_back(ceiling);
        Some(delivery)
    }

    pub(super) fn put_back(&mut self, unsent: impl DoubleEndedIterator<Item = Delivery>) {
        for delivery in unsent.rev() {
            self.messages.push_front(delivery);
        }
    }

    /// Counts anew, after messages have come back or gone anywhere in the queue.
    pub(super) fn count_again(&mut self, ceiling: &Ceiling) {
        let sizes = self.messages.iter();
        self.bytes = sizes.map(|delivery| delivery.message.payload.len()).sum();
        self.give_back(ceiling);
    }

    /// Entries that have gone do not count any more.
    pub(super) fn give_back(&mut self, ceiling: &Ceiling) {
        if let Some(gone) = self.counted.checked_sub(self.messages.len()) {
            ceiling.give(gone * ENTRY);
            self.counted -= gone;
        }
    }

    pub(super) fn clear(&mut self, ceiling: &Ceiling) {
        self.messages.clear();
        self.tail = Tail::default();
        self.count_again(ceiling);
    }

    pub(super) fn took_nothing_for(&self, time: Duration) -> bool {
        self.taken_at.is_none_or(|at| at.elapsed() >= time)
    }

    /// A message has found no room. Returns whether its publisher waits.
    pub(super) fn is_waited_for(&mut self) -> bool {
        let full = self.full();
        if full.since.elapsed() >= PATIENCE {
            full.out_of_patience = true;
        }
        !full.out_of_patience
    }

    pub(super) fn lose_patience(&mut self) {
        self.full().out_of_patience = true;
    }

    fn full(&mut self) -> &mut Full {
        let len = self.messages.len();
        self.full.get_or_insert_with(|| {
            let now = Instant::now();
            Box::new(Full {
                since: now,
                len,
                out_of_patience: false,
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
            self.worked_off = self.worked_off.saturating_add(1);
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
