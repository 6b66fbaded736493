//! Where runs take place: in emulated networks on this machine, or on the hosts of a testbed.

use super::{
    here::{self, EnergySource},
    machine,
    work::Work,
};
use crate::campaign::{cell::Cell, keep::Keep, record::Outcome};

/// Where runs take place.
#[derive(Debug)]
pub(crate) enum Place {
    /// On this machine, each in a network of its own.
    Here {
        energy: EnergySource,
        /// What is kept of each run.
        keep: Vec<Keep>,
    },
    /// On real machines.
    #[cfg(target_os = "linux")]
    Hosts(super::on_hosts::Testbed),
}

impl Place {
    /// Makes sure, before anything begins, that the place can run all of these.
    ///
    /// # Errors
    /// The reason if it cannot.
    pub(super) async fn prepare(&self, cells: impl Iterator<Item = &Cell>) -> anyhow::Result<()> {
        match self {
            Self::Here { .. } => Ok(()),
            #[cfg(target_os = "linux")]
            Self::Hosts(testbed) => testbed.prepare(cells).await,
        }
    }

    /// The most runs at once, whatever their load.
    pub(super) fn at_once(&self) -> usize {
        match self {
            Self::Here {
                energy: EnergySource::Model(_),
                ..
            } => machine::processes(),
            // A meter has one probe.
            Self::Here {
                energy: EnergySource::Meter(_),
                ..
            } => 1,
            #[cfg(target_os = "linux")]
            Self::Hosts(_) => 1,
        }
    }

    /// Does a run. A failure within the run is part of its outcome.
    ///
    /// # Errors
    /// If the run says nothing about its cell, and all others would fail in the same way: the campaign ends.
    pub(super) async fn run(&self, work: &Work) -> anyhow::Result<Outcome> {
        match self {
            Self::Here { energy, keep } => here::run(energy, keep, work).await,
            #[cfg(target_os = "linux")]
            Self::Hosts(testbed) => testbed.run(work).await,
        }
    }
}
