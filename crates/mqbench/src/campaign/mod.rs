//! Campaigns: many runs from a file of factors and levels, and their records.
//!
//! | module | what it has |
//! |---|---|
//! | `file` | a campaign, from its file |
//! | `cell` | one combination of levels |
//! | `plan` | the order of runs, and how long they take |
//! | `queue` | the runs that a result set lacks |
//! | `runner` | runs many of them in a `place` |
//! | `here`, `run_cell` | a run on this machine, in a process of its own |
//! | `row` | cells with hosts in a row |
//! | `brokers` | the brokers of a run |
//! | `storm` | a run in which the broker is restarted |
//! | `machine` | how busy this machine is |
//! | `on_hosts`, `placement` | a run on real machines, and which machine does what |
//! | `record`, `store` | the record of a run, and the result set on disk |
//! | `contention` | how full a run's shared channel was |
//! | `keep` | samples and captures of each run, on request |
//! | `tally` | how many runs are good, disturbed, missing |
//! | `energy`, `metered` | the energy of a run, by a model or by a meter |
//! | `claims` | sentences of papers, and the rule that judges them |

mod brokers;
pub(crate) mod cell;
pub(crate) mod changes;
pub(crate) mod claims;
mod contention;
mod contradiction;
mod energy;
pub(crate) mod file;
pub(crate) mod here;
pub(crate) mod keep;
mod machine;
mod metered;
#[cfg(target_os = "linux")]
pub(crate) mod on_hosts;
pub(crate) mod place;
pub(crate) mod placement;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod record;
mod row;
pub(crate) mod run_cell;
pub(crate) mod runner;
pub(crate) mod stack;
pub(crate) mod store;
mod storm;
pub(crate) mod tally;
#[cfg(test)]
pub(crate) mod tests;

use serde::{Deserialize, Serialize};

use cell::Cell;
use keep::Files;

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
