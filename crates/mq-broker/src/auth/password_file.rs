//! Changes one user's password in a password file.

use std::{fs, io, path::Path};

use super::passwords::{Hashing, edit};
use crate::{Error, error::Mistake, files};

/// Sets a user's password in a password file, or with `None` removes the user.
///
/// A crash leaves the old file or the new one, whole. A new file is readable for its owner alone;
/// an existing file keeps its owner, its group and its mode.
///
/// # Errors
/// [`Error::Access`] if the file cannot be read or written, has no such user to remove, or cannot
/// hold that user or password.
pub fn change_password(
    path: &Path,
    user: &str,
    password: Option<(&[u8], Hashing)>,
) -> Result<(), Error> {
    let wrong = |problem: String| {
        Error::Access(vec![Mistake {
            path: path.to_owned(),
            line: None,
            problem,
        }])
    };
    let text = match files::read_text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && password.is_some() => {
            String::new()
        }
        Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
    };
    let (text, found) = edit(&text, user, password).map_err(wrong)?;
    if password.is_none() && !found {
        return Err(wrong(format!("there is no user `{user}`")));
    }
    replace(path, text.as_bytes()).map_err(|error| wrong(format!("cannot be written: {error}")))
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = files::successor(path);
    // An existing file belongs to a running process, or was left by a crash: the operator decides.
    let file = files::create_private(&name)?;
    if let Err(error) = keep_access(path, &name) {
        let _ = fs::remove_file(&name);
        return Err(error);
    }
    files::succeed(file, path, bytes)
}

/// Gives the new file the old one's owner, group and mode, so that a broker of that user or group can still read it.
fn keep_access(path: &Path, successor: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Ok(old) = fs::metadata(path) {
        use std::os::unix::fs::MetadataExt as _;

        let new = fs::metadata(successor)?;
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            std::os::unix::fs::chown(successor, Some(old.uid()), Some(old.gid()))?;
        }
        fs::set_permissions(successor, old.permissions())?;
    }
    #[cfg(not(unix))]
    let _ = (path, successor);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_file_is_made_for_its_owner_alone_and_changed_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwords");
        let scram = |password: &'static [u8]| Some((password, Hashing::ScramSha256));
        assert!(
            change_password(&path, "ann", None).is_err(),
            "there is no file"
        );
        change_password(&path, "ann", scram(b"a")).unwrap();
        change_password(&path, "bob", scram(b"b")).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        change_password(&path, "ann", None).unwrap();
        let error = change_password(&path, "ann", None).unwrap_err();
        let error = error.to_string();
        assert!(
            error.ends_with("passwords: there is no user `ann`"),
            "{error}"
        );
        let text = fs::read_to_string(&path).unwrap();
        let users: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(users[0].starts_with("bob:$scram-sha-256$"), "{text}");
        assert_eq!(users.len(), 1, "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_changed_password_file_stays_readable_for_the_group_that_could_read_it() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwords");
        let password = || Some((&b"a"[..], Hashing::ScramSha256));
        change_password(&path, "ann", password()).unwrap();
        for mode in [0o640, 0o400] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            change_password(&path, "ann", password()).unwrap();
            let kept = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(kept & 0o777, mode);
        }
    }
}
