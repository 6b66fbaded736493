//! Byte links for MQTT: TCP, TLS, QUIC and in-memory, with real 0-RTT.
//!
//! A [`Connector`] opens [`Link`]s, a [`Listener`] accepts them as [`Incoming`] and hands over a
//! [`Link`] once its handshake is far enough to read and write. A link moves bytes and knows
//! nothing of MQTT: its owner drives [`Link::progress`], takes packets off the front of
//! [`Link::received`] and puts packets into an [`Outbox`](mq_proto::Outbox).
//!
//! ```text
//! Address --Connector::connect--> Link <--Incoming::handshake-- Listener::accept
//!                                  |  progress(outbox, want_read) -> Received | Flushed | Closed
//!                                  |  received(lane) -> &mut BytesMut
//!                                  |  stats() info() close(deadline)
//! ```
//!
//! Early data (0-RTT) is real on both ends: the client's bytes leave with its first flight, and the
//! server reads and answers them before the handshake ends, over TLS as over QUIC. When a server
//! rejects early data, the link sends it again by itself, once and in order.
//!
//! The cargo features `tcp`, `tls` and `quic` decide which schemes are registered; `aws-lc-rs` and
//! `ring` which cryptography is used (aws-lc-rs where both are on).

mod address;
mod buffer;
mod connector;
mod crypto;
mod error;
mod identity;
mod info;
mod link;
mod listener;
mod mem;
mod options;
mod quic;
mod registry;
mod socket;
mod tcp;
mod tcp_info;
mod ticket;
mod tls;
mod trust;

pub use address::{Address, AddressError, Scheme};
pub use connector::Connector;
pub use crypto::{CipherSuite, CryptoOptions, KeyExchangeGroup, TlsVersion};
pub use error::Error;
pub use identity::ServerIdentity;
pub use info::{EarlyData, HandshakeKind, LinkInfo, LinkStats, TlsInfo};
pub use link::{Link, Progress};
pub use listener::{Incoming, Listener};
pub use options::{
    AckFrequency, ClientAuth, ClientIdentity, CongestionControl, ConnectOptions, EarlyDataPolicy,
    ListenOptions, QuicOptions, SocketOptions,
};
pub use rustls_pki_types::CertificateDer;
pub use ticket::{TicketCache, TicketStore};
pub use trust::Trust;
