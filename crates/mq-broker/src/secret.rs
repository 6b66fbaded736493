//! Passwords and tokens that neither a log nor a Debug form shows.

use std::fmt;

use bytes::Bytes;

/// A password or token, which nothing shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Bytes);

impl Secret {
    pub(crate) fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl<B: Into<Bytes>> From<B> for Secret {
    fn from(bytes: B) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
