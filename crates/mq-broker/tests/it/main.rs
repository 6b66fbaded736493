//! The broker library from outside: its store, its settings, what its fuzz target does.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../fuzz/corpus/mod.rs"]
mod corpus;

mod fuzz_recovery;
mod keep_alive;
mod migration;
mod reference;
