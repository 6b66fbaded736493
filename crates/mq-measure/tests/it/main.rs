//! Clocks, statistics and records against references of other programs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clock;
mod compare_schema;
mod statistics;
