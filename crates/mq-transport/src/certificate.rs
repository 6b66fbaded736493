//! Certificates, as links and identities hold them.

use bytes::Bytes;

/// An X.509 certificate in DER form (RFC 5280); cheap to clone.
///
/// Making one checks nothing. The certificates of a [`LinkInfo`](crate::LinkInfo) were checked by
/// the handshake.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Certificate(Bytes);

impl Certificate {
    /// Takes the bytes of the DER form as they are.
    #[must_use]
    pub fn from_der(der: impl Into<Bytes>) -> Self {
        Self(der.into())
    }

    /// Returns the bytes of the DER form.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.0
    }
}
