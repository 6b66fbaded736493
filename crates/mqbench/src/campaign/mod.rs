//! Campaigns: many runs from a file of factors and levels, and what is made of them.
//!
//! `file` reads a campaign, `plan` puts its runs in order, `queue` knows which of them a set lacks,
//! `cell` is one combination of levels, `run_cell` one run of it, `runner` runs many side by side while
//! the `machine` keeps its timing, `record` is what a run leaves, `energy` what it would have cost a
//! board, by a model, `meter` what it did cost, by an instrument, `store` the result set on disk.
//! `claims` is what papers printed, `hosts` the real machines that a campaign is meant for, `on_hosts`
//! the runner that has their agents do the work.

pub(crate) mod cell;
pub(crate) mod claims;
mod energy;
pub(crate) mod file;
pub(crate) mod hosts;
mod machine;
pub(crate) mod meter;
#[cfg(target_os = "linux")]
pub(crate) mod on_hosts;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod run_cell;
pub(crate) mod runner;
#[cfg(test)]
mod shipped;
pub(crate) mod store;
