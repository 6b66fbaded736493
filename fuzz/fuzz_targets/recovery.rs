//! A store whose file is damaged, and values of it that are none.

#![no_main]

#[path = "../../crates/mq-broker/tests/bodies/recovery.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
