//! Servers that a client trusts.

use std::path::PathBuf;

/// Server certificates that a client accepts; by default [`System`](Self::System).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Trust {
    /// Certificates under one of the system's roots.
    #[default]
    System,
    /// Certificates under one of the certificates in this PEM file.
    CaFile(PathBuf),
    /// The certificate whose DER form has this SHA-256, as 64 hexadecimal digits with or
    /// without colons. Its names and dates are not checked.
    Fingerprint(String),
    /// Any certificate. Traffic is then secret from eavesdroppers, not from an active attacker.
    Insecure,
}

impl Trust {
    /// Makes a [`CaFile`](Self::CaFile) with a path of any kind.
    #[must_use]
    pub fn ca_file(path: impl Into<PathBuf>) -> Self {
        Self::CaFile(path.into())
    }
}
