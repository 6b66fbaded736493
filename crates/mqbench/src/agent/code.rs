//! The code that a host's owner hands to a controller, by which the two know each other once.

use std::{fmt, str::FromStr};

use anyhow::bail;
use sha2::{Digest as _, Sha256};

const SECRET: usize = 10;
const FINGERPRINT: usize = 10;

/// A secret that the agent knows again, and the beginning of its certificate's SHA-256, by which the
/// controller knows the agent before it says the secret. 80 bits each, good for one enrolment.
///
/// As text: 40 hexadecimal digits in groups of four.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Code {
    secret: [u8; SECRET],
    fingerprint: [u8; FINGERPRINT],
}

impl Code {
    pub(super) fn new(secret: [u8; SECRET], certificate: &[u8]) -> Self {
        let mut fingerprint = [0; FINGERPRINT];
        fingerprint.copy_from_slice(&Sha256::digest(certificate)[..FINGERPRINT]);
        Self {
            secret,
            fingerprint,
        }
    }

    /// What the controller says.
    pub(super) fn secret(&self) -> String {
        hex(&self.secret)
    }

    /// Whether the agent with this certificate (DER) made the code.
    pub(super) fn is_of(&self, certificate: &[u8]) -> bool {
        Sha256::digest(certificate)[..FINGERPRINT] == self.fingerprint
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [self.secret, self.fingerprint].concat();
        let groups: Vec<_> = bytes.chunks(2).map(hex).collect();
        f.write_str(&groups.join("-"))
    }
}

/// Says nothing of the secret: logs are read by others.
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code")
    }
}

impl FromStr for Code {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let bytes = unhex(&digits).filter(|bytes| bytes.len() == SECRET + FINGERPRINT);
        let Some(bytes) = bytes else {
            bail!(
                "a code has ten groups of four hexadecimal digits, as `mqbench agent code` prints"
            );
        };
        let mut code = Self {
            secret: [0; SECRET],
            fingerprint: [0; FINGERPRINT],
        };
        code.secret.copy_from_slice(&bytes[..SECRET]);
        code.fingerprint.copy_from_slice(&bytes[SECRET..]);
        Ok(code)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(half.into(), 16);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(digit).collect()
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let all_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !all_hexadecimal || !digits.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_as_it_was_printed() {
        let code = Code::new([0xab; SECRET], b"certificate");
        let text = code.to_string();
        assert_eq!(text.len(), 49);
        assert_eq!(text.parse::<Code>().unwrap(), code);
        assert_eq!(
            text.replace('-', "")
                .to_uppercase()
                .parse::<Code>()
                .unwrap(),
            code
        );
        assert!(code.is_of(b"certificate") && !code.is_of(b"another"));
        assert!(!format!("{code:?}").contains("abab"));
    }

    #[test]
    fn what_is_no_code_is_one_line() {
        for text in [
            "",
            "ab",
            "zz",
            &"ä".repeat(20),
            &"ab".repeat(21),
            &"+a".repeat(20),
        ] {
            let error = text.parse::<Code>().unwrap_err().to_string();
            assert!(error.contains("ten groups") && error.lines().count() == 1);
        }
    }
}
