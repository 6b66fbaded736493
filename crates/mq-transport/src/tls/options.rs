//! What an encrypted listener makes of its options.

use super::{client_auth::ClientAuthFiles, config::server_config, provider::sha256, ticket::Scope};
use crate::{Error, ListenOptions, Scheme, ServerIdentity};

impl ListenOptions {
    /// Makes of the certificates, the key, the client authorities and the ciphers what an encrypted
    /// listener makes of them, without listening.
    ///
    /// # Errors
    /// Those of [`Listener::bind`](crate::Listener::bind) for a TLS address, but that it cannot be
    /// bound.
    pub fn check(&self) -> Result<(), Error> {
        server_config(Scheme::Tls, self).map(drop)
    }

    /// What a listener of `scheme`, which is encrypted, cannot do without.
    pub(crate) fn identity_for(&self, scheme: Scheme) -> Result<&ServerIdentity, Error> {
        self.identity.as_ref().ok_or(Error::NoIdentity { scheme })
    }

    /// SHA-256 of what the tickets of a listener rest on: a ticket that is kept beyond the listener
    /// is good for another only where this is the same.
    ///
    /// That is the server's certificates, as a client that resumes does not look at them again; the
    /// authorities for client certificates and their revocation lists, as the server does not either
    /// (RFC 8446 §4.6.1); and the limits that clients remember for early data: a server that has
    /// lowered one would have to break the connection (RFC 9000 §7.4.1).
    ///
    /// # Errors
    /// [`Error::File`] if a file of client authorities or revocation lists cannot be read;
    /// [`Error::InvalidOption`] if there are lists and no authorities.
    pub fn ticket_scope(&self) -> Result<[u8; 32], Error> {
        Ok(self.scope(ClientAuthFiles::read(self)?.as_ref()))
    }

    /// The same with files that were read already.
    pub(crate) fn scope(&self, client_auth: Option<&ClientAuthFiles>) -> Scope {
        let mut text = Vec::new();
        let mut add = |part: &[u8]| {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part);
        };
        for certificate in self.identity.iter().flat_map(ServerIdentity::chain) {
            add(certificate.der());
        }
        match client_auth {
            None => add(&[0]),
            Some(files) => files.parts().for_each(&mut add),
        }
        let quic = &self.quic;
        for limit in [
            self.early_data_limit,
            quic.stream_receive_window,
            quic.receive_window,
            quic.max_bidi_streams,
        ] {
            add(&limit.to_le_bytes());
        }
        sha256(&text)
    }

    /// These options with the certificates and lists of others: all that a reload changes.
    pub(crate) fn with_certificates_of(&self, other: &Self) -> Self {
        Self {
            identity: other.identity.clone(),
            client_auth: other.client_auth.clone(),
            client_crls: other.client_crls.clone(),
            enforce_crl_expiry: other.enforce_crl_expiry,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientAuth;

    #[test]
    fn tickets_are_for_one_certificate_one_client_authority_and_the_limits_they_were_given_under() {
        let first = ListenOptions {
            identity: Some(ServerIdentity::self_signed().unwrap()),
            ..ListenOptions::default()
        };
        let authority = tempfile::NamedTempFile::new().unwrap();
        let scope = |options: &ListenOptions| options.ticket_scope().unwrap();
        assert_eq!(scope(&first), scope(&first.clone()));
        let mut scopes = std::collections::HashSet::from([scope(&first)]);
        let mut changed = first.clone();
        changed.identity = Some(ServerIdentity::self_signed().unwrap());
        assert!(scopes.insert(scope(&changed)));
        changed = first.clone();
        changed.quic.receive_window -= 1;
        assert!(scopes.insert(scope(&changed)));
        changed = first;
        changed.client_auth = ClientAuth::Optional(authority.path().to_owned());
        assert!(scopes.insert(scope(&changed)));
        std::fs::write(authority.path(), "another").unwrap();
        assert!(scopes.insert(scope(&changed)));
        changed.client_auth = ClientAuth::Required(authority.path().to_owned());
        assert!(scopes.insert(scope(&changed)));
        let list = tempfile::NamedTempFile::new().unwrap();
        changed.client_crls.push(list.path().to_owned());
        assert!(scopes.insert(scope(&changed)));
        std::fs::write(list.path(), "revoked").unwrap();
        assert!(scopes.insert(scope(&changed)));
        changed.enforce_crl_expiry = true;
        assert!(scopes.insert(scope(&changed)));
    }
}
