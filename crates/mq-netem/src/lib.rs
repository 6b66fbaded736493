//! Emulated network links: delay, rate, queue, loss, jitter and reordering.
//!
//! A [`Link`] says what a link is like: a shipped profile such as `s22/wifi@loss=5%`, or a file.
//! There are four ways to use one:
//!
//! | type | emulates | needs |
//! |---|---|---|
//! | [`Pipe`] | one direction of a link, as arithmetic: no sockets, no clock, the same packets for the same seed | nothing |
//! | [`Channel`] | a radio channel that several stations share ([`Medium`]), as arithmetic | nothing |
//! | [`Lab`] | hosts on one machine, as network namespaces, and the links between them | Linux, an ordinary user |
//! | `Controller` | a link on a real interface, by the kernel's netem; restores the interface afterwards | Linux, root |
//!
//! Through one direction of an emulated link, 1,000 packets a millisecond apart:
//!
//! ```
//! use mq_netem::{Fate, Link, Pipe};
//!
//! let link = Link::load("s22/wifi@loss=5%")?;
//! let mut up = Pipe::new(link.up, 1); // the seed
//! let mut delivered = 0;
//! for i in 0..1_000 {
//!     let (now_ns, bytes) = (i * 1_000_000, 1_200);
//!     if let Fate::Delivered { at, .. } = up.arrive(now_ns, bytes) {
//!         assert!(at > now_ns);
//!         delivered += 1;
//!     }
//! }
//! assert_eq!(delivered + up.counts.lost + up.counts.overflowed, 1_000);
//! # Ok::<(), mq_netem::Error>(())
//! ```
//!
//! The crate has no cargo features. It builds on every system; a [`Lab`] can only be made on Linux.

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
pub use profile::{Changes, Direction, Distribution, Link, Loss, Queue, Trace, leo_profile};
pub use report::{
    Addresses, CaptureReport, DirectionReport, Lateness, LinkReport, MediumReport, Timing,
};
pub use units::{Probability, Rate, Time};
