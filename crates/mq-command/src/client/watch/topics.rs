//! Topics and their last values: bounded in number and size, and without a clock of its own.

use std::{collections::HashMap, sync::Arc, time::Duration};

use mq_client::QoS;

use super::rate::Rate;

/// Bytes of one value that are kept: more than a screen shows. With 10,000 topics they are 40 MB at most.
pub(crate) const MOST_OF_VALUE: usize = 4_096;

/// Bytes of all names together. MQTT lets one have 64 KiB.
const MOST_OF_NAMES: usize = 8 << 20;

/// A message as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) qos: QoS,
    /// `true` if the broker keeps the message.
    pub(crate) retain: bool,
}

/// Topic with its last value.
#[derive(Clone, Debug)]
pub(crate) struct Topic {
    pub(crate) name: Arc<str>,
    /// The beginning of its last message's payload.
    pub(crate) value: Vec<u8>,
    /// Bytes of the whole payload.
    pub(crate) length: usize,
    pub(crate) qos: QoS,
    /// `true` if the broker keeps a message, as far as this client has seen.
    pub(crate) retained: bool,
    pub(crate) messages: u64,
    pub(crate) rate: Rate,
    /// Time of the last message.
    pub(crate) at: Duration,
}

impl Topic {
    /// Returns `true` if bytes of the value were not kept.
    pub(crate) fn is_cut(&self) -> bool {
        self.value.len() < self.length
    }
}

/// All topics. Its times are since the beginning of the program.
#[derive(Clone, Debug)]
pub(crate) struct Topics {
    /// Largest number of topics that are kept. Further topics are left out, so that a flood of topics neither takes all
    /// memory nor displaces those that are watched.
    most: usize,
    all: Vec<Topic>,
    by_name: HashMap<Arc<str>, usize>,
    name_bytes: usize,
    /// The topics level by level; none that came since was put in yet.
    sorted: Vec<usize>,
    pub(crate) messages: u64,
    pub(crate) rate: Rate,
    /// Number of messages on topics beyond the limit `most`, which are counted and not kept.
    pub(crate) left_out: u64,
}

impl Topics {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            all: Vec::new(),
            by_name: HashMap::new(),
            name_bytes: 0,
            sorted: Vec::new(),
            messages: 0,
            rate: Rate::default(),
            left_out: 0,
        }
    }

    /// Forgets everything that came.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.most);
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Takes a message in. Costs a look-up and the copy of what is kept.
    pub(crate) fn add(&mut self, message: Message<'_>, now: Duration) {
        self.messages += 1;
        self.rate.add(now);
        let Some(index) = self.place(message.topic) else {
            self.left_out += 1;
            return;
        };
        let topic = &mut self.all[index];
        topic.value.clear();
        let kept = message.payload.len().min(MOST_OF_VALUE);
        topic.value.extend_from_slice(&message.payload[..kept]);
        topic.length = message.payload.len();
        topic.qos = message.qos;
        if message.retain {
            // An empty one removes what was kept (§3.3.1.3).
            topic.retained = !message.payload.is_empty();
        }
        topic.messages += 1;
        topic.rate.add(now);
        topic.at = now;
    }

    /// Returns the index of the topic, which is added if there is room.
    fn place(&mut self, name: &str) -> Option<usize> {
        if let Some(index) = self.by_name.get(name) {
            return Some(*index);
        }
        let name_bytes = self.name_bytes + name.len();
        if self.all.len() >= self.most || name_bytes > MOST_OF_NAMES {
            return None;
        }
        self.name_bytes = name_bytes;
        let (name, index): (Arc<str>, _) = (name.into(), self.all.len());
        self.by_name.insert(name.clone(), index);
        self.all.push(Topic {
            name,
            value: Vec::new(),
            length: 0,
            qos: QoS::AtMostOnce,
            retained: false,
            messages: 0,
            rate: Rate::default(),
            at: Duration::ZERO,
        });
        Some(index)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Topic> {
        self.all.get(index)
    }

    /// Lists all topics with their index, each behind the one that it lies under.
    pub(crate) fn in_order(&mut self) -> impl Iterator<Item = (usize, &Topic)> {
        if self.sorted.len() < self.all.len() {
            self.sorted.extend(self.sorted.len()..self.all.len());
            let all = &self.all;
            // No topic has U+0000 in it (§1.5.4), so a level that ends goes before one that goes on.
            let levels = |index: &usize| all[*index].name.bytes();
            let key = |byte| if byte == b'/' { 0 } else { byte };
            self.sorted
                .sort_by(|a, b| levels(a).map(key).cmp(levels(b).map(key)));
        }
        self.sorted.iter().map(|index| (*index, &self.all[*index]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<'a>(topic: &'a str, payload: &'a [u8], retain: bool) -> Message<'a> {
        Message {
            topic,
            payload,
            qos: QoS::AtLeastOnce,
            retain,
        }
    }

    const NOW: Duration = Duration::from_secs(5);

    #[test]
    fn a_flood_of_topics_is_counted_and_left_out() {
        let mut topics = Topics::new(3);
        for number in 0..100 {
            topics.add(message(&format!("flood/{number}"), b"x", false), NOW);
        }
        topics.add(message("flood/1", b"y", false), NOW);
        assert_eq!(
            (topics.count(), topics.messages, topics.left_out),
            (3, 101, 97)
        );
        assert_eq!(topics.get(1).unwrap().value, b"y");
        topics.clear();
        topics.add(message("flood/99", b"z", false), NOW);
        assert_eq!((topics.count(), topics.left_out), (1, 0));
    }

    #[test]
    fn long_names_and_values_take_bounded_memory() {
        let mut topics = Topics::new(10_000);
        let value = vec![b'x'; 1 << 20];
        for number in 0..300 {
            let name = format!("{number}{}", "n".repeat(60_000));
            topics.add(message(&name, &value, false), NOW);
        }
        assert!(topics.name_bytes <= MOST_OF_NAMES && topics.left_out > 0);
        let topic = topics.get(0).unwrap();
        assert_eq!((topic.value.len(), topic.length), (MOST_OF_VALUE, 1 << 20));
        assert!(topic.is_cut());
    }

    #[test]
    fn topics_are_in_the_order_of_the_tree() {
        let mut topics = Topics::new(100);
        for name in ["b", "a-b", "a/b/c", "a", "/a", "a/b", "a b", "a//"] {
            topics.add(message(name, b"", false), NOW);
            let _ = topics.in_order().count();
        }
        let names: Vec<_> = topics.in_order().map(|(_, topic)| &*topic.name).collect();
        assert_eq!(names, ["/a", "a", "a//", "a/b", "a/b/c", "a b", "a-b", "b"]);
    }

    #[test]
    fn an_empty_retained_message_takes_the_mark_away() {
        let mut topics = Topics::new(9);
        topics.add(message("r", b"x", true), NOW);
        topics.add(message("r", b"now", false), NOW);
        assert!(topics.get(0).unwrap().retained);
        topics.add(message("r", b"", true), NOW);
        assert!(!topics.get(0).unwrap().retained);
    }
}
