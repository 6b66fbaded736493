//! Where runs take place: in emulated networks on this machine, or on the hosts of a testbed.

use std::time::Duration;

use super::{
    cell::Cell,
    here::{self, Energy},
    machine,
    record::Outcome,
};
use crate::meter::Journals;

/// Where runs take place.
#[derive(Debug)]
pub(crate) enum Place {
    /// In a network of its own each.
    Here(Energy),
    /// On real machines.
    #[cfg(target_os = "linux")]
    Hosts(super::on_hosts::Testbed),
}

/// One run that is to be done.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) cell: Cell,
    pub(super) seed: u64,
    /// What its files are called.
    pub(super) name: String,
    /// About how long it takes.
    pub(super) expected: Duration,
    pub(super) journals: Journals,
}

impl Place {
    /// Makes sure, before anything begins, that it can run all of these.
    ///
    /// # Errors
    /// Why it cannot.
    pub(super) async fn prepare(&self, cells: impl Iterator<Item = &Cell>) -> anyhow::Result<()> {
        match self {
            Self::Here(_) => Ok(()),
            #[cfg(target_os = "linux")]
            Self::Hosts(testbed) => testbed.prepare(cells).await,
        }
    }

    /// How many runs at once, whatever they do.
    pub(super) fn at_once(&self) -> usize {
        match self {
            Self::Here(Energy::Modelled(_)) => machine::processes(),
            // A meter has one probe.
            Self::Here(Energy::Measured(_)) => 1,
            #[cfg(target_os = "linux")]
            Self::Hosts(_) => 1,
        }
    }

    /// Does a run. What goes wrong in it is its outcome.
    ///
    /// # Errors
    /// If it tells nothing of its cell, and all others would go the same way: the campaign ends.
    pub(super) async fn run(&self, work: &Work) -> anyhow::Result<Outcome> {
        match self {
            Self::Here(energy) => here::run(energy, work).await,
            #[cfg(target_os = "linux")]
            Self::Hosts(testbed) => testbed.run(work).await,
        }
    }
}
