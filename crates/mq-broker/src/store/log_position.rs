//! Places in the logs of a cluster.

/// The place of a message in the logs of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LogPosition {
    pub(crate) shard: u16,
    pub(crate) at: At,
}

/// A place in one log: the number of an entry in the upper bits, the index in the entry in the
/// lower.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct At(pub(crate) u64);

/// Bits of the index in an entry, which has fewer messages than that.
const INDEX: u32 = 20;

impl At {
    pub(crate) fn new(entry: u64, index: usize) -> Self {
        debug_assert!(index < 1 << INDEX);
        Self(entry << INDEX | index as u64)
    }

    /// Returns the last place that an entry can have.
    pub(crate) fn end_of(entry: u64) -> Self {
        Self::new(entry, (1 << INDEX) - 1)
    }

    pub(crate) fn entry(self) -> u64 {
        self.0 >> INDEX
    }

    /// Returns the last entry of which some place is before this one; 0 if there is none.
    pub(crate) fn last_before(self) -> u64 {
        Self(self.0.saturating_sub(1)).entry()
    }

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
