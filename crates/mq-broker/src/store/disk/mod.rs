//! The store on disk: one file, a database of redb.
//!
//! ```text
//!  connections --record--> waiting calls --one commit for all of them--> file
//!       ^                                                                  |
//!       +-------------------------- settled -------------------------------+
//! ```
//!
//! A thread takes all calls recorded during the last commit, and commits them together: the more
//! connections wait, the more messages a commit carries. After a crash the changes of a call are in
//! the file completely, or not at all.

mod calls;
mod encoding;
mod file_error;
mod tables;
mod unverified_file;
mod worker;

use std::{
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use mq_codec::{ByteStr, TopicFilter};
use redb::{Builder, Database, StorageBackend, backends::FileBackend};
use tokio::sync::watch;
use tracing::{error, warn};

use super::{Change, Life, Position, Snapshot, Store, StoreError, StoredMessage, User};
use crate::{
    files::{create_private, make_private, sync_folder},
    lock::lock,
};
use calls::Calls;
use file_error::FileError;
use tables::Tables;
use unverified_file::UnverifiedFile;
use worker::Worker;

/// Bytes of cached pages.
const CACHE: usize = 16 << 20;

/// Time after which a commit counts as hanging when the store is closed.
const HUNG_AFTER: Duration = Duration::from_secs(5);

/// The time at which changes are on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Changes are on the disk before they are settled: acknowledged messages survive a crash and a power failure.
    #[default]
    Always,
    /// Changes are on the disk at most so long after they are settled: a crash or a power failure may lose messages
    /// acknowledged in that time, and QoS 2 messages may arrive twice.
    Interval(Duration),
    /// Changes are on the disk at the end of the broker, and each minute: a crash may lose everything acknowledged
    /// since the last time.
    Off,
}

/// The interval of syncs with [`Durability::Off`]. Changes since the last one are in memory.
const NOW_AND_THEN: Duration = Duration::from_mins(1);

impl Durability {
    /// Returns the interval of syncs to the disk; `None` syncs each commit.
    fn sync_every(self) -> Option<Duration> {
        match self {
            Self::Always => None,
            Self::Interval(every) => Some(every),
            Self::Off => Some(NOW_AND_THEN),
        }
    }
}

/// The purpose of opening a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// The store of a broker, which is made if it is missing.
    Store,
    /// A backup, which must be complete, and is never written to.
    Backup,
}

/// A store in one file.
///
/// [Closing](Store::close) or dropping it writes all recorded changes to the disk, as long as no commit takes longer
/// than 5 s: then the disk hangs, and the thread is left behind. A file belongs to one broker at a time.
pub struct DiskStore {
    role: Role,
    path: PathBuf,
    database: Arc<Database>,
    calls: Arc<Calls>,
    settled: watch::Receiver<Position>,
    /// Held while a backup is written: one at a time.
    backing_up: Mutex<()>,
    /// The thread that commits, which returns `true` if everything is on the disk at its end. `None` once it was closed.
    worker: Mutex<Option<JoinHandle<bool>>>,
}

impl DiskStore {
    /// Opens the file, or makes it. The file is readable for its owner alone (mode 0600), also an
    /// existing one.
    ///
    /// # Errors
    /// The file cannot be read and written, is in use, is damaged, or is of a later version; the
    /// error names it. The file is left as it is.
    pub fn open(path: &Path, durability: Durability) -> Result<Self, StoreError> {
        Self::open_as(Role::Store, path, durability)
    }

    /// Opens a backup, to [`load`](Store::load) it or to [copy](Store::back_up) it, with everything that has expired
    /// since. The file is left as it is: what redb writes to it, and what is recorded, is kept in memory.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open); and if there is no such file, or the backup was cut off.
    pub fn open_backup(path: &Path) -> Result<Self, StoreError> {
        if let Err(error) = std::fs::metadata(path) {
            return Err(FileError::Io(error).at(path.display()));
        }
        Self::open_as(Role::Backup, path, Durability::Off)
    }

    fn open_as(role: Role, path: &Path, durability: Durability) -> Result<Self, StoreError> {
        let of_file = |error: FileError| error.at(path.display());
        let found = std::fs::metadata(path).ok();
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            return Err(StoreError::Damaged {
                place: path.display().to_string(),
                source: "is no regular file: name one, or one that does not exist yet".into(),
            });
        }
        if found.as_ref().is_some_and(|found| found.len() == 0) {
            // redb would take it for a new file.
            let problem = "is empty: it was cut off, or never written; remove it to begin anew";
            return Err(StoreError::Damaged {
                place: path.display().to_string(),
                source: problem.into(),
            });
        }
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path);
        let file = file.map_err(|error| of_file(FileError::Io(error)))?;
        if role == Role::Store
            && let Err(error) = make_private(&file)
        {
            let path = path.display();
            warn!(%path, %error, "store: cannot make the file private to its owner");
        }
        let store = FileBackend::new(file)
            .map_err(FileError::Opening)
            .and_then(|file| Self::start(role, path.to_owned(), file, durability));
        let store = store.map_err(|error| {
            // An incomplete new file, as on a full disk, would prevent the next start. A file that
            // another broker has made meanwhile stays.
            if found.is_none() && !error.is_in_use() {
                let _ = std::fs::remove_file(path);
            }
            of_file(error)
        })?;
        if found.is_none() {
            // A power failure must not lose the file's name.
            sync_folder(path).map_err(|error| of_file(FileError::Io(error)))?;
        }
        Ok(store)
    }

    /// Opens the store on a backend other than a file, for tests.
    #[doc(hidden)]
    pub fn on(backend: impl StorageBackend, durability: Durability) -> Result<Self, StoreError> {
        let place = "the store";
        let started = Self::start(Role::Store, PathBuf::from(place), backend, durability);
        started.map_err(|error| error.at(place))
    }

    fn start(
        role: Role,
        path: PathBuf,
        file: impl StorageBackend,
        durability: Durability,
    ) -> Result<Self, FileError> {
        let trial = UnverifiedFile::new(file);
        let database = builder().create_with_backend(trial.clone());
        let database = Arc::new(database.map_err(FileError::Opening)?);
        if role == Role::Backup && !tables::is_whole_backup(&database)? {
            return Err(FileError::NotWhole);
        }
        let tables = Tables::open(&database)?;
        if role == Role::Store {
            trial.accept().map_err(FileError::Io)?;
        }
        let sender = watch::Sender::new(Position::default());
        let settled = sender.subscribe();
        let calls = Arc::new(Calls::default());
        let worker = Worker {
            path: path.clone(),
            database: Arc::clone(&database),
            tables,
            calls: Arc::clone(&calls),
            settled: sender,
            sync_every: durability.sync_every(),
        };
        let thread = std::thread::Builder::new().name("store".to_owned());
        let worker = thread
            .spawn(move || worker.run())
            .map_err(FileError::Thread)?;
        Ok(Self {
            role,
            path,
            database,
            calls,
            settled,
            backing_up: Mutex::default(),
            worker: Mutex::new(Some(worker)),
        })
    }
}

impl Store for DiskStore {
    fn load(&self) -> Result<Snapshot, StoreError> {
        let now = SystemTime::now();
        let kept = tables::load(&self.database);
        let mut snapshot = kept.map_err(|error| error.at(self.path.display()))?;
        if self.role == Role::Backup {
            return Ok(snapshot);
        }
        // Expired messages and sessions are removed from the file.
        let expired = snapshot.expired(now);
        if !expired.is_empty() {
            for change in &expired {
                snapshot.apply(change.clone());
            }
            self.record(expired);
        }
        Ok(snapshot)
    }

    fn record(&self, changes: Vec<Change>) -> Position {
        self.calls.add(changes)
    }

    fn settled(&self) -> watch::Receiver<Position> {
        self.settled.clone()
    }

    fn close(&self) -> Result<(), StoreError> {
        let worker = lock(&self.worker).take();
        let Some(worker) = worker else {
            return Ok(());
        };
        self.calls.end();
        if !self.calls.wait_for_end(HUNG_AFTER) {
            return Err(StoreError::Hangs {
                place: self.path.display().to_string(),
            });
        }
        // The thread has logged its error, if it had one.
        match worker.join() {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(StoreError::Failed),
        }
    }

    fn can_spill(&self) -> bool {
        true
    }

    fn queued(
        &self,
        client_id: &ByteStr,
        numbers: RangeInclusive<u64>,
        most: usize,
    ) -> Result<Vec<(u64, StoredMessage)>, StoreError> {
        tables::queued(&self.database, client_id.as_str(), numbers, most)
            .map_err(|error| error.at(self.path.display()))
    }

    /// Writes the backup to a file with `.part` in its name, which is renamed once it is complete.
    fn back_up(&self, to: &Path) -> Result<(), StoreError> {
        let place = format!("backup {}", to.display());
        if to.exists() {
            return Err(StoreError::BackupExists { place });
        }
        let _one = lock(&self.backing_up);
        // The name `.part` marks an incomplete copy.
        let mut part = to.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let _ = std::fs::remove_file(&part);
        let written = create_private(&part)
            .map_err(FileError::Io)
            .and_then(|_| builder().create(&part).map_err(FileError::Opening))
            .and_then(|copy| tables::copy(&self.database, &copy))
            .and_then(|()| std::fs::rename(&part, to).map_err(FileError::Io))
            .and_then(|()| sync_folder(to).map_err(FileError::Io));
        if written.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        written.map_err(|error| error.at(place))
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        if let Err(StoreError::Hangs { place }) = self.close() {
            error!(path = %place, "store: disk hangs; unsettled changes abandoned");
        }
    }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Returns redb's builder with verification of every page's checksum on opening. By default redb
/// trusts a file that was closed in order: a page damaged since would cause a panic or, worse,
/// other messages.
fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder.set_check_integrity_on_open(true);
    builder
}

/// Encodes a message as in the file. Public for the fuzz target alone: redb's checksums keep
/// damaged bytes from the decoder, so a file cannot show how it handles them.
///
/// # Errors
/// MQTT has no encoding for the message.
#[doc(hidden)]
pub fn encode_message(message: &StoredMessage) -> Result<Vec<u8>, StoreError> {
    encoding::message(message).map_err(|error| error.at("message"))
}

/// Decodes a message of the file.
///
/// # Errors
/// The bytes are no encoded message.
#[doc(hidden)]
pub fn decode_message(bytes: &[u8]) -> Result<StoredMessage, StoreError> {
    encoding::read_message(bytes).map_err(|error| error.at("message"))
}

/// Encodes a life: its kind, and its milliseconds.
pub(crate) fn write_life(life: Life) -> (u8, u64) {
    encoding::life(life)
}

pub(crate) fn read_life(form: (u8, u64)) -> Option<Life> {
    encoding::read_life(form).ok()
}

/// Encodes a user: its kind, and its name.
pub(crate) fn write_user(user: &User) -> (u8, &str) {
    encoding::user(user)
}

pub(crate) fn read_filter(text: &str) -> Option<TopicFilter> {
    encoding::read_filter(text).ok()
}

pub(crate) fn read_user(form: (u8, &str)) -> Option<User> {
    encoding::read_user(form).ok()
}

#[cfg(test)]
mod tests;
