//! Mean and spread in one pass.

use crate::convert;

/// Count, mean, standard deviation, minimum and maximum of integers, kept in one pass.
///
/// Welford's method (Technometrics 4, 1962) keeps the small differences of large values. Two are merged by
/// the formula of Chan, Golub and `LeVeque` (1979).
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    count: u64,
    mean: f64,
    /// The sum of the squared differences from the mean.
    squares: f64,
    min: u64,
    max: u64,
}

impl Moments {
    /// Adds a value.
    pub fn push(&mut self, value: u64) {
        self.min = if self.count == 0 {
            value
        } else {
            self.min.min(value)
        };
        self.max = self.max.max(value);
        self.count += 1;
        let value = convert::float(value);
        let difference = value - self.mean;
        self.mean += difference / convert::float(self.count);
        self.squares += difference * (value - self.mean);
    }

    /// Adds all values that `other` has seen.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        let (a, b) = (convert::float(self.count), convert::float(other.count));
        let difference = other.mean - self.mean;
        self.mean += difference * b / (a + b);
        self.squares += other.squares + difference * difference * a * b / (a + b);
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean; `None` without values.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// Returns the sample standard deviation (n - 1); `None` with fewer than two values.
    #[must_use]
    pub fn stddev(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / convert::float(self.count - 1)).sqrt())
    }

    /// Returns the least value; `None` without values.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// Returns the greatest value; `None` without values.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }
}

impl Extend<u64> for Moments {
    fn extend<I: IntoIterator<Item = u64>>(&mut self, values: I) {
        for value in values {
            self.push(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moments(values: &[u64]) -> Moments {
        let mut moments = Moments::default();
        moments.extend(values.iter().copied());
        moments
    }

    #[test]
    fn small_differences_of_large_values_are_kept() {
        // NIST StRD "NumAcc3" in spirit: 10^15 + {1, 2, 3}; the naive sum of squares gives 0 or NaN.
        let base = 1_000_000_000_000_000;
        let stddev = moments(&[base + 1, base + 2, base + 3]).stddev();
        assert!((stddev.unwrap() - 1.0).abs() < 1e-6, "{stddev:?}");
    }

    #[test]
    fn empty_and_single_have_no_spread() {
        assert_eq!(moments(&[]).mean(), None);
        assert_eq!(moments(&[]).min(), None);
        assert_eq!(moments(&[5]).stddev(), None);
        assert_eq!(moments(&[5]).min(), Some(5));
    }

    proptest! {
        #[test]
        fn merging_equals_one_pass(
            a in prop::collection::vec(0_u64..10_000_000_000, 0..40),
            b in prop::collection::vec(0_u64..10_000_000_000, 0..40),
        ) {
            let mut merged = moments(&a);
            merged.merge(&moments(&b));
            let all = [a, b].concat();
            let once = moments(&all);
            prop_assert_eq!(merged.count(), once.count());
            prop_assert_eq!(merged.min(), all.iter().min().copied());
            prop_assert_eq!(merged.max(), all.iter().max().copied());
            let floats: Vec<f64> = all.iter().map(|x| crate::convert::float(*x)).collect();
            for (ours, plain) in
                [(merged.mean(), crate::stats::mean(&floats)), (merged.stddev(), crate::stats::stddev(&floats))]
            {
                match (ours, plain) {
                    (Some(a), Some(b)) => prop_assert!((a - b).abs() <= 1e-6 * b.max(1.0), "{} {}", a, b),
                    (a, b) => prop_assert_eq!(a, b),
                }
            }
        }
    }
}
