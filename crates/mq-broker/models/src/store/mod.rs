//! The broker's store as far as its queue knows it.

pub mod disk;
#[path = "../../../src/store/spilled.rs"]
mod spilled;

pub use spilled::Spilled;

/// Which of those that are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change(pub(crate) u64);

/// As the broker's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Position(pub(crate) u64);
