//! The fitted relation of two clocks, with the uncertainty of every time that is converted.

use serde::{Deserialize, Serialize};

use super::exchange::{Bounds, Exchange, LeastDelays};
use super::line::Worth;
use super::stretch::Stretch;
use super::window::{self, Origin, Point};
use super::{Mapped, step};
use crate::{Error, convert};

/// Assumptions about clocks and path, which no exchange can show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumptions {
    /// Least one-way delays of the path.
    pub least: LeastDelays,
    /// Greatest deviation of the clocks' relative rate from a constant, in parts per billion.
    pub wander_ppb: f64,
}

impl Default for Assumptions {
    /// Assumes nothing of the path, and a wander of the clocks by 1 part in a million at most.
    ///
    /// The quartz of a small board changes its rate by some 0.1 ppm a degree, and a run heats it by some
    /// degrees. Chrony's corrections are of the same order once the clock is in step.
    fn default() -> Self {
        Self {
            least: LeastDelays::default(),
            wander_ppb: 1_000.0,
        }
    }
}

/// A jump of the offset: one of the clocks was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Time of the step, by the local clock, to within two windows of exchanges.
    pub at_ns: u64,
    /// Change of the offset, remote minus local clock.
    pub by_ns: i64,
}

/// A [`ClockFit`] in a few numbers, for the time over which the clocks were compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FitSummary {
    /// The middle of the time that was measured, by the local clock.
    pub at_ns: u64,
    /// Offset at `at_ns`, remote minus local clock.
    pub offset_ns: i64,
    /// Skew at `at_ns`: the excess of the remote clock's rate over the local clock's, in parts per billion.
    pub skew_ppb: f64,
    /// The most that any offset is wrong by between the first exchange and the last.
    pub uncertainty_ns: u64,
    /// The least round trip; the known least delays are part of it.
    pub least_round_trip_ns: u64,
    /// Exchanges that were used.
    pub exchanges: u64,
    /// Exchanges in whose middle a clock was set.
    pub unusable: u64,
    /// The first exchange, by the local clock.
    pub from_ns: u64,
    /// The last exchange, by the local clock.
    pub until_ns: u64,
    /// The jumps that were found, in the order of time.
    pub steps: Vec<Step>,
}

/// A straight relation of a remote clock to the local one, or several where a clock was set.
///
/// Of every few exchanges the one with the least round trip is kept. A line goes through these; an exchange
/// weighs less the more its round trip exceeds the least one. `docs/reference/clock.md` derives the
/// uncertainty.
#[derive(Clone, Debug)]
pub struct ClockFit {
    origin: Origin,
    stretches: Vec<Stretch>,
    /// Times of the first and the last exchange, in nanoseconds from the origin.
    first: f64,
    last: f64,
    least_round_trip_ns: u64,
    exchanges: u64,
    unusable: u64,
}

impl ClockFit {
    /// Relates the clocks by `exchanges`, which are in the order in which they were asked.
    ///
    /// # Errors
    /// [`Error::TooFewExchanges`]; [`Error::ClockWentBack`] if the local clock was set back between
    /// two exchanges; [`Error::DelaysTooLong`] if a round trip was shorter than the least delays.
    pub fn new(exchanges: &[Exchange], assumptions: &Assumptions) -> Result<Self, Error> {
        if let Some(pair) = exchanges
            .windows(2)
            .find(|pair| pair[1].t1_ns < pair[0].t1_ns)
        {
            return Err(Error::ClockWentBack {
                by_ns: pair[0].t1_ns - pair[1].t1_ns,
            });
        }
        let least_round_trip_ns = exchanges.iter().filter_map(Exchange::round_trip_ns).min();
        let least_round_trip_ns = least_round_trip_ns.unwrap_or(0);
        let bounds: Vec<Bounds> = exchanges
            .iter()
            .filter(|exchange| exchange.round_trip_ns().is_some())
            .map(|exchange| {
                let least = &assumptions.least;
                exchange.bounds(least).ok_or(Error::DelaysTooLong {
                    assumed_ns: least.there_ns.saturating_add(least.back_ns),
                    round_trip_ns: least_round_trip_ns,
                })
            })
            .collect::<Result<_, _>>()?;
        let origin = bounds.first().map_or(
            Origin {
                local_ns: 0,
                offset_ns: 0,
            },
            |first| Origin {
                local_ns: first.at_ns,
                offset_ns: i128::midpoint(first.low_ns, first.high_ns),
            },
        );
        let points = window::minima(&bounds, origin)?;
        let times = bounds.iter().map(|bounds| origin.local(bounds.at_ns));
        Ok(Self {
            origin,
            stretches: stretches(&points, assumptions.wander_ppb * 1e-9),
            first: times.clone().fold(f64::INFINITY, f64::min),
            last: times.fold(f64::NEG_INFINITY, f64::max),
            least_round_trip_ns,
            exchanges: bounds.len() as u64,
            unusable: (exchanges.len() - bounds.len()) as u64,
        })
    }

    /// Converts a time of the local clock to the remote clock, with the uncertainty.
    #[must_use]
    pub fn to_remote(&self, local_ns: u64) -> Mapped {
        let x = self.origin.local(local_ns);
        let (offset, uncertainty) = self.offset(x);
        let at = i128::from(local_ns) + self.origin.offset_ns;
        Mapped {
            at_ns: clamp(at + i128::from(convert::round_signed(offset))),
            uncertainty_ns: convert::round(uncertainty.ceil()),
            extrapolated: self.is_outside(x),
        }
    }

    /// Converts a time of the remote clock to the local clock, with the uncertainty.
    ///
    /// Where a clock was set back, a remote time occurs twice: the result is the middle of the two, with an
    /// uncertainty that covers both.
    #[must_use]
    pub fn to_local(&self, remote_ns: u64) -> Mapped {
        let origin = i128::from(self.origin.local_ns);
        let y = convert::signed(i128::from(remote_ns) - origin - self.origin.offset_ns);
        let all = self.stretches.iter().enumerate().map(|(index, stretch)| {
            let x = stretch.line.local(y);
            let (from, until) = self.validity(index);
            let outside = (from - x).max(x - until).max(0.0);
            (outside, (x, stretch.uncertainty(x)))
        });
        // Of the stretches that hold at that time; if none does, of the nearest.
        let least = all.clone().map(|(outside, _)| outside);
        let least = least.fold(f64::INFINITY, f64::min);
        let candidates: Vec<(f64, f64)> = all
            .filter(|(outside, _)| *outside <= least)
            .map(|(_, candidate)| candidate)
            .collect();
        let (x, uncertainty) = cover(&candidates);
        Mapped {
            at_ns: clamp(origin + i128::from(convert::round_signed(x))),
            uncertainty_ns: convert::round(uncertainty.ceil()),
            extrapolated: self.is_outside(x),
        }
    }

    /// Returns the offset, remote minus local clock, at a local time, and the most that it is wrong by.
    #[must_use]
    pub fn offset_at(&self, local_ns: u64) -> (i64, u64) {
        let (offset, uncertainty) = self.offset(self.origin.local(local_ns));
        let offset = self.origin.offset_ns + i128::from(convert::round_signed(offset));
        let offset = i64::try_from(offset).unwrap_or(if offset < 0 { i64::MIN } else { i64::MAX });
        (offset, convert::round(uncertainty.ceil()))
    }

    /// Returns the skew at a local time: the excess of the remote clock's rate over the local clock's, in parts per
    /// billion.
    #[must_use]
    pub fn skew_ppb(&self, local_ns: u64) -> f64 {
        let x = self.origin.local(local_ns);
        let holds = |index: &usize| x <= self.validity(*index).1;
        let index = (0..self.stretches.len()).find(holds).unwrap_or(0);
        self.stretches[index].line.slope * 1e9
    }

    /// Returns the jumps of the offset that were found, in the order of time.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        self.stretches
            .windows(2)
            .map(|pair| {
                let x = f64::midpoint(pair[0].point_from_end(0), pair[1].point_at(0));
                Step {
                    at_ns: self.local_ns(x),
                    by_ns: convert::round_signed(pair[1].line.at(x) - pair[0].line.at(x)),
                }
            })
            .collect()
    }

    /// Sums up the fit in a few numbers.
    #[must_use]
    pub fn summary(&self) -> FitSummary {
        let at_ns = self.local_ns(f64::midpoint(self.first, self.last));
        let uncertainties = self.stretches.iter().map(Stretch::greatest_uncertainty);
        let greatest = uncertainties.fold(0.0, f64::max);
        FitSummary {
            at_ns,
            offset_ns: self.offset_at(at_ns).0,
            skew_ppb: self.skew_ppb(at_ns),
            uncertainty_ns: convert::round(greatest.ceil()),
            least_round_trip_ns: self.least_round_trip_ns,
            exchanges: self.exchanges,
            unusable: self.unusable,
            from_ns: self.local_ns(self.first),
            until_ns: self.local_ns(self.last),
            steps: self.steps(),
        }
    }

    /// Returns the offset (remote minus local clock) beyond the origin's, and its uncertainty, both in nanoseconds.
    ///
    /// `x` is the local time, in nanoseconds from the origin. Beside a step, the uncertainty covers all stretches that
    /// may hold there.
    fn offset(&self, x: f64) -> (f64, f64) {
        let candidates: Vec<(f64, f64)> = (0..self.stretches.len())
            .filter(|index| {
                let (from, until) = self.validity(*index);
                (from..=until).contains(&x)
            })
            .map(|index| {
                let stretch = &self.stretches[index];
                (stretch.line.at(x), stretch.uncertainty(x))
            })
            .collect();
        cover(&candidates)
    }

    /// Returns the range of local times, in nanoseconds from the origin, in which a stretch may hold: from the last
    /// point but one before it to the second after it.
    ///
    /// A step lies between two points. The range has one point more at each end, so that it still covers the
    /// step if that is found one point off.
    fn validity(&self, index: usize) -> (f64, f64) {
        let before = index.checked_sub(1).map(|before| &self.stretches[before]);
        let after = self.stretches.get(index + 1);
        (
            before.map_or(f64::NEG_INFINITY, |stretch| stretch.point_from_end(1)),
            after.map_or(f64::INFINITY, |stretch| stretch.point_at(1)),
        )
    }

    fn is_outside(&self, x: f64) -> bool {
        !(self.first..=self.last).contains(&x)
    }

    fn local_ns(&self, x: f64) -> u64 {
        clamp(i128::from(self.origin.local_ns) + i128::from(convert::round_signed(x)))
    }
}

/// Divides the points into straight stretches between steps.
fn stretches(points: &[Point], drift: f64) -> Vec<Stretch> {
    let worth = Worth::of(points);
    let mut starts = step::find(points, drift);
    starts.insert(0, 0);
    let ends = starts[1..].iter().copied().chain([points.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| Stretch::new(&points[*start..end], &worth, drift))
        .collect()
}

/// Merges several candidates, each a value and its uncertainty, into the middle and the half width of all that they
/// allow.
fn cover(candidates: &[(f64, f64)]) -> (f64, f64) {
    let low = candidates.iter().map(|(value, u)| value - u);
    let high = candidates.iter().map(|(value, u)| value + u);
    let low = low.fold(f64::INFINITY, f64::min);
    let high = high.fold(f64::NEG_INFINITY, f64::max);
    (f64::midpoint(low, high), (high - low) / 2.0)
}

/// Limits a time to the range of a `u64`.
fn clamp(ns: i128) -> u64 {
    u64::try_from(ns).unwrap_or(if ns < 0 { 0 } else { u64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000_000_000_000;

    /// Makes exchanges each 100 ms over a path with 100 µs each way. The remote clock is 1.5 s ahead and 50 ppm fast,
    /// and `step` further ahead from the middle on.
    fn exchanges(count: u64, step: i64) -> Vec<Exchange> {
        let remote = |local: u64| {
            let drift = i64::try_from((local - START) / 20_000).unwrap();
            let late = local > START + count / 2 * 100_000_000;
            let step = if late { step } else { 0 };
            local
                .checked_add_signed(1_500_000_000 + drift + step)
                .unwrap()
        };
        (0..count)
            .map(|i| {
                let at = START + i * 100_000_000;
                Exchange {
                    t1_ns: at,
                    t2_ns: remote(at + 100_000),
                    t3_ns: remote(at + 110_000),
                    t4_ns: at + 210_000,
                }
            })
            .collect()
    }

    fn fit(exchanges: &[Exchange]) -> ClockFit {
        ClockFit::new(exchanges, &Assumptions::default()).unwrap()
    }

    #[test]
    fn offset_and_skew_of_a_quiet_path_are_found() {
        let fit = fit(&exchanges(300, 0));
        let summary = fit.summary();
        assert!((summary.skew_ppb - 50_000.0).abs() < 10.0, "{summary:?}");
        let truth = 1_500_000_000 + i64::try_from((summary.at_ns - START) / 20_000).unwrap();
        assert!(summary.offset_ns.abs_diff(truth) < 100, "{summary:?}");
        assert_eq!((summary.exchanges, summary.unusable), (300, 0));
        // Half of the round trip, and little more.
        assert!(
            (100_000..115_000).contains(&summary.uncertainty_ns),
            "{summary:?}"
        );
        assert_eq!(summary.steps, []);
    }

    #[test]
    fn there_and_back_again_is_where_one_was() {
        let fit = fit(&exchanges(300, 0));
        for at in [
            START - 10_000_000_000,
            START + 1_000_000,
            START + 17_123_456_789,
        ] {
            let remote = fit.to_remote(at);
            let local = fit.to_local(remote.at_ns);
            assert!(local.at_ns.abs_diff(at) <= 2, "{at}: {remote:?} {local:?}");
            assert_eq!(local.extrapolated, at < START);
        }
    }

    #[test]
    fn a_step_splits_the_relation() {
        for step in [-2_000_000_000, -300_000, 300_000, 2_000_000_000] {
            let fit = fit(&exchanges(300, step));
            let steps = fit.steps();
            assert_eq!(steps.len(), 1, "{step}: {steps:?}");
            assert!(steps[0].by_ns.abs_diff(step) < 1_000, "{steps:?}");
            let middle = START + 15_000_000_000;
            assert!(steps[0].at_ns.abs_diff(middle) < 2_000_000_000, "{steps:?}");
            for at in [START + 5_000_000_000, START + 25_000_000_000] {
                let late = if at > middle { step } else { 0 };
                let truth = 1_500_000_000 + i64::try_from((at - START) / 20_000).unwrap() + late;
                let (offset, uncertainty) = fit.offset_at(at);
                assert!(offset.abs_diff(truth) <= uncertainty, "{step} at {at}");
                assert!(uncertainty < 115_000, "{step}: {uncertainty}");
            }
            // At the step the uncertainty covers both sides.
            let (offset, uncertainty) = fit.offset_at(middle);
            let truth = 1_500_000_000 + 750_000;
            assert!(offset.abs_diff(truth) <= uncertainty, "{step}");
            assert!(offset.abs_diff(truth + step) <= uncertainty, "{step}");
        }
    }

    #[test]
    fn known_delays_take_the_uncertainty_away() {
        let assumptions = Assumptions {
            least: LeastDelays {
                there_ns: 95_000,
                back_ns: 95_000,
            },
            ..Assumptions::default()
        };
        let fit = ClockFit::new(&exchanges(300, 0), &assumptions).unwrap();
        assert!(fit.summary().uncertainty_ns < 20_000, "{:?}", fit.summary());
        let wrong = Assumptions {
            least: LeastDelays {
                there_ns: 300_000,
                back_ns: 0,
            },
            ..assumptions
        };
        let error = ClockFit::new(&exchanges(300, 0), &wrong).unwrap_err();
        assert!(matches!(error, Error::DelaysTooLong { .. }), "{error}");
    }

    #[test]
    fn a_local_clock_that_was_set_back_is_refused() {
        let mut exchanges = exchanges(20, 0);
        for exchange in &mut exchanges[10..] {
            exchange.t1_ns -= 5_000_000_000;
            exchange.t4_ns -= 5_000_000_000;
        }
        let error = ClockFit::new(&exchanges, &Assumptions::default()).unwrap_err();
        assert!(
            matches!(
                error,
                Error::ClockWentBack {
                    by_ns: 4_900_000_000
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn exchanges_across_a_step_are_left_out() {
        let mut exchanges = exchanges(100, 0);
        exchanges[50].t4_ns = exchanges[50].t1_ns;
        let fit = fit(&exchanges);
        assert_eq!((fit.summary().exchanges, fit.summary().unusable), (99, 1));
    }

    #[test]
    fn nothing_measured_is_an_error() {
        let error = ClockFit::new(&[], &Assumptions::default()).unwrap_err();
        assert!(
            matches!(error, Error::TooFewExchanges { have: 0, .. }),
            "{error}"
        );
    }
}
