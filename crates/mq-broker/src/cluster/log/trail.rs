//! The entries that a node has read of a log, in short: by them it sees that another node has read other ones at the same places,
//! as a log can be set back by so few entries that no number tells.

use std::collections::VecDeque;

use super::{entry::LogEntry, milestone::Milestone};
use crate::{
    cluster::engine::Entry,
    fnv::{FNV_BASIS, fnv1a},
};

/// Entries that are remembered.
const MAX_ENTRIES: usize = 1_024;

/// Bytes of an entry, from its beginning, that tell it from others: its author and its number are among them.
const DIGEST_BYTES: usize = 64;

/// Returns the digest of an entry.
fn digest(bytes: &[u8]) -> u64 {
    fnv1a(FNV_BASIS, &bytes[..bytes.len().min(DIGEST_BYTES)])
}

/// The last entries of a log that a node has read.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Trail {
    entries: VecDeque<TrailEntry>,
    last: Milestone,
    /// The last entry from which on all nodes hash anew.
    synced_at: u64,
}

#[derive(Debug)]
struct TrailEntry {
    number: u64,
    digest: u64,
    /// Hash over all that was read up to it.
    hash: u64,
}

impl Trail {
    /// Goes on from a place that another life of a node has read up to.
    pub(super) fn from_milestone(last: Milestone) -> Self {
        Self {
            last,
            ..Self::default()
        }
    }

    /// Notes an entry that was read, unless it says nothing: a node may have none of those.
    pub(super) fn push(&mut self, entry: &Entry) {
        if LogEntry::is_empty(&entry.bytes) {
            return;
        }
        let (number, digest) = (entry.number, digest(&entry.bytes));
        let hash = fnv1a(self.last.hash, &digest.to_be_bytes());
        self.last = Milestone {
            entry: number,
            hash,
        };
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
        }
        self.entries.push_back(TrailEntry {
            number,
            digest,
            hash,
        });
    }

    /// Begins to hash anew at an entry, whatever was read before.
    pub(super) fn sync(&mut self, number: u64) {
        self.synced_at = number;
        self.last = Milestone {
            entry: number,
            hash: FNV_BASIS,
        };
    }

    /// Returns the place of the last entry that was read.
    pub(super) fn last(&self) -> Milestone {
        self.last
    }

    /// Returns `true` if another node has read other entries than this one, up to a place that both have read.
    pub(super) fn contradicts(&self, other: Milestone) -> bool {
        if other.entry <= self.synced_at {
            return false;
        }
        let count = self
            .entries
            .partition_point(|entry| entry.number <= other.entry);
        let own = count.checked_sub(1).map(|last| &self.entries[last]);
        own.is_some_and(|own| own.hash != other.hash)
    }

    /// Returns the number of the first entry that is remembered.
    pub(super) fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.number)
    }

    /// Returns `true` if an entry was read, wherever it stood, or says nothing.
    pub(super) fn has_read(&self, entry: &Entry) -> bool {
        let digest = digest(&entry.bytes);
        LogEntry::is_empty(&entry.bytes) || self.entries.iter().any(|read| read.digest == digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, bytes: &'static [u8]) -> Entry {
        let bytes = bytes.into();
        Entry { number, bytes }
    }

    fn trail(entries: &[(u64, &'static [u8])]) -> Trail {
        let mut trail = Trail::default();
        for (number, bytes) in entries {
            trail.push(&entry(*number, bytes));
        }
        trail
    }

    #[test]
    fn nodes_that_have_read_other_entries_contradict_each_other_until_they_are_synced() {
        let mut before = trail(&[(1, b"a"), (2, b"lost"), (3, b"c")]);
        let mut after = trail(&[(1, b"a"), (2, b"new"), (3, b"c")]);
        assert!(before.contradicts(after.last()) && after.contradicts(before.last()));
        let first = trail(&[(1, b"a")]).last();
        assert!(!before.contradicts(first) && !after.contradicts(first));
        let earlier = trail(&[(0, b"a"), (2, b"new")]);
        let later = trail(&[(5, b"a")]);
        assert!(
            !later.contradicts(earlier.last()),
            "it began behind that place"
        );
        let only_one = trail(&[(1, b"a")]);
        let another = trail(&[(1, b"a"), (2, b"new")]);
        assert!(
            only_one.contradicts(another.last()),
            "it has read nothing at that place"
        );
        let old = after.last();
        for trail in [&mut before, &mut after] {
            trail.sync(4);
            trail.push(&entry(5, b"e"));
        }
        assert_eq!(before.last(), after.last());
        assert!(!before.contradicts(old), "it was read before");
    }
}
