//! Lanes of every kind, what comes on them in pieces, and their ends, on either side of a connection.

#![no_main]

#[path = "../../crates/mq-proto/tests/bodies/lanes.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
