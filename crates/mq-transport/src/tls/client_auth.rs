//! Clients' certificates: their authorities and their revocation lists.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    crypto::CryptoProvider,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::CertificateRevocationListDer;

use super::identity::{invalid_file, parse_authorities, parse_pem, read_file};
use crate::{ClientAuth, Error, ListenOptions};

const CA: &str = "client CA";
const CRL: &str = "certificate revocation list";

/// The files that decide about clients' certificates, each read once, so that the verifier and the
/// tickets' scope rest on the same bytes.
pub(crate) struct ClientAuthFiles {
    required: bool,
    authorities: (PathBuf, Vec<u8>),
    crls: Vec<(PathBuf, Vec<u8>)>,
    enforce_expiry: bool,
}

impl ClientAuthFiles {
    /// Reads the files; `None` where clients are not asked for certificates.
    pub(crate) fn read(options: &ListenOptions) -> Result<Option<Self>, Error> {
        let (required, path) = match &options.client_auth {
            ClientAuth::Off if options.client_crls.is_empty() => return Ok(None),
            ClientAuth::Off => {
                return Err(Error::InvalidOption {
                    option: "list of revoked client certificates",
                    value: "given where clients are not asked for certificates".into(),
                    remedy: "give a client CA as well".into(),
                });
            }
            ClientAuth::Optional(path) => (false, path),
            ClientAuth::Required(path) => (true, path),
        };
        let read = |what, path: &Path| Ok::<_, Error>((path.to_owned(), read_file(what, path)?));
        let crls = options.client_crls.iter().map(|path| read(CRL, path));
        Ok(Some(Self {
            required,
            authorities: read(CA, path)?,
            crls: crls.collect::<Result<_, _>>()?,
            enforce_expiry: options.enforce_crl_expiry,
        }))
    }

    /// Returns the bytes that tickets rest on, part by part.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let policy: &[u8] = match (self.required, self.enforce_expiry) {
            (false, false) => &[1],
            (true, false) => &[2],
            (false, true) => &[3],
            (true, true) => &[4],
        };
        let crls = self.crls.iter().map(|(_, bytes)| bytes.as_slice());
        [policy, &self.authorities.1].into_iter().chain(crls)
    }

    /// Makes the verifier of clients' certificates.
    ///
    /// With revocation lists, each certificate from the client's up to its CA needs a list of its
    /// issuer that does not revoke it. A chain with a certificate without a list is refused, as OpenSSL
    /// does it.
    pub(crate) fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        let (path, text) = &self.authorities;
        let roots = Arc::new(parse_authorities(CA, path, text)?);
        let new = || WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let mut lists = Vec::new();
        for (path, bytes) in &self.crls {
            let of_file = parse_crls(path, bytes)?;
            // By itself first, so that the error can name the file.
            let alone = new().with_crls(of_file.clone()).build();
            alone.map_err(|error| invalid_file(CRL, path, &error))?;
            lists.extend(of_file);
        }
        let mut verifier = new().with_crls(lists);
        if self.enforce_expiry {
            verifier = verifier.enforce_revocation_expiration();
        }
        if !self.required {
            verifier = verifier.allow_unauthenticated();
        }
        verifier
            .build()
            .map_err(|error| invalid_file(CA, path, &error))
    }
}

/// Parses a PEM file with any number of lists, or a single list in DER form, as CAs publish them
/// (RFC 5280 §4.2.1.13).
fn parse_crls(
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
    /// First byte of a DER `SEQUENCE`, which no PEM text begins with.
    const SEQUENCE: u8 = 0x30;
    const LONG: u8 = 0x80;
    match bytes {
        [SEQUENCE, length, ..] if *length >= LONG => {
            Ok(vec![CertificateRevocationListDer::from(bytes.to_vec())])
        }
        _ => parse_pem(CRL, path, bytes),
    }
}
