//! Means of few independent runs, and quotients of them, by Student's t.
//!
//! A percentile bootstrap of three to ten values is too narrow, and a verdict on it too bold. These intervals keep
//! their probability with three values a mean.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::{Interval, mean, stddev};
use crate::convert;

/// A value that was measured, and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimated value.
    pub value: f64,
    /// The variance of the value, not of single runs.
    variance: f64,
    /// Degrees of freedom of the variance.
    degrees: f64,
}

impl Estimate {
    /// Estimates the mean of independent values; `None` with fewer than two.
    #[must_use]
    pub fn of_mean(values: &[f64]) -> Option<Self> {
        let spread = stddev(values)?;
        let count = convert::float_len(values.len());
        Some(Self {
            value: mean(values)?,
            variance: spread * spread / count,
            degrees: count - 1.0,
        })
    }

    /// Estimates the mean of independent estimates, each of which counts alike; `None` without any. The differences
    /// between them are no uncertainty: they are of other settings.
    #[must_use]
    pub fn of_all(parts: &[Self]) -> Option<Self> {
        let values: Vec<f64> = parts.iter().map(|part| part.value).collect();
        let count = convert::float_len(parts.len());
        let terms = parts
            .iter()
            .map(|part| (part.variance / (count * count), part.degrees));
        let (variance, degrees) = summed(terms);
        Some(Self {
            value: mean(&values)?,
            variance,
            degrees,
        })
    }

    /// Adds up independent estimates, each times a number.
    #[must_use]
    pub fn of_sum(terms: &[(f64, Self)]) -> Self {
        let variances = terms
            .iter()
            .map(|(times, of)| (of.variance * times * times, of.degrees));
        let (variance, degrees) = summed(variances);
        Self {
            value: terms.iter().map(|(times, of)| times * of.value).sum(),
            variance,
            degrees,
        }
    }

    /// Divides this estimate by another, independent one. `None` if one of them is not positive.
    #[must_use]
    pub fn over(&self, other: &Self) -> Option<Self> {
        if self.value <= 0.0 || other.value <= 0.0 {
            return None;
        }
        let terms = [self, other].map(|one| (one.variance / (one.value * one.value), one.degrees));
        let (relative, degrees) = summed(terms.into_iter());
        let value = self.value / other.value;
        Some(Self {
            value,
            variance: relative * value * value,
            degrees,
        })
    }

    /// Returns the interval of a mean, even to both sides. `confidence` is within 0 and 1.
    #[must_use]
    pub fn interval(&self, confidence: f64) -> Interval {
        let reach = self.quantile(confidence) * self.variance.sqrt();
        Interval {
            estimate: self.value,
            low: self.value - reach,
            high: self.value + reach,
            confidence,
        }
    }

    /// Returns the interval of a positive quantity, such as a time or a quotient: symmetric on a logarithmic scale, so
    /// that the interval of the inverse is its inverse, and times skewed to the right are not taken as too well known.
    /// `None` if the value is not positive.
    #[must_use]
    pub fn interval_of_positive(&self, confidence: f64) -> Option<Interval> {
        if self.value <= 0.0 {
            return None;
        }
        let factor = (self.quantile(confidence) * self.variance.sqrt() / self.value).exp();
        Some(Interval {
            estimate: self.value,
            low: self.value / factor,
            high: self.value * factor,
            confidence,
        })
    }

    fn quantile(&self, confidence: f64) -> f64 {
        StudentsT::new(0.0, 1.0, self.degrees).map_or(f64::INFINITY, |student| {
            student.inverse_cdf(f64::midpoint(1.0, confidence))
        })
    }
}

/// Adds up variances, and returns the sum with its degrees of freedom (Welch, Biometrika 34, 1947).
fn summed(terms: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let (mut sum, mut squares, mut least) = (0.0, 0.0, f64::INFINITY);
    for (variance, degrees) in terms {
        sum += variance;
        squares += variance * variance / degrees;
        least = least.min(degrees);
    }
    (
        sum,
        if squares > 0.0 {
            sum * sum / squares
        } else {
            least
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(interval: Interval, low: f64, high: f64) {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6 * b.abs();
        assert!(
            near(interval.low, low) && near(interval.high, high),
            "{interval:?}"
        );
    }

    /// Expected interval from `SciPy`: `stats.t.interval(0.9, 4, 3.0, sqrt(2.5 / 5))`.
    #[test]
    fn a_mean_has_students_interval() {
        let estimate = Estimate::of_mean(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        near(estimate.interval(0.9), 1.492_556_821, 4.507_443_179);
        assert_eq!(Estimate::of_mean(&[1.0]), None);
    }

    /// The relative variances are 1 / 300 of both, so that there are four degrees of freedom.
    #[test]
    fn a_quotient_adds_relative_variances() {
        let of = Estimate::of_mean(&[9.0, 10.0, 11.0]).unwrap();
        let with = Estimate::of_mean(&[18.0, 20.0, 22.0]).unwrap();
        let quotient = of.over(&with).unwrap();
        let reach = (2.131_846_786_f64 * (2.0_f64 / 300.0).sqrt()).exp();
        near(
            quotient.interval_of_positive(0.9).unwrap(),
            0.5 / reach,
            0.5 * reach,
        );
        let nothing = Estimate::of_mean(&[-1.0, 1.0]).unwrap();
        assert_eq!(of.over(&nothing), None);
    }

    #[test]
    fn settings_that_differ_do_not_widen_the_mean_over_them() {
        let parts = [[1.0, 1.2, 0.8], [100.0, 100.2, 99.8]];
        let parts = parts.map(|values| Estimate::of_mean(&values).unwrap());
        let all = Estimate::of_all(&parts).unwrap();
        let interval = all.interval(0.9);
        assert!(
            (all.value - 50.5).abs() < 1e-9 && interval.high - interval.low < 0.5,
            "{all:?}"
        );
        assert_eq!(Estimate::of_all(&[]), None);
    }

    #[test]
    fn values_without_spread_have_a_point() {
        let estimate = Estimate::of_mean(&[2.0, 2.0]).unwrap();
        near(estimate.interval(0.9), 2.0, 2.0);
        near(
            estimate
                .over(&estimate)
                .unwrap()
                .interval_of_positive(0.9)
                .unwrap(),
            1.0,
            1.0,
        );
    }
}
