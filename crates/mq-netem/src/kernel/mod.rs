//! The kernel's own emulation, on a real interface: netem and tbf, set over rtnetlink, and what
//! stood there before put back.
//!
//! `qdisc` has the messages to the kernel, and needs none; `netlink` the socket; `saved` what stood on an
//! interface; `memories` the files by which that outlives the program that changed it; `ssh` the way of an
//! SSH session, which nobody wants to lose.

mod controller;
mod memories;
mod netlink;
mod qdisc;
mod saved;
mod ssh;

pub use controller::{Applied, Cleared, Controller, Standing};
pub use qdisc::{Difference, Netem, NetemLoss, Shape, Tbf};
