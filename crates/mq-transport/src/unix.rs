//! Unix sockets that are listened at, and their files.

use std::{
    io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

/// File of a Unix socket that is listened at; dropping this removes it.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may be gone or another process's by now; neither matters to this one.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens at a Unix socket, whose file gets this mode (`chmod`), or that of the process's `umask`. A socket that an ended process has
/// left is replaced. Dropping the pair removes the file before the socket closes, so that it is never the file of the next process.
///
/// # Errors
/// If another process listens there, another kind of file is there, or the system refuses.
pub fn listen_unix(path: &Path, mode: Option<u32>) -> io::Result<(SocketFile, UnixListener)> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::other(
                "another kind of file than a socket exists there",
            ));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    // Moved to its place only once it has its mode.
    let private = path.with_extension("new");
    let _ = std::fs::remove_file(&private);
    let listener = UnixListener::bind(&private)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(mode))?;
    }
    std::fs::rename(&private, path)?;
    Ok((SocketFile(path.to_owned()), listener))
}
