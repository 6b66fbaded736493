//! Finding where a clock was set: a jump of the offset that no waiting and no drift explains.

use std::ops::Range;

use super::line::Worth;
use super::window::Point;
use crate::stats;

/// The fewest points on each side of a jump: with fewer, a jump cannot be told from a crowded path.
const SIDE: usize = 3;

/// Points on each side that are compared: near enough for clocks to run straight.
const REACH: usize = 4;

/// A jump is larger than so many times the usual excess.
const FACTOR: f64 = 6.0;

/// Finds the points at which a new straight stretch begins, in ascending order, without the first.
///
/// `drift` is by how much the clocks' rate may change, in nanoseconds a nanosecond.
///
/// Waiting moves a point by its excess at most (see [`Worth`]), and the distance of two points by the sum of
/// their excesses. The best points on either side of a place are compared after the clocks' usual rate is
/// taken off. The remainder is a jump if it is more than their excesses and the error of that rate explain,
/// and more than `FACTOR` times the usual excess. The largest jump is taken first; each side is then searched
/// by itself.
pub(super) fn find(points: &[Point], drift: f64) -> Vec<usize> {
    let worth = Worth::of(points);
    let mut starts = Vec::new();
    let mut todo = Vec::new();
    todo.push(0..points.len());
    while let Some(range) = todo.pop() {
        if let Some(at) = largest(&points[range.clone()], &worth, drift) {
            let at = range.start + at;
            starts.push(at);
            todo.extend([range.start..at, at..range.end]);
        }
    }
    starts.sort_unstable();
    starts
}

/// Finds the largest jump, and returns the index of the first point after it; `None` if there is no jump.
fn largest(points: &[Point], worth: &Worth, drift: f64) -> Option<usize> {
    if points.len() < 2 * SIDE {
        return None;
    }
    let usual = Usual::of(points, worth)?;
    let slope = usual.slope;
    let (at, surplus) = (SIDE..=points.len() - SIDE)
        .filter_map(|at| {
            let (left, right) = beside(points, at)?;
            let time = right.at - left.at;
            let jump = (right.offset - left.offset - slope * time).abs();
            let waited = worth.excess(left) + worth.excess(right);
            let explained = waited + (drift + usual.error) * time;
            Some((at, jump - explained))
        })
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    (surplus > FACTOR * worth.floor()).then(|| sharpen(points, at, slope, worth))
}

/// Returns the point on each side of `at` that waited least.
fn beside(points: &[Point], at: usize) -> Option<(&Point, &Point)> {
    let best = |range: Range<usize>| {
        let points = points[range].iter();
        points.min_by(|a, b| a.half.total_cmp(&b.half))
    };
    let left = best(at.saturating_sub(REACH)..at)?;
    let right = best(at..(at + REACH).min(points.len()))?;
    Some((left, right))
}

/// Usual rate of the offset, with its error, in nanoseconds per nanosecond.
struct Usual {
    /// The median slope of pairs of points that lie a quarter of all points apart. One jump is inside a
    /// third of these pairs, which does not move their median far.
    slope: f64,
    /// The most that waiting makes the rate wrong by. A pair's slope is wrong by at most both excesses over
    /// the time between the points. For half of the pairs this error is no more than its median, so the
    /// median slope is wrong by no more than that median.
    error: f64,
}

impl Usual {
    fn of(points: &[Point], worth: &Worth) -> Option<Self> {
        let apart = (points.len() / 4).max(1);
        let pairs = points.iter().zip(&points[apart..]);
        let (slopes, errors): (Vec<f64>, Vec<f64>) = pairs
            .filter(|(a, b)| b.at > a.at)
            .map(|(a, b)| {
                let time = b.at - a.at;
                let waited = worth.excess(a) + worth.excess(b);
                ((b.offset - a.offset) / time, waited / time)
            })
            .unzip();
        Some(Self {
            slope: stats::median(&slopes)?,
            error: stats::median(&errors)?,
        })
    }
}

/// Returns the index within [`REACH`] of `near` at which the points on either side lie closest to their own level.
fn sharpen(points: &[Point], near: usize, slope: f64, worth: &Worth) -> usize {
    let Some((left, right)) = beside(points, near) else {
        return near;
    };
    let level = |point: &Point| point.offset - slope * point.at;
    let (before, after) = (level(left), level(right));
    let first = near.saturating_sub(REACH).max(SIDE);
    let last = (near + REACH).min(points.len() - SIDE);
    let from = first.saturating_sub(REACH);
    let until = (last + REACH).min(points.len());
    let cost = |at: usize| -> f64 {
        let off = |index: usize| {
            let own = if index < at { before } else { after };
            (level(&points[index]) - own).abs() / worth.sigma(&points[index])
        };
        (from..until).map(off).sum()
    };
    (first..=last)
        .min_by(|a, b| cost(*a).total_cmp(&cost(*b)))
        .unwrap_or(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::SplitMix64;

    const DRIFT: f64 = 1e-6;

    /// Makes points a second apart between clocks that differ by 20 ppm; each met up to 40 µs of waiting.
    fn points(count: u32, seed: u64, step_at: &[(u32, f64)]) -> Vec<Point> {
        let mut random = SplitMix64::new(seed);
        let mut share = || crate::convert::float(random.next_u64() >> 11) / 2f64.powi(53);
        (0..count)
            .map(|i| {
                let (there, back) = (20_000.0 * share(), 20_000.0 * share());
                let steps = step_at.iter().filter(|(at, _)| i >= *at);
                let steps: f64 = steps.map(|(_, by)| by).sum();
                let at = f64::from(i) * 1e9;
                Point {
                    at,
                    offset: 20e-6 * at + steps + (there - back) / 2.0,
                    half: 100_000.0 + f64::midpoint(there, back),
                    took: 250_000.0,
                }
            })
            .collect()
    }

    #[test]
    fn clocks_that_only_drift_have_no_steps() {
        for seed in 0..200 {
            let found = find(&points(40, seed, &[]), DRIFT);
            assert_eq!(found, [0_usize; 0], "seed {seed}");
        }
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        for seed in 0..100 {
            for (at, by) in [(3, 1e9), (20, -3e5), (37, 2e5)] {
                let found = find(&points(40, seed, &[(at, by)]), DRIFT);
                assert_eq!(found, [at as usize], "seed {seed}: {by}");
            }
        }
    }

    #[test]
    fn two_steps_are_both_found() {
        for seed in 0..100 {
            let found = find(&points(60, seed, &[(20, 1e6), (45, -2e6)]), DRIFT);
            assert_eq!(found, [20, 45], "seed {seed}");
        }
    }

    #[test]
    fn waiting_on_one_way_is_no_step() {
        for seed in 0..100 {
            let mut points = points(40, seed, &[]);
            // A run fills a queue on the way there: 10 ms of waiting move the points by 5 ms.
            for point in &mut points[15..25] {
                point.offset += 5e6;
                point.half += 5e6;
            }
            assert_eq!(find(&points, DRIFT), [0_usize; 0], "seed {seed}");
        }
    }

    #[test]
    fn a_rate_that_few_crowded_points_show_makes_no_step() {
        // In seconds, and milliseconds: two good points agree, the others suggest 500 ppm.
        let points: Vec<Point> = [
            (41.1, 0.0, 2.2),
            (42.3, -1.9, 3.5),
            (44.6, -2.5, 4.4),
            (46.4, 1.3, 0.4),
            (48.4, 4.1, 4.5),
            (49.3, 0.3, 3.6),
            (51.0, 0.8, 0.5),
            (54.0, -4.8, 6.2),
            (54.1, -3.8, 4.9),
            (56.8, 1.1, 0.0),
        ]
        .into_iter()
        .map(|(at, offset, excess)| Point {
            at: at * 1e9,
            offset: offset * 1e6,
            half: 200e6 + excess * 1e6,
            took: 400e6,
        })
        .collect();
        assert_eq!(find(&points, DRIFT), [0_usize; 0]);
    }

    #[test]
    fn too_short_a_side_is_not_judged() {
        assert_eq!(find(&points(5, 1, &[(2, 1e9)]), DRIFT), [0_usize; 0]);
        assert_eq!(find(&[], DRIFT), [0_usize; 0]);
    }
}
