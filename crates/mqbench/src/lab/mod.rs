//! Runs of a campaign's cells: their order, the machines and networks that they take, and what is measured there.
//!
//! | module | what it has |
//! |---|---|
//! | `plan` | the order of runs, and how long they take |
//! | `queue` | the runs that a result set lacks |
//! | `runner` | runs many of them in a `place` |
//! | `work` | one run that is to be done, and the order for its process |
//! | `here`, `run_cell` | a run on this machine, in a process of its own |
//! | `findings` | the results of a run, until they are its outcome |
//! | `brokers` | the brokers of such a run |
//! | `storm` | a run in which the broker is restarted |
//! | `contention` | how full a run's shared channel was |
//! | `on_hosts`, `placement` | a run on real machines, and which machine does what |
//! | `energy_model`, `metered_energy` | the energy of a run, by a model or by a meter |
//! | `machine` | how busy this machine is |

mod brokers;
mod contention;
mod energy_model;
mod findings;
pub(crate) mod here;
mod machine;
mod metered_energy;
#[cfg(target_os = "linux")]
pub(crate) mod on_hosts;
pub(crate) mod place;
pub(crate) mod placement;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod run_cell;
pub(crate) mod runner;
mod storm;
pub(crate) mod work;

use std::time::Duration;

/// How long a message or a connection may take. It is longer than any transport tries, so that a slow one counts
/// as slow and not as failed.
const PATIENCE: Duration = Duration::from_mins(2);
