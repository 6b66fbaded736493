//! What can go wrong with meters, their files and profiles.

use std::io;
use std::path::Path;

use mq_measure::Error as FileError;

/// An error of a meter; its message is one line that names the meter, instrument or file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written, or is not what its format asks for.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no such meter here, or it cannot be used.
    #[error("meter {meter}: {problem}")]
    NoMeter {
        /// The meter as the user named it.
        meter: String,
        /// What is missing, and what there is.
        problem: String,
    },
    /// An instrument did not take a command, or answered with something else.
    #[error("{instrument}: {command}: {problem}")]
    Instrument {
        /// Its address.
        instrument: String,
        /// The command.
        command: String,
        /// The instrument's answer.
        problem: String,
    },
    /// The connection to an instrument is lost, or the instrument does not answer in time. Another attempt may
    /// succeed.
    #[error("{instrument}: {problem}")]
    Lost {
        /// Its address.
        instrument: String,
        /// What happened.
        problem: String,
    },
    /// Points of a trace are not in ascending order, or one is no number.
    #[error("point {at} is not after the one before it, or is no number")]
    Points {
        /// The point, counted from 0.
        at: usize,
    },
    /// An energy profile does not exist, or holds an impossible value.
    #[error("energy profile {name}: {problem}")]
    Profile {
        /// The profile's name or file.
        name: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// Coefficients cannot be found from these runs.
    #[error("cannot fit: {problem}")]
    Fit {
        /// What is lacking.
        problem: String,
    },
}

impl Error {
    /// For `map_err`: `path` cannot be read or written.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let about = FileError::io(path);
        |source| Self::File(about(source))
    }

    /// Line `line` of `path`, counted from 1, is not what the format asks for.
    pub(crate) fn line(path: &Path, line: u64, problem: String) -> Self {
        let path = path.to_owned();
        Self::File(FileError::Line {
            path,
            line,
            problem,
        })
    }

    /// `path` is not what was `expected`.
    pub(crate) fn format(path: &Path, expected: &str, found: &str) -> Self {
        Self::File(FileError::Format {
            path: path.to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    }
}
