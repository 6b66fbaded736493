//! What can go wrong with emulated links.

use std::{io, path::PathBuf};

/// Why a link cannot be emulated. Each is one line that says what is wrong and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No shipped profile has that name.
    #[error("there is no link `{name}`: there are {known}, and files whose name ends in .toml")]
    NoProfile {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A profile's file cannot be read.
    #[error("cannot read the link {name}: {source}")]
    ReadProfile {
        /// The file.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A profile says something that cannot be.
    #[error("the link {name}: {problem}")]
    Profile {
        /// Its name.
        name: String,
        /// The key, the value and what is allowed.
        problem: String,
    },
    /// The system does not let this user make namespaces, or has none.
    #[error("{problem}")]
    Namespaces {
        /// Which setting forbids it.
        problem: String,
    },
    /// A capture cannot begin.
    #[error("cannot capture packets into {}: {source}", file.display())]
    Capture {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A step of building the network failed.
    #[error("cannot {step}: {source}")]
    Setup {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// The emulator cannot reach its end of a host's interface.
    #[cfg(target_os = "linux")]
    pub(crate) fn no_emulator(source: io::Error) -> Self {
        Self::Setup {
            step: "open an interface for the emulator",
            source,
        }
    }
}
