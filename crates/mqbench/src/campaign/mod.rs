//! Campaigns: many runs from a file of factors and levels, and their records. The folder `lab` runs them.
//!
//! | module | what it has |
//! |---|---|
//! | `file` | a campaign, from its file |
//! | `changes` | changes to a file, which its name has |
//! | `cell`, `broker_row` | one combination of levels, and those with hosts in a row |
//! | `cell_keys` | the keys of a cell in a file, and the values that each takes |
//! | `pattern` | traffic patterns, and the properties in which they differ |
//! | `contradiction` | keys of a cell that contradict each other |
//! | `record`, `store` | the record of a run, and the result set on disk |
//! | `transport_parameters` | the parameters of the transports in a record |
//! | `artifacts` | samples and captures of each run, on request |
//! | `run_counts` | how many runs are good, disturbed, missing |
//! | `claims` | sentences of papers, and the rule that judges them |

pub(crate) mod artifacts;
mod broker_row;
pub(crate) mod cell;
mod cell_keys;
pub(crate) mod changes;
pub(crate) mod claims;
mod contradiction;
pub(crate) mod file;
pub(crate) mod pattern;
pub(crate) mod record;
pub(crate) mod run_counts;
pub(crate) mod store;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod transport_parameters;
