//! The part of a queue that is in the store alone.

use std::ops::RangeInclusive;

/// Messages of a queue that are left in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spilled {
    /// The numbers of the first and the last message.
    pub numbers: RangeInclusive<u64>,
    /// The exact number of messages.
    pub messages: usize,
    /// Their approximate bytes in the store.
    pub bytes: usize,
}
