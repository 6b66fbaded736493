//! The errors of a broker's start.

use std::{fmt, path::PathBuf};

/// The error of a broker's start: one line with the problem and its place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The settings have no address to listen at.
    #[error("no listener: give at least one, such as tcp://127.0.0.1:1883")]
    NoListener,
    /// A listener cannot be bound, or a file that it needs cannot be read.
    #[error(transparent)]
    Transport(#[from] mq_transport::Error),
    /// The store cannot be read.
    #[error("the store cannot be read: {0}")]
    Store(#[from] crate::store::StoreError),
    /// The ticket file cannot be read, removed or written.
    #[error("ticket file {} {problem}", path.display())]
    TicketFile {
        /// The path of the file.
        path: PathBuf,
        /// The problem, with a remedy.
        problem: String,
    },
    /// A listener of the admin interface cannot be opened.
    #[error("cannot answer operators at {place}: {source}")]
    Admin {
        /// The address, or the socket's path.
        place: String,
        /// The cause: the system's error.
        source: std::io::Error,
    },
    /// A bridge cannot be made.
    #[error("bridge {name:?}: {problem}")]
    Bridge {
        /// The bridge's name.
        name: String,
        /// The problem with the bridge's settings.
        problem: String,
    },
    /// The cluster cannot be joined.
    #[error("the cluster cannot be joined: {problem}")]
    Cluster {
        /// The problem that keeps the node out.
        problem: String,
    },
    /// The threads for connections cannot be started.
    #[error("no threads for connections: {0}")]
    Workers(std::io::Error),
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    ReadConfig {
        /// The path of the file.
        path: PathBuf,
        /// The cause: the system's error.
        source: std::io::Error,
    },
    /// The configuration file is not valid.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The path of the file.
        path: PathBuf,
        /// The problem, with line and key.
        problem: String,
    },
    /// Password or access files cannot be read or are not valid; at least one mistake.
    #[error("{}", first_of(.0))]
    Access(Vec<Mistake>),
}

/// A mistake in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mistake {
    /// The path of the file.
    pub path: PathBuf,
    /// The line, from 1; `None` for the file as a whole.
    pub line: Option<usize>,
    /// The problem of the line or file.
    pub problem: String,
}

/// Writes path, line and problem, such as `acl: line 3: ...`.
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.problem)
    }
}

/// Returns one line for all mistakes: the first, and the number of others.
fn first_of(mistakes: &[Mistake]) -> String {
    match mistakes {
        [] => "the access files are not valid".to_owned(),
        [one] => one.to_string(),
        [first, others @ ..] => format!("{first} (and {} more)", others.len()),
    }
}
