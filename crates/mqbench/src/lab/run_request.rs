//! A run that is to be done, and the order that its process gets.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    campaign::{artifacts::ArtifactPaths, cell::Cell},
    meter::JournalFolder,
};

/// A run that is to be done.
#[derive(Clone, Debug)]
pub(super) struct RunRequest {
    pub(super) cell: Cell,
    pub(super) seed: u64,
    /// The folder of the result set, for files that are kept.
    pub(super) folder: PathBuf,
    /// The name of the run's files.
    pub(super) name: String,
    /// Approximate time that the run takes.
    pub(super) expected: Duration,
    pub(super) journals: JournalFolder,
}

/// The order for one run, which its process (`mqbench cell`) gets.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CellOrder {
    pub(crate) cell: Cell,
    pub(crate) seed: u64,
    /// The profile that computes the energy; `None` if a meter measures it from outside.
    pub(crate) energy_profile: Option<String>,
    /// Files that are kept beside the outcome.
    pub(crate) files: ArtifactPaths,
}

/// The exit code of `mqbench cell` on a system that does not let it make namespaces: no other cell can run there either.
/// Standard error has the reason. The number is `EX_UNAVAILABLE` of sysexits.h.
pub(crate) const NO_NAMESPACES: u8 = 69;
