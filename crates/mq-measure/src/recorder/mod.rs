//! Recording and summarising many latencies in little memory.

mod log;
mod summary;

pub use log::{TaggedHistogram, decode, encode, write_log};
pub use summary::{PercentileSource, Summary};

use hdrhistogram::Histogram;

use crate::stats::Moments;

/// The greatest latency that the histogram holds: one hour, in nanoseconds.
pub const MAX_NS: u64 = 3_600_000_000_000;

/// Significant decimal digits of the histogram: a percentile is within 0.1 %.
pub const DIGITS: u8 = 3;

/// A recorder of latencies in nanoseconds: constant memory (about 270 kB), constant time, no
/// allocation.
///
/// Mean, standard deviation, minimum and maximum are exact, percentiles within 0.1 %. A latency above
/// [`MAX_NS`] counts in the last bucket.
#[derive(Clone, Debug)]
pub struct LatencyRecorder {
    histogram: Histogram<u64>,
    moments: Moments,
}

impl LatencyRecorder {
    /// Makes an empty recorder.
    #[must_use]
    pub fn new() -> Self {
        Self {
            histogram: new_histogram(),
            moments: Moments::default(),
        }
    }

    /// Records a latency.
    pub fn record(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns);
        self.moments.push(latency_ns);
    }

    /// Adds everything that `other` has recorded.
    pub fn merge(&mut self, other: &Self) {
        add(&mut self.histogram, &other.histogram);
        self.moments.merge(&other.moments);
    }

    /// Discards all latencies recorded.
    pub fn clear(&mut self) {
        self.histogram.reset();
        self.moments = Moments::default();
    }

    /// Returns the number of latencies recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.moments.count()
    }

    /// Returns `true` if nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns count, mean and spread of the latencies, exact.
    #[must_use]
    pub fn moments(&self) -> &Moments {
        &self.moments
    }

    /// Returns the histogram itself.
    #[must_use]
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Returns the percentile by nearest rank, within 0.1 %; `None` if nothing was recorded.
    ///
    /// The greatest value of the bucket that holds the nearest rank, kept within the exact minimum and
    /// maximum.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let (min, max) = (self.moments.min()?, self.moments.max()?);
        Some(self.histogram.value_at_percentile(percent).clamp(min, max))
    }

    /// Returns the summary of the latencies; `None` if nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let percentile = |percent| self.percentile_ns(percent).unwrap_or_default();
        Summary::from_parts(&self.moments, PercentileSource::Histogram, percentile)
    }
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Extend<u64> for LatencyRecorder {
    fn extend<I: IntoIterator<Item = u64>>(&mut self, latencies_ns: I) {
        for latency_ns in latencies_ns {
            self.record(latency_ns);
        }
    }
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("1 < MAX_NS, and DIGITS is at most 5")
}

fn add(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    to.add(from).expect("both have the same bounds");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recorder(latencies_ns: &[u64]) -> LatencyRecorder {
        let mut recorder = LatencyRecorder::new();
        recorder.extend(latencies_ns.iter().copied());
        recorder
    }

    #[test]
    fn nothing_recorded_has_no_summary() {
        assert_eq!(LatencyRecorder::new().summary(), None);
        assert_eq!(LatencyRecorder::new().percentile_ns(50.0), None);
    }

    #[test]
    fn longer_than_the_maximum_is_counted_and_its_value_kept() {
        let recorder = recorder(&[1, MAX_NS * 2]);
        let summary = recorder.summary().unwrap();
        assert_eq!(summary.count, 2);
        assert_eq!(summary.max_ns, MAX_NS * 2);
    }

    #[test]
    fn clear_forgets() {
        let mut recorder = recorder(&[1, 2]);
        recorder.clear();
        assert!(recorder.is_empty());
        assert_eq!(recorder.summary(), None);
    }

    proptest! {
        #[test]
        fn histogram_agrees_with_exact_within_three_digits(
            latencies in prop::collection::vec(0_u64..MAX_NS, 1..200)
        ) {
            let exact = Summary::from_samples(&latencies).unwrap();
            let close = recorder(&latencies).summary().unwrap();
            prop_assert_eq!((exact.count, exact.min_ns, exact.max_ns),
                (close.count, close.min_ns, close.max_ns));
            for (exact, close) in [
                (exact.p5_ns, close.p5_ns), (exact.p25_ns, close.p25_ns),
                (exact.p50_ns, close.p50_ns), (exact.p75_ns, close.p75_ns),
                (exact.p90_ns, close.p90_ns), (exact.p95_ns, close.p95_ns),
                (exact.p99_ns, close.p99_ns), (exact.p999_ns, close.p999_ns),
            ] {
                prop_assert!(exact.abs_diff(close) * 1000 <= exact, "{} {}", exact, close);
            }
        }

        #[test]
        fn merging_equals_recording_all(
            a in prop::collection::vec(0_u64..MAX_NS, 0..50),
            b in prop::collection::vec(0_u64..MAX_NS, 0..50),
        ) {
            let mut merged = recorder(&a);
            merged.merge(&recorder(&b));
            let all = recorder(&[a, b].concat());
            prop_assert_eq!(merged.histogram(), all.histogram());
            prop_assert_eq!(merged.moments().min(), all.moments().min());
            prop_assert_eq!(merged.count(), all.count());
        }
    }
}
