//! Messages that go past a long queue, because nothing of their topics waits there.
//!
//! ```text
//!                 front   first: what the reader gave back, and what was live
//! the reader <---
//!                 live    nothing of these topics waits behind them, but here   } in turns
//!                 others  and then the tail                                     }
//! ```
//!
//! Topics are known by buckets of their hashes. Where two topics share a bucket, one may wait for the other; none
//! overtakes itself.

use std::{
    collections::{BTreeSet, VecDeque},
    hash::{BuildHasher, RandomState},
};

use mq_codec::QoS;
use mq_proto::Delivery;

/// Messages that are live at a time, and their payload bytes. More go to the tail, and their topics wait there.
const MAX_LIVE_MESSAGES: usize = if cfg!(test) { 4 } else { 1_024 };
const MAX_LIVE_BYTES: usize = 256 * 1024;

/// Few in tests, so that topics share them.
const BUCKETS: usize = if cfg!(test) { 32 } else { 65_536 };

/// The part of a queue that exists while many messages wait: 512 KiB, and what is live.
#[derive(Debug)]
pub(super) struct Live {
    messages: VecDeque<Delivery>,
    /// Their payload bytes.
    bytes: usize,
    buckets: Box<[Bucket]>,
    hasher: RandomState,
    /// Numbers of messages that came here, while they are queued in the store: they are none of the tail's.
    numbers: BTreeSet<u64>,
    /// `true` if the next message is one of the others'.
    is_others_turn: bool,
}

/// The number of messages of some topics, of QoS 1 and 2.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Among the others, and in the tail.
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

    /// Takes a message that has that number in the store, if it is there.
    pub(super) fn push(&mut self, delivery: Delivery, number: Option<u64>) {
        self.bytes += delivery.message.payload.len();
        let index = self.index(&delivery);
        self.buckets[index].live += 1;
        self.numbers.extend(number);
        self.messages.push_back(delivery);
    }

    /// The next message, from here and from the others in turns.
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

    /// Takes out all messages. What comes behind them does not overtake them if they are sent first.
    pub(super) fn take_all(&mut self) -> VecDeque<Delivery> {
        let messages = core::mem::take(&mut self.messages);
        for delivery in &messages {
            let index = self.index(delivery);
            self.buckets[index].live -= 1;
        }
        self.bytes = 0;
        messages
    }

    /// The next message is one of the others'.
    pub(super) fn let_others(&mut self) {
        self.is_others_turn = true;
    }

    /// A message waits among the others, or in the tail. Returns whether one of its topic may be here.
    pub(super) fn count(&mut self, delivery: &Delivery) -> bool {
        if delivery.qos == QoS::AtMostOnce {
            return false;
        }
        let index = self.index(delivery);
        let bucket = &mut self.buckets[index];
        bucket.waiting += 1;
        bucket.live > 0
    }

    /// It waits no more.
    pub(super) fn uncount(&mut self, delivery: &Delivery) {
        if delivery.qos > QoS::AtMostOnce {
            let index = self.index(delivery);
            let waiting = &mut self.buckets[index].waiting;
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// A tail begins with that number: lower ones are none of its gaps.
    pub(super) fn forget_below(&mut self, number: u64) {
        self.numbers = self.numbers.split_off(&number);
    }

    /// A message is not queued in the store any more. Returns whether it came here.
    pub(super) fn is_unqueued(&mut self, number: u64) -> bool {
        self.numbers.remove(&number)
    }

    #[expect(clippy::cast_possible_truncation, reason = "that is the bucket")]
    fn index(&self, delivery: &Delivery) -> usize {
        let topic = delivery.message.topic.as_bytes();
        self.hasher.hash_one(topic) as usize % BUCKETS
    }
}
