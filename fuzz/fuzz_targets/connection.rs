//! Any order of packets and commands, on either side of a connection.

#![no_main]

#[path = "../../crates/mq-proto/tests/bodies/connection.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
