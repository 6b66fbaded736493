//! The minimum filter: it keeps the one of several exchanges that proves most.

use super::exchange::Bounds;
use crate::{Error, convert};

/// The fewest exchanges that say anything.
pub(super) const LEAST_EXCHANGES: usize = 8;

/// Successive exchanges of which one is kept: of so many, one mostly met little waiting.
const WINDOW: usize = 8;

/// The fewest windows; with few exchanges each window is smaller.
const LEAST_WINDOWS: usize = 4;

/// The most windows: in an hour, one every seven seconds.
const MOST_WINDOWS: usize = 512;

/// The zero of times and offsets, near enough for floats to hold the differences without rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// A local time.
    pub(super) local_ns: u64,
    /// An offset, remote minus local clock.
    pub(super) offset_ns: i128,
}

impl Origin {
    /// Converts a local time to nanoseconds from this origin.
    pub(super) fn local(&self, at_ns: u64) -> f64 {
        convert::signed(i128::from(at_ns) - i128::from(self.local_ns))
    }
}

/// An exchange as a point of time and offset, both in nanoseconds from the [`Origin`]; one of each window is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// The middle of the exchange, by the local clock.
    pub(super) at: f64,
    /// The middle of the values that the offset can have.
    pub(super) offset: f64,
    /// The greatest error of `offset`, in nanoseconds.
    pub(super) half: f64,
    /// Duration of the exchange, in nanoseconds.
    pub(super) took: f64,
}

impl Point {
    pub(super) fn new(bounds: &Bounds, origin: Origin) -> Self {
        let high = convert::signed(bounds.high_ns - origin.offset_ns);
        let low = convert::signed(bounds.low_ns - origin.offset_ns);
        Self {
            at: origin.local(bounds.at_ns),
            offset: f64::midpoint(high, low),
            half: (high - low) / 2.0,
            took: convert::float(bounds.took_ns),
        }
    }
}

/// Returns the points with the least round trip of each window, in the order of time.
///
/// A datagram that waited in a queue proves less than one that did not. Of several, the one with the least
/// round trip mostly met no queue, and is as good as all of them. A window is a number of exchanges and not a
/// time, so that exchanges before and after a pause count alike.
pub(super) fn minima(bounds: &[Bounds], origin: Origin) -> Result<Vec<Point>, Error> {
    let mut points: Vec<Point> = bounds.iter().map(|b| Point::new(b, origin)).collect();
    points.sort_by(|a, b| a.at.total_cmp(&b.at));
    let lasted = points.first().zip(points.last());
    let lasted = lasted.map_or(0.0, |(first, last)| last.at - first.at);
    if points.len() < LEAST_EXCHANGES || lasted <= 0.0 {
        return Err(Error::TooFewExchanges {
            have: points.len(),
            needed: LEAST_EXCHANGES,
        });
    }
    let window = (points.len() / LEAST_WINDOWS).min(WINDOW);
    let window = window.max(points.len().div_ceil(MOST_WINDOWS));
    let best = |window: &[Point]| {
        window
            .iter()
            .copied()
            .min_by(|a, b| a.half.total_cmp(&b.half))
    };
    Ok(points.chunks(window).filter_map(best).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin {
        local_ns: 0,
        offset_ns: 0,
    };

    fn bounds(at_ns: u64, half: i128) -> Bounds {
        Bounds {
            at_ns,
            low_ns: 100 - half,
            high_ns: 100 + half,
            took_ns: 10,
        }
    }

    #[test]
    fn of_each_window_the_shortest_round_trip_is_kept() {
        // 80 exchanges in ten windows; every eighth met no queue.
        let all: Vec<_> = (0..80)
            .map(|i| bounds(i * 1000, if i % 8 == 5 { 3 } else { 70 }))
            .collect();
        let points = minima(&all, ORIGIN).unwrap();
        assert_eq!(points.len(), 10, "{points:?}");
        assert!(points.iter().all(|point| point.half < 4.0), "{points:?}");
    }

    #[test]
    fn what_was_measured_before_and_after_a_pause_counts_alike() {
        let before = (0..40).map(|i| bounds(i * 1000, 5));
        let after = (0..40).map(|i| bounds(10_000_000_000 + i * 1000, 5));
        let points = minima(&before.chain(after).collect::<Vec<_>>(), ORIGIN).unwrap();
        let early = points.iter().filter(|point| point.at < 1e6).count();
        assert_eq!((early, points.len()), (5, 10));
    }

    #[test]
    fn an_hour_has_a_bounded_number_of_points() {
        let all: Vec<_> = (0..36_000).map(|i| bounds(i * 100_000_000, 5)).collect();
        let points = minima(&all, ORIGIN).unwrap();
        assert!((400..=MOST_WINDOWS).contains(&points.len()));
        let few: Vec<_> = (0..8).map(|i| bounds(i * 1000, 5)).collect();
        assert_eq!(minima(&few, ORIGIN).unwrap().len(), 4);
    }

    #[test]
    fn too_few_exchanges_say_how_many_are_needed() {
        let seven: Vec<_> = (0..7).map(|i| bounds(i * 1000, 5)).collect();
        let error = minima(&seven, ORIGIN).unwrap_err().to_string();
        assert!(error.contains("only 7") && error.contains('8'), "{error}");
        let at_once: Vec<_> = (0..100).map(|_| bounds(5, 5)).collect();
        assert!(minima(&at_once, ORIGIN).is_err());
    }
}
