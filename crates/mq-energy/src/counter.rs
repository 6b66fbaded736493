//! Energy from a counter, which wraps to 0 when it is full.

use serde::{Deserialize, Serialize};

use super::{Energy, Window, trace};
use mq_measure::convert;

/// Greatest power that a part of a machine may draw, in microwatt: tells whether a counter may have wrapped twice.
const MOST_POWER_UW: f64 = 1e9;

/// Converter of a counter's values into the energy since the first reading.
///
/// Powercap's `energy_uj` wraps to 0 when it has reached `max_energy_range_uj`, after some minutes to hours.
/// A second wrap between two readings cannot be seen, so readings must not be further apart than
/// [`longest_step_ns`](Self::longest_step_ns).
#[derive(Clone, Debug)]
#[expect(clippy::struct_field_names, reason = "their unit")]
pub struct Unwrap {
    range_uj: u64,
    last_uj: Option<u64>,
    total_uj: u64,
}

impl Unwrap {
    /// Creates the state for a counter that wraps to 0 at `range_uj`, in microjoule.
    #[must_use]
    pub fn new(range_uj: u64) -> Self {
        Self {
            range_uj,
            last_uj: None,
            total_uj: 0,
        }
    }

    /// Takes the counter's value, and returns the energy since the first reading.
    pub fn push(&mut self, shown_uj: u64) -> u64 {
        if let Some(last_uj) = self.last_uj {
            self.total_uj += shown_uj.checked_sub(last_uj).unwrap_or_else(|| {
                // The rest up to the wrap, and the energy since.
                self.range_uj.saturating_sub(last_uj) + shown_uj
            });
        }
        self.last_uj = Some(shown_uj);
        self.total_uj
    }

    /// Returns the longest time in which the counter cannot wrap twice, at 1 kW.
    #[must_use]
    pub fn longest_step_ns(&self) -> u64 {
        convert::round(convert::float(self.range_uj) / MOST_POWER_UW * 1e9)
    }
}

/// Energy since the first reading, over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    points: Vec<(u64, f64)>,
    longest_step_ns: u64,
}

impl Counted {
    /// Makes an empty series; between points further apart than `longest_step_ns` the energy is not known.
    #[must_use]
    pub fn new(longest_step_ns: u64) -> Self {
        Self {
            points: Vec::new(),
            longest_step_ns,
        }
    }

    /// Adds the energy that was counted until `t_ns`. Leaves the point out and returns `false` if it is not
    /// after the last point.
    pub fn push(&mut self, t_ns: u64, total_uj: f64) -> bool {
        let after = self
            .points
            .last()
            .is_none_or(|(last_ns, _)| *last_ns < t_ns);
        let good = after && total_uj.is_finite();
        if good {
            self.points.push((t_ns, total_uj));
        }
        good
    }

    /// Returns the window from the first point to the last; `None` with fewer than two.
    #[must_use]
    pub fn span(&self) -> Option<Window> {
        trace::span(&self.points, |(t_ns, _)| *t_ns)
    }

    /// Returns the energy of a part of the series; at both ends a step's energy is spread evenly over the step.
    #[must_use]
    pub fn energy(&self, window: Window) -> Energy {
        let time = |point: &(u64, f64)| point.0;
        let share = |a: &(u64, f64), b: &(u64, f64), part: Window| {
            (b.1 - a.1) * convert::float(part.duration_ns()) / convert::float(b.0 - a.0)
        };
        trace::integrate(&self.points, time, self.longest_step_ns, window, share)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_counter_that_wraps_goes_on() {
        let mut counter = Unwrap::new(1_000);
        let shown = [900, 950, 30, 30, 980, 10];
        let totals = shown.map(|shown| counter.push(shown));
        assert_eq!(totals, [0, 50, 130, 130, 1080, 1110]);
    }

    #[test]
    fn the_range_says_how_often_a_counter_has_to_be_read() {
        // Intel's usual range: 262 kJ; at 1 kW 262 s.
        let counter = Unwrap::new(262_143_328_850);
        assert_eq!(counter.longest_step_ns(), 262_143_328_850);
    }

    #[test]
    fn energy_of_a_part_is_spread_over_its_steps() {
        let mut counted = Counted::new(u64::MAX);
        for (t_ns, total_uj) in [(0, 0.0), (100, 200.0), (200, 1200.0)] {
            assert!(counted.push(t_ns, total_uj));
        }
        assert!(!counted.push(200, 1300.0), "twice");
        let energy = counted.energy(Window::new(50, 150));
        assert!((energy.energy_uj - 600.0).abs() < 1e-9, "{energy:?}");
        assert!(energy.gaps.is_empty());
        assert_eq!(counted.span(), Some(Window::new(0, 200)));
    }

    #[test]
    fn a_step_in_which_a_counter_may_have_wrapped_twice_is_a_gap() {
        let mut counted = Counted::new(150);
        for (t_ns, total_uj) in [(0, 0.0), (100, 10.0), (400, 20.0), (500, 30.0)] {
            counted.push(t_ns, total_uj);
        }
        let energy = counted.energy(Window::new(0, 500));
        assert_eq!(energy.gaps, [Window::new(100, 400)]);
        assert!((energy.energy_uj - 20.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn wrapping_never_loses_what_was_counted(
            range in 1_000_u64..1_000_000,
            begin in 0_u64..1_000_000,
            steps in prop::collection::vec(0_u64..1_000, 0..200),
        ) {
            let mut counter = Unwrap::new(range);
            let mut absolute = begin % range;
            counter.push(absolute);
            let mut total = 0;
            for step in steps {
                // Less than one round a step.
                let step = step % range;
                absolute = (absolute + step) % range;
                total += step;
                prop_assert_eq!(counter.push(absolute), total);
            }
        }
    }
}
