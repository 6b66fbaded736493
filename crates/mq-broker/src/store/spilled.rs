//! The part of a queue that a store keeps to itself.

use std::ops::RangeInclusive;

/// Messages of a queue that are left in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spilled {
    /// Between which numbers, both of which have a message.
    pub numbers: RangeInclusive<u64>,
    /// How many messages, exactly.
    pub messages: usize,
    /// Their bytes in the store, about.
    pub bytes: usize,
}
