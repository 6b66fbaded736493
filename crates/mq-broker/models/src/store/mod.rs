//! The broker's store as far as its queue depends on it.

pub mod disk;
#[path = "../../../src/store/spilled.rs"]
mod spilled;

pub use spilled::Spilled;

/// A recorded change, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change(pub(crate) u64);

/// The broker's `Position`: the number of calls so far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Position(pub(crate) u64);
