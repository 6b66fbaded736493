//! Modules of the commands, one each: its options, and the output of a workload's result.

mod args;
pub(crate) mod broker;
pub(crate) mod campaign;
pub(crate) mod cell;
pub(crate) mod clock;
pub(crate) mod compare;
pub(crate) mod connect;
pub(crate) mod day;
pub(crate) mod e2e;
pub(crate) mod energy;
pub(crate) mod explain;
#[cfg(target_os = "linux")]
pub(crate) mod hosts;
pub(crate) mod join;
#[cfg(unix)]
pub(crate) mod lab;
pub(crate) mod load;
#[cfg(target_os = "linux")]
pub(crate) mod net;
pub(crate) mod publish;
pub(crate) mod reconnect;
pub(crate) mod report;
pub(crate) mod rtt;
pub(crate) mod stopwait;
pub(crate) mod subscribe;
pub(crate) mod verify;
pub(crate) mod worker;
