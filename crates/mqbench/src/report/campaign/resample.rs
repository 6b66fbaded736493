//! Bootstrap intervals with a bounded amount of work.

use mq_measure::{
    convert::float_len,
    stats::{self, Bootstrap, Interval, SplitMix64},
};

use super::metric_values::Statistic;

/// Number of values drawn for one interval; 1000 messages are drawn 2000 times.
const DRAWS: usize = 2_000_000;
/// Number of values above which a mean's interval is the normal approximation: resampling would take long and show
/// nothing new.
const MANY: usize = 20_000;

/// The percentile bootstrap at 95 % of any statistic.
pub(crate) struct Resample {
    seed: u64,
}

impl Resample {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the ends of the interval; `None` with fewer than two values, or with too many for a statistic that is
    /// not a mean.
    pub(crate) fn interval(&self, values: &[f64], statistic: Statistic) -> Option<(f64, f64)> {
        if values.len() < 2 {
            return None;
        }
        if values.len() > MANY {
            let mean = stats::mean(values).filter(|_| statistic == Statistic::Mean)?;
            let reach = 1.96 * standard_error(values)?;
            return Some((mean - reach, mean + reach));
        }
        let times = (DRAWS / values.len()).clamp(200, 2000);
        let mut random = SplitMix64::new(self.seed);
        let mut drawn = vec![0.0; values.len()];
        let mut outcomes = Vec::with_capacity(times);
        for _ in 0..times {
            for slot in &mut drawn {
                *slot = values[random.index(values.len())];
            }
            outcomes.push(statistic.of(&drawn)?);
        }
        outcomes.sort_by(f64::total_cmp);
        let end = |percent| stats::interpolated(&outcomes, percent);
        Some((end(2.5)?, end(97.5)?))
    }

    /// Computes the interval of mean(a) / mean(b).
    pub(crate) fn ratio(&self, a: &[f64], b: &[f64]) -> Option<Interval> {
        let most = a.len().max(b.len());
        if a.len().min(b.len()) < 2 {
            return None;
        }
        if most <= MANY {
            let resamples = u32::try_from((DRAWS / most).clamp(200, 2000)).unwrap_or(2000);
            let bootstrap = Bootstrap {
                resamples,
                ..Bootstrap::new(self.seed)
            };
            return bootstrap.mean_ratio(a, b);
        }
        // The squares of relative errors add up in a quotient.
        let (mean_a, mean_b) = (stats::mean(a)?, stats::mean(b)?);
        let relative = |values, mean: f64| Some((standard_error(values)? / mean).powi(2));
        let estimate = mean_a / mean_b;
        let reach = 1.96 * (relative(a, mean_a)? + relative(b, mean_b)?).sqrt() * estimate.abs();
        reach.is_finite().then_some(Interval {
            estimate,
            low: estimate - reach,
            high: estimate + reach,
            confidence: 0.95,
        })
    }
}

fn standard_error(values: &[f64]) -> Option<f64> {
    Some(stats::stddev(values)? / float_len(values.len()).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_values_have_the_interval_of_few() {
        let values = |n: usize| -> Vec<f64> {
            let mut random = SplitMix64::new(5);
            (0..n)
                .map(|_| f64::from(u32::try_from(random.index(1000)).unwrap()))
                .collect()
        };
        // The bootstrap just below the bound, the approximation just above it.
        let resample = Resample::new(1);
        let (low, high) = resample.interval(&values(MANY), Statistic::Mean).unwrap();
        let (low_2, high_2) = resample
            .interval(&values(MANY + 1), Statistic::Mean)
            .unwrap();
        assert!(
            (low - low_2).abs() < 1.5 && (high - high_2).abs() < 1.5,
            "{low} {low_2} {high} {high_2}"
        );
        let few = resample.ratio(&values(MANY), &values(500)).unwrap();
        let many = resample.ratio(&values(MANY + 1), &values(500)).unwrap();
        assert!((few.low - many.low).abs() < 0.02 && (few.high - many.high).abs() < 0.02);
        assert_eq!(resample.interval(&[1.0], Statistic::Mean), None);
    }
}
