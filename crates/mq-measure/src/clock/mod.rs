//! The clocks of two machines: how they are related, and how well that is known.
//!
//! A delay from one machine to another is the difference of two clocks, so it is only as good as what is
//! known of them.
//!
//! | step | type |
//! |---|---|
//! | one machine asks the other for the time, before, during and after a run | [`Exchange`], in [`Probe`]s |
//! | the exchanges give a relation, with an uncertainty for every time | [`ClockFit`] |
//! | a log's time stamps become times of the other clock | [`Relation`] |
//! | chrony's report checks the measured offset | [`Tracking`] |
//!
//! Nothing here reads a clock.
//!
//! ```
//! use mq_measure::clock::{Assumptions, ClockFit, Exchange};
//!
//! // A remote clock that is a second ahead, over a path of 100 µs each way, asked each 100 ms.
//! let exchanges: Vec<Exchange> = (0..100_u64)
//!     .map(|i| 1_800_000_000_000_000_000 + i * 100_000_000)
//!     .map(|t| [t, t + 1_000_100_000, t + 1_000_110_000, t + 210_000].into())
//!     .collect();
//! let fit = ClockFit::new(&exchanges, &Assumptions::default())?;
//! let sent = fit.to_local(1_800_000_002_000_000_000);
//! let error_ns = sent.at_ns.abs_diff(1_800_000_001_000_000_000);
//! assert!(error_ns <= sent.uncertainty_ns && sent.uncertainty_ns < 110_000);
//! # Ok::<(), mq_measure::Error>(())
//! ```

mod chrony;
mod exchange;
mod file;
mod fit;
mod line;
mod relation;
mod step;
mod stretch;
mod window;
mod wire;

pub use chrony::{CrossCheck, Tracking, cross_check};
pub use exchange::{Exchange, LeastDelays};
pub use file::{ClockFile, SCHEMA, Side};
pub use fit::{Assumptions, ClockFit, FitSummary, Step};
pub use relation::Relation;
pub use wire::{DATAGRAM, HOST_NAME, Kind, Probe};

/// A time of one clock, as another clock shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// The time, by the other clock.
    pub at_ns: u64,
    /// The most that `at_ns` is wrong by.
    pub uncertainty_ns: u64,
    /// `true` if the time lies before the first exchange of a comparison or after the last.
    pub extrapolated: bool,
}
