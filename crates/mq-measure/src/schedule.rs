//! The schedule of a run's messages, and the lateness of the generator against it.

use std::{num::NonZeroU32, time::Duration};

use crate::LatencyRecorder;
use crate::validity::{self, Warning};

/// An open loop: message i is due at `start + i * interval`, whatever became of earlier messages; with bursts, so many
/// messages are due together.
///
/// The schedule reads no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenLoop {
    start_ns: u64,
    interval_ns: u64,
    burst: u64,
}

impl OpenLoop {
    /// Makes the schedule of a message every `interval` from `start_ns` on; with an interval of 0 all messages are due
    /// at once.
    #[must_use]
    pub fn new(start_ns: u64, interval: Duration) -> Self {
        Self {
            start_ns,
            interval_ns: u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX),
            burst: 1,
        }
    }

    /// Makes `burst` messages due together in the place of one; the interval is then between bursts.
    #[must_use]
    pub fn in_bursts(self, burst: NonZeroU32) -> Self {
        Self {
            burst: burst.get().into(),
            ..self
        }
    }

    /// Returns the intended send time of message `i`, in nanoseconds since the run's origin, at most `u64::MAX`.
    #[must_use]
    pub fn intended_ns(&self, i: u64) -> u64 {
        self.start_ns
            .saturating_add(self.interval_ns.saturating_mul(i / self.burst))
    }
}

/// Lateness of the messages sent: actual minus intended send time, in nanoseconds. An early message counts as 0.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    recorder: LatencyRecorder,
}

impl Lateness {
    /// Returns an empty record.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the lateness of one message.
    pub fn note(&mut self, intended_ns: u64, sent_ns: u64) {
        self.recorder.record(sent_ns.saturating_sub(intended_ns));
    }

    /// Adds the messages that `other` has recorded.
    pub fn merge(&mut self, other: &Self) {
        self.recorder.merge(&other.recorder);
    }

    /// Returns the warning, if more messages were late than [`validity::generator_late`] allows.
    #[must_use]
    pub fn warning(&self, interval_ns: u64) -> Option<Warning> {
        validity::generator_late(&self.recorder, interval_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_due_at_start_plus_its_number_of_intervals() {
        let schedule = OpenLoop::new(5_000, Duration::from_millis(1));
        assert_eq!(schedule.intended_ns(0), 5_000);
        assert_eq!(schedule.intended_ns(1000), 1_000_005_000);
        assert_eq!(schedule.intended_ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn the_messages_of_a_burst_are_due_together() {
        let burst = NonZeroU32::new(4).unwrap();
        let schedule = OpenLoop::new(5, Duration::from_nanos(10)).in_bursts(burst);
        let due: Vec<_> = (0..9).map(|i| schedule.intended_ns(i)).collect();
        assert_eq!(due, [5, 5, 5, 5, 15, 15, 15, 15, 25]);
    }

    #[test]
    fn interval_of_zero_makes_all_due() {
        let schedule = OpenLoop::new(10, Duration::ZERO);
        assert_eq!(schedule.intended_ns(u64::MAX), 10);
    }

    #[test]
    fn lateness_counts_early_as_punctual_and_warns() {
        let mut lateness = Lateness::new();
        assert_eq!(lateness.warning(1), None);
        lateness.note(100, 90);
        assert_eq!(lateness.recorder.summary().unwrap().max_ns, 0);
        assert_eq!(lateness.warning(1_000_000), None);
        for _ in 0..3 {
            lateness.note(0, 5_000_000);
        }
        assert!(matches!(
            lateness.warning(1_000_000),
            Some(Warning::GeneratorLate { .. })
        ));
    }
}
