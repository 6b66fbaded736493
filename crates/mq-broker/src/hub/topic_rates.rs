//! The rates of topics, counted only while an operator looks.

use std::{
    collections::HashMap,
    sync::{
        Mutex, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use mq_proto::Message;

use crate::{
    lock::lock,
    view::{Query, TopicRate, TopicRates},
};

/// Time for which the counting goes on after an operator has looked.
const WATCH_TIME: Duration = Duration::from_secs(15);

/// Time for which one window counts. Rates are over the window that is open and the one before it.
const WINDOW: Duration = Duration::from_secs(4);

/// Time for which the first look waits for messages to count.
const FIRST_LOOK_DELAY: Duration = Duration::from_secs(2);

/// Topics of a window. At more the quieter half is forgotten.
const MAX_TOPICS: usize = 4_096;

/// Bytes of the longest topic that is counted by itself.
const MAX_TOPIC_BYTES: usize = 1_024;

/// Counts messages by topic.
///
/// Publishers do not wait for each other here: a message that finds the counts in use is counted as missed,
/// and the rates are scaled by how many were.
#[derive(Debug, Default)]
pub(crate) struct TopicCounts {
    is_watched: AtomicBool,
    missed: AtomicU64,
    watch: Mutex<Option<Watch>>,
}

#[derive(Debug)]
struct Watch {
    until: Instant,
    last: Window,
    open: Window,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    topics: HashMap<Box<str>, Count>,
    /// All messages, those of forgotten topics as well.
    messages: u64,
    /// Messages that were not counted.
    missed: u64,
    /// `true` if topics were forgotten.
    is_partial: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Count {
    messages: u64,
    bytes: u64,
}

impl Window {
    fn new(now: Instant) -> Self {
        Self {
            began: now,
            topics: HashMap::new(),
            messages: 0,
            missed: 0,
            is_partial: false,
        }
    }

    fn count(&mut self, topic: &str, bytes: u64) {
        self.messages += 1;
        if topic.len() > MAX_TOPIC_BYTES {
            self.is_partial = true;
            return;
        }
        if let Some(count) = self.topics.get_mut(topic) {
            count.messages += 1;
            count.bytes += bytes;
            return;
        }
        if self.topics.len() >= MAX_TOPICS {
            self.forget_half();
        }
        let count = Count { messages: 1, bytes };
        self.topics.insert(topic.into(), count);
    }

    /// Forgets the quieter half. A topic with much of the load stays.
    fn forget_half(&mut self) {
        let mut counts: Vec<_> = self.topics.values().map(|count| count.messages).collect();
        let middle = counts.len() / 2;
        let (_, middle, above) = counts.select_nth_unstable(middle);
        let middle = *middle;
        let above = above.iter().filter(|count| **count > middle).count();
        // Of those that are as busy as the middle one, as many as there is room for.
        let mut room = (MAX_TOPICS / 2).saturating_sub(above);
        self.topics.retain(|_, count| {
            let is_equal = count.messages == middle && room > 0;
            room -= usize::from(is_equal);
            is_equal || count.messages > middle
        });
        self.is_partial = true;
    }
}

impl TopicCounts {
    /// Counts a message, if an operator looks.
    pub(super) fn count(&self, message: &Message, now: Instant) {
        if !self.is_watched.load(Ordering::Relaxed) {
            return;
        }
        let mut watch = match self.watch.try_lock() {
            Ok(watch) => watch,
            Err(TryLockError::Poisoned(watch)) => watch.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        let Some(counts) = &mut *watch else { return };
        if now >= counts.until {
            self.is_watched.store(false, Ordering::Relaxed);
            *watch = None;
            return;
        }
        counts.turn(now, &self.missed);
        let bytes = u64::try_from(message.payload.len()).unwrap_or(u64::MAX);
        counts.open.count(&message.topic, bytes);
    }

    /// Begins to count, or goes on. Returns how long to wait before [`rates`](Self::rates) has something.
    pub(super) fn look(&self, now: Instant) -> Duration {
        let mut watch = lock(&self.watch);
        self.is_watched.store(true, Ordering::Relaxed);
        let until = now + WATCH_TIME;
        match &mut *watch {
            Some(counts) if now < counts.until => {
                counts.until = until;
                Duration::ZERO
            }
            _ => {
                self.missed.store(0, Ordering::Relaxed);
                *watch = Some(Watch {
                    until,
                    last: Window::new(now),
                    open: Window::new(now),
                });
                FIRST_LOOK_DELAY
            }
        }
    }

    pub(super) fn rates(&self, query: &Query, now: Instant) -> TopicRates {
        let mut watch = lock(&self.watch);
        let Some(counts) = &mut *watch else {
            return TopicRates::default();
        };
        counts.turn(now, &self.missed);
        let Watch { last, open, .. } = counts;
        let passed = now.saturating_duration_since(last.began);
        let seconds = passed.as_secs_f64().max(0.001);
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let scale = {
            let counted = (last.messages + open.messages).max(1) as f64;
            let missed = (last.missed + self.missed.load(Ordering::Relaxed)) as f64;
            (counted + missed) / counted / seconds
        };
        let mut topics: HashMap<&str, Count> = HashMap::new();
        for (topic, count) in last.topics.iter().chain(&open.topics) {
            if topic.contains(&query.matching) {
                let sum = topics.entry(topic).or_default();
                sum.messages += count.messages;
                sum.bytes += count.bytes;
            }
        }
        let mut topics: Vec<_> = topics.into_iter().collect();
        topics.sort_by(|(a, one), (b, other)| (other.messages, a).cmp(&(one.messages, b)));
        topics.truncate(query.most());
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let items = topics.into_iter().map(|(topic, count)| TopicRate {
            topic: topic.to_owned(),
            messages_per_s: thousandths(count.messages as f64 * scale),
            payload_bytes_per_s: thousandths(count.bytes as f64 * scale),
        });
        TopicRates {
            items: items.collect(),
            seconds,
            is_partial: last.is_partial || open.is_partial,
            at: SystemTime::now(),
        }
    }
}

impl Watch {
    fn turn(&mut self, now: Instant, missed: &AtomicU64) {
        if now.saturating_duration_since(self.open.began) >= WINDOW {
            self.last = core::mem::replace(&mut self.open, Window::new(now));
            self.last.missed = missed.swap(0, Ordering::Relaxed);
        }
    }
}

/// Rounds to thousandths, since no count is more exact.
fn thousandths(rate: f64) -> f64 {
    (rate * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use mq_codec::TopicName;

    use super::*;

    fn message(topic: &str) -> Message {
        Message {
            topic: TopicName::new(topic.to_owned()).unwrap(),
            payload: vec![0; 10].into(),
            properties: mq_codec::PublishProperties::default().into(),
        }
    }

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn nothing_is_counted_until_somebody_looks_nor_long_after() {
        let (counts, start) = (TopicCounts::default(), Instant::now());
        counts.count(&message("a"), start);
        assert_eq!(counts.rates(&Query::default(), start).items, []);
        assert_eq!(counts.look(start), FIRST_LOOK_DELAY);
        assert_eq!(counts.look(start), Duration::ZERO);
        for ms in 0..2_000 {
            counts.count(&message(if ms % 4 == 0 { "b" } else { "a" }), at(start, ms));
        }
        let rates = counts.rates(&Query::default(), at(start, 2_000));
        let found: Vec<_> = rates
            .items
            .iter()
            .map(|rate| {
                (
                    rate.topic.as_str(),
                    rate.messages_per_s,
                    rate.payload_bytes_per_s,
                )
            })
            .collect();
        assert_eq!(found, [("a", 750.0, 7_500.0), ("b", 250.0, 2_500.0)]);
        counts.count(&message("a"), start + WATCH_TIME + WINDOW);
        assert!(!counts.is_watched.load(Ordering::Relaxed));
        assert!(counts.watch.lock().unwrap().is_none());
    }

    #[test]
    fn a_busy_topic_stays_among_more_topics_than_are_kept() {
        let (counts, start) = (TopicCounts::default(), Instant::now());
        counts.look(start);
        for number in 0..40_000 {
            counts.count(&message(&format!("once/{number}")), start);
            if number % 10 == 0 {
                counts.count(&message("busy"), start);
            }
        }
        let long = "x".repeat(MAX_TOPIC_BYTES + 1);
        counts.count(&message(&long), start);
        let rates = counts.rates(&Query::default(), at(start, 1_000));
        assert!(rates.is_partial);
        assert_eq!(rates.items[0].topic, "busy");
        assert!((rates.items[0].messages_per_s - 4_000.0).abs() < 1.0);
        let kept = counts.watch.lock().unwrap();
        assert!(kept.as_ref().unwrap().open.topics.len() <= MAX_TOPICS);
    }

    #[test]
    fn messages_that_found_the_counts_in_use_are_made_up_for() {
        let (counts, start) = (TopicCounts::default(), Instant::now());
        counts.look(start);
        for _ in 0..50 {
            counts.count(&message("a"), start);
        }
        let in_use = counts.watch.lock().unwrap();
        for _ in 0..50 {
            counts.count(&message("a"), start);
        }
        drop(in_use);
        for passed in [1_000, 4_000] {
            let rates = counts.rates(&Query::default(), at(start, passed));
            let sum = rates.items[0].messages_per_s * rates.seconds;
            assert!((sum - 100.0).abs() < 0.001, "{sum}");
        }
        let gone = counts.rates(&Query::default(), at(start, 9_000));
        assert_eq!(gone.items, []);
    }
}
