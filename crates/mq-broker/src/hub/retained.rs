//! Retained messages: the store of them, the memory that it takes, and how many there may be.

use std::{
    sync::{Arc, Mutex, MutexGuard, RwLock},
    time::Instant,
};

use mq_codec::{QoS, TopicFilter, TopicName};
use mq_proto::{Delivery, Message};

use super::Hub;
use crate::{
    fnv::{FNV_BASIS, fnv1a},
    journal::Journal,
    lock::{lock, read, write},
    memory_limit::{MemoryLimit, MemoryShare},
    metrics::Metrics,
    router::{Cursor, Retained, RetainedStore},
    store::{Change, StoreClock, StoredMessage},
};

/// Expired messages that are removed under one lock, at most.
const MAX_EXPIRED_AT_ONCE: usize = 256;

/// Publishers that may retain messages at a time, each of another topic.
const TURNS: usize = 32;

/// The retained messages of all topics.
///
/// The messages count themselves against the memory limit; the store's nodes count here.
#[derive(Debug)]
pub(super) struct RetainedMessages {
    /// Locks by the hash of a topic, see [`turn`](Self::turn).
    turns: [Mutex<()>; TURNS],
    topics: RwLock<Topics>,
    /// Topics that may have a retained message.
    limit: usize,
    memory_limit: Arc<MemoryLimit>,
}

#[derive(Debug)]
struct Topics {
    store: RetainedStore,
    share: MemoryShare,
}

/// A message without the memory, or the place among the topics, to be retained.
pub(super) struct NoRoomToRetain;

/// The effect of a PUBLISH with RETAIN on its topic.
pub(super) enum RetainEffect {
    /// The topic has no retained message any more.
    Removed,
    /// The topic has this one, in memory of its own.
    Set(Arc<Message>),
}

impl RetainedMessages {
    pub(super) fn new(limit: usize, memory_limit: &Arc<MemoryLimit>) -> Self {
        Self {
            turns: core::array::from_fn(|_| Mutex::default()),
            topics: RwLock::new(Topics {
                store: RetainedStore::new(),
                share: MemoryShare::new(memory_limit),
            }),
            limit,
            memory_limit: Arc::clone(memory_limit),
        }
    }

    /// Locks a topic for a change of its retained message, from before the change until it is recorded in the store. So
    /// the store has the changes of a topic in the order in which they were made, and the last of them is retained after
    /// a restart.
    #[expect(clippy::cast_possible_truncation, reason = "any bits of it will do")]
    pub(super) fn turn(&self, topic: &TopicName) -> MutexGuard<'_, ()> {
        let hash = fnv1a(FNV_BASIS, topic.as_bytes());
        lock(&self.turns[hash as usize % TURNS])
    }

    /// Makes the message its topic's retained one; an empty payload removes that.
    pub(super) fn retain(
        &self,
        message: &Message,
        qos: QoS,
        expires_at: Option<Instant>,
        metrics: &Metrics,
    ) -> Result<RetainEffect, NoRoomToRetain> {
        if message.payload.is_empty() {
            let topics = &mut *write(&self.topics);
            topics.store.remove(&message.topic);
            topics.count(metrics);
            return Ok(RetainEffect::Removed);
        }
        let kept = self.memory_limit.keep(message).ok_or(NoRoomToRetain)?;
        let kept = Arc::new(kept);
        let topics = &mut *write(&self.topics);
        let is_new = !topics.store.contains(&kept.topic);
        if is_new && topics.store.len() >= self.limit {
            return Err(NoRoomToRetain);
        }
        topics.insert(Arc::clone(&kept), qos, expires_at);
        if is_new && !topics.share.set(topics.store.bytes()) {
            topics.store.remove(&kept.topic);
            return Err(NoRoomToRetain);
        }
        topics.count(metrics);
        Ok(RetainEffect::Set(kept))
    }

    /// Makes the message its topic's retained one, room or not: it was retained before, or is one of the broker's own.
    pub(super) fn retain_anyway(
        &self,
        message: &Message,
        qos: QoS,
        expires_at: Option<Instant>,
        metrics: &Metrics,
    ) {
        let kept = Arc::new(self.memory_limit.keep_anyway(message));
        let topics = &mut *write(&self.topics);
        topics.insert(kept, qos, expires_at);
        topics.count(metrics);
    }

    /// Retains a message that the store, or the cluster, has kept, with times by that clock.
    pub(super) fn restore(&self, message: StoredMessage, clock: StoreClock<'_>, metrics: &Metrics) {
        let Delivery {
            message,
            qos,
            expires_at,
            ..
        } = message.into_delivery(0, clock);
        self.retain_anyway(&message, qos, expires_at, metrics);
    }

    /// Removes some of the messages that have expired, and calls `record` with their topics' changes. Returns `true` if
    /// there are more.
    fn remove_expired(
        &self,
        now: Instant,
        metrics: &Metrics,
        record: impl FnOnce(Vec<Change>),
    ) -> bool {
        // A publisher has one of them and waits for no other.
        let turns: Vec<_> = self.turns.iter().map(lock).collect();
        let expired = {
            let topics = &mut *write(&self.topics);
            let expired = topics.store.expire(now, MAX_EXPIRED_AT_ONCE);
            topics.count(metrics);
            expired
        };
        let are_more = expired.len() == MAX_EXPIRED_AT_ONCE;
        record(expired.into_iter().map(Change::Unretained).collect());
        drop(turns);
        are_more
    }

    /// Returns the number of the message that was retained last.
    pub(super) fn last_sequence(&self) -> u64 {
        read(&self.topics).store.sequence()
    }

    /// Calls `take` with retained messages that match, from `cursor` on, until it returns `false` or `steps` levels of
    /// topics were looked at. Other readers go on meanwhile; publishers that retain wait.
    pub(super) fn search(
        &self,
        filter: &TopicFilter,
        cursor: &mut Cursor,
        now: Instant,
        steps: usize,
        take: &mut impl FnMut(&Retained, u64) -> bool,
    ) {
        let topics = read(&self.topics);
        topics.store.matching(filter, cursor, now, steps, take);
    }
}

impl Hub {
    /// Removes some of the retained messages that have expired, from the store as well. Returns `true` if there are more.
    pub(super) fn remove_expired_retained(&self, now: Instant, journal: &mut Journal) -> bool {
        let record = |changes| {
            // What a cluster retains is in its logs.
            if self.cluster.is_none() {
                journal.record(changes);
            }
        };
        self.retained.remove_expired(now, &self.metrics, record)
    }
}

impl Topics {
    fn insert(&mut self, message: Arc<Message>, qos: QoS, expires_at: Option<Instant>) {
        self.store.insert(Retained {
            message,
            qos,
            expires_at,
        });
    }

    /// Counts the memory of the topics, and how many there are.
    fn count(&mut self, metrics: &Metrics) {
        self.share.set_anyway(self.store.bytes());
        metrics.retained.set(self.store.len());
    }
}
