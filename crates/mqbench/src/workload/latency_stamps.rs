//! Latencies of many publishers and subscribers in one process, without a table of messages: a payload begins
//! with the time from which its latency counts.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use mq_measure::LatencyRecorder;

use super::RunClock;
use crate::payload::sequence;

/// Largest time on a run's clock, in nanoseconds: no run takes a year.
const MOST_NS: u64 = 1 << 55;

/// The clock of a run, shifted by a number of the run's own, so that another process' messages on the same
/// topics have no latency here instead of a wrong one.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatencyStamps {
    clock: RunClock,
    shift: u64,
}

impl LatencyStamps {
    pub(super) fn start() -> Self {
        Self {
            clock: RunClock::start(),
            shift: rand::random(),
        }
    }

    /// Returns the stamp of a message whose latency counts from this time.
    pub(super) fn of(&self, from: Instant) -> u64 {
        self.shift.wrapping_add(self.clock.at_ns(from))
    }

    /// Returns the stamp of a message whose latency is not recorded.
    pub(super) fn none(&self) -> u64 {
        self.shift.wrapping_sub(1)
    }

    /// Returns the latency of a message; `None` if it has another stamp than one of this run, or none.
    pub(super) fn latency_ns(&self, payload: &[u8], received_at: Instant) -> Option<u64> {
        let from = sequence(payload)?.wrapping_sub(self.shift);
        // Most messages of a saturated publisher: this is cheaper than to ask the clock.
        if from > MOST_NS {
            return None;
        }
        self.clock.at_ns(received_at).checked_sub(from)
    }
}

/// Recorders that many tasks write to: one for each processor, as an own one for each subscriber would take
/// 270 kB for each.
#[derive(Debug)]
pub(super) struct Recorders(Vec<Mutex<LatencyRecorder>>);

impl Recorders {
    pub(super) fn new() -> Self {
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self((0..count).map(|_| Mutex::default()).collect())
    }

    /// Records for the subscriber of that number.
    pub(super) fn record(&self, subscriber: usize, latency_ns: u64) {
        let recorder = &self.0[subscriber % self.0.len()];
        let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        recorder.record(latency_ns);
    }

    /// Moves what was recorded since the last time into `to`.
    pub(super) fn drain_into(&self, to: &mut LatencyRecorder) {
        for recorder in &self.0 {
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            to.merge(&recorder);
            recorder.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stamp_gives_the_latency_back() {
        let stamps = LatencyStamps::start();
        let due = Instant::now();
        let payload = stamps.of(due).to_be_bytes();
        let latency = stamps.latency_ns(&payload, due + Duration::from_micros(70));
        assert_eq!(latency, Some(70_000));
    }

    #[test]
    fn messages_without_a_stamp_or_of_another_run_have_no_latency() {
        let (stamps, other) = (LatencyStamps::start(), LatencyStamps::start());
        let now = Instant::now();
        for stamp in [stamps.none(), other.of(now), other.none()] {
            assert_eq!(stamps.latency_ns(&stamp.to_be_bytes(), now), None);
        }
        assert_eq!(stamps.latency_ns(b"short", now), None);
    }

    #[test]
    fn what_was_drained_is_not_drained_again() {
        let recorders = Recorders::new();
        for subscriber in 0..5 {
            recorders.record(subscriber, 1000);
        }
        let mut all = LatencyRecorder::new();
        recorders.drain_into(&mut all);
        recorders.drain_into(&mut all);
        assert_eq!(all.count(), 5);
    }
}
