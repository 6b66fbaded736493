//! Files that are replaced as a whole: a reader finds the new file or the old one, complete.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Mark that Windows' editors put in front of text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads a text file of the configuration, without the byte-order mark that some editors begin it with.
///
/// # Errors
/// If the file cannot be read, is no regular file or, in the line that is named, is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let bytes = mq_transport::read_regular_file(path)?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.split(|byte| *byte == b'\n').count();
        let problem = format!("line {line}: not UTF-8 text");
        io::Error::new(io::ErrorKind::InvalidData, problem)
    })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    Ok(text)
}

/// Returns the name, in the same folder, of the file that will replace another.
pub(crate) fn successor(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Makes a new, empty file that is private to its owner.
///
/// # Errors
/// The file cannot be made, or exists already.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Removes all permissions of a file but its owner's.
///
/// # Errors
/// The file belongs to another user.
pub(crate) fn make_private(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;

        if file.metadata()?.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

/// Returns `true` if every user of this machine can read a file, by its mode and its folders'.
pub(crate) fn is_open_to_all(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;

        let lets = |path: &Path, right| {
            fs::metadata(path).is_ok_and(|found| found.permissions().mode() & right != 0)
        };
        // Follows symbolic links, such as certbot's.
        fs::canonicalize(path).is_ok_and(|path| {
            let mut folders = path.ancestors().skip(1);
            lets(&path, 0o004) && folders.all(|folder| lets(folder, 0o001))
        })
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Writes `file`, which has the name of the [`successor`], and moves it to `path`. If that fails,
/// no file is left behind.
pub(crate) fn succeed(mut file: File, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = successor(path);
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&name, path));
    if written.is_err() {
        let _ = fs::remove_file(&name);
    }
    written?;
    sync_folder(path)
}

/// Flushes changed names in the file's folder to the disk.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_without_its_mark_and_a_line_that_is_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read_text(&path).map_err(|error| error.to_string())
        };
        assert_eq!(read(b"\xef\xbb\xbfuser a\r\n").unwrap(), "user a\r\n");
        assert_eq!(read("Grüße".as_bytes()).unwrap(), "Grüße");
        assert_eq!(read(b"").unwrap(), "");
        let problem = read(b"one\ntwo\nth\xfcr\n").unwrap_err();
        assert_eq!(problem, "line 3: not UTF-8 text");
    }
}
