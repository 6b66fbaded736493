//! Runs of a campaign's cells: their order, the machines and networks that they take, and what is measured there.
//!
//! | module | what it has |
//! |---|---|
//! | `plan` | the order of runs, and how long they take |
//! | `queue` | the runs that a result set lacks |
//! | `runner` | runs many of them in a `backend` |
//! | `run_request` | one run that is to be done, and the order for its process |
//! | `local`, `run_cell` | a run on this machine, in a process of its own |
//! | `findings` | the results of a run, until they are its outcome |
//! | `brokers` | the brokers of such a run |
//! | `load` | a run of many publishers and subscribers |
//! | `storm` | a run in which the broker is restarted |
//! | `contention` | how full a run's shared channel was |
//! | `remote`, `placement` | a run on real machines, and which machine does what |
//! | `energy_model`, `metered_energy` | the energy of a run, by a model or by a meter |
//! | `cpu_monitor` | how busy this machine is |

pub(crate) mod backend;
mod brokers;
mod contention;
mod cpu_monitor;
mod energy_model;
mod findings;
mod half_open;
mod load;
pub(crate) mod local;
mod metered_energy;
pub(crate) mod placement;
pub(crate) mod plan;
pub(crate) mod queue;
#[cfg(target_os = "linux")]
pub(crate) mod remote;
pub(crate) mod run_cell;
pub(crate) mod run_request;
pub(crate) mod runner;
mod storm;

use std::time::Duration;

/// Time that a message or a connection may take. No transport tries for so long, so that a slow one counts
/// as slow and not as failed.
const PATIENCE: Duration = Duration::from_mins(2);
