//! Why a broker does not start.

use std::path::PathBuf;

/// Why a broker does not start. Each is one line that says what is wrong and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address to listen at.
    #[error("no listener: give at least one, such as --listen tcp://127.0.0.1:1883")]
    NoListener,
    /// A listener cannot be bound, or what it needs cannot be read.
    #[error(transparent)]
    Transport(#[from] mq_transport::Error),
    /// What an earlier broker kept cannot be read.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The file of the tickets cannot be read, removed or written.
    #[error("ticket file {} {problem}", path.display())]
    TicketFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Operators cannot be answered there.
    #[error("cannot answer operators at {place}: {source}")]
    Admin {
        /// An address, or a socket's path.
        place: String,
        /// Why.
        source: std::io::Error,
    },
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
}
