//! Why a broker does not start.

use std::{fmt, path::PathBuf};

/// Why a broker does not start. Each is one line that tells what is wrong and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address to listen at.
    #[error("no listener: give at least one, such as tcp://127.0.0.1:1883")]
    NoListener,
    /// A listener cannot be bound, or a file that it needs cannot be read.
    #[error(transparent)]
    Transport(#[from] mq_transport::Error),
    /// The store cannot be read.
    #[error("the store cannot be read: {0}")]
    Store(#[from] crate::store::StoreError),
    /// The file of the tickets cannot be read, removed or written.
    #[error("ticket file {} {problem}", path.display())]
    TicketFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The place for operators cannot be opened.
    #[error("cannot answer operators at {place}: {source}")]
    Admin {
        /// An address, or a socket's path.
        place: String,
        /// Why.
        source: std::io::Error,
    },
    /// A bridge cannot be made.
    #[error("bridge {name:?}: {problem}")]
    Bridge {
        /// The bridge.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The cluster cannot be joined.
    #[error("the cluster cannot be joined: {problem}")]
    Cluster {
        /// Why.
        problem: String,
    },
    /// The threads for connections cannot be started.
    #[error("no threads for connections: {0}")]
    Workers(std::io::Error),
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    ReadConfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration file is not valid.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and key.
        problem: String,
    },
    /// Password or access files cannot be read or are not valid; at least one mistake.
    #[error("{}", first_of(.0))]
    Access(Vec<Mistake>),
}

/// Something that is wrong in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; `None` if it is about the file as a whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub problem: String,
}

/// Such as `acl: line 3: ...`.
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.problem)
    }
}

/// One line about all mistakes.
fn first_of(mistakes: &[Mistake]) -> String {
    match mistakes {
        [] => "the access files are not valid".to_owned(),
        [one] => one.to_string(),
        [first, others @ ..] => format!("{first} (and {} more)", others.len()),
    }
}
