//! The last entries of a log, in memory: what sessions that move have missed is mostly among them. Else each of ten
//! thousand clients that come at once would have the servers read the logs again for it.

use std::collections::VecDeque;

use crate::cluster::engine::Entry;

/// The last entries of one log that this node has read.
#[derive(Debug)]
pub(in crate::cluster) struct RecentEntries {
    max_bytes: usize,
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl RecentEntries {
    /// Keeps entries of `max_bytes` at most.
    pub(in crate::cluster) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            entries: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Keeps an entry that has come, and drops the oldest ones beyond the limit.
    pub(in crate::cluster) fn push(&mut self, entry: &Entry) {
        let bytes = entry.bytes.len();
        if bytes > self.max_bytes {
            self.clear();
            return;
        }
        self.bytes += bytes;
        // A copy keeps no read buffer alive.
        let bytes = bytes::Bytes::copy_from_slice(&entry.bytes);
        let number = entry.number;
        self.entries.push_back(Entry { number, bytes });
        while self.bytes > self.max_bytes
            && let Some(first) = self.entries.pop_front()
        {
            self.bytes -= first.bytes.len();
        }
    }

    /// Forgets all entries: others may stand at their places.
    pub(in crate::cluster) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Returns the entries of these numbers, both included; `None` if not all of them are here.
    pub(in crate::cluster) fn range(&self, from: u64, to: u64) -> Option<Vec<Entry>> {
        let index = |number: u64| {
            self.entries
                .binary_search_by_key(&number, |entry| entry.number)
        };
        let range = index(from).ok()?..=index(to).ok()?;
        Some(self.entries.range(range).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, bytes: usize) -> Entry {
        let bytes = vec![0; bytes].into();
        Entry { number, bytes }
    }

    #[test]
    fn it_has_the_last_entries_that_there_is_room_for() {
        let mut recent = RecentEntries::new(10);
        assert_eq!(recent.range(1, 1), None);
        for number in 5..10 {
            recent.push(&entry(number, 3));
        }
        assert_eq!(recent.range(7, 8), Some(vec![entry(7, 3), entry(8, 3)]));
        assert_eq!(recent.range(9, 9), Some(vec![entry(9, 3)]));
        for (from, to) in [(6, 9), (9, 10), (10, 10)] {
            assert_eq!(recent.range(from, to), None, "{from} to {to}");
        }
        recent.push(&entry(10, 11));
        assert_eq!(recent.range(10, 10), None, "it is too large");
        recent.push(&entry(11, 1));
        assert_eq!(recent.range(11, 11), Some(vec![entry(11, 1)]));
        assert_eq!(recent.range(9, 11), None);
    }
}
