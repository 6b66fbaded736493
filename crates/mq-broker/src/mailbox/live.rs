//! Messages that overtake a long queue, because no message of their topics waits in it.
//!
//! ```text
//!                 front   first: messages that the reader put back, and those that were live
//! the reader <---
//!                 live    no message of these topics waits elsewhere             } in turns
//!                 others  and then the tail                                      }
//! ```
//!
//! Topics are distinguished by buckets of their hashes. Where two topics share a bucket, one may
//! wait for the other; none overtakes itself.

use std::{
    collections::{BTreeSet, VecDeque},
    hash::{BuildHasher, RandomState},
};

use mq_codec::QoS;
use mq_proto::Delivery;

/// The most live messages at a time, and their payload bytes. Further ones go to the tail, and
/// their topics wait there.
const MAX_LIVE_MESSAGES: usize = if cfg!(test) { 4 } else { 1_024 };
const MAX_LIVE_BYTES: usize = 256 * 1024;

/// Few in tests, so that topics share them.
const BUCKETS: usize = if cfg!(test) { 32 } else { 65_536 };

/// The live part of a queue, which exists while many messages wait: 512 KiB, and the live messages.
#[derive(Debug)]
pub(super) struct Live {
    messages: VecDeque<Delivery>,
    /// Payload bytes of the live messages.
    bytes: usize,
    buckets: Box<[Bucket]>,
    hasher: RandomState,
    /// Numbers of live messages that are queued in the store as well: the tail does not have them.
    numbers: BTreeSet<u64>,
    /// `true` if the next message is one of the others'.
    is_others_turn: bool,
}

/// The number of messages of QoS 1 and 2 of the topics in one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Messages among the others, and in the tail.
    waiting: u32,
    live: u32,
}

impl Live {
    /// Returns the live part of a queue in which `others` wait.
    pub(super) fn beside<'a>(others: impl Iterator<Item = &'a Delivery>) -> Self {
        let mut live = Self {
            messages: VecDeque::new(),
            bytes: 0,
            buckets: vec![Bucket::default(); BUCKETS].into(),
            hasher: RandomState::new(),
            numbers: BTreeSet::new(),
            is_others_turn: false,
        };
        for delivery in others {
            live.count(delivery);
        }
        live
    }

    pub(super) fn messages(&self) -> &VecDeque<Delivery> {
        &self.messages
    }

    /// Returns `true` if a message may overtake those that wait, and has room here.
    pub(super) fn takes(&self, delivery: &Delivery) -> bool {
        let size = delivery.message.payload.len();
        self.messages.len() < MAX_LIVE_MESSAGES
            && (self.bytes + size <= MAX_LIVE_BYTES || self.messages.is_empty())
            && self.buckets[self.index(delivery)].waiting == 0
    }

    /// Adds a message; `number` is its number in the store, if it is there.
    pub(super) fn push(&mut self, delivery: Delivery, number: Option<u64>) {
        self.bytes += delivery.message.payload.len();
        let index = self.index(&delivery);
        self.buckets[index].live += 1;
        self.numbers.extend(number);
        self.messages.push_back(delivery);
    }

    /// Returns the next message, from the live ones and from the others in turns.
    pub(super) fn next(&mut self, others: &mut VecDeque<Delivery>) -> Option<Delivery> {
        let is_others_turn = core::mem::replace(&mut self.is_others_turn, false);
        if (!is_others_turn || others.is_empty())
            && let Some(delivery) = self.messages.pop_front()
        {
            self.is_others_turn = true;
            self.bytes -= delivery.message.payload.len();
            let index = self.index(&delivery);
            self.buckets[index].live -= 1;
            return Some(delivery);
        }
        let delivery = others.pop_front()?;
        self.uncount(&delivery);
        Some(delivery)
    }

    /// Removes and returns all live messages. If they are sent first, later messages do not
    /// overtake them.
    pub(super) fn take_all(&mut self) -> VecDeque<Delivery> {
        let messages = core::mem::take(&mut self.messages);
        for delivery in &messages {
            let index = self.index(delivery);
            self.buckets[index].live -= 1;
        }
        self.bytes = 0;
        messages
    }

    /// Makes the next message one of the others.
    pub(super) fn let_others(&mut self) {
        self.is_others_turn = true;
    }

    /// Counts a message that waits among the others, or in the tail. Returns `true` if live
    /// messages may have its topic.
    pub(super) fn count(&mut self, delivery: &Delivery) -> bool {
        if delivery.qos == QoS::AtMostOnce {
            return false;
        }
        let index = self.index(delivery);
        let bucket = &mut self.buckets[index];
        bucket.waiting += 1;
        bucket.live > 0
    }

    /// Counts out a message that waits no more.
    pub(super) fn uncount(&mut self, delivery: &Delivery) {
        if delivery.qos > QoS::AtMostOnce {
            let index = self.index(delivery);
            let waiting = &mut self.buckets[index].waiting;
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// Forgets numbers below that of a tail's first message: they are no gaps of the tail.
    pub(super) fn forget_below(&mut self, number: u64) {
        self.numbers = self.numbers.split_off(&number);
    }

    /// Records that a message is not queued in the store any more. Returns `true` if it was a live
    /// one.
    pub(super) fn is_unqueued(&mut self, number: u64) -> bool {
        self.numbers.remove(&number)
    }

    #[expect(clippy::cast_possible_truncation, reason = "that is the bucket")]
    fn index(&self, delivery: &Delivery) -> usize {
        let topic = delivery.message.topic.as_bytes();
        self.hasher.hash_one(topic) as usize % BUCKETS
    }
}
