//! The kernel's own emulation, on a real interface: netem and tbf, set over rtnetlink, and what
//! stood there before put back.
//!
//! `qdisc` is what the kernel is told, without the kernel; `netlink` the socket; `memory` the files
//! by which a change outlives the program that made it; `session` the way of an SSH session, which
//! nobody wants to lose.

mod before;
mod before_change;
mod controller;
mod netlink;
mod qdisc;
mod ssh;

pub use controller::{Applied, Cleared, Controller, Standing};
pub use qdisc::{Difference, Netem, NetemLoss, Shape, Tbf};
