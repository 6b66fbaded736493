//! Cryptography that a link offers: cipher suites, key-exchange groups and TLS versions.

use std::{fmt, str::FromStr};

use crate::Error;

/// A bulk cipher, for TLS 1.3 and for those suites of TLS 1.2 that use it.
///
/// As text: `aes128-gcm`, `aes256-gcm`, `chacha20-poly1305`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CipherSuite {
    /// AES-128-GCM; always offered, because QUIC's first packets need it (RFC 9001 §5.2).
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305: the fastest where the CPU has no AES instructions.
    ChaCha20Poly1305,
}

impl CipherSuite {
    /// Returns all suites, the fastest on this CPU first.
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
#[non_exhaustive]
pub enum KeyExchangeGroup {
    /// Curve25519.
    X25519,
    /// NIST P-256.
    Secp256r1,
    /// Post-quantum hybrid; only with aws-lc-rs. Adds about 1.2 kB to each side's first flight,
    /// so one more datagram on QUIC, and no round trip.
    X25519MlKem768,
}

/// A TLS version; QUIC is always TLS 1.3 (RFC 9001 §4.2). As text: `1.2`, `1.3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2: no early data.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// TLS settings of a client or a server: cipher suites, key exchange groups, versions.
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
    /// as a reader of that file can read the traffic. It is an error if the variable names no file, or
    /// if the file cannot be written.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
