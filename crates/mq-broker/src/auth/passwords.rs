//! Password files: users and their password hashes, of several kinds.

use std::{collections::HashMap, fmt};

use argon2::{Algorithm, Argon2, Params};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use mq_codec::ByteStr;
use sha2::{Digest as _, Sha512};
use subtle::ConstantTimeEq as _;

use super::{
    hash_text::{decode, not_base64, number, three},
    scram_keys::{self, StoredKeys},
    unknown_users::{self, Kind, Secret},
};

/// Cost of new argon2id hashes: OWASP's first recommendation, 19 MiB and two passes; some 30 ms on
/// a server and ten times that on a Raspberry Pi 3.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// Bytes of a new salt and a new hash.
const SALT_LEN: usize = 16;
const HASH_LEN: usize = 32;

/// The largest costs that a file may ask for: beyond, one log-in would hold up all others.
const MAX_MEMORY_KIB: u32 = 1 << 20;
const MAX_PASSES: u32 = 100;
const MAX_ITERATIONS: u32 = 10_000_000;

/// The users of a password file.
#[derive(Debug)]
pub(super) struct Passwords {
    by_user: HashMap<String, usize>,
    hashes: Vec<Hash>,
    /// The kinds of `hashes`.
    kinds: Vec<Kind>,
    /// The secret from which stand-ins for unknown users are derived.
    secret: Secret,
}

/// A hash that a password is compared with.
enum Hash {
    Argon2id {
        version: argon2::Version,
        params: Params,
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
    /// Mosquitto's `$7$`.
    Pbkdf2Sha512 {
        iterations: u32,
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
    /// Mosquitto's `$6$`: SHA-512 of password and salt, once.
    Sha512 {
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
    Scram(StoredKeys),
}

/// The kind of hash of a new line of a password file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Hashing {
    /// Argon2id: the client sends its password at each log-in.
    Argon2id,
    /// Keys of SCRAM-SHA-256: the client proves that it has the password and need not send it.
    ScramSha256,
}

impl Passwords {
    /// Reads the text of a password file: `user:hash` lines, comments with `#`, of which one may be a
    /// secret; `secret` is taken where there is none.
    ///
    /// # Errors
    /// All lines that are wrong, with their numbers from 1; they do not repeat what may be a
    /// password.
    pub(super) fn parse(text: &str, secret: &Secret) -> Result<Self, Vec<(usize, String)>> {
        let own = text.lines().find_map(secret_of);
        let mut passwords = Self {
            by_user: HashMap::new(),
            hashes: Vec::new(),
            kinds: Vec::new(),
            secret: own.unwrap_or_else(|| secret.clone()),
        };
        let mut wrong = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Err(problem) = passwords.add(line) {
                wrong.push((number, problem));
            }
        }
        if wrong.is_empty() {
            Ok(passwords)
        } else {
            Err(wrong)
        }
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let (user, hash) = line
            .split_once(':')
            .ok_or("a line is `user:hash`, and this one has no `:`")?;
        check_user(user)?;
        let hash = Hash::parse(hash).map_err(|problem| format!("user `{user}`: {problem}"))?;
        let index = self.hashes.len();
        if self.by_user.insert(user.to_owned(), index).is_some() {
            return Err(format!("user `{user}` is there twice"));
        }
        let label = hash.kind();
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.label == label) {
            kind.users = kind.users.saturating_add(1);
        } else {
            self.kinds.push(Kind {
                label,
                users: 1,
                first: index,
            });
        }
        self.hashes.push(hash);
        Ok(())
    }

    /// Returns `true` if that is the user's password. Slow on purpose, and as slow for an unknown
    /// user: a hash as costly as one of the users' stands in.
    pub(super) fn verify(&self, user: &str, password: &[u8]) -> bool {
        // Also for a known user, so that both take the same time.
        let stand_in = self.secret.choose(user, self.kinds.iter());
        let index = self.by_user.get(user).copied();
        let Some(hash) = index.or(stand_in.map(|kind| kind.first)) else {
            return false;
        };
        let is_right = self.hashes[hash].verify(password);
        is_right && index.is_some()
    }

    /// Returns the user's keys for SCRAM, with `true` if they are its own and `false` if a
    /// stand-in's. `None` if no user has such keys.
    pub(super) fn scram(&self, user: &str) -> Option<(StoredKeys, bool)> {
        let kinds = self.kinds.iter();
        let keys = |index: usize| match &self.hashes[index] {
            Hash::Scram(keys) => Some(keys),
            _ => None,
        };
        let kinds = kinds.filter(|kind| keys(kind.first).is_some());
        // Computed for every user, so that known and unknown ones take the same time.
        let model = keys(self.secret.choose(user, kinds)?.first)?;
        let stand_in = model.stand_in(&self.secret, user);
        let own = self.by_user.get(user).and_then(|index| keys(*index));
        let is_own = own.is_some();
        Some((own.cloned().unwrap_or(stand_in), is_own))
    }

    /// Returns `true` if a user has keys of SCRAM.
    pub(super) fn any_scram(&self) -> bool {
        let mut hashes = self.hashes.iter();
        hashes.any(|hash| matches!(hash, Hash::Scram(_)))
    }
}

/// Returns the secret of a line, if the line has one.
fn secret_of(line: &str) -> Option<Secret> {
    Secret::parse(line.trim().strip_prefix(unknown_users::LINE)?)
}

/// Checks that a line of a password file can have that user.
fn check_user(user: &str) -> Result<(), String> {
    if user.is_empty() || user.trim() != user {
        return Err("the user's name is empty, or begins or ends with a space".to_owned());
    }
    if user.starts_with('#') || user.contains([':', '\n', '\r']) {
        return Err(format!("`{user}` has a `:` or begins with `#`"));
    }
    ByteStr::new(user).map_err(|error| format!("the user's name: {error}"))?;
    Ok(())
}

/// Returns the text of a password file with another password for `user`, or with `None` without
/// that user, and `true` if the user was in it. Everything else stays as it is. A file without a
/// secret gets one together with the first keys of SCRAM, so that stand-ins for unknown users
/// survive a restart.
///
/// # Errors
/// A line cannot have that user, or the password cannot be hashed that way.
pub(super) fn edit(
    text: &str,
    user: &str,
    password: Option<(&[u8], Hashing)>,
) -> Result<(String, bool), String> {
    check_user(user)?;
    let line = match password {
        Some((password, hashing)) => Some(format!("{user}:{}", hashing.hash(password)?)),
        None => None,
    };
    let wants_secret = matches!(password, Some((_, Hashing::ScramSha256)))
        && text.lines().find_map(secret_of).is_none();
    let mut new = String::with_capacity(text.len() + 200);
    if wants_secret {
        new.push_str(&Secret::random().line());
        new.push('\n');
    }
    let mut found = false;
    for old in text.split_inclusive('\n') {
        let trimmed = old.trim();
        let is_users = !trimmed.starts_with('#')
            && trimmed
                .split_once(':')
                .is_some_and(|(name, _)| name == user);
        if !is_users {
            new.push_str(old);
            continue;
        }
        // Two lines of one user become one.
        if let Some(line) = line.as_ref().filter(|_| !found) {
            new.push_str(line);
            new.push('\n');
        }
        found = true;
    }
    if let Some(line) = line.filter(|_| !found) {
        if !new.is_empty() && !new.ends_with('\n') {
            new.push('\n');
        }
        new.push_str(&line);
        new.push('\n');
    }
    Ok((new, found))
}

impl Hashing {
    /// Returns the part of a line after the user.
    fn hash(self, password: &[u8]) -> Result<String, String> {
        let salt: [u8; SALT_LEN] = rand::random();
        match self {
            Self::Argon2id => {
                let params =
                    Params::new(MEMORY_KIB, PASSES, LANES, None).expect("costs that argon2 allows");
                let mut hash = [0; HASH_LEN];
                Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, params)
                    .hash_password_into(password, &salt, &mut hash)
                    .map_err(|error| format!("the password cannot be hashed: {error}"))?;
                Ok(format!(
                    "$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}${}${}",
                    STANDARD_NO_PAD.encode(salt),
                    STANDARD_NO_PAD.encode(hash)
                ))
            }
            Self::ScramSha256 => {
                let password = std::str::from_utf8(password).ok();
                let password = password.filter(|text| scram_keys::is_plain(text)).ok_or(
                    "a password for SCRAM has to be printable ASCII, so that both sides \
                     understand the same",
                )?;
                Ok(StoredKeys::derive(password, &salt, scram_keys::ITERATIONS).to_string())
            }
        }
    }
}

impl Hash {
    fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix('$');
        let (kind, rest) = rest
            .and_then(|rest| rest.split_once('$'))
            .ok_or("the password is not hashed; `mqbroker passwd` makes the line")?;
        match kind {
            "argon2id" => Self::parse_argon2id(rest),
            "7" => {
                let (iterations, salt, hash) = three(rest)?;
                Ok(Self::Pbkdf2Sha512 {
                    iterations: number(iterations, 1..=MAX_ITERATIONS)?,
                    salt: decode(salt)?,
                    hash: decode_hash(hash)?,
                })
            }
            "6" => {
                let (salt, hash) = rest.split_once('$').ok_or("the hash is cut short")?;
                Ok(Self::Sha512 {
                    salt: decode(salt)?,
                    hash: decode_hash(hash)?,
                })
            }
            scram_keys::NAME => StoredKeys::parse(rest).map(Self::Scram),
            _ => Err(format!(
                "`${kind}$` is no kind of hash that is known: $argon2id$, ${}$, and mosquitto's \
                 $7$ and $6$ are",
                scram_keys::NAME
            )),
        }
    }

    /// Parses `v=19$m=19456,t=2,p=1$salt$hash`, as the PHC string format has it; the version may be missing, and is
    /// then the first.
    fn parse_argon2id(text: &str) -> Result<Self, String> {
        let (version, rest) = match text.split_once('$') {
            Some(("v=19", rest)) => (argon2::Version::V0x13, rest),
            Some(("v=16", rest)) => (argon2::Version::V0x10, rest),
            Some((costs, _)) if costs.starts_with("m=") => (argon2::Version::V0x10, text),
            _ => return Err("unknown version of argon2id".to_owned()),
        };
        let (costs, salt, hash) = three(rest)?;
        let (mut memory, mut passes, mut lanes) = (None, None, None);
        for cost in costs.split(',') {
            match cost.split_once('=') {
                Some(("m", value)) => memory = Some(number(value, 8..=MAX_MEMORY_KIB)?),
                Some(("t", value)) => passes = Some(number(value, 1..=MAX_PASSES)?),
                Some(("p", value)) => lanes = Some(number(value, 1..=255)?),
                _ => return Err(format!("`{cost}` is no cost of argon2id: m, t and p are")),
            }
        }
        let (Some(memory), Some(passes), Some(lanes)) = (memory, passes, lanes) else {
            return Err("one of the costs m, t and p is missing".to_owned());
        };
        let params = Params::new(memory, passes, lanes, None)
            .map_err(|error| format!("the costs cannot be used: {error}"))?;
        let decode = |text: &str| STANDARD_NO_PAD.decode(text).map_err(|_| not_base64());
        let (salt, hash) = (decode(salt)?, decode(hash)?);
        if salt.len() < 8 || !(16..=64).contains(&hash.len()) {
            return Err("the salt or the hash is too short".to_owned());
        }
        Ok(Self::Argon2id {
            version,
            params,
            salt,
            hash,
        })
    }

    /// Returns the properties of the hash that a client may notice: equal for hashes of the same
    /// cost.
    fn kind(&self) -> String {
        match self {
            Self::Argon2id { params, .. } => {
                let (memory, passes) = (params.m_cost(), params.t_cost());
                format!("argon2id {memory} {passes} {}", params.p_cost())
            }
            Self::Pbkdf2Sha512 { iterations, .. } => format!("pbkdf2 {iterations}"),
            Self::Sha512 { .. } => "sha512".to_owned(),
            Self::Scram(keys) => keys.kind(),
        }
    }

    /// Compares in constant time.
    fn verify(&self, password: &[u8]) -> bool {
        match self {
            Self::Argon2id {
                version,
                params,
                salt,
                hash,
            } => {
                let mut own = vec![0; hash.len()];
                let argon2 = Argon2::new(Algorithm::Argon2id, *version, params.clone());
                argon2
                    .hash_password_into(password, salt, &mut own)
                    .is_ok_and(|()| own.ct_eq(hash).into())
            }
            Self::Pbkdf2Sha512 {
                iterations,
                salt,
                hash,
            } => {
                let mut own = vec![0; hash.len()];
                pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, *iterations, &mut own);
                own.ct_eq(hash).into()
            }
            Self::Sha512 { salt, hash } => {
                let own = Sha512::new().chain_update(password).chain_update(salt);
                own.finalize()[..].ct_eq(hash).into()
            }
            Self::Scram(keys) => {
                std::str::from_utf8(password).is_ok_and(|password| keys.verify(password))
            }
        }
    }
}

/// Leaves out everything that could be attacked offline.
impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Argon2id { .. } => "Argon2id",
            Self::Pbkdf2Sha512 { .. } => "Pbkdf2Sha512",
            Self::Sha512 { .. } => "Sha512",
            Self::Scram(_) => "Scram",
        })
    }
}

/// Decodes a whole SHA-512: a shorter hash would be easier to guess.
fn decode_hash(text: &str) -> Result<Vec<u8>, String> {
    let hash = decode(text)?;
    if hash.len() == 64 {
        Ok(hash)
    } else {
        Err("the hash does not have 64 bytes".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `mosquitto_passwd` of mosquitto 2: the first with `-H sha512`.
    const MOSQUITTO: &str = include_str!("mosquitto.passwd");

    fn parse(text: &str) -> Result<Passwords, Vec<(usize, String)>> {
        Passwords::parse(text, &Secret::random())
    }

    #[test]
    fn files_of_mosquitto_are_read() {
        let passwords = parse(MOSQUITTO).unwrap();
        for user in ["old", "new"] {
            assert!(passwords.verify(user, b"correct horse"), "{user}");
            assert!(!passwords.verify(user, b"correct horsf"), "{user}");
            assert!(!passwords.verify(user, b""), "{user}");
        }
    }

    #[test]
    fn a_line_that_was_made_is_read_and_another_password_is_wrong() {
        for hashing in [Hashing::Argon2id, Hashing::ScramSha256] {
            let (text, found) = edit("", "ann", Some((b"pencil", hashing))).unwrap();
            assert!(!found && text.ends_with('\n'), "{text}");
            let passwords = parse(&text).unwrap();
            assert!(passwords.verify("ann", b"pencil"));
            assert!(!passwords.verify("ann", b"pencils"));
            assert!(!passwords.verify("bob", b"pencil"), "nobody's stand-in");
        }
        assert!(!parse("").unwrap().verify("ann", b""));
    }

    /// The reference implementation's own test: `password`, `somesalt`, 64 MiB, two passes.
    #[test]
    fn argon2id_agrees_with_the_reference() {
        let line = "u:$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$\
                    CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc\n";
        let passwords = parse(line).unwrap();
        assert!(passwords.verify("u", b"password"));
        assert!(!passwords.verify("u", b"passwort"));
    }

    #[test]
    fn mistakes_are_told_with_their_lines_and_without_passwords() {
        let text = "# users\n\nann\nbob:hunter2\ncid:$5$a$b\ndan:$7$0$YQ==$YQ==\n\
                    eve:$6$YQ==$YQ==\nfay:$7$101$!$YQ==\n:$6$a$b\n\
                    gus:$argon2id$v=19$m=19456,t=2$YWFhYWFhYWE$YWFhYWFhYWE\n";
        let wrong = parse(text).unwrap_err();
        let lines: Vec<_> = wrong.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [3, 4, 5, 6, 7, 8, 9, 10], "{wrong:?}");
        assert!(wrong[1].1.contains("is not hashed"), "{wrong:?}");
        assert!(!format!("{wrong:?}").contains("hunter2"));
        let twice = format!("{MOSQUITTO}{MOSQUITTO}");
        let wrong = parse(&twice).unwrap_err();
        assert!(wrong[0].1.contains("is there twice"), "{wrong:?}");
    }

    #[test]
    fn an_edit_changes_one_user_and_nothing_else() {
        let text = "# mine\n\nann:$6$x$y\n  bob:old \n#bob:older\ncid:z";
        let (new, found) = edit(text, "bob", None).unwrap();
        assert!(found);
        assert_eq!(new, "# mine\n\nann:$6$x$y\n#bob:older\ncid:z");
        let (new, found) = edit(text, "dan", Some((b"x", Hashing::ScramSha256))).unwrap();
        let (line, new) = new.split_once('\n').unwrap();
        assert!(secret_of(line).is_some(), "{line}");
        assert!(!found && new.starts_with(&format!("{text}\ndan:$scram-sha-256$")));
        // The file has a secret by now.
        let (again, _) = edit(new, "eve", Some((b"x", Hashing::Argon2id))).unwrap();
        assert!(again.starts_with(new));
        let (new, found) = edit(text, "bob", Some((b"x", Hashing::ScramSha256))).unwrap();
        let (_, new) = new.split_once('\n').unwrap();
        assert!(found && new.starts_with("# mine\n\nann:$6$x$y\nbob:$scram-sha-256$"));
        assert!(new.ends_with("\n#bob:older\ncid:z"));
        assert!(!edit(text, "eve", None).unwrap().1);
        for odd in ["", "a:b", "#a", " a", "a\nb"] {
            assert!(edit(text, odd, None).is_err(), "{odd:?}");
        }
        let umlaut = "ü".as_bytes();
        assert!(edit("", "ann", Some((umlaut, Hashing::ScramSha256))).is_err());
        assert!(edit("", "ann", Some((umlaut, Hashing::Argon2id))).is_ok());
    }
}
