//! The provider of cryptography, with what the options allow; SHA-256 and the key log.

use std::sync::Arc;

use rustls::{
    NamedGroup, SupportedProtocolVersion, Tls13CipherSuite,
    crypto::{CryptoProvider, SupportedKxGroup},
};

use crate::{CipherSuite, CryptoOptions, Error, KeyExchangeGroup, TlsVersion};

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!(
    "mq-transport with `tls` or `quic` needs one of its features `aws-lc-rs` and `ring`"
);

#[cfg(feature = "aws-lc-rs")]
use rustls::crypto::aws_lc_rs as backend;
#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
use rustls::crypto::ring as backend;

impl CipherSuite {
    fn matches(self, suite: rustls::CipherSuite) -> bool {
        let name = suite.as_str().unwrap_or_default();
        name.contains(match self {
            Self::Aes128Gcm => "AES_128_GCM",
            Self::Aes256Gcm => "AES_256_GCM",
            Self::ChaCha20Poly1305 => "CHACHA20_POLY1305",
        })
    }
}

impl KeyExchangeGroup {
    fn find(self) -> Option<&'static dyn SupportedKxGroup> {
        let name = match self {
            Self::X25519 => NamedGroup::X25519,
            Self::Secp256r1 => NamedGroup::secp256r1,
            Self::X25519MlKem768 => NamedGroup::X25519MLKEM768,
        };
        let mut groups = backend::ALL_KX_GROUPS.iter();
        groups.find(|group| group.name() == name).copied()
    }
}

/// Draws the first random number of the process. aws-lc gathers entropy for it, which takes a processor some 70 ms: when a
/// configuration of TLS is made, and not in the first handshake.
pub(super) fn seed(provider: &CryptoProvider) -> Result<(), Error> {
    let drawn = provider.secure_random.fill(&mut [0]);
    drawn.map_err(|_| Error::tls(rustls::Error::FailedToGetRandomBytes))
}

impl CryptoOptions {
    /// Makes a provider with only what these options allow, in their order.
    pub(crate) fn provider(&self) -> Result<Arc<CryptoProvider>, Error> {
        let mut provider = backend::default_provider();
        let mut wanted = self.cipher_suites.clone();
        if !wanted.contains(&CipherSuite::Aes128Gcm) {
            wanted.push(CipherSuite::Aes128Gcm);
        }
        let all = std::mem::take(&mut provider.cipher_suites);
        for cipher in wanted {
            let matching = all.iter().filter(|suite| cipher.matches(suite.suite()));
            provider.cipher_suites.extend(matching);
        }
        provider.kx_groups = self
            .key_exchange_groups
            .iter()
            .map(|group| {
                group.find().ok_or_else(|| Error::InvalidOption {
                    option: "key-exchange group",
                    value: group.to_string(),
                    remedy: "this build's cryptography lacks it; build with aws-lc-rs".into(),
                })
            })
            .collect::<Result<_, _>>()?;
        if provider.kx_groups.is_empty() {
            return Err(Error::InvalidOption {
                option: "key-exchange groups",
                value: "empty".into(),
                remedy: "list at least x25519".into(),
            });
        }
        Ok(Arc::new(provider))
    }

    /// Opens the file for session secrets that `SSLKEYLOGFILE` names; `None` if [`key_log`](field@Self::key_log) is
    /// off.
    ///
    /// rustls' own key log is silent about a file that is not named or cannot be opened.
    pub(crate) fn key_log(&self) -> Result<Option<Arc<dyn rustls::KeyLog>>, Error> {
        if !self.key_log {
            return Ok(None);
        }
        let path = std::env::var_os("SSLKEYLOGFILE").filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| Error::InvalidOption {
            option: "key log",
            value: "written: SSLKEYLOGFILE is not set".into(),
            remedy: "set it to the file that the secrets go to".into(),
        })?;
        let mut options = std::fs::OpenOptions::new();
        options.append(true).create(true);
        // The secrets in it are for the owner alone.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path).map_err(|source| Error::InvalidOption {
            option: "key log",
            value: format!(
                "written to SSLKEYLOGFILE, `{}` ({source})",
                path.to_string_lossy()
            ),
            remedy: "name a file that can be written".into(),
        })?;
        Ok(Some(Arc::new(rustls::KeyLogFile::new())))
    }

    /// Returns the versions to offer over TCP.
    pub(crate) fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, Error> {
        let range = self.min_version..=self.max_version;
        if range.is_empty() {
            return Err(Error::InvalidOption {
                option: "minimum TLS version",
                value: self.min_version.to_string(),
                remedy: format!("it is above the maximum, {}", self.max_version),
            });
        }
        let all = [
            (TlsVersion::Tls13, &rustls::version::TLS13),
            (TlsVersion::Tls12, &rustls::version::TLS12),
        ];
        let offered = all
            .into_iter()
            .filter(|(version, _)| range.contains(version));
        Ok(offered.map(|(_, version)| version).collect())
    }
}

/// Computes SHA-256, by the provider of TLS.
pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    let hash = with_sha256().common.hash_provider.hash(data);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Returns the suite whose parts hash by SHA-256.
pub(crate) fn with_sha256() -> &'static Tls13CipherSuite {
    let suite = backend::cipher_suite::TLS13_AES_128_GCM_SHA256;
    suite.tls13().expect("it is a TLS 1.3 suite")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aes_128_is_always_offered_and_the_order_is_kept() {
        let options = CryptoOptions {
            cipher_suites: vec![CipherSuite::ChaCha20Poly1305],
            ..CryptoOptions::default()
        };
        let suites = options.provider().unwrap().cipher_suites.clone();
        assert!(CipherSuite::ChaCha20Poly1305.matches(suites[0].suite()));
        assert!(
            suites
                .iter()
                .any(|suite| CipherSuite::Aes128Gcm.matches(suite.suite()))
        );
        assert!(
            !suites
                .iter()
                .any(|suite| CipherSuite::Aes256Gcm.matches(suite.suite()))
        );
    }

    #[test]
    fn an_empty_range_of_versions_is_refused() {
        let options = CryptoOptions {
            min_version: TlsVersion::Tls13,
            max_version: TlsVersion::Tls12,
            ..CryptoOptions::default()
        };
        assert!(options.versions().is_err());
    }
}
