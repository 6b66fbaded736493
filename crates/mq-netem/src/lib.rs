//! Emulated links.
//!
//! A [`Link`] says what a link is like: a shipped profile such as `s22/wifi@loss=5%`, or a file.
//! [`Pipe`] is one direction of it as arithmetic. A [`Lab`] has hosts on one Linux machine, for an
//! ordinary user, and moves packets between them as a link says. A `Controller` makes the kernel's
//! netem do it on a real interface, and puts back what stood there.

mod error;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod lab;
#[cfg(not(target_os = "linux"))]
#[path = "lab_elsewhere.rs"]
mod lab;
mod medium;
mod model;
mod presets;
mod profile;
mod report;
mod units;

pub use error::Error;
#[cfg(target_os = "linux")]
pub use kernel::{
    Applied, Cleared, Controller, Difference, Netem, NetemLoss, Shape, Standing, Tbf,
};
pub use lab::{Capture, Host, Lab, run_early};
pub use medium::{Channel, Medium, StationCounts};
pub use model::{Counts, Fate, Pipe};
pub use profile::{Direction, Distribution, Link, Loss, Queue, Trace};
pub use report::{
    Addresses, CaptureReport, DirectionReport, Lateness, LinkReport, MediumReport, Timing,
};
pub use units::{Probability, Rate, Time};
