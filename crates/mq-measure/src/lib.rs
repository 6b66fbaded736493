//! Measuring: what was sent and received, how long it took, what it cost, and whether to believe it.
//!
//! This crate knows neither MQTT nor tokio, and prints nothing. It turns time stamps into values:
//!
//! | question | module |
//! |---|---|
//! | when should message *i* leave? | [`schedule`] |
//! | which messages arrived, twice, late, not at all? | [`tracker`], [`log`] for two machines |
//! | how do the clocks of two machines differ? | [`clock`] |
//! | how are the latencies distributed? | [`recorder`], [`buckets`] |
//! | is one set of values really larger than another? | [`stats`] |
//! | do several topics wait for one another? | [`topics`] |
//! | what did a late message wait for? | [`explain`] |
//! | what did it cost? | [`process`]; in joules, `mq-energy` |
//! | on what machine, with which program and settings? | [`context`], [`manifest`] |
//! | can the run be trusted? | [`validity`] |
//! | how is all of it written down? | [`sample`], [`log`], [`recorder::write_log`], [`result`] |
//!
//! Times are `u64` nanoseconds and their names end in `_ns`. They count from the run's origin on
//! one monotonic clock, except in the logs of two machines ([`log`]), where they count from the
//! Unix epoch. 64 bits of nanoseconds last for 584 years. A *run* is one measurement from its first
//! message to its last; its origin is whatever instant the caller counts from.
//!
//! ```
//! use std::time::Duration;
//! use mq_measure::{Arrival, LatencyRecorder, Tracker, schedule::OpenLoop};
//!
//! let schedule = OpenLoop::new(0, Duration::from_millis(1)); // message i is due at i ms
//! let mut tracker = Tracker::new(1_000);
//! let mut latencies = LatencyRecorder::new();
//! let (seq, now_ns) = (3, 3_020_000); // message 3 leaves 20 µs late
//! tracker.sent(seq, schedule.intended_ns(seq), now_ns);
//! if let Arrival::First { latency_intended_ns, .. } = tracker.received(seq, 3_400_000) {
//!     latencies.record(latency_intended_ns);
//! }
//! assert_eq!(latencies.summary().map(|summary| summary.max_ns), Some(400_000));
//! assert_eq!(tracker.counts().lost, 0);
//! ```
//!
//! The papers that formulas are cited from:
//!
//! - **W20**: Fernández et al., *And QUIC meets `IoT`: performance assessment of MQTT over QUIC*,
//!   `WiMob` 2020.
//! - **S21**: Fernández et al., *Even Lower Latency in `IIoT`: Evaluation of QUIC in Industrial
//!   `IoT` Scenarios*, Sensors 2021, 21, 5737.
//! - **S22**: Jeddou et al., *Delay and Energy Consumption of MQTT over QUIC*, Sensors 2022, 22,
//!   3694.
//! - **DL**: de Luna et al., *MQTT over QUIC: Comparison with TCP and TCP+TLS in a Virtualized
//!   `IoT` Environment*.
//! - **LW26**: *Evaluating Stream Mapping Strategies for MQTT over QUIC*, Computer Networks, 2026.

pub mod buckets;
pub mod clock;
pub mod context;
pub mod convert;
mod emulated;
pub mod error;
pub mod explain;
mod json;
pub mod log;
pub mod manifest;
pub mod process;
pub mod recorder;
pub mod result;
pub mod sample;
pub mod schedule;
pub mod stats;
pub mod table;
pub mod topics;
pub mod tracker;
pub mod validity;

pub use error::Error;
pub use recorder::{LatencyRecorder, Summary};
pub use sample::{Sample, Samples};
pub use tracker::{Arrival, Counts, LastSendEstimator, Tracker};
pub use validity::{Validity, Warning};
