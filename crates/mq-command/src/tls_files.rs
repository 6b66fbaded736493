//! The files of certificates that commands take.

use std::path::PathBuf;

use mq_transport::{ClientIdentity, ConnectOptions, Trust};

/// Sets the certificates of brokers that are trusted, as `--cafile` and `--insecure` say.
pub(crate) fn trust(options: &mut ConnectOptions, cafile: Option<&PathBuf>, insecure: bool) {
    if let Some(file) = cafile {
        options.trust = Trust::CaFile(file.clone());
    }
    if insecure {
        options.trust = Trust::Insecure;
    }
}

/// Sets the files of the client's certificate and key, if they are given.
pub(crate) fn identity(options: &mut ConnectOptions, files: Option<(&PathBuf, &PathBuf)>) {
    options.identity = files.map(|(certificates, key)| ClientIdentity::new(certificates, key));
}
