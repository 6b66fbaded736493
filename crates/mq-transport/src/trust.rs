//! Whom a client believes.

use std::path::PathBuf;

/// Which servers a client believes to be who they say; by default [`System`](Self::System).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Those with a certificate under one of the system's roots.
    #[default]
    System,
    /// Those with a certificate under one of the certificates in this PEM file.
    CaFile(PathBuf),
    /// The one whose certificate (DER form) has this SHA-256, as 64 hexadecimal digits with or
    /// without colons; its names and dates are not looked at.
    Fingerprint(String),
    /// Anyone. Traffic is then secret from listeners, not from an active attacker.
    Insecure,
}

impl Trust {
    /// [`CaFile`](Self::CaFile) with a path of any kind.
    #[must_use]
    pub fn ca_file(path: impl Into<PathBuf>) -> Self {
        Self::CaFile(path.into())
    }
}
