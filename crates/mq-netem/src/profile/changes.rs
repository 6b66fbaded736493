//! Changes of a direction in the course of time.

use std::{sync::Arc, time::Duration};

use super::Direction;
use crate::units::nanoseconds;

/// Changes of a direction in the course of time. The default has none.
///
/// Times count from the start of the emulation.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Changes {
    /// Directions by the time of their change, ascending. Changes of a direction in this list have no effect.
    steps: Arc<[(Duration, Direction)]>,
    repeat_after: Option<Duration>,
}

impl Changes {
    /// Makes the changes of a link into these directions, each from its time on. With `repeat_after` the direction is
    /// then again as at the beginning, and everything repeats.
    ///
    /// # Errors
    /// What is wrong, if a time is 0, is not after the one before it, or is not before `repeat_after`.
    pub fn new(
        steps: impl IntoIterator<Item = (Duration, Direction)>,
        repeat_after: Option<Duration>,
    ) -> Result<Self, String> {
        let steps: Arc<[_]> = steps.into_iter().collect();
        let mut before = Duration::ZERO;
        for (after, _) in &*steps {
            if *after <= before {
                return Err(format!(
                    "the change after {after:?} follows {before:?}: write each time later than the one before"
                ));
            }
            before = *after;
        }
        if let Some(end) = repeat_after
            && end <= before
        {
            return Err(format!(
                "it repeats after {end:?}, and the last change comes after {before:?}"
            ));
        }
        Ok(Self {
            steps,
            repeat_after,
        })
    }

    /// Returns the number of changes, before they repeat.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns `true` if the direction never changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the period after which the direction is as at the beginning and its changes repeat; `None` if they do
    /// not.
    #[must_use]
    pub fn repeat_after(&self) -> Option<Duration> {
        self.repeat_after
    }

    /// Returns the direction in force at `now`, in nanoseconds (`None` before the first change), and the time of the
    /// next change (`u64::MAX` if there is none).
    pub(crate) fn at(&self, now: u64) -> (Option<&Direction>, u64) {
        let repeat_after = self.repeat_after.map(nanoseconds);
        let begun = repeat_after.map_or(0, |length| now - now % length);
        let within = now - begun;
        let passed = self
            .steps
            .partition_point(|(after, _)| nanoseconds(*after) <= within);
        let current = passed.checked_sub(1).map(|last| &self.steps[last].1);
        let next = self.steps.get(passed).map(|(after, _)| nanoseconds(*after));
        let next = next.or(repeat_after.filter(|_| !self.is_empty()));
        (current, next.map_or(u64::MAX, |next| begun + next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delayed(ms: u64) -> Direction {
        Direction {
            delay: Duration::from_millis(ms),
            ..Direction::default()
        }
    }

    const S: u64 = 1_000_000_000;

    fn seconds(steps: &[u64], repeat_after: Option<u64>) -> Result<Changes, String> {
        let steps = steps.iter().map(|s| (Duration::from_secs(*s), delayed(*s)));
        Changes::new(steps, repeat_after.map(Duration::from_secs))
    }

    #[test]
    fn changes_come_in_their_order_and_repeat() {
        let changes = seconds(&[2, 5], Some(10)).unwrap();
        for (now, current, next) in [
            (0, None, 2),
            (2, Some(2), 5),
            (4, Some(2), 5),
            (5, Some(5), 10),
            (10, None, 12),
            (37, Some(5), 40),
        ] {
            let found = changes.at(now * S);
            assert_eq!(
                found,
                (current.map(delayed).as_ref(), next * S),
                "after {now} s"
            );
        }
        let once = seconds(&[2], None).unwrap();
        assert_eq!(once.at(99 * S), (Some(&delayed(2)), u64::MAX));
        assert_eq!(Changes::default().at(5), (None, u64::MAX));
    }

    #[test]
    fn changes_without_an_order_are_refused() {
        for (steps, repeat_after, says) in [
            (&[0, 5][..], None, "0ns"),
            (&[5, 5], None, "later than the one before"),
            (&[5], Some(5), "repeats after 5s"),
        ] {
            let error = seconds(steps, repeat_after).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
