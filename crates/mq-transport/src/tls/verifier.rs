//! The verifier of a server's certificate.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{
    identity::{hex, parse_authorities, read_file},
    provider::sha256,
};
use crate::{Error, Trust};

impl Trust {
    pub(crate) fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ServerCertVerifier>, Error> {
        let unchained = |fingerprint| {
            Arc::new(Unchained {
                provider: provider.clone(),
                fingerprint,
            })
        };
        let roots = match self {
            Self::System => {
                let mut roots = RootCertStore::empty();
                let loaded = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(loaded.certs);
                if roots.is_empty() {
                    return Err(Error::InvalidOption {
                        option: "trust",
                        value: "the system's roots".into(),
                        remedy: "this system has none; give a CA file".into(),
                    });
                }
                roots
            }
            Self::CaFile(path) => parse_authorities("CA", path, &read_file("CA", path)?)?,
            Self::Fingerprint(text) => {
                let wanted: String = text.chars().filter(|c| *c != ':').collect();
                if wanted.len() != 64 || !wanted.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(Error::InvalidOption {
                        option: "certificate fingerprint",
                        value: format!("`{text}`"),
                        remedy: "give a SHA-256 as 64 hexadecimal digits".into(),
                    });
                }
                return Ok(unchained(Some(wanted.to_ascii_lowercase())));
            }
            Self::Insecure => {
                tracing::warn!("tls: server certificates are not verified");
                return Ok(unchained(None));
            }
        };
        let built = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
        let verifier = built.build().map_err(|error| Error::InvalidOption {
            option: "trust",
            value: "used".into(),
            remedy: error.to_string(),
        })?;
        Ok(verifier)
    }
}

/// Checks no chain. Checks that the server has the key of its certificate, and, with a fingerprint, that
/// the certificate has it.
#[derive(Debug)]
struct Unchained {
    provider: Arc<CryptoProvider>,
    fingerprint: Option<String>,
}

impl ServerCertVerifier for Unchained {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.fingerprint {
            Some(wanted) if *wanted != hex(&sha256(end_entity)) => Err(
                rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer),
            ),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
