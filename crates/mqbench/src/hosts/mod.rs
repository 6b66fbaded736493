//! The machines of a testbed: their file, what is in the way of measuring there, what a host says of itself,
//! and how roles are started on it.

#[cfg(target_os = "linux")]
pub(crate) mod check;
#[cfg(target_os = "linux")]
pub(crate) mod deploy;
pub(crate) mod file;
#[cfg(target_os = "linux")]
pub(crate) mod report;
#[cfg(target_os = "linux")]
pub(crate) mod ssh;

#[cfg(test)]
pub(crate) use file::tests;
pub(crate) use file::{Hosts, Machine, Role};
#[cfg(target_os = "linux")]
pub(crate) use {
    report::Presence,
    ssh::{Remote, Ssh},
};
