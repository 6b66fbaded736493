//! The kernel's own emulation on a real interface: netem and tbf, set over rtnetlink. What the interface had
//! before is restored.
//!
//! | module | what it has |
//! |---|---|
//! | `controller` | sets a link, and restores the interface |
//! | `qdisc` | the messages to the kernel, as bytes |
//! | `netlink` | the socket |
//! | `saved` | what an interface had before |
//! | `memories` | the files that keep that if the program is killed |
//! | `ssh` | the interface of the user's SSH session |

mod controller;
mod memories;
mod netlink;
mod qdisc;
mod saved;
mod ssh;

pub use controller::{Applied, Cleared, Controller, Standing};
pub use qdisc::{Difference, Netem, NetemLoss, Shape, Tbf};
