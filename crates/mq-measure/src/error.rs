//! Errors of reading and writing measurements, and of relating clocks.

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
        /// The path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A line of a file is not what the format asks for.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The path of the file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The problem, with the correct form.
        problem: String,
    },
    /// A file is of another format, or of a version that this program does not read.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Format {
        /// The path of the file.
        path: PathBuf,
        /// The format that was asked for.
        expected: String,
        /// The format found in the file.
        found: String,
    },
    /// A result in JSON does not fit its schema.
    #[error("{}: {source}", path.display())]
    Json {
        /// The path of the result.
        path: PathBuf,
        /// The parser's error with line and column, or the encoder's error.
        source: serde_json::Error,
    },
    /// A log cannot have this histogram tag.
    #[error("histogram tag {tag:?}: a tag has no comma, space or line break")]
    Tag {
        /// The tag that was refused.
        tag: String,
    },
    /// A histogram cannot be encoded.
    #[error("histogram {tag:?} cannot be encoded: {problem}")]
    Encode {
        /// The histogram's tag.
        tag: String,
        /// The encoder's error.
        problem: String,
    },
    /// The process does not exist, or has ended.
    #[error("process {pid} does not exist or has ended")]
    NoProcess {
        /// The identifier of the process.
        pid: u32,
    },
    /// A comparison of two clocks had too few exchanges that came to an end.
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
        /// Nanoseconds by which a question's send time precedes that of the question before it: a lower bound of the
        /// step back.
        by_ns: u64,
    },
    /// The assumed least delays are longer than a measured round trip.
    #[error(
        "a question was answered within {round_trip_ns} ns, so the path cannot take {assumed_ns} ns \
         at least; give smaller least delays"
    )]
    DelaysTooLong {
        /// Sum of the assumed least delays, there and back, in nanoseconds.
        assumed_ns: u64,
        /// Least round trip that was measured, in nanoseconds.
        round_trip_ns: u64,
    },
    /// Two hosts' clocks were not compared, neither directly nor with a third.
    #[error(
        "the clocks of {from} and {to} were not compared with each other nor with the same third: \
         there is {compared}"
    )]
    NoRelation {
        /// The host whose times were to be converted.
        from: String,
        /// The host to whose clock they were to be converted.
        to: String,
        /// The pairs of machines that were compared.
        compared: String,
    },
    /// A host's clock is to be related to itself.
    #[error(
        "both logs are of host {host}, which has one clock; leave the comparison of clocks out, or \
         give hosts of one name different ones"
    )]
    SameHost {
        /// The host of both logs.
        host: String,
    },
    /// The output of chrony does not have the form that `chronyc -c tracking` prints.
    #[error("chronyc -c tracking: {problem}")]
    Chrony {
        /// The field or the form that is wrong.
        problem: String,
    },
    /// This operating system does not offer the measurement.
    #[error("{what} cannot be measured on {os}")]
    Unsupported {
        /// The quantity that cannot be measured.
        what: &'static str,
        /// The operating system.
        os: &'static str,
    },
}

impl Error {
    /// Returns a function for `map_err` that makes an [`Error::Io`] about `path`.
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
