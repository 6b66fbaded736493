//! Links over every transport, on loopback.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod common;

mod addresses;
mod alpn;
mod errors;
mod handshakes;
mod links;
mod options;
mod proxy;
mod reload;
mod round_trips;
mod unix;
mod websocket;
