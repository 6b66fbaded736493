//! Retained messages by topic, found by filter.

use std::{sync::Arc, time::Instant};

use hashbrown::HashMap;
use mq_codec::{QoS, TopicFilter, TopicName};
use mq_proto::Message;

/// The last retained message of each topic.
#[derive(Debug, Default)]
pub struct RetainedStore {
    root: Node,
    count: usize,
}

/// A retained message.
#[derive(Clone, Debug)]
pub struct Retained {
    /// The message, in memory of its own.
    pub message: Arc<Message>,
    /// The QoS that it was published at.
    pub qos: QoS,
    /// When it expires, if it does.
    pub expires_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Node {
    children: HashMap<Vec<u8>, Node>,
    retained: Option<Retained>,
}

impl RetainedStore {
    /// Nothing retained.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many topics have a retained message, expired ones included until they are looked at.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keeps a message as its topic's retained one, in place of the one before `[MQTT-3.3.1-5]`.
    pub fn insert(&mut self, retained: Retained) {
        let mut node = &mut self.root;
        for level in retained
            .message
            .topic
            .as_bytes()
            .split(|byte| *byte == b'/')
        {
            node = node.children.entry_ref(level).or_default();
        }
        if node.retained.replace(retained).is_none() {
            self.count += 1;
        }
    }

    /// Whether `topic` has a retained message.
    #[must_use]
    pub fn contains(&self, topic: &TopicName) -> bool {
        let mut levels = topic.as_bytes().split(|byte| *byte == b'/');
        levels
            .try_fold(&self.root, |node, level| node.children.get(level))
            .is_some_and(|node| node.retained.is_some())
    }

    /// Forgets the retained message of `topic` `[MQTT-3.3.1-6]`; whether there was one.
    pub fn remove(&mut self, topic: &TopicName) -> bool {
        let levels: Vec<&[u8]> = topic.as_bytes().split(|byte| *byte == b'/').collect();
        let removed = self.root.remove(&levels);
        self.count -= usize::from(removed);
        removed
    }

    /// Calls `found` with every retained message that `filter` matches and that has not expired at
    /// `now`.
    pub fn matching(&self, filter: &TopicFilter, now: Instant, found: &mut impl FnMut(&Retained)) {
        let levels: Vec<&[u8]> = filter
            .matching()
            .as_bytes()
            .split(|byte| *byte == b'/')
            .collect();
        let mut fresh = |retained: &Retained| {
            if retained.expires_at.is_none_or(|at| at > now) {
                found(retained);
            }
        };
        self.root.matching(&levels, true, &mut fresh);
    }

    /// Forgets the messages that have expired at `now`; returns how many.
    pub fn expire(&mut self, now: Instant) -> usize {
        let expired = self.root.expire(now);
        self.count -= expired;
        expired
    }
}

impl Node {
    fn remove(&mut self, levels: &[&[u8]]) -> bool {
        let [level, rest @ ..] = levels else {
            return self.retained.take().is_some();
        };
        let Some(child) = self.children.get_mut(*level) else {
            return false;
        };
        let removed = child.remove(rest);
        if child.is_empty() {
            self.children.remove(*level);
        }
        removed
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.retained.is_none()
    }

    fn matching(&self, levels: &[&[u8]], first: bool, found: &mut impl FnMut(&Retained)) {
        // `[MQTT-4.7.2-1]`: a leading wildcard does not match topics that begin with `$`.
        let visible = |name: &[u8]| !first || name.first() != Some(&b'$');
        match levels {
            [] => {
                if let Some(retained) = &self.retained {
                    found(retained);
                }
            }
            [b"#"] => {
                if let Some(retained) = &self.retained {
                    found(retained);
                }
                for (name, child) in &self.children {
                    if visible(name) {
                        child.matching(&[b"#"], false, found);
                    }
                }
            }
            [b"+", rest @ ..] => {
                for (name, child) in &self.children {
                    if visible(name) {
                        child.matching(rest, false, found);
                    }
                }
            }
            [name, rest @ ..] => {
                if let Some(child) = self.children.get(*name) {
                    child.matching(rest, false, found);
                }
            }
        }
    }

    fn expire(&mut self, now: Instant) -> usize {
        let mut expired = 0;
        if self
            .retained
            .as_ref()
            .is_some_and(|retained| retained.expires_at.is_some_and(|at| at <= now))
        {
            self.retained = None;
            expired = 1;
        }
        self.children.retain(|_, child| {
            expired += child.expire(now);
            !child.is_empty()
        });
        expired
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn retained(topic: &str, expires_at: Option<Instant>) -> Retained {
        let topic = TopicName::new(topic).unwrap();
        Retained {
            message: Arc::new(Message::new(topic, "x")),
            qos: QoS::AtMostOnce,
            expires_at,
        }
    }

    fn found(store: &RetainedStore, filter: &str, now: Instant) -> Vec<String> {
        let mut topics = Vec::new();
        let filter = TopicFilter::new(filter).unwrap();
        store.matching(&filter, now, &mut |retained| {
            topics.push(retained.message.topic.to_string());
        });
        topics.sort();
        topics
    }

    #[test]
    fn wildcards_find_what_they_match() {
        let now = Instant::now();
        let mut store = RetainedStore::new();
        for topic in ["a", "a/b", "a/b/c", "b/b", "$SYS/x", "/a"] {
            store.insert(retained(topic, None));
        }
        store.insert(retained("a", None));
        assert_eq!(store.len(), 6);
        assert_eq!(found(&store, "a/#", now), ["a", "a/b", "a/b/c"]);
        assert_eq!(found(&store, "+/b", now), ["a/b", "b/b"]);
        assert_eq!(found(&store, "#", now), ["/a", "a", "a/b", "a/b/c", "b/b"]);
        assert_eq!(found(&store, "$SYS/#", now), ["$SYS/x"]);
        assert_eq!(found(&store, "+/+", now), ["/a", "a/b", "b/b"]);
        assert!(!store.contains(&TopicName::new("b").unwrap()));
        assert!(store.contains(&TopicName::new("a/b").unwrap()));
        assert!(store.remove(&TopicName::new("a/b").unwrap()));
        assert!(!store.remove(&TopicName::new("a/b").unwrap()));
        assert_eq!(found(&store, "a/#", now), ["a", "a/b/c"]);
    }

    #[test]
    fn expired_messages_are_not_found_and_can_be_dropped() {
        let now = Instant::now();
        let mut store = RetainedStore::new();
        store.insert(retained("a/b", Some(now + Duration::from_secs(5))));
        store.insert(retained("a", None));
        assert_eq!(found(&store, "#", now), ["a", "a/b"]);
        let later = now + Duration::from_secs(5);
        assert_eq!(found(&store, "#", later), ["a"]);
        assert_eq!(store.expire(later), 1);
        assert_eq!(store.len(), 1);
    }
}
