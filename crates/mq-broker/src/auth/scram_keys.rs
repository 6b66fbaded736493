//! The keys of SCRAM-SHA-256 (RFC 5802 §3): what a password file keeps instead of a password.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{
    hash_text::{decode, number, three},
    unknown_users::Secret,
};

/// The name of this kind in a password file's line.
pub(super) const NAME: &str = "scram-sha-256";

/// Iterations of new keys: four times RFC 7677's minimum, and still only some 30 ms for a client on
/// a Raspberry Pi 3.
pub(super) const ITERATIONS: u32 = 16_384;

/// Iterations that a file may ask for, from RFC 7677's minimum on.
const ALLOWED: std::ops::RangeInclusive<u32> = 4096..=1_000_000;

pub(super) type Key = [u8; 32];

/// The server's keys for a password (RFC 5802 §3): enough to verify it, not enough to log in with.
#[derive(Clone)]
pub(super) struct StoredKeys {
    pub(super) iterations: u32,
    pub(super) salt: Vec<u8>,
    pub(super) stored: Key,
    pub(super) server: Key,
}

/// Returns `true` if a name or password is printable ASCII, so that client and server read it
/// alike.
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

pub(super) fn mac(key: &[u8], parts: &[&[u8]]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

pub(super) fn hash(key: &Key) -> Key {
    Sha256::digest(key).into()
}

impl StoredKeys {
    pub(super) fn derive(password: &str, salt: &[u8], iterations: u32) -> Self {
        let mut salted = Key::default();
        pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), salt, iterations, &mut salted);
        Self {
            iterations,
            salt: salt.to_vec(),
            stored: hash(&mac(&salted, &[b"Client Key"])),
            server: mac(&salted, &[b"Server Key"]),
        }
    }

    /// Reads `iterations$salt$stored$server`, binary parts in base64.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (first, server) = text.rsplit_once('$').ok_or("the keys are cut short")?;
        let (iterations, salt, stored) = three(first)?;
        let key = |text: &str| {
            Key::try_from(decode(text)?).map_err(|_| "a key is not of 32 bytes".to_owned())
        };
        Ok(Self {
            iterations: number(iterations, ALLOWED)?,
            salt: Some(decode(salt)?)
                .filter(|salt| !salt.is_empty())
                .ok_or("the salt is missing")?,
            stored: key(stored)?,
            server: key(server)?,
        })
    }

    /// Returns `true` if that is the password, for a client that sends it in CONNECT.
    pub(super) fn verify(&self, password: &str) -> bool {
        let own = Self::derive(password, &self.salt, self.iterations);
        own.stored.ct_eq(&self.stored).into()
    }

    /// Returns the properties of the keys that a client sees, without the salt itself.
    pub(super) fn kind(&self) -> String {
        format!("scram {} {}", self.iterations, self.salt.len())
    }

    /// Returns keys for an unknown user. They look like this user's, are the same each time, and
    /// match no password.
    pub(super) fn stand_in(&self, secret: &Secret, user: &str) -> Self {
        // Another kind has another salt, as if the password had been set anew.
        let part = |what: &str| secret.derive(&format!("{what} {}", self.kind()), user);
        let mut salt = Vec::with_capacity(self.salt.len() + 32);
        for number in 0.. {
            if salt.len() >= self.salt.len() {
                break;
            }
            salt.extend_from_slice(&part(&format!("salt {number}")));
        }
        salt.truncate(self.salt.len());
        Self {
            iterations: self.iterations,
            salt,
            stored: part("stored"),
            server: part("server"),
        }
    }
}

/// Writes the keys as in a line of a password file, after the user.
impl fmt::Display for StoredKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            iterations,
            salt,
            stored,
            server,
        } = self;
        let [salt, stored, server] = [&salt[..], stored, server].map(|part| STANDARD.encode(part));
        write!(f, "${NAME}${iterations}${salt}${stored}${server}")
    }
}
