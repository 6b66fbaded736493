//! Files that a configuration names, read without waiting for a writer.

use std::{
    fs::{File, FileType, OpenOptions},
    io::{self, Read as _},
    path::Path,
};

/// Opens a regular file for reading. Symbolic links are followed.
///
/// A FIFO would have [`File::open`] wait until somebody writes to it, and a device or a socket has no end.
///
/// # Errors
/// If the file cannot be opened, or is another kind of file: the error names the kind.
pub fn open_regular_file(path: &Path) -> io::Result<File> {
    // Before it is opened too, as opening some devices does something.
    refuse_other_kinds(std::fs::metadata(path)?.file_type())?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    refuse_other_kinds(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a regular file. Symbolic links are followed.
///
/// # Errors
/// If the file cannot be read, or is another kind of file: the error names the kind.
pub fn read_regular_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular_file(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn refuse_other_kinds(found: FileType) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let problem = format!("{}, not a regular file", kind(found));
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

fn kind(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;

        if found.is_fifo() {
            return "a FIFO";
        }
        if found.is_socket() {
            return "a socket";
        }
        if found.is_char_device() || found.is_block_device() {
            return "a device";
        }
    }
    if found.is_dir() {
        "a folder"
    } else {
        "something else"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_fifo_a_socket_a_device_and_a_folder_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&place("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place("socket")).unwrap();
        std::fs::write(place("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", place("link")).unwrap();
        for (path, kind) in [
            (place("fifo"), "a FIFO"),
            (place("socket"), "a socket"),
            ("/dev/zero".into(), "a device"),
            (folder.path().to_owned(), "a folder"),
        ] {
            let error = read_regular_file(&path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{kind}, ")), "{error}");
        }
        assert_eq!(read_regular_file(&place("link")).unwrap(), b"text");
        let missing = read_regular_file(&place("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
