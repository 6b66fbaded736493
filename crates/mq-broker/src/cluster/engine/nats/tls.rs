//! TLS to the servers, by the cryptography that the broker is built with.

use std::{fmt::Display, path::Path, sync::Arc};

#[cfg(feature = "aws-lc-rs")]
use async_nats::rustls::crypto::aws_lc_rs as backend;
#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
use async_nats::rustls::crypto::ring as backend;
use async_nats::rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use super::NatsSettings;

/// Makes the TLS configuration: the authorities that servers are checked against, and this node's own certificate.
/// Without `tls` no authority is trusted: whatever asks for TLS then does so in plain text, and could be anybody.
///
/// # Errors
/// The mistake, in words for the operator.
pub(super) fn config(settings: &NatsSettings, tls: bool) -> Result<ClientConfig, String> {
    let roots = if tls {
        roots(settings.ca.as_deref())?
    } else {
        RootCertStore::empty()
    };
    let provider = Arc::new(backend::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let builder = builder.with_root_certificates(roots);
    let Some((certificate, key)) = &settings.identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("certificate", certificate)?;
    let read = PrivateKeyDer::from_pem_file(key);
    let read = read.map_err(|error| wrong("key", key, error))?;
    let config = builder.with_client_auth_cert(chain, read);
    config.map_err(|error| wrong("certificate", certificate, error))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let problem = "ca: this system has no authorities: name those of the servers";
            return Err(problem.to_owned());
        }
        return Ok(roots);
    };
    for certificate in certificates("ca", path)? {
        let added = roots.add(certificate);
        added.map_err(|error| wrong("ca", path, error))?;
    }
    Ok(roots)
}

/// Reads the certificates in a file; at least one.
fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(|error| wrong(key, path, error))?;
    if read.is_empty() {
        return Err(wrong(key, path, "the file has no certificate"));
    }
    Ok(read)
}

fn wrong(key: &str, path: &Path, problem: impl Display) -> String {
    format!("{key}: {}: {problem}", path.display())
}
