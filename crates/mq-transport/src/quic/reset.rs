//! Stateless resets (RFC 9000 §10.3): a server that has lost its connections tells its clients at once,
//! so that they do not wait for their idle timeouts.

use quinn::crypto::{CryptoError, HmacKey};
use rustls::crypto::tls13::OkmBlock;

use crate::{ServerIdentity, tls::with_sha256};

/// The key of the tokens, derived from the server's private key (§10.3.2): the next process with the same
/// private key resets the connections of this one, however this one ended.
pub(crate) struct ResetKey(OkmBlock);

impl ResetKey {
    pub(crate) fn of(identity: &ServerIdentity) -> Self {
        let (hkdf, key) = (with_sha256().hkdf_provider, identity.key());
        // HKDF (RFC 5869): the derived key reveals nothing of the private key.
        let secret = hkdf.extract_from_secret(None, key.secret_der());
        Self(secret.expand_block(&[b"mq stateless reset"]))
    }

    /// Derives the key that tells connection identifiers from noise, which gets no reset. The next process has the same
    /// key.
    pub(crate) fn connection_ids(&self) -> u64 {
        let words = self.tag(b"connection identifiers");
        u64::from_le_bytes(words.as_chunks().0[0])
    }

    /// Computes HMAC-SHA-256 with this key.
    fn tag(&self, data: &[u8]) -> [u8; 32] {
        let tag = with_sha256().hkdf_provider.hmac_sign(&self.0, data);
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(&self.tag(data));
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // Never called to decide anything: peers compare tokens, and this side only makes them.
        let is_ours = self.tag(data) == signature;
        is_ours.then_some(()).ok_or(CryptoError)
    }
}
