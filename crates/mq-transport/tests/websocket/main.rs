//! WebSocket with peers that are close enough to the wire to do what they should not.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;

mod closing;
mod early;
mod frames;
mod handshakes;
mod peer;
