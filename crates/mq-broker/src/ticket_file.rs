//! Tickets handed over from one broker to the next: [`Settings::ticket_file`](crate::Settings).
//!
//! As long as each ticket is taken once (RFC 8446 §8.1), the broker acts on a first flight twice at
//! most, and never after its client is connected. So a ticket must never be in two places. The file
//! exists only while no broker runs: a broker that starts removes it before it accepts a client,
//! and writes another after its last connection. A broker that crashes leaves none, and its clients
//! do a full handshake.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    sync::Mutex,
};

use mq_transport::{ListenOptions, TicketStore};
use tracing::{info, warn};

use crate::{
    Error, files,
    fnv::{FNV_BASIS, fnv1a},
    lock::lock,
};

/// The first bytes of the file; the last of them is the version.
///
/// After them follow the [scope](ListenOptions::ticket_scope) (32 bytes), then, oldest first, id
/// and session of each ticket, each as its length (`u32`, little endian) and its bytes, and last
/// the [`checksum`] of all that (`u64`, little endian).
const MAGIC: [u8; 8] = *b"mq-tkt\0\x02";

const SCOPE_LEN: usize = 32;
const CHECKSUM_LEN: usize = 8;

/// The result of [`TicketStore::drain`].
type Tickets = Vec<(Vec<u8>, Vec<u8>)>;

/// The path of the file, and the scope of its tickets.
#[derive(Debug)]
pub(crate) struct TicketFile {
    path: PathBuf,
    /// The scope, which a reload may change.
    scope: Mutex<[u8; SCOPE_LEN]>,
    store: TicketStore,
}

impl TicketFile {
    /// Moves the tickets of an earlier broker into the store and removes the file. Call it before
    /// the first client is accepted. Without a file there are no tickets. Tickets of a damaged
    /// file, of another version or of a server with another identity are dropped.
    ///
    /// # Errors
    /// The file cannot be read or removed, or none could be written in its folder later.
    pub(crate) fn take(path: PathBuf, options: &ListenOptions) -> Result<Self, Error> {
        let file = Self {
            scope: Mutex::new(options.ticket_scope()?),
            store: options.ticket_store.clone(),
            path,
        };
        file.prove_writable()?;
        let shown = file.path.display();
        let bytes = match mq_transport::read_regular_file(&file.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(file),
            Err(error) => {
                let remedy = "give the broker's user the right to read it, or remove it";
                return Err(file.error(format!("cannot be read ({error}): {remedy}")));
            }
        };
        // The removal must be on the disk as well: a power failure must not bring the file back.
        let removed = fs::remove_file(&file.path).and_then(|()| files::sync_folder(&file.path));
        removed.map_err(|error| {
            let why = "its tickets must not be used twice";
            file.error(format!(
                "cannot be removed ({error}), and {why}: remove it by hand"
            ))
        })?;
        match decode(&bytes, &file.scope()) {
            Ok(tickets) => {
                info!(file = %shown, tickets = tickets.len(), "session tickets restored");
                file.store.restore(tickets);
            }
            Err(problem) => {
                warn!(file = %shown, reason = %problem, "ticket file unusable and removed; clients do a full handshake");
            }
        }
        Ok(file)
    }

    /// Gives the store's tickets another scope.
    pub(crate) fn rescope(&self, scope: [u8; SCOPE_LEN]) {
        *lock(&self.scope) = scope;
    }

    fn scope(&self) -> [u8; SCOPE_LEN] {
        *lock(&self.scope)
    }

    /// Moves all tickets from the store into the file, readable for the owner alone. If the file
    /// cannot be written the tickets are lost, and the log has a line about it.
    pub(crate) fn write(&self) {
        let tickets = self.store.drain();
        if let Err(error) = self.replace(&encode(&tickets, &self.scope())) {
            warn!(
                file = %self.path.display(),
                %error,
                "cannot write ticket file; clients do a full handshake"
            );
        }
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        files::succeed(self.create()?, &self.path, bytes)
    }

    /// Makes a new, empty file next to the ticket file, private to the owner.
    fn create(&self) -> io::Result<File> {
        let name = files::successor(&self.path);
        // An existing one was left by a crash, and its mode could be anything.
        match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        files::create_private(&name)
    }

    /// Checks that the folder can be written: else the start fails, and not the end.
    fn prove_writable(&self) -> Result<(), Error> {
        let tried = self
            .create()
            .and_then(|_| fs::remove_file(files::successor(&self.path)));
        tried.map_err(|error| {
            let remedy = "choose a folder that is there and that the broker may write to";
            self.error(format!("cannot be written later ({error}): {remedy}"))
        })
    }

    fn error(&self, problem: String) -> Error {
        Error::TicketFile {
            path: self.path.clone(),
            problem,
        }
    }
}

fn encode(tickets: &[(Vec<u8>, Vec<u8>)], scope: &[u8; SCOPE_LEN]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(scope);
    for (id, session) in tickets {
        for part in [id, session] {
            let len = u32::try_from(part.len()).expect("a session has less than 100 kB");
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(part);
        }
    }
    bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
    bytes
}

/// Decodes the tickets, or returns the reason why they cannot be used.
fn decode(bytes: &[u8], scope: &[u8; SCOPE_LEN]) -> Result<Tickets, &'static str> {
    const DAMAGED: &str = "damaged";
    let (magic, _) = bytes.split_first_chunk().ok_or(DAMAGED)?;
    if *magic != MAGIC {
        let known = magic[..7] == MAGIC[..7];
        return Err(if known {
            "written by another version of this broker"
        } else {
            "not a ticket file"
        });
    }
    let (body, sum) = bytes
        .split_last_chunk::<CHECKSUM_LEN>()
        .filter(|(body, sum)| checksum(body) == u64::from_le_bytes(**sum))
        .ok_or(DAMAGED)?;
    debug_assert_eq!(sum.len(), CHECKSUM_LEN);
    let (of, mut rest) = body[MAGIC.len()..]
        .split_first_chunk::<SCOPE_LEN>()
        .ok_or(DAMAGED)?;
    if of != scope {
        return Err("certificate, client authorities or limits have changed since");
    }
    let mut tickets = Vec::new();
    while !rest.is_empty() {
        let id = take_part(&mut rest).ok_or(DAMAGED)?;
        let session = take_part(&mut rest).ok_or(DAMAGED)?;
        tickets.push((id, session));
    }
    Ok(tickets)
}

fn take_part(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let (len, rest) = bytes.split_first_chunk()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
    let (part, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    Some(part.to_vec())
}

/// Returns the checksum of a file. An attacker that can write the file could make any checksum, and could
/// just as well put back a copy of an old file.
fn checksum(bytes: &[u8]) -> u64 {
    fnv1a(FNV_BASIS, bytes)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mq_transport::ServerIdentity;

    use super::*;

    fn tickets() -> Tickets {
        vec![
            (vec![1; 32], vec![10; 200]),
            (vec![2; 32], Vec::new()),
            (vec![3; 32], vec![30; 70_000]),
        ]
    }

    fn options() -> ListenOptions {
        ListenOptions {
            identity: Some(ServerIdentity::self_signed().unwrap()),
            ..ListenOptions::default()
        }
    }

    /// Returns the tickets that another broker with these options takes out of this file.
    fn restart(path: &Path, options: &ListenOptions) -> Result<Tickets, String> {
        let options = ListenOptions {
            ticket_store: TicketStore::default(),
            ..options.clone()
        };
        TicketFile::take(path.to_owned(), &options)
            .map(|file| file.store.drain())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn tickets_are_in_the_file_or_in_the_store_and_never_in_both() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tickets");
        let options = options();
        let file = TicketFile::take(path.clone(), &options).unwrap();
        options.ticket_store.restore(tickets());
        assert!(!path.exists());

        file.write();
        assert!(options.ticket_store.is_empty());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(restart(&path, &options).unwrap(), tickets());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(restart(&path, &options).unwrap(), []);
    }

    #[test]
    fn a_file_with_any_byte_changed_or_missing_is_removed_and_gives_no_ticket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tickets");
        let options = options();
        let good = encode(&tickets()[..2], &options.ticket_scope().unwrap());
        for at in 0..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 1;
            for bytes in [&changed[..], &good[..at]] {
                let scope = options.ticket_scope().unwrap();
                assert!(decode(bytes, &scope).is_err(), "byte {at}");
            }
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert_eq!(restart(&path, &options).unwrap(), []);
        assert!(!path.exists());
    }

    #[test]
    fn tickets_of_another_certificate_are_of_no_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tickets");
        let file = TicketFile::take(path.clone(), &options()).unwrap();
        file.store.restore(tickets());
        file.write();
        assert_eq!(restart(&path, &options()).unwrap(), []);
        assert!(!path.exists());
    }

    #[test]
    fn after_a_reload_tickets_are_those_of_the_new_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tickets");
        let (before, after) = (options(), options());
        let file = TicketFile::take(path.clone(), &before).unwrap();
        file.rescope(after.ticket_scope().unwrap());
        file.store.restore(tickets());
        file.write();
        assert_eq!(restart(&path, &after).unwrap(), tickets());
    }

    #[test]
    fn a_file_that_cannot_be_read_or_written_is_one_line_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        // A folder can be read as a file by nobody, not even root.
        let path = folder.path().join("a-folder");
        fs::create_dir(&path).unwrap();
        for (path, remedy) in [
            (
                path.clone(),
                "cannot be read (a folder, not a regular file): give",
            ),
            (folder.path().join("none/tickets"), "choose a folder"),
        ] {
            let error = restart(&path, &options()).unwrap_err();
            assert!(error.contains(&*path.to_string_lossy()), "{error}");
            assert!(error.contains(remedy), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert!(path.is_dir());
    }
}
