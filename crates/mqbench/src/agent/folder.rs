//! The folder that an agent works in, and names of files in it.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// The name of a file in an agent's work folder: letters, digits, `.`, `_` and `-`, at most 100, and
/// no point first. So it leads nowhere else, and is no option of a program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Name(String);

impl Name {
    const MOST: usize = 100;

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins && text.len() <= Self::MOST && text.chars().all(allowed) {
            Ok(Self(text))
        } else {
            Err(format!("`{text}` is no name of a file in the work folder"))
        }
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

/// The folder; emptied when a controller comes, and when it has gone.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let folder = Self(path);
        folder.clear()?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn of(&self, name: &Name) -> PathBuf {
        self.0.join(name.as_str())
    }

    /// A file that has its name only once it is complete.
    pub(super) fn create(&self, name: &Name) -> io::Result<Incomplete> {
        let path = self.0.join(format!(".{}", name.as_str()));
        Ok(Incomplete {
            file: create_private(&path)?,
            path,
            name: self.of(name),
        })
    }

    /// Removes all that is in it.
    pub(super) fn clear(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(&self.0)
    }
}

/// An empty file, made for its owner alone.
pub(super) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// A file that is being written. Dropped before it is complete, it is removed.
pub(super) struct Incomplete {
    file: File,
    path: PathBuf,
    name: PathBuf,
}

impl Incomplete {
    pub(super) fn complete(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.name)
    }
}

impl io::Write for Incomplete {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        // Gone already where it is complete.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_name_leads_nowhere_else() {
        for good in ["send.csv", "mqbench", "a-b_c.0.toml"] {
            assert_eq!(Name::try_from(good.to_owned()).unwrap().as_str(), good);
        }
        let long = "a".repeat(101);
        for bad in [
            "",
            ".",
            "..",
            "../a",
            "/etc/passwd",
            "a/b",
            ".hidden",
            "-o",
            "a b",
            "a\0",
            &long,
        ] {
            assert!(Name::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_has_its_name_when_it_is_complete() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path().join("work")).unwrap();
        let name = Name::try_from("a".to_owned()).unwrap();
        for complete in [false, true] {
            let mut file = folder.create(&name).unwrap();
            file.write_all(b"text").unwrap();
            assert!(!folder.of(&name).exists());
            if complete {
                file.complete().unwrap();
            } else {
                drop(file);
            }
            assert_eq!(
                fs::read_dir(folder.path()).unwrap().count(),
                usize::from(complete)
            );
        }
        assert_eq!(fs::read(folder.of(&name)).unwrap(), b"text");
        folder.clear().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
