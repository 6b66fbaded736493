//! TLS over TCP, driven by hand so that early data and its answers really leave early.

mod config;
mod link;

pub(crate) use config::{ClientConfigs, ServerTls, check_alpn, server_config, with_held_tickets};
pub(crate) use link::TlsLink;
