//! Summaries of topic filters, small enough to send, that exclude most topics that no filter matches.
//!
//! An entry of a summary is a hash: of the first levels of a filter, up to its first wildcard or to the summary's depth,
//! or of a whole filter without wildcards. A topic is excluded if neither the whole of it nor any of its first levels has
//! an entry. So a summary never excludes a topic that a filter matches, and may include others: `a/+` stands for `a/#`.

use std::collections::HashSet;

use mq_codec::TopicFilter;

use crate::fnv::{FNV_BASIS, fnv1a};

/// Levels of a filter that a summary tells apart at most.
pub(super) const MAX_DEPTH: u8 = 8;

/// Entries of a summary at most: 32 KiB when it is sent. With more filters it tells fewer levels apart.
const MAX_ENTRIES: usize = 4_096;

/// Byte behind the hash of a whole topic or filter, which no string of MQTT has.
const END: &[u8] = &[0xFF];

/// A summary of the filters of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Summary {
    /// Levels that are told apart, at most [`MAX_DEPTH`].
    pub(super) depth: u8,
    pub(super) entries: HashSet<u64>,
}

impl Summary {
    /// Makes the summary of no filters.
    pub(super) fn new(depth: u8) -> Self {
        Self {
            depth,
            entries: HashSet::new(),
        }
    }

    /// Makes the summary of all filters that a function passes on while it is told to go on, as deep as there is room for.
    pub(super) fn of(filters: impl Fn(&mut dyn FnMut(&TopicFilter) -> bool)) -> Self {
        let mut depth = MAX_DEPTH;
        loop {
            let mut summary = Self::new(depth);
            filters(&mut |filter| {
                summary.add(filter);
                !summary.is_too_large()
            });
            if !summary.is_too_large() {
                return summary;
            }
            depth /= 2;
        }
    }

    /// Adds a filter. Returns its entry if it is new.
    pub(super) fn add(&mut self, filter: &TopicFilter) -> Option<u64> {
        let entry = Self::entry(filter, self.depth);
        self.entries.insert(entry).then_some(entry)
    }

    /// Returns `true` if there are more entries than a summary may have.
    pub(super) fn is_too_large(&self) -> bool {
        self.entries.len() > MAX_ENTRIES
    }

    /// Returns the entry of a filter; shared subscriptions count by the filter behind their group.
    pub(super) fn entry(filter: &TopicFilter, depth: u8) -> u64 {
        let mut hash = FNV_BASIS;
        for (depth_here, level) in filter.matching().split('/').enumerate() {
            if depth_here == usize::from(depth) || level == "+" || level == "#" {
                return hash;
            }
            hash = with_level(hash, level);
        }
        fnv1a(hash, END)
    }

    /// Returns `false` if no filter of the summary matches the topic.
    pub(super) fn may_match(&self, topic: &TopicHashes) -> bool {
        let prefixes = topic.prefixes.iter().take(usize::from(self.depth) + 1);
        let mut hashes = prefixes.chain(&topic.whole);
        hashes.any(|hash| self.entries.contains(hash))
    }
}

/// The hashes of a topic by which summaries find it.
#[derive(Debug)]
pub(super) struct TopicHashes {
    /// Hashes of the first levels: of none, of one, and so on.
    prefixes: Vec<u64>,
    /// The hash of the whole topic, if a summary can have it.
    whole: Option<u64>,
}

impl TopicHashes {
    pub(super) fn new(topic: &str) -> Self {
        let mut prefixes = Vec::with_capacity(usize::from(MAX_DEPTH) + 1);
        let mut hash = FNV_BASIS;
        prefixes.push(hash);
        let mut levels = topic.split('/');
        for level in levels.by_ref().take(usize::from(MAX_DEPTH)) {
            hash = with_level(hash, level);
            prefixes.push(hash);
        }
        let is_whole = levels.next().is_none();
        Self {
            prefixes,
            whole: is_whole.then(|| fnv1a(hash, END)),
        }
    }
}

fn with_level(hash: u64, level: &str) -> u64 {
    fnv1a(fnv1a(hash, level.as_bytes()), b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::new(text.to_owned()).unwrap()
    }

    fn includes(filter_text: &str, depth: u8, topic: &str) -> bool {
        let mut summary = Summary::new(depth);
        summary.add(&filter(filter_text));
        summary.may_match(&TopicHashes::new(topic))
    }

    #[test]
    fn a_summary_excludes_other_topics_and_none_that_a_filter_matches() {
        let deep = "1/2/3/4/5/6/7/8/9";
        for (filter, depth, included, excluded) in [
            (
                "a/b",
                8,
                &["a/b"][..],
                &["a", "a/b/c", "a/c", "ab", "b"][..],
            ),
            ("a/b", 1, &["a/b", "a/c", "a"], &["b/a", "ab"]),
            ("a/b", 0, &["a/b", "x"], &[]),
            ("a/#", 8, &["a", "a/", "a/b/c"], &["b", "/a"]),
            ("a/+/c", 8, &["a/b/c", "a/b"], &["b/b/c"]),
            ("#", 8, &["a", "/", deep], &[]),
            ("+/b", 8, &["a/b"], &[]),
            ("$share/g/a/b", 8, &["a/b"], &["a", "g/a/b"]),
            (deep, 8, &[deep, "1/2/3/4/5/6/7/8"], &["1/2/3/4/5/6/7"]),
            ("/", 8, &["/"], &["", "//", "a/"]),
        ] {
            for topic in included {
                assert!(includes(filter, depth, topic), "{filter} {depth} {topic}");
            }
            for topic in excluded {
                assert!(!includes(filter, depth, topic), "{filter} {depth} {topic}");
            }
        }
    }
}
