//! The machines of a testbed: their file, what is in the way of measuring there, and which program they
//! have.

#[cfg(target_os = "linux")]
pub(crate) mod check;
#[cfg(target_os = "linux")]
pub(crate) mod deploy;
pub(crate) mod file;

#[cfg(test)]
pub(crate) use file::tests;
pub(crate) use file::{Hosts, Machine, Role};
