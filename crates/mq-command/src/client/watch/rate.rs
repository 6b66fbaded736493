//! Messages a second: the mean over the last ten seconds.

use std::time::Duration;

/// Seconds that the mean is over. Shorter, and a message every five seconds would flicker between 0 and 1; longer, and
/// a change would show late.
const WINDOW: usize = 10;

/// Counts of the last seconds, one a place. Times are since the beginning of the program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    counts: [u32; WINDOW],
    /// The second that was counted last.
    newest: u64,
}

/// Returns the index of the counts of a second.
fn place(second: u64) -> usize {
    usize::try_from(second % WINDOW as u64).unwrap_or_default()
}

impl Rate {
    /// Counts a message.
    pub(crate) fn add(&mut self, now: Duration) {
        let second = now.as_secs();
        let passed = second.saturating_sub(self.newest).min(WINDOW as u64);
        for ago in 0..passed {
            self.counts[place(second - ago)] = 0;
        }
        self.newest = self.newest.max(second);
        let count = &mut self.counts[place(self.newest)];
        *count = count.saturating_add(1);
    }

    /// Returns the messages a second: over the last nine full seconds and what has passed of this one, or since the
    /// beginning if that is less; over one second at least.
    pub(crate) fn per_second(&self, now: Duration) -> f64 {
        let second = now.as_secs().max(self.newest);
        let oldest = (second + 1).saturating_sub(WINDOW as u64);
        // Places of seconds without a message still have the counts of ten seconds before.
        let counted = oldest..=self.newest;
        let sum: u64 = counted.map(|one| u64::from(self.counts[place(one)])).sum();
        let most = Duration::from_secs(WINDOW as u64 - 1);
        let part = now.saturating_sub(Duration::from_secs(second));
        let span = now.min(most + part).max(Duration::from_secs(1));
        f64::from(u32::try_from(sum).unwrap_or(u32::MAX)) / span.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_steady_rate_is_shown_as_it_is_and_a_silence_ends_it() {
        let mut rate = Rate::default();
        for number in 0..300 {
            rate.add(at(number * 100));
        }
        let shown = rate.per_second(at(30_000));
        assert!((9.0..=10.5).contains(&shown), "{shown}");
        let later = rate.per_second(at(35_500));
        assert!((3.5..=5.5).contains(&later), "{later}");
        assert!(rate.per_second(at(40_000)) < f64::EPSILON);
        rate.add(at(90_000));
        let one = rate.per_second(at(90_000));
        assert!((one - 1.0 / 9.0).abs() < 1e-9, "{one}");
    }

    #[test]
    fn the_first_seconds_are_not_spread_over_ten() {
        let mut rate = Rate::default();
        for number in 0..20 {
            rate.add(at(number * 100));
        }
        let shown = rate.per_second(at(2_000));
        assert!((shown - 10.0).abs() < 0.01, "{shown}");
        let mut burst = Rate::default();
        for _ in 0..5 {
            burst.add(at(10));
        }
        let shown = burst.per_second(at(20));
        assert!((shown - 5.0).abs() < 0.01, "{shown}");
    }
}
