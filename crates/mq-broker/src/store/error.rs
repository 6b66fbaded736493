//! The error of a store.

use std::{error::Error, fmt};

type Source = Box<dyn Error + Send + Sync>;

/// The error of a store: one line that names the store, or the file.
///
/// A store of the application's own makes one by [`other`](Self::other) or [`failed`](Self::Failed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another broker has the store open: end that one first.
    #[error("{place}: {source}")]
    InUse {
        /// The store or its file.
        place: String,
        /// The cause, as the store reports it.
        source: Source,
    },
    /// A later version wrote the store: run that version, or put back a backup.
    #[error("{place}: {source}")]
    LaterFormat {
        /// The store or its file.
        place: String,
        /// The cause, as the store reports it.
        source: Source,
    },
    /// The content is damaged: restore a backup.
    #[error("{place}: {source}")]
    Damaged {
        /// The store or its file.
        place: String,
        /// The cause, as the store reports it.
        source: Source,
    },
    /// The system does not read or write the file: check its folder, its permissions and the disk.
    #[error("{place}: {source}")]
    Io {
        /// The store or its file.
        place: String,
        /// The cause: the system's error.
        source: std::io::Error,
    },
    /// The file of a backup exists already: choose another name.
    #[error("{place}: the file exists already")]
    BackupExists {
        /// The file that exists already.
        place: String,
    },
    /// The store has no such function, which is optional.
    #[error("{place}: this store {problem}")]
    Unsupported {
        /// The file, or the session, of the call.
        place: String,
        /// The missing function.
        problem: &'static str,
    },
    /// The disk neither writes nor fails: look at the disk.
    #[error("{place}: the disk hangs")]
    Hangs {
        /// The store or its file.
        place: String,
    },
    /// The store has failed for good: stop the broker, and start it again once the store can be
    /// written.
    #[error("the store has failed")]
    Failed,
    /// Any other error, such as one of a database.
    #[error("{place}: {source}")]
    Other {
        /// The store or its file.
        place: String,
        /// The cause, as the store reports it.
        source: Source,
    },
}

impl StoreError {
    /// Makes an error that no other variant describes.
    pub fn other(place: impl fmt::Display, source: impl Into<Source>) -> Self {
        Self::Other {
            place: place.to_string(),
            source: source.into(),
        }
    }
}
