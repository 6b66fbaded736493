//! WebSocket with hand-made peers, which can break its rules.

mod closing;
mod early;
mod frames;
mod handshakes;
mod peer;
