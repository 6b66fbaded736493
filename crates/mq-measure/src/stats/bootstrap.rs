//! Confidence intervals by resampling.

use serde::{Deserialize, Serialize};

use super::{interpolated, mean};

/// A small, fast, seeded generator of pseudo-random numbers: `SplitMix64`.
///
/// Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014, with the
/// constants of Java's `SplittableRandom`. Not for secrets.
///
/// The sequence is part of kept results, and no library's release may change it: the order and seeds of a campaign's
/// runs come from it, by which a resumed set finds what it lacks, and the intervals of reports.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts the sequence that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws an index below `len`, by multiplication; its bias is below `len / 2^64`.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        assert!(len > 0, "an index into nothing");
        let product = u128::from(self.next_u64()) * len as u128;
        usize::try_from(product >> 64).expect("less than len, which is a usize")
    }
}

/// An estimate with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// The value of the samples themselves.
    pub estimate: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// The confidence, 0 to 1.
    pub confidence: f64,
}

impl Interval {
    /// Returns `true` if the interval contains `value`. A ratio whose interval contains 1 shows no difference.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The percentile bootstrap: resamples with replacement and takes the middle of the outcomes.
///
/// Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13. The bootstrap takes the
/// values as independent: give it one value a run. Messages of one run are not independent. With fewer than
/// about 10 values a group the interval is too narrow.
#[derive(Clone, Copy, Debug)]
pub struct Bootstrap {
    /// Number of resamples. With 2000, chance moves the ends of a 95 % interval by a few percent of its width.
    pub resamples: u32,
    /// The confidence, 0 to 1.
    pub confidence: f64,
    /// The seed of the resampling; the same seed gives the same interval.
    pub seed: u64,
}

impl Bootstrap {
    /// Makes a bootstrap of 2000 resamples at 95 % confidence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            resamples: 2000,
            confidence: 0.95,
            seed,
        }
    }

    /// Computes the interval of `mean(a) - mean(b)`; `None` if `a` or `b` is empty.
    #[must_use]
    pub fn mean_difference(&self, a: &[f64], b: &[f64]) -> Option<Interval> {
        self.interval(a, b, |a, b| a - b)
    }

    /// Computes the interval of `mean(a) / mean(b)`: that of W20's ξ, with QUIC as `a` and TCP as `b`.
    ///
    /// `None` if `a` or `b` is empty, or if a mean of `b` is 0.
    #[must_use]
    pub fn mean_ratio(&self, a: &[f64], b: &[f64]) -> Option<Interval> {
        self.interval(a, b, |a, b| a / b)
    }

    fn interval(&self, a: &[f64], b: &[f64], of: fn(f64, f64) -> f64) -> Option<Interval> {
        let estimate = of(mean(a)?, mean(b)?);
        let mut random = SplitMix64::new(self.seed);
        let mut outcomes: Vec<f64> = (0..self.resamples)
            .map(|_| {
                of(
                    resampled_mean(a, &mut random),
                    resampled_mean(b, &mut random),
                )
            })
            .collect();
        if !estimate.is_finite() || outcomes.iter().any(|outcome| !outcome.is_finite()) {
            return None;
        }
        outcomes.sort_by(f64::total_cmp);
        let tail = (1.0 - self.confidence) * 50.0;
        Some(Interval {
            estimate,
            low: interpolated(&outcomes, tail)?,
            high: interpolated(&outcomes, 100.0 - tail)?,
            confidence: self.confidence,
        })
    }
}

fn resampled_mean(values: &[f64], random: &mut SplitMix64) -> f64 {
    let sum: f64 = values
        .iter()
        .map(|_| values[random.index(values.len())])
        .sum();
    sum / crate::convert::float_len(values.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mouse data of Efron and Tibshirani, table 2.1: survival in days.
    const TREATED: [f64; 7] = [94.0, 197.0, 16.0, 38.0, 99.0, 141.0, 23.0];
    const CONTROL: [f64; 9] = [52.0, 104.0, 146.0, 10.0, 51.0, 30.0, 40.0, 27.0, 46.0];

    #[test]
    fn generator_gives_the_published_sequence() {
        // The reference output for seed 1234567, as Rosetta Code's "Splitmix64" prints it.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
        assert_eq!(random.next_u64(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn mouse_data_shows_no_difference() {
        // The book: the difference is 30.63 and the bootstrap's standard error of it 26.85, so that
        // 95 % is about 30.63 ± 1.96 * 26.85; the percentile interval is a little skewed to that.
        let interval = Bootstrap::new(1)
            .mean_difference(&TREATED, &CONTROL)
            .unwrap();
        assert!((interval.estimate - 30.63).abs() < 0.01, "{interval:?}");
        assert!((interval.low - (30.63 - 52.6)).abs() < 8.0, "{interval:?}");
        assert!((interval.high - (30.63 + 52.6)).abs() < 8.0, "{interval:?}");
        assert!(interval.contains(0.0));
    }

    #[test]
    fn equal_seeds_give_equal_intervals() {
        let ratio = |seed| Bootstrap::new(seed).mean_ratio(&TREATED, &CONTROL).unwrap();
        assert_eq!(ratio(7), ratio(7));
        assert_ne!(ratio(7), ratio(8));
    }

    #[test]
    fn undefined_is_none() {
        assert_eq!(Bootstrap::new(1).mean_difference(&[], &[1.0]), None);
        assert_eq!(Bootstrap::new(1).mean_ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn interval_covers_the_true_mean_about_as_often_as_it_says() {
        // 300 pairs of 30 uniform values with true difference 0; 95 % should cover, some 5 % not.
        let mut random = SplitMix64::new(42);
        let mut group = || -> Vec<f64> {
            (0..30)
                .map(|_| crate::convert::float(random.next_u64() >> 11))
                .collect()
        };
        let bootstrap = Bootstrap {
            resamples: 300,
            ..Bootstrap::new(3)
        };
        let covered = (0..300)
            .filter(|_| {
                bootstrap
                    .mean_difference(&group(), &group())
                    .unwrap()
                    .contains(0.0)
            })
            .count();
        assert!((265..=298).contains(&covered), "seed 42: {covered} of 300");
    }
}
