//! The server's identity in a build without TLS: a type without values, so that options have the same
//! fields in all builds.

use std::{convert::Infallible, path::Path};

use crate::{Error, Scheme};

/// A server's certificate chain and private key; a build without TLS has none.
#[derive(Clone, Debug)]
pub struct ServerIdentity(Infallible);

impl ServerIdentity {
    /// Fails: a build without TLS cannot use the files.
    ///
    /// # Errors
    /// [`Error::NotBuiltIn`].
    pub fn from_pem_files(_: impl AsRef<Path>, _: impl AsRef<Path>) -> Result<Self, Error> {
        let scheme = Scheme::Tls;
        Err(Error::NotBuiltIn { scheme })
    }

    /// Returns the files of the chain and of the key.
    #[must_use]
    pub fn files(&self) -> Option<(&Path, &Path)> {
        match self.0 {}
    }
}
