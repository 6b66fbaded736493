//! Any bytes, in any version and in chunks of any size.

#![no_main]

#[path = "../../crates/mq-codec/tests/bodies/decode.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
