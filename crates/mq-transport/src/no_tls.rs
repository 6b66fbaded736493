//! What stands for certificates in a build without TLS: types that have no values, so that options, links and
//! log-ins have the same fields in all builds.

use std::{convert::Infallible, marker::PhantomData, ops::Deref, path::Path};

use crate::{Error, Scheme};

/// A certificate; a build without TLS has none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateDer<'a>(Infallible, PhantomData<&'a [u8]>);

impl Deref for CertificateDer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0 {}
    }
}

/// A server's certificate chain and private key; a build without TLS has none.
#[derive(Clone, Debug)]
pub struct ServerIdentity(Infallible);

impl ServerIdentity {
    /// Nothing here could use what is in the files.
    ///
    /// # Errors
    /// [`Error::NotBuiltIn`].
    pub fn from_pem_files(_: impl AsRef<Path>, _: impl AsRef<Path>) -> Result<Self, Error> {
        let scheme = Scheme::Tls;
        Err(Error::NotBuiltIn { scheme })
    }

    /// The files of the chain and of the key.
    #[must_use]
    pub fn files(&self) -> Option<(&Path, &Path)> {
        match self.0 {}
    }
}
