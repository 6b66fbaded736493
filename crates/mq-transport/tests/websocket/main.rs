//! WebSocket with hand-made peers, which can break its rules.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;

mod closing;
mod early;
mod frames;
mod handshakes;
mod peer;
