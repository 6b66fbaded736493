//! Stand-ins for unknown users, so that a client cannot find out which users exist.
//!
//! The broker answers a log-in of an unknown user like one with a wrong password, in the same way
//! and as slowly. The kind of a user's hash still shows: SCRAM's iterations and the length of its
//! salt, and the time that a check takes. So an unknown user has a kind as well, each kind as often
//! as among the known users. It is chosen by the name and a secret alone, which has two effects:
//!
//! - a repeated log-in gets the same answer, also after the file was read again;
//! - where users are added and removed, few unknown users change their kind (rendezvous hashing),
//!   and one that does gets another salt, like a user whose password was set anew.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The prefix of the password file's line that has the secret; other readers take it for a comment.
pub(super) const LINE: &str = "#stand-in:";

/// Secret key of 32 bytes, from which the answers for unknown users are derived. Whoever knows it can predict these
/// answers.
#[derive(Clone)]
pub(super) struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Kind of password hash that some users have, with the number of these users.
#[derive(Debug)]
pub(super) struct Kind {
    /// The properties that all hashes of the kind share.
    pub(super) label: String,
    /// The number of users with such a hash.
    pub(super) users: u32,
    /// The index of the kind's first hash.
    pub(super) first: usize,
}

impl Secret {
    pub(super) fn random() -> Self {
        Self(rand::random())
    }

    /// Parses the secret after [`LINE`]; `None` if it is malformed.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let bytes = STANDARD_NO_PAD.decode(text.trim()).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// Returns the line, without its end.
    pub(super) fn line(&self) -> String {
        format!("{LINE}{}", STANDARD_NO_PAD.encode(self.0))
    }

    /// Derives bytes for a name and a purpose.
    pub(super) fn derive(&self, purpose: &str, name: &str) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // No purpose has a zero byte, so that no two pairs are the same.
        for part in [purpose.as_bytes(), b"\0", name.as_bytes()] {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Chooses the kind of an unknown user, each with the probability of its share of users; `None`
    /// if there is none.
    pub(super) fn choose<'a>(
        &self,
        name: &str,
        kinds: impl Iterator<Item = &'a Kind>,
    ) -> Option<&'a Kind> {
        // Weighted rendezvous hashing: the least of exponentially distributed numbers.
        let score = |kind: &Kind| {
            let [a, b, c, d, ..] = self.derive(&kind.label, name);
            let uniform = (f64::from(u32::from_be_bytes([a, b, c, d])) + 0.5) / 2_f64.powi(32);
            -uniform.ln() / f64::from(kind.users)
        };
        kinds.min_by(|one, other| score(one).total_cmp(&score(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(label: &str, users: u32) -> Kind {
        Kind {
            label: label.to_owned(),
            users,
            first: 0,
        }
    }

    #[test]
    fn kinds_are_as_frequent_as_among_users_and_few_change_with_them() {
        let secret = Secret([7; 32]);
        let chosen = |kinds: &[Kind]| -> Vec<String> {
            (0..4_000)
                .map(|name| secret.choose(&name.to_string(), kinds.iter()).unwrap())
                .map(|kind| kind.label.clone())
                .collect()
        };
        let before = chosen(&[kind("a", 30), kind("b", 10)]);
        let share = before.iter().filter(|label| *label == "b").count();
        assert!(
            (900..1_100).contains(&share),
            "{share} of 4000 and not 1000"
        );
        let after = chosen(&[kind("a", 30), kind("b", 11)]);
        let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert!(changed < 150, "{changed} of 4000");
        assert!(secret.choose("x", [].iter()).is_none());
    }

    #[test]
    fn a_secret_is_read_as_it_is_written() {
        let secret = Secret::random();
        let line = secret.line();
        let read = Secret::parse(line.strip_prefix(LINE).unwrap()).unwrap();
        assert_eq!(read.derive("p", "n"), secret.derive("p", "n"));
        assert_ne!(secret.derive("p", "n"), secret.derive("p", "m"));
        assert!(Secret::parse("c2hvcnQ").is_none());
    }
}
