//! Campaigns: many runs from a file of factors and levels, and what is made of them.
//!
//! `file` reads a campaign, `plan` puts its runs in order, `queue` knows which of them a set lacks,
//! `cell` is one combination of levels, `runner` runs many of them in a `place`: `here`, in processes that
//! `run_cell` while the `machine` keeps its timing, or `on_hosts`, by the `placement` of each cell's parts.
//! `record` is what a run leaves, `energy` what it would have cost a board, by a model, `metered` what it
//! did cost, by an instrument, `store` the result set on disk. `claims` is what papers printed.

pub(crate) mod cell;
pub(crate) mod claims;
mod energy;
pub(crate) mod file;
pub(crate) mod here;
mod machine;
pub(crate) mod metered;
#[cfg(target_os = "linux")]
pub(crate) mod on_hosts;
pub(crate) mod place;
pub(crate) mod placement;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod run_cell;
pub(crate) mod runner;
pub(crate) mod store;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use cell::Cell;

/// One run, as its process (`mqbench cell`) gets it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    pub(crate) cell: Cell,
    pub(crate) seed: u64,
    /// By which its energy is computed; `None` where a meter measures it, from outside.
    pub(crate) energy_profile: Option<String>,
}
