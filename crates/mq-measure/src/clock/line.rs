//! A straight line through points of unequal worth.

use super::window::Point;
use crate::{convert, stats};

/// The error of the stamps themselves: no point is better than this, whatever its round trip.
const FLOOR_NS: f64 = 1_000.0;

/// Error scale of the points: the error that each may have beyond the error that all have in common.
///
/// The time that the path always takes is in every point alike and does not bend the line. What a round trip
/// takes beyond the least one was waiting, on one way or on both, and moves the point by up to half of that
/// time. This half is the point's excess.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worth {
    least_half: f64,
    floor: f64,
}

impl Worth {
    pub(super) fn of(points: &[Point]) -> Self {
        let halves = points.iter().map(|point| point.half);
        let least_half = halves.clone().fold(f64::INFINITY, f64::min);
        let mut excess: Vec<f64> = halves.map(|half| half - least_half).collect();
        excess.sort_by(f64::total_cmp);
        // The usual excess says how far the least round trip is from a path without any waiting. It is the
        // lower quartile, since a run may load the path half of the time.
        let usual = stats::interpolated(&excess, 25.0).unwrap_or(0.0);
        Self {
            least_half,
            floor: usual.max(FLOOR_NS),
        }
    }

    /// Returns the usual excess.
    pub(super) fn floor(&self) -> f64 {
        self.floor
    }

    pub(super) fn excess(&self, point: &Point) -> f64 {
        point.half - self.least_half
    }

    /// Returns the scale of a point's error, as a standard deviation.
    pub(super) fn sigma(&self, point: &Point) -> f64 {
        self.floor.hypot(self.excess(point))
    }
}

/// offset(t) = value + slope (t - middle), in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    middle: f64,
    value: f64,
    /// Slope of the line: the skew, in nanoseconds per nanosecond.
    pub(super) slope: f64,
    /// The standard error of the slope, enlarged if the points lie further from the line than their worth
    /// allows.
    pub(super) slope_error: f64,
}

impl Line {
    /// Fits the weighted least squares line; each point weighs 1 / sigma².
    pub(super) fn fit(points: &[Point], worth: &Worth) -> Self {
        let weighted = || {
            points.iter().map(|point| {
                let weight = worth.sigma(point).powi(-2);
                (weight, point.at, point.offset)
            })
        };
        let weights: f64 = weighted().map(|(w, _, _)| w).sum();
        let middle = weighted().map(|(w, x, _)| w * x).sum::<f64>() / weights;
        let value = weighted().map(|(w, _, y)| w * y).sum::<f64>() / weights;
        let spread: f64 = weighted().map(|(w, x, _)| w * (x - middle).powi(2)).sum();
        let both: f64 = weighted()
            .map(|(w, x, y)| w * (x - middle) * (y - value))
            .sum();
        let slope = if spread > 0.0 { both / spread } else { 0.0 };
        let mut line = Self {
            middle,
            value,
            slope,
            slope_error: 0.0,
        };
        let squares: f64 = weighted()
            .map(|(w, x, y)| w * (y - line.at(x)).powi(2))
            .sum();
        let scatter = squares / convert::float_len(points.len().saturating_sub(2).max(1));
        if spread > 0.0 {
            line.slope_error = (scatter.max(1.0) / spread).sqrt();
        }
        line
    }

    /// Returns the offset at a local time.
    pub(super) fn at(&self, x: f64) -> f64 {
        self.value + self.slope * (x - self.middle)
    }

    /// Returns the local time at which the remote clock shows `y`; both count from the same origin.
    pub(super) fn local(&self, y: f64) -> f64 {
        // y = x + at(x), from the middle on so that nothing is rounded away.
        self.middle + (y - self.middle - self.value) / (1.0 + self.slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: f64, offset: f64, half: f64) -> Point {
        Point {
            at,
            offset,
            half,
            took: 2.0 * half,
        }
    }

    #[test]
    fn points_on_a_line_give_that_line() {
        let points: Vec<_> = (0..20_u32)
            .map(|i| f64::from(i) * 1e9)
            .map(|x| point(x, 500.0 + 20e-6 * x, 1000.0))
            .collect();
        let line = Line::fit(&points, &Worth::of(&points));
        assert!((line.slope - 20e-6).abs() < 1e-12, "{line:?}");
        assert!((line.at(0.0) - 500.0).abs() < 1e-3, "{line:?}");
        let (x, y) = (7e9, 7e9 + line.at(7e9));
        assert!((line.local(y) - x).abs() < 1e-3);
    }

    #[test]
    fn a_point_that_waited_moves_the_line_little() {
        let mut points: Vec<_> = (0..20_u32)
            .map(|i| point(f64::from(i) * 1e9, 0.0, 50_000.0))
            .collect();
        // The point waited 10 ms in a queue on one way, so it is wrong by 5 ms.
        points[17] = point(17e9, 5e6, 50_000.0 + 5e6);
        let line = Line::fit(&points, &Worth::of(&points));
        assert!(line.at(19e9).abs() < 10.0, "{line:?}");
    }

    #[test]
    fn a_single_place_has_no_slope() {
        let points = [point(1.0, 2.0, 3.0); 3];
        let line = Line::fit(&points, &Worth::of(&points));
        assert!(line.slope.abs() < f64::EPSILON && (line.at(9.0) - 2.0).abs() < 1e-12);
    }
}
