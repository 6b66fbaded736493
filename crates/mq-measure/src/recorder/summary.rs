//! The numbers that a table shows of many latencies.

use serde::{Deserialize, Serialize};

use crate::stats::{Moments, nearest_rank};

/// Source of the percentiles of a [`Summary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PercentileSource {
    /// Percentiles are exact: all samples are kept.
    Samples,
    /// Percentiles are read from the histogram, with an error of 0.1 % at most.
    Histogram,
}

/// The summary of at least one latency, so that every field has a value.
///
/// Percentiles are by nearest rank: the smallest latency that at least so many percent of all do
/// not exceed. S22 §5.1 draws its boxes with the quartiles, the median and the 5th and 95th
/// percentiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Summary {
    /// Number of latencies.
    pub count: u64,
    /// The arithmetic mean.
    pub mean_ns: f64,
    /// The sample standard deviation (n - 1); 0 for a single latency.
    pub stddev_ns: f64,
    /// Relative standard deviation, S22's jitter: standard deviation / mean, S22 §5.1; 0 if all latencies
    /// are 0.
    pub rsd: f64,
    /// The least latency.
    pub min_ns: u64,
    /// The 5th percentile.
    pub p5_ns: u64,
    /// The lower quartile.
    pub p25_ns: u64,
    /// The median of the latencies.
    pub p50_ns: u64,
    /// The upper quartile.
    pub p75_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 95th percentile.
    pub p95_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile; means little with fewer than 1000 latencies.
    pub p999_ns: u64,
    /// The greatest latency.
    pub max_ns: u64,
    /// Source of the percentiles; the rest is exact in any case.
    pub percentiles_from: PercentileSource,
}

impl Summary {
    /// Makes the exact summary of all latencies, in any order; `None` if there are none.
    #[must_use]
    pub fn from_samples(latencies_ns: &[u64]) -> Option<Self> {
        let mut sorted = latencies_ns.to_vec();
        sorted.sort_unstable();
        let mut moments = Moments::default();
        moments.extend(sorted.iter().copied());
        let percentile = |percent| nearest_rank(&sorted, percent).unwrap_or_default();
        Self::from_parts(&moments, PercentileSource::Samples, percentile)
    }

    pub(super) fn from_parts(
        moments: &Moments,
        percentiles_from: PercentileSource,
        percentile: impl Fn(f64) -> u64,
    ) -> Option<Self> {
        let mean_ns = moments.mean()?;
        let stddev_ns = moments.stddev().unwrap_or(0.0);
        Some(Self {
            count: moments.count(),
            mean_ns,
            stddev_ns,
            rsd: if mean_ns > 0.0 {
                stddev_ns / mean_ns
            } else {
                0.0
            },
            min_ns: moments.min()?,
            p5_ns: percentile(5.0),
            p25_ns: percentile(25.0),
            p50_ns: percentile(50.0),
            p75_ns: percentile(75.0),
            p90_ns: percentile(90.0),
            p95_ns: percentile(95.0),
            p99_ns: percentile(99.0),
            p999_ns: percentile(99.9),
            max_ns: moments.max()?,
            percentiles_from,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousand_latencies_in_any_order() {
        let latencies: Vec<u64> = (1..=1000).rev().collect();
        let summary = Summary::from_samples(&latencies).unwrap();
        assert_eq!(summary.count, 1000);
        assert_eq!((summary.min_ns, summary.max_ns), (1, 1000));
        assert_eq!(
            (summary.p5_ns, summary.p25_ns, summary.p50_ns),
            (50, 250, 500)
        );
        assert_eq!(
            (summary.p75_ns, summary.p90_ns, summary.p95_ns),
            (750, 900, 950)
        );
        assert_eq!((summary.p99_ns, summary.p999_ns), (990, 999));
        assert!((summary.mean_ns - 500.5).abs() < 1e-9);
        // Variance of 1..=n with n - 1: n (n + 1) / 12.
        let stddev = (1000.0_f64 * 1001.0 / 12.0).sqrt();
        assert!((summary.stddev_ns - stddev).abs() < 1e-9);
        assert!((summary.rsd - stddev / 500.5).abs() < 1e-12);
    }

    #[test]
    fn one_latency_is_every_percentile() {
        let summary = Summary::from_samples(&[7]).unwrap();
        assert_eq!((summary.p5_ns, summary.p50_ns, summary.p999_ns), (7, 7, 7));
        assert!(summary.stddev_ns.abs() < f64::EPSILON);
    }

    #[test]
    fn none_of_nothing_and_no_spread_of_zeros() {
        assert_eq!(Summary::from_samples(&[]), None);
        assert!(Summary::from_samples(&[0, 0]).unwrap().rsd.abs() < f64::EPSILON);
    }
}
