//! The options of an encrypted listener: checked, and as the scope of its tickets.

use super::{client_auth::ClientAuthFiles, config::server_config, provider::sha256, ticket::Scope};
use crate::{Error, ListenOptions, Scheme, ServerIdentity};

impl ListenOptions {
    /// Reads and checks the certificates, the key, the client authorities and the ciphers as an
    /// encrypted listener does, without listening.
    ///
    /// # Errors
    /// As [`Listener::bind`](crate::Listener::bind) for a TLS address, except errors of binding.
    pub fn check(&self) -> Result<(), Error> {
        server_config(Scheme::Tls, self).map(drop)
    }

    /// Returns the identity, which a listener of an encrypted `scheme` needs; an error if there is none.
    pub(crate) fn identity_for(&self, scheme: Scheme) -> Result<&ServerIdentity, Error> {
        self.identity.as_ref().ok_or(Error::NoIdentity { scheme })
    }

    /// Computes the SHA-256 of everything that the tickets of a listener rest on. A ticket that outlives its listener
    /// is good for another listener only if both have the same value.
    ///
    /// Tickets rest on the server's certificates, which a resuming client does not check again; on the
    /// authorities for client certificates and their revocation lists, which a resuming server does
    /// not check again (RFC 8446 §4.6.1); and on the limits that clients remember for early data, since
    /// a server that lowers one has to break the connection (RFC 9000 §7.4.1).
    ///
    /// # Errors
    /// [`Error::File`] if a file of client authorities or revocation lists cannot be read;
    /// [`Error::InvalidOption`] if there are lists and no authorities.
    pub fn ticket_scope(&self) -> Result<[u8; 32], Error> {
        Ok(self.scope(ClientAuthFiles::read(self)?.as_ref()))
    }

    /// Returns the [ticket scope](Self::ticket_scope), with the files for client authentication already read.
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
        #[cfg(feature = "quic")]
        let quic = &self.first_quic();
        #[cfg(not(feature = "quic"))]
        let quic = &self.quic;
        for limit in [
            self.early_data_limit,
            quic.stream_receive_window,
            quic.receive_window,
            quic.max_bidi_streams,
            quic.max_uni_streams,
        ] {
            add(&limit.to_le_bytes());
        }
        sha256(&text)
    }

    /// Returns these options with the certificates, client authorities and revocation lists of `other`: the part that
    /// a reload changes.
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
