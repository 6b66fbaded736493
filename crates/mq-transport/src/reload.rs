//! New certificates for a listener that goes on listening.

use std::sync::{Arc, Weak};

#[cfg(feature = "quic")]
use crate::quic::{PreparedQuic, Server};
use crate::{
    Error, ListenOptions,
    tls::{ServerTls, TlsAcceptor},
};

/// Gives a listener another certificate, other client authorities and revocation lists; cheap to
/// clone.
///
/// Connections that are open, or in their handshake, go on as they are. The handle does not keep its
/// listener alive. On TCP, WebSocket without TLS and mem there is nothing to change.
#[derive(Clone, Debug)]
pub struct ReloadHandle(WeakAcceptor);

#[derive(Clone, Debug)]
enum WeakAcceptor {
    Plain,
    Tls(Weak<TlsAcceptor>),
    #[cfg(feature = "quic")]
    Quic(Weak<Server>),
}

impl ReloadHandle {
    pub(crate) fn plain() -> Self {
        Self(WeakAcceptor::Plain)
    }

    pub(crate) fn tls(acceptor: &Arc<TlsAcceptor>) -> Self {
        Self(WeakAcceptor::Tls(Arc::downgrade(acceptor)))
    }

    #[cfg(feature = "quic")]
    pub(crate) fn quic(server: &Arc<Server>) -> Self {
        Self(WeakAcceptor::Quic(Arc::downgrade(server)))
    }

    /// [Prepares](Self::prepare) and [applies](PreparedReload::apply) at once.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare); the listener then keeps its configuration.
    pub fn reload(&self, options: &ListenOptions) -> Result<(), Error> {
        self.prepare(options)?.apply();
        Ok(())
    }

    /// Reads and checks all files that `options` name, and changes nothing, so that all of several
    /// listeners can be prepared before the first changes.
    ///
    /// Of `options` only `identity`, `client_auth`, `client_crls` and `enforce_crl_expiry` count;
    /// everything else stays as it was at the bind. An identity that was
    /// [loaded from files](crate::ServerIdentity::from_pem_files) is not read again: see
    /// [`ServerIdentity::read_again`](crate::ServerIdentity::read_again).
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::InvalidFile`], which name the file; [`Error::NoIdentity`],
    /// [`Error::InvalidOption`]; [`Error::Closed`] if the listener is gone.
    pub fn prepare(&self, options: &ListenOptions) -> Result<PreparedReload, Error> {
        let prepared = match &self.0 {
            WeakAcceptor::Plain => Prepared::Plain,
            WeakAcceptor::Tls(acceptor) => {
                let acceptor = acceptor.upgrade().ok_or(Error::Closed)?;
                let tls = acceptor.prepare(options)?;
                Prepared::Tls(acceptor, Box::new(tls))
            }
            #[cfg(feature = "quic")]
            WeakAcceptor::Quic(server) => {
                let server = server.upgrade().ok_or(Error::Closed)?;
                let tls = server.prepare(options)?;
                Prepared::Quic(server, Box::new(tls))
            }
        };
        Ok(PreparedReload(prepared))
    }
}

/// A listener's new configuration, checked and not yet in force.
#[derive(Debug)]
#[must_use = "nothing changes until it is applied"]
pub struct PreparedReload(Prepared);

#[derive(Debug)]
enum Prepared {
    Plain,
    Tls(Arc<TlsAcceptor>, Box<ServerTls>),
    #[cfg(feature = "quic")]
    Quic(Arc<Server>, Box<PreparedQuic>),
}

impl PreparedReload {
    /// Applies the configuration to handshakes from now on.
    ///
    /// If the [scope](ListenOptions::ticket_scope) of the tickets has changed, all tickets of the
    /// listener are void: clients do a full handshake next time and are verified anew.
    pub fn apply(self) {
        match self.0 {
            Prepared::Plain => {}
            Prepared::Tls(acceptor, tls) => acceptor.install(*tls),
            #[cfg(feature = "quic")]
            Prepared::Quic(server, tls) => server.install(*tls),
        }
    }
}
