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
        /// What the file has instead.
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
    /// A log cannot have this histogram tag.
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
    /// The process does not exist, or has ended.
    #[error("process {pid} does not exist or has ended")]
    NoProcess {
        /// The process.
        pid: u32,
    },
    /// Too few exchanges between two clocks came to an end.
    #[error(
        "only {have} of the clocks' questions were answered, {needed} are needed at least; measure \
         longer, or look whether the path loses UDP"
    )]
    TooFewExchanges {
        /// Exchanges that came to an end.
        have: usize,
        /// Exchanges that are needed, not all at the same time.
        needed: usize,
    },
    /// The local clock was set back while it was compared.
    #[error(
        "this machine's clock was set back by {} ms while it was compared; let it come into step \
         first, and measure again", by_ns / 1_000_000
    )]
    ClockWentBack {
        /// How far one question seems to have been asked before the one before it.
        by_ns: u64,
    },
    /// The assumed least delays are longer than a measured round trip.
    #[error(
        "a question was answered within {round_trip_ns} ns, so the path cannot take {assumed_ns} ns \
         at least; give smaller least delays"
    )]
    DelaysTooLong {
        /// The assumed least delays of both ways together.
        assumed_ns: u64,
        /// The least round trip.
        round_trip_ns: u64,
    },
    /// Two hosts' clocks were not compared, neither directly nor with a third.
    #[error(
        "the clocks of {from} and {to} were not compared with each other nor with the same third: \
         there is {compared}"
    )]
    NoRelation {
        /// One host.
        from: String,
        /// The other.
        to: String,
        /// Which machines were compared.
        compared: String,
    },
    /// A host's clock is to be related to itself.
    #[error(
        "both logs are of host {host}, which has one clock; leave the comparison of clocks out, or \
         give hosts of one name different ones"
    )]
    SameHost {
        /// The host.
        host: String,
    },
    /// What chrony printed is not what `chronyc -c tracking` prints.
    #[error("chronyc -c tracking: {problem}")]
    Chrony {
        /// What is wrong.
        problem: String,
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
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
