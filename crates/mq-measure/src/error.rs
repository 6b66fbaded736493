//! What can go wrong in reading and writing measurements.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate; its message is one line that names the file or process.
///
/// A bad measurement is not an error but data with a [`Warning`](crate::Warning).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A line of a file is not what the format asks for.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A file is of another format, or of a version that this program does not read.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format that was asked for.
        expected: String,
        /// What is there instead.
        found: String,
    },
    /// A result in JSON does not fit its schema.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A histogram cannot be tagged so in a log.
    #[error("histogram tag {tag:?}: a tag has no comma, space or line break")]
    Tag {
        /// The tag.
        tag: String,
    },
    /// A histogram cannot be encoded.
    #[error("histogram {tag:?} cannot be encoded: {problem}")]
    Encode {
        /// The histogram's tag.
        tag: String,
        /// Why.
        problem: String,
    },
    /// The process is not there, or no longer.
    #[error("process {pid} does not exist or has ended")]
    NoProcess {
        /// The process.
        pid: u32,
    },
    /// This operating system does not offer the measurement.
    #[error("{what} cannot be measured on {os}")]
    Unsupported {
        /// The measurement.
        what: &'static str,
        /// The operating system.
        os: &'static str,
    },
}

impl Error {
    /// For `map_err`: an [`Error::Io`] about `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
