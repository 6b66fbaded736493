//! The places in which runs take place: in emulated networks on this machine, or on the hosts of a testbed.

use super::{
    cpu_monitor,
    local::{self, EnergySource},
    run_request::RunRequest,
};
use crate::campaign::{artifacts::Artifact, cell::Cell, record::Outcome};

/// The machines that runs take place on.
#[derive(Debug)]
pub(crate) enum Backend {
    /// Runs take place on this machine, each in a network of its own.
    Local {
        energy: EnergySource,
        /// Files that are kept of each run.
        artifacts: Vec<Artifact>,
    },
    /// Runs take place on real machines.
    #[cfg(target_os = "linux")]
    Remote(super::remote::RemoteHosts),
}

impl Backend {
    /// Makes sure, before anything begins, that the backend can run all of these.
    ///
    /// # Errors
    /// The reason if it cannot.
    pub(super) async fn prepare(&self, cells: impl Iterator<Item = &Cell>) -> anyhow::Result<()> {
        match self {
            Self::Local { .. } => Ok(()),
            #[cfg(target_os = "linux")]
            Self::Remote(hosts) => hosts.prepare(cells).await,
        }
    }

    /// Returns the most runs at once, whatever their load.
    pub(super) fn max_parallel(&self) -> usize {
        match self {
            Self::Local {
                energy: EnergySource::Model(_),
                ..
            } => cpu_monitor::most_parallel_cells(),
            // A meter has one probe.
            Self::Local {
                energy: EnergySource::Meter(_),
                ..
            } => 1,
            #[cfg(target_os = "linux")]
            Self::Remote(_) => 1,
        }
    }

    /// Runs a cell. A failure within the run is part of its outcome.
    ///
    /// # Errors
    /// If the run says nothing about its cell, and all others would fail in the same way: the campaign ends.
    pub(super) async fn run(&self, request: &RunRequest) -> anyhow::Result<Outcome> {
        match self {
            Self::Local { energy, artifacts } => local::run(energy, artifacts, request).await,
            #[cfg(target_os = "linux")]
            Self::Remote(hosts) => hosts.run(request).await,
        }
    }
}
