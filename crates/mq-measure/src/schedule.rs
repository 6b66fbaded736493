//! When each message should be sent, and how late it was.

use std::time::Duration;

use crate::validity::{self, Warning};
use crate::{LatencyRecorder, Summary};

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;

/// An open loop: message i is due at `start + i * interval`, whatever became of earlier messages.
///
/// The schedule reads no clock. It counts in picoseconds, so that 300 000 messages a second drift by less
/// than one part in ten million; it lasts for 200 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenLoop {
    start_ns: u64,
    interval_ps: u64,
}

impl OpenLoop {
    /// A message every `interval` from `start_ns` on; with an interval of 0 all messages are due at once.
    #[must_use]
    pub fn new(start_ns: u64, interval: Duration) -> Self {
        let interval_ps = u64::try_from(interval.as_nanos() * u128::from(PS)).unwrap_or(u64::MAX);
        Self {
            start_ns,
            interval_ps,
        }
    }

    /// `rate` messages a second from `start_ns` on; `None` if `rate` is not a positive number.
    #[must_use]
    pub fn per_second(start_ns: u64, rate: f64) -> Option<Self> {
        let positive = rate.is_finite() && rate > 0.0;
        positive.then(|| Self {
            start_ns,
            interval_ps: crate::convert::round(1e12 / rate),
        })
    }

    /// When message `i` is due, in nanoseconds since the run's origin.
    #[must_use]
    pub fn intended_ns(&self, i: u64) -> u64 {
        let after = u128::from(i) * u128::from(self.interval_ps) / u128::from(PS);
        self.start_ns
            .saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }

    /// How many messages are due at `now_ns`, those already sent included.
    ///
    /// `u64::MAX` with an interval of 0.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> u64 {
        let Some(elapsed) = now_ns.checked_sub(self.start_ns) else {
            return 0;
        };
        // Message i is due if floor(i * ps / 1000) <= elapsed, that is i * ps < (elapsed + 1) * 1000.
        let end = (u128::from(elapsed) + 1) * u128::from(PS);
        match self.interval_ps {
            0 => u64::MAX,
            ps => u64::try_from(end.div_ceil(u128::from(ps))).unwrap_or(u64::MAX),
        }
    }

    /// The interval, rounded down to nanoseconds.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        self.interval_ps / PS
    }
}

/// How late messages were sent: actual minus intended send time. An early message counts as 0.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    recorder: LatencyRecorder,
}

impl Lateness {
    /// Nothing noted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes one message.
    pub fn note(&mut self, intended_ns: u64, sent_ns: u64) {
        self.recorder.record(sent_ns.saturating_sub(intended_ns));
    }

    /// Adds the messages that another has noted.
    pub fn merge(&mut self, other: &Self) {
        self.recorder.merge(&other.recorder);
    }

    /// The summary; `None` if nothing was noted.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        self.recorder.summary()
    }

    /// The warning, if more messages were late than [`validity::generator_late`] allows.
    #[must_use]
    pub fn warning(&self, interval_ns: u64) -> Option<Warning> {
        validity::generator_late(&self.recorder, interval_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn message_is_due_at_start_plus_its_number_of_intervals() {
        let schedule = OpenLoop::new(5_000, Duration::from_millis(1));
        assert_eq!(schedule.intended_ns(0), 5_000);
        assert_eq!(schedule.intended_ns(1000), 1_000_005_000);
        assert_eq!(schedule.interval_ns(), 1_000_000);
        assert_eq!(schedule.due(4_999), 0);
        assert_eq!(schedule.due(5_000), 1);
        assert_eq!(schedule.due(1_004_999), 1);
        assert_eq!(schedule.due(1_005_000), 2);
    }

    #[test]
    fn rate_that_is_no_whole_interval_does_not_drift() {
        let schedule = OpenLoop::per_second(0, 300_000.0).unwrap();
        let hour = schedule.intended_ns(300_000 * 3600);
        assert!(hour.abs_diff(3_600_000_000_000) < 500_000, "{hour}");
        assert_eq!(OpenLoop::per_second(0, 0.0), None);
        assert_eq!(OpenLoop::per_second(0, f64::NAN), None);
    }

    #[test]
    fn interval_of_zero_makes_all_due() {
        let schedule = OpenLoop::new(10, Duration::ZERO);
        assert_eq!(schedule.intended_ns(u64::MAX), 10);
        assert_eq!((schedule.due(9), schedule.due(10)), (0, u64::MAX));
    }

    #[test]
    fn lateness_counts_early_as_punctual_and_warns() {
        let mut lateness = Lateness::new();
        assert_eq!(lateness.warning(1), None);
        lateness.note(100, 90);
        assert_eq!(lateness.summary().unwrap().max_ns, 0);
        assert_eq!(lateness.warning(1_000_000), None);
        for _ in 0..3 {
            lateness.note(0, 5_000_000);
        }
        assert!(matches!(
            lateness.warning(1_000_000),
            Some(Warning::GeneratorLate { .. })
        ));
    }

    proptest! {
        #[test]
        fn due_is_the_inverse_of_intended(
            start in 0_u64..1_000_000,
            interval in 1_u64..10_000_000_000,
            i in 0_u64..1_000_000,
        ) {
            let schedule = OpenLoop { start_ns: start, interval_ps: interval };
            let at = schedule.intended_ns(i);
            prop_assert!(schedule.due(at) > i);
            prop_assert!(schedule.intended_ns(schedule.due(at)) > at);
        }
    }
}
