//! Operators' tokens, in a file that is private to the broker's user.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};
use tracing::info;

use crate::{Error, error::Mistake, files, lock::lock};

/// The fewest characters of a token: 16 random ones cannot be guessed.
const SHORTEST: usize = 16;

/// The most bytes of the file.
const LARGEST: u64 = 64 * 1024;

/// The tokens of a file. Only their hashes stay in memory.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    hashes: Mutex<Vec<[u8; 32]>>,
}

impl Tokens {
    /// Reads the file.
    pub(crate) fn open(path: PathBuf) -> Result<Self, Error> {
        let hashes = Mutex::new(read(&path)?);
        Ok(Self { path, hashes })
    }

    /// Returns `true` if `token` is in the file. Takes equally long for every text of the same
    /// length.
    pub(super) fn has(&self, token: &[u8]) -> bool {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let hashes = lock(&self.hashes);
        let same = |found: Choice, known: &[u8; 32]| found | known.ct_eq(&hash);
        hashes.iter().fold(Choice::from(0), same).into()
    }

    /// Returns the file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again. Calling the result puts its tokens in force.
    ///
    /// # Errors
    /// The file is wrong; the old tokens stay.
    pub(crate) fn prepare(&self) -> Result<impl FnOnce(), Error> {
        let read = read(&self.path)?;
        Ok(move || {
            *lock(&self.hashes) = read;
            info!("operators' tokens reloaded");
        })
    }
}

/// Reads the hashes of a file with one token a line; empty lines and those that begin with `#` are
/// skipped.
fn read(path: &Path) -> Result<Vec<[u8; 32]>, Error> {
    let wrong = |line, problem: String| {
        Error::Access(vec![Mistake {
            path: path.to_owned(),
            line,
            problem,
        }])
    };
    let unreadable = |error: io::Error| wrong(None, format!("cannot be read: {error}"));
    let file = mq_transport::open_regular_file(path).map_err(unreadable)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;

        let mode = file.metadata().map_err(unreadable)?.permissions().mode();
        if mode & 0o077 != 0 {
            let problem = "others than its owner can read or write it: chmod 600".to_owned();
            return Err(wrong(None, problem));
        }
    }
    let text = io::read_to_string(io::Read::take(file, LARGEST)).map_err(unreadable)?;
    let mut hashes = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let token = line.trim();
        if token.is_empty() || token.starts_with('#') {
            continue;
        }
        if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem =
                format!("a token has {SHORTEST} or more characters, visible ASCII without spaces");
            return Err(wrong(Some(number + 1), problem));
        }
        hashes.push(Sha256::digest(token).into());
    }
    if hashes.is_empty() {
        return Err(wrong(None, "the file has no token".to_owned()));
    }
    Ok(hashes)
}

/// Makes a file with a new random token of 256 bits, private to its owner, for `[admin]
/// token_file`.
///
/// # Errors
/// [`Error::Access`] if the file exists already or cannot be written.
pub fn make_token_file(path: &Path) -> Result<(), Error> {
    use std::fmt::Write as _;

    let mut token = String::new();
    for byte in rand::random::<[u8; 32]>() {
        let _ = write!(token, "{byte:02x}");
    }
    token.push('\n');
    let made = files::create_private(path).and_then(|mut file| {
        io::Write::write_all(&mut file, token.as_bytes())?;
        file.sync_all()
    });
    made.map_err(|error| {
        Error::Access(vec![Mistake {
            path: path.to_owned(),
            line: None,
            problem: format!("cannot be made: {error}"),
        }])
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn wrong(path: &Path) -> String {
        Tokens::open(path.to_owned()).unwrap_err().to_string()
    }

    #[test]
    fn a_made_token_is_known_and_no_other_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        make_token_file(&path).unwrap();
        let token = fs::read_to_string(&path).unwrap();
        let tokens = Tokens::open(path.clone()).unwrap();
        assert!(tokens.has(token.trim_end().as_bytes()));
        assert!(!tokens.has(token.as_bytes()), "with the line's end");
        assert!(!tokens.has(b""));
        assert!(!tokens.has(&token.as_bytes()[..63]));
        assert!(!format!("{tokens:?}").contains(token.trim_end()));
        let again = make_token_file(&path).unwrap_err().to_string();
        assert!(again.contains("cannot be made"), "{again}");
        assert_eq!(fs::read_to_string(&path).unwrap(), token);
    }

    #[test]
    fn replaced_tokens_are_taken_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        make_token_file(&path).unwrap();
        fs::write(&path, "# of ann\nann's-token-of-16\n").unwrap();
        let tokens = Tokens::open(path.clone()).unwrap();
        assert!(tokens.has(b"ann's-token-of-16"));
        fs::write(&path, "bob's-token-of-16\nshort\n").unwrap();
        let error = tokens.prepare().err().unwrap().to_string();
        assert!(error.contains("line 2: a token has 16"), "{error}");
        assert!(tokens.has(b"ann's-token-of-16"));
        fs::write(&path, "bob's-token-of-16\n").unwrap();
        tokens.prepare().unwrap()();
        assert!(tokens.has(b"bob's-token-of-16") && !tokens.has(b"ann's-token-of-16"));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        assert!(wrong(&path).contains("cannot be read"));
        make_token_file(&path).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(wrong(&path).contains("chmod 600"), "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "# nothing\n").unwrap();
        assert!(wrong(&path).contains("no token"));
    }
}
