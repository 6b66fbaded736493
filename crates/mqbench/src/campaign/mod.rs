//! Campaigns: many runs from a file of factors and levels, and what is made of them.
//!
//! `file` reads a campaign, `plan` puts its runs in order, `cell` is one combination of levels,
//! `record` what a run of it leaves, `store` the result set on disk; `claims` is what papers printed.

pub(crate) mod cell;
pub(crate) mod claims;
pub(crate) mod file;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod store;
