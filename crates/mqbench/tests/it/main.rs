//! The program `mqbench`, run as its users run it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "seeds, figures and skips are printed")]

#[cfg(target_os = "linux")]
mod captures;
mod program;
mod shipped;
mod sshd;

#[cfg(target_os = "linux")]
mod campaign;
#[cfg(target_os = "linux")]
mod clock;
mod command;
mod early_data;
mod energy;
#[cfg(target_os = "linux")]
mod explain;
#[cfg(target_os = "linux")]
mod hosts;
#[cfg(target_os = "linux")]
mod leftovers;
mod load;
#[cfg(target_os = "linux")]
mod metered;
#[cfg(target_os = "linux")]
mod ordinary_user;
#[cfg(target_os = "linux")]
mod row;
#[cfg(target_os = "linux")]
mod setup;
mod structure;
mod verify;
