//! Packets to bytes and back, beside a peer's codec.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../fuzz/corpus/mod.rs"]
mod corpus;
#[path = "../bodies/decode.rs"]
mod decode;
mod rumqttc_packet;
mod runner;
mod strategies;

mod fuzz_decode;
mod fuzz_topic;
mod golden;
mod malformed;
mod round_trip;
mod rumqttc_agrees;
