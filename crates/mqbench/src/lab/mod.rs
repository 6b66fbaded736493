//! Runs of a campaign's cells: their order, the machines and networks that they take, and what is measured there.
//!
//! | module | what it has |
//! |---|---|
//! | `plan` | the order of runs, and how long they take |
//! | `queue` | the runs that a result set lacks |
//! | `runner` | runs many of them in a `place` |
//! | `here`, `run_cell` | a run on this machine, in a process of its own |
//! | `brokers` | the brokers of such a run |
//! | `storm` | a run in which the broker is restarted |
//! | `contention` | how full a run's shared channel was |
//! | `on_hosts`, `placement` | a run on real machines, and which machine does what |
//! | `energy`, `metered` | the energy of a run, by a model or by a meter |
//! | `machine` | how busy this machine is |

mod brokers;
mod contention;
mod energy;
pub(crate) mod here;
mod machine;
mod metered;
#[cfg(target_os = "linux")]
pub(crate) mod on_hosts;
pub(crate) mod place;
pub(crate) mod placement;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod run_cell;
pub(crate) mod runner;
mod storm;

use serde::{Deserialize, Serialize};

use crate::campaign::{cell::Cell, keep::Files};

/// The order for one run, which its process (`mqbench cell`) gets.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    pub(crate) cell: Cell,
    pub(crate) seed: u64,
    /// The profile that computes the energy; `None` if a meter measures it from outside.
    pub(crate) energy_profile: Option<String>,
    /// What is kept beside the outcome.
    pub(crate) files: Files,
}
