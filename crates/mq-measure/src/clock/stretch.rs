//! A stretch of time over which two clocks run straight, and how far they deviate from that.

use super::line::{Line, Worth};
use super::window::Point;

/// Greatest error of the slope, in standard errors.
const SLOPE_ERRORS: f64 = 3.0;

/// The fewest points whose thirds are judged: a third is then enough for a slope of its own.
const POINTS_FOR_THIRDS: usize = 12;

/// A line, and the points that hold it.
///
/// At a point the line is wrong by at most the point's distance from it plus the point's own error. Away from
/// the point this bound grows by `drift` with time. At any time the best point before gives one bound and the
/// best point after another, and the larger one is taken: if the clocks jumped unnoticed between the two
/// points, one of the bounds still holds.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) line: Line,
    /// Greatest rate at which the clocks may leave the line, in nanoseconds per nanosecond.
    pub(super) drift: f64,
    anchors: Vec<Anchor>,
}

/// The line and its bounds at one time.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    at: f64,
    /// Bound of the line's error by this point and all points before it.
    before: f64,
    /// Bound of the line's error by this point and all points after it.
    after: f64,
}

impl Stretch {
    /// Fits a stretch to `points`, which are in the order of time, and at least one. `drift` is assumed; it becomes
    /// larger if the points show more.
    pub(super) fn new(points: &[Point], worth: &Worth, drift: f64) -> Self {
        let line = Line::fit(points, worth);
        let bent = bend(points, &line, worth);
        let mut anchors: Vec<Anchor> = points
            .iter()
            .map(|point| {
                let residual = (point.offset - line.at(point.at)).abs();
                // The clocks moved on while the exchange lasted.
                let moved = line.slope.abs() * point.took / 2.0;
                let wrong = point.half + residual + moved;
                Anchor {
                    at: point.at,
                    before: wrong,
                    after: wrong,
                }
            })
            .collect();
        let drift = drift.max(2.0 * bent) + slope_error(&anchors, &line);
        for i in 1..anchors.len() {
            let last = anchors[i - 1];
            let grown = last.before + drift * (anchors[i].at - last.at);
            anchors[i].before = anchors[i].before.min(grown);
        }
        for i in (1..anchors.len()).rev() {
            let next = anchors[i];
            let grown = next.after + drift * (next.at - anchors[i - 1].at);
            anchors[i - 1].after = anchors[i - 1].after.min(grown);
        }
        Self {
            line,
            drift,
            anchors,
        }
    }

    /// Returns the greatest error of the line at a local time.
    pub(super) fn uncertainty(&self, x: f64) -> f64 {
        let next = self.anchors.partition_point(|anchor| anchor.at < x);
        let before = next
            .checked_sub(1)
            .map(|last| self.anchors[last].before + self.drift * (x - self.anchors[last].at));
        let after = self
            .anchors
            .get(next)
            .map(|anchor| anchor.after + self.drift * (anchor.at - x));
        match (before, after) {
            (Some(before), Some(after)) => before.max(after),
            (before, after) => before.or(after).unwrap_or(f64::INFINITY),
        }
    }

    /// Returns the greatest of the uncertainties at the points and halfway between them.
    pub(super) fn greatest_uncertainty(&self) -> f64 {
        let places = self.anchors.iter().map(|anchor| anchor.at);
        let between = self
            .anchors
            .windows(2)
            .map(|pair| f64::midpoint(pair[0].at, pair[1].at));
        places
            .chain(between)
            .map(|x| self.uncertainty(x))
            .fold(0.0, f64::max)
    }

    /// Returns the time of a point, counted from the first.
    pub(super) fn point_at(&self, index: usize) -> f64 {
        self.anchors[index.min(self.anchors.len() - 1)].at
    }

    /// Returns the time of a point, counted from the last.
    pub(super) fn point_from_end(&self, index: usize) -> f64 {
        self.anchors[self.anchors.len().saturating_sub(index + 1)].at
    }
}

/// Returns the greatest difference between the line's slope and that of clocks that run straight.
///
/// Chance explains some standard errors. They are far too large where few points are good, because the usual
/// excess is then that of the others. But at any two points the line is right within each point's error, so
/// the slope is right within the sum of both errors over the time between the points.
fn slope_error(anchors: &[Anchor], line: &Line) -> f64 {
    let by_chance = SLOPE_ERRORS * line.slope_error;
    // Each pair: there are at most some hundred points.
    let pairs = anchors.iter().enumerate().flat_map(|(i, one)| {
        let later = anchors[i + 1..].iter();
        later.map(move |other| (one.before + other.before) / (other.at - one.at))
    });
    pairs.fold(by_chance, f64::min)
}

/// Returns the greatest difference in slope, beyond chance, between a third of the points and all of them; 0 with fewer
/// than [`POINTS_FOR_THIRDS`] points.
fn bend(points: &[Point], line: &Line, worth: &Worth) -> f64 {
    if points.len() < POINTS_FOR_THIRDS {
        return 0.0;
    }
    points
        .chunks(points.len().div_ceil(3))
        .map(|third| {
            let own = Line::fit(third, worth);
            (own.slope - line.slope).abs() - SLOPE_ERRORS * own.slope_error
        })
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_s: f64, offset: f64, half: f64) -> Point {
        Point {
            at: at_s * 1e9,
            offset,
            half,
            took: 0.0,
        }
    }

    fn stretch(points: &[Point]) -> Stretch {
        Stretch::new(points, &Worth::of(points), 1e-6)
    }

    #[test]
    fn uncertainty_grows_away_from_the_points() {
        let points: Vec<_> = (0..10).map(|i| point(f64::from(i), 0.0, 1e5)).collect();
        let stretch = stretch(&points);
        let (inside, later) = (stretch.uncertainty(4.5e9), stretch.uncertainty(100e9));
        assert!((1e5..1.1e5).contains(&inside), "{inside}");
        // 91 s at 1 ppm and more.
        assert!(later > 1e5 + 91e3, "{later}");
        assert!(stretch.uncertainty(-100e9) > 1e5 + 99e3);
        assert!((stretch.greatest_uncertainty() - inside).abs() < 5e3);
    }

    #[test]
    fn a_good_point_serves_its_neighbours() {
        let mut points: Vec<_> = (0..10).map(|i| point(f64::from(i), 0.0, 5e6)).collect();
        points[2].half = 1e5;
        points[7].half = 1e5;
        let stretch = stretch(&points);
        let uncertainty = stretch.uncertainty(4.5e9);
        // The time is 2.5 s from either point. Each may be wrong by 0.1 ms, one up and one down: 40 ppm of
        // the slope over the 5 s between them. 1 ppm more may be drift.
        let most = 1e5 + 2.5e9 * 41e-6;
        assert!((1e5..=most + 1.0).contains(&uncertainty), "{uncertainty}");
        // No later point is good, so none shows a jump after the last good point.
        assert!(stretch.uncertainty(8.5e9) > 4e6);
    }

    #[test]
    fn a_jump_that_nobody_noticed_is_in_the_uncertainty() {
        let points: Vec<_> = (0..10)
            .map(|i| point(f64::from(i), if i < 5 { 0.0 } else { 4e4 }, 1e5))
            .collect();
        let stretch = stretch(&points);
        for i in 0..10_i32 {
            let x = f64::from(i) * 1e9;
            let truth = if i < 5 { 0.0 } else { 4e4 };
            // The path is as asymmetric as it can be.
            let worst = (stretch.line.at(x) - truth).abs() + 1e5;
            assert!(stretch.uncertainty(x) >= worst - 1e4, "at {i} s");
        }
    }

    #[test]
    fn a_bend_raises_the_drift_that_is_allowed_for() {
        let straight: Vec<_> = (0..30)
            .map(|i| point(f64::from(i) * 10.0, 0.0, 1e5))
            .collect();
        let bent: Vec<_> = (0..30)
            .map(|i| {
                let s = f64::from(i) * 10.0;
                point(s, if i < 15 { 0.0 } else { (s - 150.0) * 2e4 }, 1e5)
            })
            .collect();
        assert!(stretch(&straight).drift < 1.5e-6);
        // 20 ppm from the middle on: the line has 10, and is 10 off on either side.
        assert!(stretch(&bent).drift > 5e-6, "{:?}", stretch(&bent).drift);
    }
}
