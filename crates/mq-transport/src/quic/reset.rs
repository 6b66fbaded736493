//! Stateless resets (RFC 9000 §10.3): a server that has lost its connections says so at once, instead
//! of leaving clients to their idle time-outs.

use quinn::crypto::{self, CryptoError};

use rustls::crypto::tls13::OkmBlock;

use crate::{ServerIdentity, tls::with_sha256};

/// What makes the tokens. It follows from the server's private key (§10.3.2), so that the next
/// process with the same key resets the connections of the last one, however that ended.
pub(crate) struct ResetKey(HmacKey);

impl ResetKey {
    pub(crate) fn of(identity: &ServerIdentity) -> Self {
        let key = identity.key();
        Self(HmacKey::derive(key.secret_der(), b"mq stateless reset"))
    }

    /// By what connection identifiers are told from noise, which gets no reset: the same for the next
    /// process too.
    pub(crate) fn connection_ids(&self) -> u64 {
        let words = self.0.sign(b"connection identifiers");
        u64::from_le_bytes(words.as_chunks().0[0])
    }
}

impl crypto::HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(&self.0.sign(data));
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // Nothing is decided by it: peers compare tokens, and this side only makes them.
        if self.0.sign(data) == signature {
            Ok(())
        } else {
            Err(CryptoError)
        }
    }
}

/// A key for HMAC-SHA-256.
struct HmacKey(OkmBlock);

impl HmacKey {
    /// Derives one from a secret, of its own for each `purpose` (HKDF, RFC 5869): it tells nothing of
    /// the secret.
    fn derive(secret: &[u8], purpose: &[u8]) -> Self {
        let hkdf = with_sha256().hkdf_provider;
        Self(
            hkdf.extract_from_secret(None, secret)
                .expand_block(&[purpose]),
        )
    }

    fn sign(&self, data: &[u8]) -> [u8; 32] {
        let tag = with_sha256().hkdf_provider.hmac_sign(&self.0, data);
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}
