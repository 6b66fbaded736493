//! MQTT over WebSocket (MQTT 5.0 §6, MQTT 3.1.1 §6; RFC 6455), on TCP and on TLS.
//!
//! The bytes below the frames are moved by this crate's own TCP and TLS links, so that `wss` has
//! all that `tls` has. Of tungstenite only the parts without I/O are used, HTTP heads and frame
//! headers: its stream keeps a whole frame, and then a whole message, in memory before it hands out
//! a byte of it, writes one message at a time, and cannot be told to stop reading.

mod frame;
mod link;
mod mask;
mod stream;
mod upgrade;

pub(crate) use link::WsLink;
pub(crate) use upgrade::Gate;
