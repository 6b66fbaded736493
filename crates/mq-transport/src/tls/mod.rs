//! TLS over TCP, and what the TLS within QUIC shares with it: cryptography, certificates, tickets. The
//! link drives rustls by hand, so that early data and its answers leave before the handshake ends.

mod acceptor;
mod client_auth;
mod config;
mod connect;
mod error;
pub(crate) mod handshakes;
mod identity;
mod link;
mod options;
mod provider;
mod ticket;
mod verifier;

pub(crate) use acceptor::TlsAcceptor;
pub(crate) use config::{ClientConfigs, ServerTls, check_alpn};
pub(crate) use connect::ClientTls;
pub use handshakes::HandshakePool;
pub use identity::ServerIdentity;
pub(crate) use link::TlsLink;
pub(crate) use ticket::HeldTickets;
pub use ticket::{TicketCache, TicketStore};

#[cfg(feature = "quic")]
pub(crate) use {
    config::{server_config, with_held_tickets},
    identity::certificates_of,
    link::iana_name,
    provider::with_sha256,
    ticket::Scope,
};
