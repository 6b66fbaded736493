//! Errors of meters, their files, energy profiles and fits.

use std::io;
use std::path::Path;

use mq_measure::Error as FileError;

/// An error of a meter, of its files, of an energy profile or of a fit; the message is one line that names the meter,
/// instrument or file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written, or is not what its format asks for.
    #[error(transparent)]
    File(#[from] FileError),
    /// This machine does not have the meter, or the meter cannot be used.
    #[error("meter {meter}: {problem}")]
    NoMeter {
        /// The meter as the user named it.
        meter: String,
        /// Reason, with the meters that exist or the value that would be right where there is one.
        problem: String,
    },
    /// An instrument refused a command, or its answer does not fit the command.
    #[error("{instrument}: {command}: {problem}")]
    Instrument {
        /// Address of the instrument, as `HOST:PORT`.
        instrument: String,
        /// The command that failed.
        command: String,
        /// Errors that the instrument reported, or the answer that does not fit the command.
        problem: String,
    },
    /// The connection to an instrument is lost, or the instrument does not answer in time. Another attempt may
    /// succeed.
    #[error("{instrument}: {problem}")]
    Lost {
        /// Address of the instrument, as `HOST:PORT`.
        instrument: String,
        /// Failure of the connection, or the command without an answer.
        problem: String,
    },
    /// The points of a trace are not in ascending order, or one of them is no number.
    #[error("point {at} is not after the one before it, or is no number")]
    Points {
        /// Index of the first bad point of the trace, from 0.
        at: usize,
    },
    /// The energy profile does not exist, or holds an impossible value.
    #[error("energy profile {name}: {problem}")]
    Profile {
        /// Name or file of the energy profile.
        name: String,
        /// Key or value that is wrong, and a right one.
        problem: String,
    },
    /// No coefficients can be found from the runs.
    #[error("cannot fit: {problem}")]
    Fit {
        /// Reason: too few runs, a term that the runs cannot separate from others, or a run that cannot be used.
        problem: String,
    },
}

impl Error {
    /// Returns a closure for `map_err` that makes an I/O error one about `path`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let about = FileError::io(path);
        |source| Self::File(about(source))
    }

    /// Makes the error that line `line` of `path`, counted from 1, is not what the format asks for.
    pub(crate) fn line(path: &Path, line: u64, problem: String) -> Self {
        let path = path.to_owned();
        Self::File(FileError::Line {
            path,
            line,
            problem,
        })
    }

    /// Makes the error that `path` is not what was `expected`.
    pub(crate) fn format(path: &Path, expected: &str, found: &str) -> Self {
        Self::File(FileError::Format {
            path: path.to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    }
}
