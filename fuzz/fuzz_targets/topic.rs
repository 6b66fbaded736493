//! Any filter and any topic, against a matcher that is only plain.

#![no_main]

#[path = "../../crates/mq-codec/tests/bodies/topic.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
