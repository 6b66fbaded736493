//! Power over time, and its integral.

use serde::{Deserialize, Serialize};

use super::{Energy, Error, Window};
use mq_measure::convert;

/// The power at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The time, in nanoseconds since the run's origin.
    pub t_ns: u64,
    /// The power, in microwatt.
    pub power_uw: f64,
}

/// Power over time: points in ascending order.
///
/// Between two points power changes in a straight line, so energy is a sum of trapezoids. Between two points
/// that are further apart than the longest step, the power is not known: that is a gap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    points: Vec<Point>,
    longest_step_ns: u64,
}

impl Trace {
    /// Makes an empty trace; points further apart than `longest_step_ns` have a gap between them.
    #[must_use]
    pub fn new(longest_step_ns: u64) -> Self {
        Self {
            points: Vec::new(),
            longest_step_ns,
        }
    }

    /// Makes a trace of `points`, with a gap where a step is more than four times as long as the median step.
    ///
    /// For points whose interval is not known.
    ///
    /// # Errors
    /// [`Error::Points`] if the points are not in ascending order, or one is not a number.
    pub fn with_usual_step(points: impl IntoIterator<Item = Point>) -> Result<Self, Error> {
        let mut trace = Self::new(u64::MAX);
        for (at, point) in points.into_iter().enumerate() {
            if !trace.push(point.t_ns, point.power_uw) {
                return Err(Error::Points { at });
            }
        }
        let mut steps: Vec<_> = trace
            .points
            .windows(2)
            .map(|pair| pair[1].t_ns - pair[0].t_ns)
            .collect();
        steps.sort_unstable();
        if let Some(middle) = steps.get(steps.len() / 2) {
            trace.longest_step_ns = middle.saturating_mul(4);
        }
        Ok(trace)
    }

    /// Adds a point. Leaves it out and returns `false` if it is not after the last point, or its power is not
    /// finite.
    pub fn push(&mut self, t_ns: u64, power_uw: f64) -> bool {
        let after = self.points.last().is_none_or(|last| last.t_ns < t_ns);
        let good = after && power_uw.is_finite();
        if good {
            self.points.push(Point { t_ns, power_uw });
        }
        good
    }

    /// Returns the points in the order of time.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Returns the window from the first point to the last; `None` with fewer than two.
    #[must_use]
    pub fn span(&self) -> Option<Window> {
        span(&self.points, |point| point.t_ns)
    }

    /// Returns the trace with `offset_ns` added to every time: on a clock that is ahead of the trace's by so much.
    ///
    /// For an instrument with its own clock: `offset_ns` is what the run's clock shows when the instrument's
    /// clock shows 0. Points before the run's origin are left out. If power is known on both sides of the
    /// origin, the trace gets a point there.
    #[must_use]
    pub fn shifted(&self, offset_ns: i64) -> Self {
        let before = |point: &Point| point.t_ns.checked_add_signed(offset_ns).is_none();
        let (left_out, kept) = self.points.split_at(self.points.partition_point(before));
        let origin_ns = offset_ns.unsigned_abs();
        let at_origin = left_out
            .last()
            .zip(kept.first())
            .filter(|(last, first)| {
                first.t_ns > origin_ns && first.t_ns - last.t_ns <= self.longest_step_ns
            })
            .map(|(last, first)| Point {
                t_ns: origin_ns,
                power_uw: power_between(last, first, origin_ns),
            });
        let points = at_origin.iter().chain(kept).filter_map(|point| {
            let t_ns = point.t_ns.checked_add_signed(offset_ns)?;
            Some(Point { t_ns, ..*point })
        });
        Self {
            points: points.collect(),
            longest_step_ns: self.longest_step_ns,
        }
    }

    /// Returns the energy of a part of the trace, interpolated at both ends.
    #[must_use]
    pub fn energy(&self, window: Window) -> Energy {
        let time = |point: &Point| point.t_ns;
        integrate(&self.points, time, self.longest_step_ns, window, trapezoid)
    }
}

/// Returns the energy from `part.from_ns` to `part.to_ns`, which are both between the two points.
fn trapezoid(a: &Point, b: &Point, part: Window) -> f64 {
    let (from, to) = (
        power_between(a, b, part.from_ns),
        power_between(a, b, part.to_ns),
    );
    f64::midpoint(from, to) * convert::float(part.duration_ns()) / 1e9
}

/// Interpolates the power at a time between two points.
fn power_between(a: &Point, b: &Point, t_ns: u64) -> f64 {
    let slope = (b.power_uw - a.power_uw) / convert::float(b.t_ns - a.t_ns);
    a.power_uw + slope * convert::float(t_ns - a.t_ns)
}

/// Returns the window from the first of `points` to the last; `None` if it would be empty.
pub(super) fn span<T>(points: &[T], time: impl Fn(&T) -> u64) -> Option<Window> {
    let (first, last) = (time(points.first()?), time(points.last()?));
    (first < last).then_some(Window::new(first, last))
}

/// Adds up the energy `between` the points of each step, as far as the step is in the window. A part of the
/// window that no step covers is a gap.
pub(super) fn integrate<T>(
    points: &[T],
    time: impl Fn(&T) -> u64,
    longest_step_ns: u64,
    window: Window,
    between: impl Fn(&T, &T, Window) -> f64,
) -> Energy {
    let mut energy = Energy {
        window_ns: window.duration_ns(),
        ..Energy::default()
    };
    // The window is accounted for up to here.
    let mut known_ns = window.from_ns;
    let first = points.partition_point(|point| time(point) <= window.from_ns);
    for pair in points[first.saturating_sub(1)..].windows(2) {
        let step = Window::new(time(&pair[0]), time(&pair[1]));
        if step.from_ns >= window.to_ns {
            break;
        }
        let Some(part) = step.overlap(&window) else {
            continue;
        };
        if step.duration_ns() > longest_step_ns {
            continue;
        }
        gap(&mut energy.gaps, known_ns, part.from_ns);
        energy.energy_uj += between(&pair[0], &pair[1], part);
        energy.covered_ns += part.duration_ns();
        known_ns = part.to_ns;
    }
    gap(&mut energy.gaps, known_ns, window.to_ns);
    energy
}

fn gap(gaps: &mut Vec<Window>, from_ns: u64, to_ns: u64) {
    if from_ns < to_ns {
        gaps.push(Window::new(from_ns, to_ns));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn trace(step_ns: u64, count: u64, power_uw: impl Fn(f64) -> f64) -> Trace {
        let mut trace = Trace::new(4 * step_ns);
        for i in 0..count {
            let t_ns = i * step_ns;
            assert!(trace.push(t_ns, power_uw(convert::float(t_ns) / 1e9)));
        }
        trace
    }

    fn near(found: f64, right: f64) {
        assert!(
            (found - right).abs() <= 1e-9 * right.abs().max(1.0),
            "{found} is not {right}"
        );
    }

    #[test]
    fn constant_power_is_power_times_time() {
        // 1.4 W for 10 s.
        let energy = trace(10 * MS, 1001, |_| 1.4e6).energy(Window::new(0, 10_000 * MS));
        near(energy.energy_uj, 14e6);
        near(energy.mean_power_uw().unwrap(), 1.4e6);
        assert_eq!(energy.covered_ns, 10_000 * MS);
        assert!(energy.gaps.is_empty());
    }

    #[test]
    fn a_ramp_is_exact_and_interpolated_at_both_ends() {
        // P = t W/s: from 0.25 s to 1.75 s, (1.75² - 0.25²) / 2 = 1.5 J; neither end is a point.
        let ramp = trace(100 * MS, 21, |t| t * 1e6);
        let energy = ramp.energy(Window::new(250 * MS, 1750 * MS));
        near(energy.energy_uj, 1.5e6);
        assert!(energy.gaps.is_empty());
        // Within one step.
        near(
            ramp.energy(Window::new(110 * MS, 130 * MS)).energy_uj,
            0.12e6 * 0.02,
        );
    }

    #[test]
    fn a_gap_is_reported_and_not_filled() {
        let mut trace = Trace::new(40 * MS);
        for i in (0..=100).filter(|i| !(30..50).contains(i)) {
            trace.push(i * 10 * MS, 2e6);
        }
        let energy = trace.energy(Window::new(0, 1000 * MS));
        assert_eq!(energy.gaps, [Window::new(290 * MS, 500 * MS)]);
        assert_eq!(energy.covered_ns, 790 * MS);
        near(energy.energy_uj, 2e6 * 0.79);
        near(energy.mean_power_uw().unwrap(), 2e6);
        // A part that begins in the gap.
        let energy = trace.energy(Window::new(400 * MS, 600 * MS));
        assert_eq!(energy.gaps, [Window::new(400 * MS, 500 * MS)]);
        near(energy.energy_uj, 2e6 * 0.1);
    }

    #[test]
    fn what_is_before_the_first_point_and_behind_the_last_is_a_gap() {
        let trace = trace(10 * MS, 11, |_| 1e6).shifted(50_000_000);
        let energy = trace.energy(Window::new(0, 200 * MS));
        assert_eq!(
            energy.gaps,
            [Window::new(0, 50 * MS), Window::new(150 * MS, 200 * MS)]
        );
        near(energy.energy_uj, 0.1e6);
    }

    #[test]
    fn what_spans_the_origin_counts_from_the_origin_on() {
        // P = t W/s until 2 s; the run begins between two points, at 0.55 s.
        let ramp = trace(100 * MS, 21, |t| t * 1e6).shifted(-550_000_000);
        let energy = ramp.energy(Window::new(0, 1_000 * MS));
        near(energy.energy_uj, (1.55 * 1.55 - 0.55 * 0.55) / 2.0 * 1e6);
        assert_eq!(energy.gaps, []);
        // The run begins at a point; and in a gap, where the power is not known.
        let at_point = trace(100 * MS, 3, |_| 1e6).shifted(-100_000_000);
        assert_eq!(at_point.points().len(), 2);
        let mut broken = Trace::new(20 * MS);
        for t_ns in [0, 10, 60, 70] {
            broken.push(t_ns * MS, 1e6);
        }
        let broken = broken.shifted(-30_000_000);
        let gaps = broken.energy(Window::new(0, 40 * MS)).gaps;
        assert_eq!(gaps, [Window::new(0, 30 * MS)]);
    }

    #[test]
    fn a_point_alone_between_two_long_steps_makes_one_gap() {
        let mut trace = Trace::new(10);
        for t_ns in [0, 5, 100, 200, 205] {
            trace.push(t_ns, 1.0);
        }
        let energy = trace.energy(Window::new(0, 205));
        assert_eq!(energy.gaps, [Window::new(5, 200)]);
        assert_eq!(energy.covered_ns, 10);
    }

    #[test]
    fn empty_traces_and_windows_have_no_energy() {
        let empty = Trace::new(1).energy(Window::new(5, 9));
        assert_eq!((empty.energy_uj, empty.covered_ns), (0.0, 0));
        assert_eq!(empty.gaps, [Window::new(5, 9)]);
        assert_eq!(empty.mean_power_uw(), None);
        let nothing = trace(10, 10, |_| 1.0).energy(Window::new(30, 30));
        assert_eq!(nothing, Energy::default());
    }

    #[test]
    fn points_that_are_late_or_no_numbers_are_left_out() {
        let mut trace = Trace::new(10);
        assert!(trace.push(5, 1.0));
        assert!(!trace.push(5, 1.0), "twice");
        assert!(!trace.push(4, 1.0), "back");
        assert!(!trace.push(6, f64::NAN));
        assert!(!trace.push(6, f64::INFINITY));
        assert!(trace.push(6, -1.0), "power may flow back");
        assert_eq!(trace.points().len(), 2);
    }

    #[test]
    fn two_meters_of_one_load_agree_once_their_clocks_are_aligned() {
        // The same second of work, seen each millisecond and each 7 ms; the other clock is 3 s
        // behind.
        let load = |t: f64| if (1.0..2.0).contains(&t) { 3e6 } else { 1e6 };
        let fine = trace(MS, 4000, load);
        let coarse = {
            let mut trace = Trace::new(28 * MS);
            for i in 0..570 {
                let t_ns = i * 7 * MS;
                trace.push(t_ns, load(convert::float(t_ns) / 1e9));
            }
            trace.shifted(3_000_000_000)
        };
        let window = Window::new(500 * MS, 2500 * MS);
        let fine = fine.energy(window).energy_uj;
        let aligned = coarse.shifted(-3_000_000_000).energy(window);
        assert!(aligned.gaps.is_empty());
        // Each edge is off by at most half a step of 2 W.
        assert!(
            (fine - aligned.energy_uj).abs() <= 2.0 * 2e6 * 0.007 / 2.0,
            "{fine} and {}",
            aligned.energy_uj
        );
        near(fine, 4e6);
    }

    #[test]
    fn the_usual_step_tells_what_a_gap_is() {
        let points = (0..100).filter(|i| !(40..60).contains(i)).map(|i| Point {
            t_ns: i * 10 * MS,
            power_uw: 1e6,
        });
        let trace = Trace::with_usual_step(points).unwrap();
        let energy = trace.energy(Window::new(0, 990 * MS));
        assert_eq!(energy.gaps, [Window::new(390 * MS, 600 * MS)]);
        let back = [(5, 1.0), (3, 1.0)].map(|(t_ns, power_uw)| Point { t_ns, power_uw });
        assert!(matches!(
            Trace::with_usual_step(back),
            Err(Error::Points { at: 1 })
        ));
    }

    /// Generates points with random steps of 1 to 100 ns and powers.
    fn any_trace() -> impl Strategy<Value = Trace> {
        prop::collection::vec((1_u64..100, -1e6..1e7_f64), 2..60).prop_map(|steps| {
            let mut trace = Trace::new(80);
            let mut t_ns = 0;
            for (step, power_uw) in steps {
                t_ns += step;
                trace.push(t_ns, power_uw);
            }
            trace
        })
    }

    proptest! {
        #[test]
        fn energy_of_parts_adds_up(trace in any_trace(), cuts in prop::array::uniform3(0_u64..6_000)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let [from, middle, to] = cuts;
            let whole = trace.energy(Window::new(from, to));
            let parts = [Window::new(from, middle), Window::new(middle, to)].map(|part| trace.energy(part));
            let sum = parts[0].energy_uj + parts[1].energy_uj;
            prop_assert!((whole.energy_uj - sum).abs() < 1e-6, "{} {}", whole.energy_uj, sum);
            prop_assert_eq!(whole.covered_ns, parts[0].covered_ns + parts[1].covered_ns);
        }

        #[test]
        fn what_is_covered_and_what_is_not_make_the_window(
            trace in any_trace(),
            from in 0_u64..6_000,
            length in 0_u64..6_000,
        ) {
            let window = Window::new(from, from + length);
            let energy = trace.energy(window);
            let missing: u64 = energy.gaps.iter().map(Window::duration_ns).sum();
            prop_assert_eq!(energy.covered_ns + missing, length);
            for pair in energy.gaps.windows(2) {
                prop_assert!(pair[0].to_ns < pair[1].from_ns, "{:?}", energy.gaps);
            }
        }

        #[test]
        fn a_shift_moves_the_energy_and_nothing_else(
            trace in any_trace(),
            offset in 0_u32..1_000_000,
            from in 0_u64..6_000,
            length in 0_u64..6_000,
        ) {
            let here = trace.energy(Window::new(from, from + length));
            let moved = trace.shifted(i64::from(offset));
            let from = from + u64::from(offset);
            let there = moved.energy(Window::new(from, from + length));
            prop_assert!((here.energy_uj - there.energy_uj).abs() < 1e-9);
            prop_assert_eq!(here.covered_ns, there.covered_ns);
            prop_assert_eq!(moved.shifted(-i64::from(offset)), trace);
        }
    }
}
