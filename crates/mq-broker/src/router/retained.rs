//! Retained messages by topic, searched by filter.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Bound,
    sync::Arc,
    time::Instant,
};

use mq_codec::{QoS, TopicFilter, TopicName};
use mq_proto::Message;

/// The last retained message of each topic.
///
/// Topics are ordered, level by level, so that a [`Cursor`] can visit those that a filter matches a
/// few at a time, while others are added and removed.
#[derive(Debug, Default)]
pub struct RetainedStore {
    root: Node,
    count: usize,
    size: Size,
    sequence: u64,
    /// Topics of messages that expire, by time and number.
    expiring: BTreeMap<(Instant, u64), TopicName>,
}

/// A retained message.
#[derive(Clone, Debug)]
pub struct Retained {
    /// The message, in memory of its own.
    pub message: Arc<Message>,
    /// The QoS that it was published at.
    pub qos: QoS,
    /// The time at which the message expires; `None` for never.
    pub expires_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Node {
    children: BTreeMap<Box<[u8]>, Node>,
    retained: Option<Box<(u64, Retained)>>,
}

/// Numbers of nodes in the tree of topics, from which its memory is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Size {
    /// Number of nodes, without the root.
    nodes: usize,
    /// Number of nodes that have children; the root counts as well.
    tables: usize,
}

/// Approximate bytes of a topic level: a place in the table of its parent, which is half full, its
/// name, and the box of a message.
const NODE: usize =
    3 * size_of::<(Box<[u8]>, Node)>() / 2 + size_of::<(u64, Retained)>() + 4 * size_of::<usize>();

/// Additional bytes of a table with one child: it has eleven places.
const TABLE: usize = 10 * size_of::<(Box<[u8]>, Node)>();

/// Additional bytes of a message that expires.
const EXPIRING: usize = 2 * size_of::<((Instant, u64), TopicName)>();

/// A place among the topics that a filter matches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor(At);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum At {
    #[default]
    Start,
    /// A place after this topic, which may be the beginning of one, and before all topics that begin with it.
    Topic(Vec<u8>),
    End,
}

impl Cursor {
    /// Returns the place after a topic, and before those below it.
    pub(crate) fn behind(topic: &str) -> Self {
        Self(At::Topic(topic.as_bytes().to_vec()))
    }

    /// Returns the bytes of the topic at the cursor.
    pub(crate) fn bytes(&self) -> usize {
        match &self.0 {
            At::Topic(topic) => topic.len(),
            At::Start | At::End => 0,
        }
    }

    /// Returns `true` if all matches were found.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.0 == At::End
    }
}

impl RetainedStore {
    /// Returns an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of topics with a retained message, expired ones included until they are
    /// removed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if no topic has a retained message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of the last message that was stored, from 1; later ones have higher
    /// numbers.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the approximate memory of the tree in bytes, without the messages themselves.
    pub(crate) fn bytes(&self) -> usize {
        self.size.nodes * NODE + self.size.tables * TABLE + self.expiring.len() * EXPIRING
    }

    /// Stores a message as its topic's retained one, in place of the one before `[MQTT-3.3.1-5]`.
    pub fn insert(&mut self, retained: Retained) {
        self.sequence += 1;
        let mut node = &mut self.root;
        let topic = &retained.message.topic;
        for level in topic.as_bytes().split(|byte| *byte == b'/') {
            let is_first = node.children.is_empty();
            node = match node.children.entry(level.into()) {
                Entry::Occupied(child) => child.into_mut(),
                Entry::Vacant(place) => {
                    self.size.nodes += 1;
                    self.size.tables += usize::from(is_first);
                    place.insert(Node::default())
                }
            };
        }
        if let Some(at) = retained.expires_at {
            self.expiring.insert((at, self.sequence), topic.clone());
        }
        let before = node.retained.replace(Box::new((self.sequence, retained)));
        match before {
            Some(before) => self.expiring_gone(&before),
            None => self.count += 1,
        }
    }

    /// Returns `true` if `topic` has a retained message.
    #[must_use]
    pub fn contains(&self, topic: &TopicName) -> bool {
        let mut levels = topic.as_bytes().split(|byte| *byte == b'/');
        levels
            .try_fold(&self.root, |node, level| node.children.get(level))
            .is_some_and(|node| node.retained.is_some())
    }

    /// Removes the retained message of `topic` `[MQTT-3.3.1-6]`; returns `true` if there was one.
    pub fn remove(&mut self, topic: &TopicName) -> bool {
        let levels = split(topic.as_bytes());
        let Some(removed) = self.root.remove(&levels, &mut self.size) else {
            return false;
        };
        self.count -= 1;
        self.expiring_gone(&removed);
        true
    }

    fn expiring_gone(&mut self, (sequence, retained): &(u64, Retained)) {
        if let Some(at) = retained.expires_at {
            self.expiring.remove(&(at, *sequence));
        }
    }

    /// Continues from `cursor`: calls `found` with retained messages that `filter` matches and that
    /// have not expired at `now`, and with their numbers. Stops when `found` returns `false`, after
    /// `steps` levels of topics, or at the end.
    ///
    /// Between two calls topics may be added and removed. A topic that exists all the time is found
    /// once.
    pub fn matching(
        &self,
        filter: &TopicFilter,
        cursor: &mut Cursor,
        now: Instant,
        steps: usize,
        found: &mut impl FnMut(&Retained, u64) -> bool,
    ) {
        let levels = split(filter.matching().as_bytes());
        let at = core::mem::replace(&mut cursor.0, At::End);
        let after = match &at {
            At::Start => None,
            At::Topic(topic) => Some(split(topic)),
            At::End => return,
        };
        let mut walk = Walk {
            path: Vec::new(),
            now,
            steps: steps.max(1),
            found,
        };
        if !walk.children(&self.root, &levels, 0, after.as_deref()) {
            cursor.0 = At::Topic(walk.path);
        }
    }

    /// Removes messages that have expired at `now`, up to `most`, and returns their topics. The others are
    /// not visited.
    pub fn expire(&mut self, now: Instant, most: usize) -> Vec<TopicName> {
        let mut expired = Vec::new();
        while expired.len() < most
            && let Some(first) = self.expiring.first_entry()
            && first.key().0 <= now
        {
            let topic = first.remove();
            self.remove(&topic);
            expired.push(topic);
        }
        expired
    }
}

fn split(topic: &[u8]) -> Vec<&[u8]> {
    topic.split(|byte| *byte == b'/').collect()
}

/// A search from a cursor, of at most `steps` levels.
struct Walk<'a, F> {
    /// The topic of the node that was entered last.
    path: Vec<u8>,
    now: Instant,
    steps: usize,
    found: &'a mut F,
}

impl<F: FnMut(&Retained, u64) -> bool> Walk<'_, F> {
    /// Visits what is below a node of that `depth`, and matches `levels`. With `after`, only the
    /// part after that place. Returns `false` if it had to stop.
    fn children(
        &mut self,
        node: &Node,
        levels: &[&[u8]],
        depth: usize,
        after: Option<&[&[u8]]>,
    ) -> bool {
        let (level, rest) = match levels {
            [] => return true,
            [b"#"] => (None, levels),
            [b"+", rest @ ..] => (None, rest),
            [name, rest @ ..] => (Some(*name), rest),
        };
        // The children after `after`: all of them from its next level on.
        let (first, behind) = match after {
            Some([first, behind @ ..]) => (Some(*first), Some(behind)),
            _ => (None, None),
        };
        let behind = |name: &[u8]| behind.filter(|_| first == Some(name));
        if let Some(name) = level {
            return match node.children.get(name) {
                Some(child) if first.is_none_or(|first| first <= name) => {
                    self.node(name, child, rest, depth, behind(name))
                }
                _ => true,
            };
        }
        let from = first.map_or(Bound::Unbounded, Bound::Included);
        for (name, child) in node.children.range::<[u8], _>((from, Bound::Unbounded)) {
            // `[MQTT-4.7.2-1]`: a leading wildcard does not match topics that begin with `$`.
            let is_hidden = depth == 0 && name.first() == Some(&b'$');
            if !is_hidden && !self.node(name, child, rest, depth, behind(name)) {
                return false;
            }
        }
        true
    }

    fn node(
        &mut self,
        name: &[u8],
        node: &Node,
        levels: &[&[u8]],
        depth: usize,
        after: Option<&[&[u8]]>,
    ) -> bool {
        let len = self.path.len();
        if depth > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        if after.is_none() {
            self.steps -= 1;
            let mut go_on = self.steps > 0;
            // `a/#` matches `a` too.
            if matches!(levels, [] | [b"#"])
                && let Some((sequence, retained)) = node.retained.as_deref()
                && retained.expires_at.is_none_or(|at| at > self.now)
            {
                go_on &= (self.found)(retained, *sequence);
            }
            if !go_on {
                return false;
            }
        }
        if !self.children(node, levels, depth + 1, after) {
            return false;
        }
        self.path.truncate(len);
        true
    }
}

impl Node {
    fn remove(&mut self, levels: &[&[u8]], size: &mut Size) -> Option<Box<(u64, Retained)>> {
        let [level, rest @ ..] = levels else {
            return self.retained.take();
        };
        let child = self.children.get_mut(*level)?;
        let removed = child.remove(rest, size);
        if child.is_empty() {
            self.children.remove(*level);
            size.nodes -= 1;
            size.tables -= usize::from(self.children.is_empty());
        }
        removed
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.retained.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn retained(topic: &str, expires_at: Option<Instant>) -> Retained {
        let topic = TopicName::new(topic).unwrap();
        Retained {
            message: Arc::new(Message::new(topic, "x")),
            qos: QoS::AtMostOnce,
            expires_at,
        }
    }

    /// Returns the topics in the order in which they were found, with so many steps at a time.
    fn found_by(store: &RetainedStore, filter: &str, now: Instant, steps: usize) -> Vec<String> {
        let mut topics = Vec::new();
        let filter = TopicFilter::new(filter).unwrap();
        let mut cursor = Cursor::default();
        while !cursor.is_at_end() {
            store.matching(&filter, &mut cursor, now, steps, &mut |retained, _| {
                topics.push(retained.message.topic.to_string());
                true
            });
        }
        topics
    }

    fn found(store: &RetainedStore, filter: &str, now: Instant) -> Vec<String> {
        let mut topics = found_by(store, filter, now, usize::MAX);
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
        assert_eq!((store.len(), store.sequence()), (6, 7));
        let size = Size {
            nodes: 9,
            tables: 6,
        };
        assert_eq!(store.size, size);
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
        for topic in ["a", "a/b/c", "b/b", "$SYS/x", "/a"] {
            assert!(store.remove(&TopicName::new(topic).unwrap()));
        }
        assert_eq!((store.size, store.bytes()), (Size::default(), 0));
    }

    #[test]
    fn expired_messages_are_not_found_and_can_be_dropped() {
        let now = Instant::now();
        let mut store = RetainedStore::new();
        let soon = Some(now + Duration::from_secs(5));
        store.insert(retained("a/b", soon));
        store.insert(retained("a", None));
        assert_eq!(found(&store, "#", now), ["a", "a/b"]);
        let later = now + Duration::from_secs(5);
        assert_eq!(found(&store, "#", later), ["a"]);
        // Replaced and removed messages do not expire.
        store.insert(retained("c", soon));
        store.insert(retained("c", None));
        store.insert(retained("d", soon));
        assert!(store.remove(&TopicName::new("d").unwrap()));
        assert_eq!(store.expiring.len(), 1);
        assert_eq!(store.expire(later, 1), [TopicName::new("a/b").unwrap()]);
        assert!(store.expire(later, 1).is_empty());
        assert_eq!(store.len(), 2);
        assert!(store.expiring.is_empty());
    }

    #[test]
    fn a_cursor_stops_when_it_is_told_to_and_goes_on_behind() {
        let mut store = RetainedStore::new();
        for topic in ["a", "a/b", "a/c", "b"] {
            store.insert(retained(topic, None));
        }
        let filter = TopicFilter::new("#").unwrap();
        let mut cursor = Cursor::default();
        let mut next = |store: &RetainedStore| {
            let mut topic = None;
            store.matching(&filter, &mut cursor, Instant::now(), 100, &mut |it, _| {
                topic = Some(it.message.topic.to_string());
                false
            });
            topic
        };
        assert_eq!(next(&store).as_deref(), Some("a"));
        assert_eq!(next(&store).as_deref(), Some("a/b"));
        // The topic at the cursor is removed, and one is added on either side.
        store.remove(&TopicName::new("a/b").unwrap());
        store.insert(retained("a/aa", None));
        store.insert(retained("a/bb", None));
        for topic in ["a/bb", "a/c", "b"] {
            assert_eq!(next(&store).as_deref(), Some(topic));
        }
        assert_eq!(next(&store), None);
        store.insert(retained("c", None));
        assert_eq!(next(&store), None, "it is at its end");
    }

    proptest! {
        /// A cursor finds the topics that matching each topic by itself finds, however often it
        /// stops.
        #[test]
        fn every_match_is_found_once(
            topics in prop::collection::btree_set("\\$?[ab]{0,2}(/[ab]?){0,3}", 0..12),
            filter in "(\\$?[ab]|\\+|)(/([ab]|\\+|)){0,3}(/#)?",
            steps in 1_usize..5,
        ) {
            let mut store = RetainedStore::new();
            let mut expected = Vec::new();
            let Ok(by) = TopicFilter::new(&*filter) else { return Ok(()) };
            for topic in topics {
                let Ok(name) = TopicName::new(&*topic) else { continue };
                if by.matches(&name) {
                    expected.push(topic.clone());
                }
                store.insert(retained(&topic, None));
            }
            let now = Instant::now();
            let in_order = found_by(&store, &filter, now, usize::MAX);
            prop_assert_eq!(&found_by(&store, &filter, now, steps), &in_order);
            let mut found = in_order;
            found.sort();
            prop_assert_eq!(found, expected);
        }
    }
}
