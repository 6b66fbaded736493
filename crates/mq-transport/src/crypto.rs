//! Which cryptography is offered: the provider, cipher suites, key-exchange groups, versions.

use std::{fmt, str::FromStr, sync::Arc};

use rustls::{
    NamedGroup, SupportedProtocolVersion, Tls13CipherSuite,
    crypto::{CryptoProvider, SupportedKxGroup, tls13::OkmBlock},
};

use crate::Error;

#[cfg(not(any(feature = "aws-lc-rs", feature = "ring")))]
compile_error!("mq-transport needs one of its features `aws-lc-rs` and `ring`");

#[cfg(feature = "aws-lc-rs")]
use rustls::crypto::aws_lc_rs as backend;
#[cfg(all(feature = "ring", not(feature = "aws-lc-rs")))]
use rustls::crypto::ring as backend;

/// A bulk cipher, for TLS 1.3 and for the suites of TLS 1.2 that have it.
///
/// As text: `aes128-gcm`, `aes256-gcm`, `chacha20-poly1305`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CipherSuite {
    /// AES-128-GCM; always offered, because QUIC's first packets need it (RFC 9001 §5.2).
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305: the fast one where the CPU has no AES instructions.
    ChaCha20Poly1305,
}

impl CipherSuite {
    /// All suites, the one that suits this CPU first.
    ///
    /// The client's order decides. Without AES instructions (Cortex-A53 of a Raspberry Pi 3)
    /// ChaCha20-Poly1305 is several times faster than AES.
    #[must_use]
    pub fn preferred() -> Vec<Self> {
        if has_aes_instructions() {
            vec![Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305]
        } else {
            vec![Self::ChaCha20Poly1305, Self::Aes128Gcm, Self::Aes256Gcm]
        }
    }

    fn matches(self, suite: rustls::CipherSuite) -> bool {
        let name = suite.as_str().unwrap_or_default();
        name.contains(match self {
            Self::Aes128Gcm => "AES_128_GCM",
            Self::Aes256Gcm => "AES_256_GCM",
            Self::ChaCha20Poly1305 => "CHACHA20_POLY1305",
        })
    }
}

fn has_aes_instructions() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    return false;
}

/// A key-exchange group. As text: `x25519`, `secp256r1`, `x25519mlkem768`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyExchangeGroup {
    /// Curve25519.
    X25519,
    /// NIST P-256.
    Secp256r1,
    /// Post-quantum hybrid; only with aws-lc-rs. Adds about 1.2 kB to each side's first flight,
    /// so one more datagram on QUIC, and no round trip.
    X25519MlKem768,
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

/// A TLS version; QUIC is always TLS 1.3 (RFC 9001 §4.2). As text: `1.2`, `1.3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TlsVersion {
    /// TLS 1.2: no early data.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// What is offered in handshakes; the same options on client and server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CryptoOptions {
    /// Cipher suites in order of preference; the client's order decides. Default:
    /// [`CipherSuite::preferred`]. AES-128-GCM is appended where it is missing.
    pub cipher_suites: Vec<CipherSuite>,
    /// Key-exchange groups in order of preference; the client offers a key for the first. Default:
    /// X25519 alone, so that every comparison of transports uses the same exchange.
    pub key_exchange_groups: Vec<KeyExchangeGroup>,
    /// The oldest TLS version over TCP. Default: 1.2, which small devices still have.
    pub min_version: TlsVersion,
    /// The newest TLS version over TCP. Default: 1.3.
    pub max_version: TlsVersion,
    /// Write session secrets to the file that `SSLKEYLOGFILE` names, for Wireshark. Default: no,
    /// as whoever reads that file reads the traffic. It is an error if none is named or the file
    /// cannot be written.
    pub key_log: bool,
}

impl Default for CryptoOptions {
    fn default() -> Self {
        Self {
            cipher_suites: CipherSuite::preferred(),
            key_exchange_groups: vec![KeyExchangeGroup::X25519],
            min_version: TlsVersion::Tls12,
            max_version: TlsVersion::Tls13,
            key_log: false,
        }
    }
}

impl CryptoOptions {
    /// The provider with only what these options allow, in their order.
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

    /// Where session secrets are written; `None` where they are not.
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
        // What it will hold is for the owner alone.
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

    /// The versions to offer over TCP.
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

/// Implements `Display` and `FromStr` from one table of names.
macro_rules! names {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+ $(,)?) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),+ })
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                match text.to_ascii_lowercase().as_str() {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(Error::InvalidOption {
                        option: $what,
                        value: format!("`{text}`"),
                        remedy: format!("use one of {}", [$($name),+].join(", ")),
                    }),
                }
            }
        }
    };
}
pub(crate) use names;

names!(
    CipherSuite,
    "cipher suite",
    Aes128Gcm = "aes128-gcm",
    Aes256Gcm = "aes256-gcm",
    ChaCha20Poly1305 = "chacha20-poly1305",
);
names!(
    KeyExchangeGroup,
    "key-exchange group",
    X25519 = "x25519",
    Secp256r1 = "secp256r1",
    X25519MlKem768 = "x25519mlkem768",
);
names!(TlsVersion, "TLS version", Tls12 = "1.2", Tls13 = "1.3");

/// SHA-256, from the provider that is there anyway.
pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    let hash = with_sha256().common.hash_provider.hash(data);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// A key for HMAC-SHA-256.
pub(crate) struct HmacKey(OkmBlock);

impl HmacKey {
    /// Derives one from a secret, of its own for each `purpose` (HKDF, RFC 5869): it tells nothing of
    /// the secret.
    pub(crate) fn derive(secret: &[u8], purpose: &[u8]) -> Self {
        let hkdf = with_sha256().hkdf_provider;
        Self(
            hkdf.extract_from_secret(None, secret)
                .expand_block(&[purpose]),
        )
    }

    pub(crate) fn sign(&self, data: &[u8]) -> [u8; 32] {
        let tag = with_sha256().hkdf_provider.hmac_sign(&self.0, data);
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

fn with_sha256() -> &'static Tls13CipherSuite {
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
    fn unknown_names_are_answered_with_the_known_ones() {
        let error = "rc4".parse::<CipherSuite>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "cipher suite cannot be `rc4`: use one of aes128-gcm, aes256-gcm, chacha20-poly1305"
        );
        assert_eq!(
            "X25519".parse::<KeyExchangeGroup>().unwrap(),
            KeyExchangeGroup::X25519
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
