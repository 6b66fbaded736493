//! Access of clients on other machines without a user.
//!
//! A broker without a list of users accepts all clients, but from this machine alone, unless the
//! operator sets otherwise: leaving out a key does not open a broker to the world.

use mq_transport::{Address, ClientAuth};

use crate::{Settings, auth::Access};

/// The default listeners, on loopback: only this machine's own users reach them.
pub(super) const DEFAULT_LISTENERS: [&str; 2] = ["tcp://127.0.0.1:1883", "quic://127.0.0.1:14567"];

impl Settings {
    /// Returns `true` if clients without a user are accepted, apart from what certificates require.
    pub(super) fn lets_anonymous_in(&self) -> bool {
        match &self.access {
            Access::Open => true,
            Access::Files(files) => files.allow_anonymous,
            Access::Custom { authenticator, .. } => authenticator.is_none(),
        }
    }

    /// Returns a listener that accepts clients of other machines without a user and without a
    /// certificate.
    pub(super) fn open_to_others(&self) -> Option<&Address> {
        let wants_certificate = matches!(self.listen.client_auth, ClientAuth::Required(_));
        // A proxy on this machine brings clients of others.
        let has_proxy = |at: &Address| self.proxies.iter().any(|(address, _)| address == at);
        let is_guarded = |at: &Address| {
            at.is_local() && !has_proxy(at) || wants_certificate && at.scheme.is_encrypted()
        };
        let mut listeners = self.listeners.iter();
        let open = listeners.find(|at| !is_guarded(at));
        open.filter(|_| self.lets_anonymous_in())
    }
}
