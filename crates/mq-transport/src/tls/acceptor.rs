//! The TLS of a listener on TCP.

use std::sync::{Arc, Mutex};

use rustls::ServerConfig;

use super::{
    config::{ServerTls, server_config, with_held_tickets},
    ticket::{HeldTickets, Scope},
};
use crate::{Error, HandshakePool, ListenOptions, Scheme, sync::lock};

/// TLS of a listener on TCP, with its present configuration.
#[derive(Debug)]
pub(crate) struct TlsAcceptor {
    scheme: Scheme,
    /// Options with which the listener was bound; a reload replaces `current` alone.
    options: ListenOptions,
    current: Mutex<(Arc<ServerConfig>, Scope)>,
}

impl TlsAcceptor {
    pub(crate) fn new(scheme: Scheme, options: &ListenOptions) -> Result<Self, Error> {
        let ServerTls { config, scope } = server_config(scheme, options)?;
        Ok(Self {
            scheme,
            options: options.clone(),
            current: Mutex::new((Arc::new(config), scope)),
        })
    }

    /// Returns the configuration of a handshake that begins now, and its tickets where they are held back.
    pub(crate) fn config(&self) -> (Arc<ServerConfig>, Option<Arc<HeldTickets>>) {
        let (current, scope) = lock(&self.current).clone();
        if !self.options.hold_tickets {
            return (current, None);
        }
        let (config, tickets) = with_held_tickets(&current, &self.options, scope);
        (Arc::new(config), Some(tickets))
    }

    pub(crate) fn handshake_pool(&self) -> &HandshakePool {
        &self.options.handshake_pool
    }

    pub(crate) fn prepare(&self, options: &ListenOptions) -> Result<ServerTls, Error> {
        server_config(self.scheme, &self.options.with_certificates_of(options))
    }

    pub(crate) fn install(&self, tls: ServerTls) {
        let (_, before) =
            std::mem::replace(&mut *lock(&self.current), (Arc::new(tls.config), tls.scope));
        if before != tls.scope {
            self.options.ticket_store.forget(&before);
        }
    }
}
