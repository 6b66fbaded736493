//! QUIC: MQTT in EMQX's form, with the control lane on the client's first bidirectional stream.

mod client;
mod config;
mod connect;
mod error;
mod handshake_window;
mod initial_keys;
mod lanes;
mod link;
#[cfg(test)]
mod loss_detection;
mod observed;
mod padding;
mod probe;
mod qlog;
mod repeater;
mod reset;
mod runtime;
mod server;
mod shard;
mod socket;
#[cfg(test)]
mod test_crypto;
mod udp;
#[cfg(test)]
mod virtual_pair;
mod watched_tls;
mod windows;
mod write;

pub(crate) use client::ClientEndpoints;
pub(crate) use link::QuicLink;
pub use qlog::{Qlog, QlogLimits};
pub(crate) use server::{IncomingConnections, PreparedQuic, QuicIncoming, Server};
pub use windows::WindowMemory;
