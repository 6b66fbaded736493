//! Stateless resets (RFC 9000 §10.3): a server that has lost its connections tells its clients at once,
//! so that they do not wait for their idle timeouts.

use quinn::crypto::{self, CryptoError};

use rustls::crypto::tls13::OkmBlock;

use crate::{ServerIdentity, tls::with_sha256};

/// The key of the tokens, derived from the server's private key (§10.3.2): the next process with the same
/// private key resets the connections of this one, however this one ended.
pub(crate) struct ResetKey(HmacKey);

impl ResetKey {
    pub(crate) fn of(identity: &ServerIdentity) -> Self {
        let key = identity.key();
        Self(HmacKey::derive(key.secret_der(), b"mq stateless reset"))
    }

    /// The key that tells connection identifiers from noise, which gets no reset. The next process has
    /// the same key.
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
        // Never called to decide anything: peers compare tokens, and this side only makes them.
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
    /// Derives a key for one `purpose` from a secret (HKDF, RFC 5869); the key reveals nothing of
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
