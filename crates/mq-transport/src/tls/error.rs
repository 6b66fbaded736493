//! Errors of rustls as errors of this crate.

use crate::Error;

impl Error {
    /// Puts a variant's name of rustls into plain words; over QUIC the name is all there is.
    pub(crate) fn certificate(reason: &str) -> Self {
        // The kind of the error stands in front of the name where rustls has no variant for it.
        let name = reason.rsplit([' ', '(', ':']).next().unwrap_or(reason);
        let (known, remedy) = match name.trim_end_matches(')') {
            "UnknownIssuer" | "BadSignature" => (
                "no trusted CA has signed it",
                "trust the CA that has, by its file",
            ),
            "Expired" => ("expired", "renew it, or set this machine's clock"),
            "NotValidYet" => ("not valid yet", "set this machine's clock"),
            "NotValidForName" => (
                "issued for another name",
                "connect by a name of the certificate, or issue one for this name",
            ),
            "Revoked" => ("revoked", "the peer needs another"),
            "UnknownRevocationStatus" => (
                "no revocation list is of the CA that signed it",
                "add a list of that CA",
            ),
            "CaUsedAsEndEntity" => (
                "marked as a CA's, as `openssl req -x509` does by default",
                "make it with `-addext basicConstraints=critical,CA:FALSE`",
            ),
            _ => (reason, "check the CA file, the server name and the clock"),
        };
        Self::CertificateRejected {
            reason: known.to_owned(),
            remedy,
        }
    }

    /// Puts an error of rustls into words: rustls' types are not this crate's interface.
    pub(crate) fn tls(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(reason) => Self::certificate(&reason.to_string()),
            other => Self::Handshake {
                reason: other.to_string(),
            },
        }
    }
}
