//! MQTT over WebSocket (MQTT 5.0 §6, MQTT 3.1.1 §6; RFC 6455), on TCP and on TLS.
//!
//! This crate's own TCP and TLS links move the bytes below the frames, so `wss` has
//! all that `tls` has. Only the parts of tungstenite without I/O are used: HTTP heads and frame
//! headers. Its stream keeps a whole frame, and then a whole message, in memory before it hands out
//! a byte, writes one message at a time, and cannot stop reading.

mod frame;
mod link;
mod mask;
mod upgrade;

pub(crate) use link::WsLink;
pub(crate) use upgrade::Gate;
