//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the client's side, without channel binding.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::{AuthError, AuthMethod};

/// The iterations that a server may ask for: at least as many as RFC 7677 demands, against guessing, and
/// at most some seconds of work.
const ITERATIONS: std::ops::RangeInclusive<u32> = 4096..=1_000_000;

/// Bytes of the client's part of the nonce, before base64.
const NONCE_LEN: usize = 18;

type Key = [u8; 32];

/// A user, its password, and the state of an exchange.
pub(crate) struct Scram {
    /// The user name, escaped (RFC 5802 §5.1).
    user: String,
    password: String,
    nonce: String,
    /// The bare client-first message, `n=user,r=nonce`.
    first: String,
    /// The signature by which the server has to prove itself.
    expected: Option<Key>,
    /// The last keys derived from the password: deriving is slow on purpose.
    derived: Option<Derived>,
}

#[derive(Clone)]
struct Derived {
    salt: Vec<u8>,
    iterations: u32,
    client: Key,
    server: Key,
}

impl Scram {
    /// Makes the method; `None` if the user name or the password is not printable ASCII, which the two sides could
    /// read differently.
    pub(crate) fn new(user: &str, password: &str) -> Option<Self> {
        let is_plain =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        (is_plain(user) && is_plain(password)).then(|| Self {
            user: user.replace('=', "=3D").replace(',', "=2C"),
            password: password.to_owned(),
            nonce: String::new(),
            first: String::new(),
            expected: None,
            derived: None,
        })
    }

    fn begin(&mut self, nonce: String) -> Bytes {
        self.first = format!("n={},r={nonce}", self.user);
        self.nonce = nonce;
        self.expected = None;
        format!("n,,{}", self.first).into()
    }

    fn derive(&mut self, salt: Vec<u8>, iterations: u32) -> &Derived {
        let known = self.derived.take();
        let known = known.filter(|known| known.salt == salt && known.iterations == iterations);
        let derived = known.unwrap_or_else(|| {
            let mut salted = Key::default();
            pbkdf2::pbkdf2_hmac::<Sha256>(self.password.as_bytes(), &salt, iterations, &mut salted);
            Derived {
                client: mac(&salted, b"Client Key"),
                server: mac(&salted, b"Server Key"),
                salt,
                iterations,
            }
        });
        self.derived.insert(derived)
    }
}

fn mac(key: &Key, text: &[u8]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

impl AuthMethod for Scram {
    fn name(&self) -> &'static str {
        "SCRAM-SHA-256"
    }

    fn start(&mut self) -> Result<Option<Bytes>, AuthError> {
        let nonce = STANDARD.encode(rand::random::<[u8; NONCE_LEN]>());
        Ok(Some(self.begin(nonce)))
    }

    fn step(&mut self, data: &[u8]) -> Result<Bytes, AuthError> {
        let wrong = || AuthError::new("SCRAM: the server's message is not valid");
        if self.expected.is_some() {
            return Err(wrong());
        }
        let said = std::str::from_utf8(data).map_err(|_| wrong())?;
        let (nonce, rest) = said
            .strip_prefix("r=")
            .and_then(|rest| rest.split_once(",s="))
            .ok_or_else(wrong)?;
        let (salt, rest) = rest.split_once(",i=").ok_or_else(wrong)?;
        let iterations = rest.split(',').next().and_then(|text| text.parse().ok());
        let iterations: u32 = iterations.ok_or_else(wrong)?;
        let salt = STANDARD.decode(salt).map_err(|_| wrong())?;
        // The server has to extend the nonce, or an old exchange could be replayed.
        let is_fresh = nonce.len() > self.nonce.len() && nonce.starts_with(&self.nonce);
        if !is_fresh || salt.is_empty() {
            return Err(wrong());
        }
        if !ITERATIONS.contains(&iterations) {
            return Err(AuthError::new(format!(
                "SCRAM: the server asks for {iterations} iterations, and {} to {} are reasonable",
                ITERATIONS.start(),
                ITERATIONS.end()
            )));
        }
        // "biws" is `n,,` in base64.
        let without_proof = format!("c=biws,r={nonce}");
        let transcript = format!("{},{said},{without_proof}", self.first);
        let Derived { client, server, .. } = self.derive(salt, iterations).clone();
        let stored: Key = Sha256::digest(client).into();
        let mut proof = mac(&stored, transcript.as_bytes());
        for (byte, mask) in proof.iter_mut().zip(client) {
            *byte ^= mask;
        }
        self.expected = Some(mac(&server, transcript.as_bytes()));
        Ok(format!("{without_proof},p={}", STANDARD.encode(proof)).into())
    }

    fn finish(&mut self, data: Option<&[u8]>) -> Result<(), AuthError> {
        let signature = data.and_then(|data| data.strip_prefix(b"v="));
        let signature = signature.and_then(|text| STANDARD.decode(text).ok());
        let is_right = match (self.expected.take(), signature) {
            (Some(expected), Some(signature)) => expected[..].ct_eq(&signature).into(),
            _ => false,
        };
        if is_right {
            Ok(())
        } else {
            Err(AuthError::new(
                "SCRAM: the server does not know the password, so it is not the right one",
            ))
        }
    }
}

/// Leaves the password out.
impl fmt::Debug for Scram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scram")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's first message in the example of RFC 7677 §3.
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                                s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                                p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn begun() -> Scram {
        let mut scram = Scram::new("user", "pencil").unwrap();
        let first = scram.begin("rOprNGfwEbeRWgbNEkqO".to_owned());
        assert_eq!(first, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        scram
    }

    #[test]
    fn the_example_of_rfc_7677_goes_through_again_and_again() {
        let mut scram = begun();
        for _ in 0..2 {
            scram.begin("rOprNGfwEbeRWgbNEkqO".to_owned());
            assert_eq!(scram.step(SERVER_FIRST.as_bytes()).unwrap(), CLIENT_FINAL);
            scram.finish(Some(SERVER_FINAL.as_bytes())).unwrap();
        }
        assert!(!format!("{scram:?}").contains("pencil"));
    }

    #[test]
    fn a_server_that_does_not_know_the_password_is_found_out() {
        for last in [
            None,
            Some(&b""[..]),
            Some(b"v="),
            Some(b"v=AAAA"),
            Some(b"e=other"),
        ] {
            let mut scram = begun();
            scram.step(SERVER_FIRST.as_bytes()).unwrap();
            assert!(scram.finish(last).is_err(), "{last:?}");
        }
        assert!(
            begun().finish(Some(SERVER_FINAL.as_bytes())).is_err(),
            "no step"
        );
    }

    #[test]
    fn an_invalid_or_unreasonable_challenge_is_refused() {
        for (from, to) in [
            ("rOpr", "x"),
            ("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ""),
            ("i=4096", "i=1"),
            ("i=4096", "i=4294967295"),
            ("i=4096", "i=x"),
            ("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
            (",s=", ",t="),
        ] {
            let asked = SERVER_FIRST.replace(from, to);
            assert!(begun().step(asked.as_bytes()).is_err(), "{asked}");
        }
        let mut scram = begun();
        scram.step(SERVER_FIRST.as_bytes()).unwrap();
        assert!(scram.step(SERVER_FIRST.as_bytes()).is_err(), "twice");
    }

    #[test]
    fn names_are_escaped_and_ascii() {
        let mut scram = Scram::new("a,b=c", "x").unwrap();
        assert_eq!(scram.begin("r".to_owned()), "n,,n=a=2Cb=3Dc,r=r");
        assert!(Scram::new("ü", "x").is_none() && Scram::new("u", "ü").is_none());
        assert!(Scram::new("", "x").is_none() && Scram::new("u", "").is_none());
    }
}
