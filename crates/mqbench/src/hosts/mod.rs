//! The machines of a testbed.
//!
//! | module | what it has |
//! |---|---|
//! | `file` | `hosts.toml` |
//! | `check` | problems that bar or spoil a measurement on a host |
//! | `deploy` | copying a program to a host |
//! | `report` | the report of a host on itself, and its clock |
//! | `ssh` | roles and files on a host, by OpenSSH |

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
pub(crate) use file::{HostRole, Hosts, Machine};
#[cfg(target_os = "linux")]
pub(crate) use {
    report::HostSession,
    ssh::{RemoteRole, Ssh},
};
