//! Statistics as pure functions: moments, percentiles, ratios, confidence intervals.
//!
//! `None` means that the value is not defined, mostly because there are too few values.

mod bootstrap;
mod box_plot;
mod estimate;
mod moments;
mod rank;

pub use bootstrap::{Bootstrap, Interval, SplitMix64};
pub use box_plot::BoxPlot;
pub use estimate::Estimate;
pub use moments::Moments;
pub use rank::{Dunn, KruskalWallis, dominance, dunn, holm, kruskal_wallis};

use crate::convert;

/// Returns the arithmetic mean; `None` without values.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / convert::float_len(values.len()))
}

/// Returns the sample standard deviation: `sqrt(sum((x - mean)^2) / (n - 1))`, with n ≥ 2.
#[must_use]
pub fn stddev(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() >= 2)?;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    Some((squares / convert::float_len(values.len() - 1)).sqrt())
}

/// Returns the relative standard deviation, S22's jitter: standard deviation / mean, S22 §5.1.
///
/// S22 does not say whether it divides by n or n - 1; here it is n - 1, as in [`stddev`], which
/// for its 1000 packets differs by 0.05 %. `None` if the mean is 0.
#[must_use]
pub fn rsd(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|mean| *mean != 0.0)?;
    Some(stddev(values)? / mean)
}

/// Returns the percentile by nearest rank: the smallest value that at least `percent` % of all values do not exceed.
///
/// Of n values in ascending order it is number `max(1, ceil(percent / 100 * n))`: always one of the values,
/// never between two. `sorted` must be ascending; `percent` is limited to 0..=100.
#[must_use]
pub fn nearest_rank<T: Copy>(sorted: &[T], percent: f64) -> Option<T> {
    sorted
        .get(nearest_rank_index(sorted.len(), percent))
        .copied()
}

/// Returns the index of the nearest-rank percentile among `len` values; 0 if there are none.
fn nearest_rank_index(len: usize, percent: f64) -> usize {
    // Multiply first: 99.9 / 100 * 1000 is a little more than 999 in binary and would ceil to 1000.
    let exact = percent.clamp(0.0, 100.0) * convert::float_len(len) / 100.0;
    // A product that is an integer but for the rounding of the decimal `percent` is that integer.
    let rank = if (exact - exact.round()).abs() < 1e-9 * exact.max(1.0) {
        convert::round(exact)
    } else {
        convert::round(exact.ceil())
    };
    usize::try_from(rank)
        .unwrap_or(usize::MAX)
        .clamp(1, len.max(1))
        - 1
}

/// Returns the percentile by linear interpolation between order statistics, Hyndman and Fan's type 7.
///
/// `NumPy`, R and matplotlib draw box plots with it (S21 §6.1). With n ascending values x and
/// `h = (n - 1) * percent / 100`, it is `x[floor h] + (h - floor h) * (x[floor h + 1] - x[floor h])`.
/// `sorted` must be ascending, `percent` is held within 0..=100.
#[must_use]
pub fn interpolated(sorted: &[f64], percent: f64) -> Option<f64> {
    let h = convert::float_len(sorted.len().checked_sub(1)?) * percent.clamp(0.0, 100.0) / 100.0;
    let below = usize::try_from(convert::round(h.floor())).ok()?;
    let low = sorted.get(below)?;
    let high = sorted.get(below + 1).unwrap_or(low);
    Some(low + (h - h.floor()) * (high - low))
}

/// Returns the median: the middle value, or the mean of the two middle ones. Needs no order.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    interpolated(&sorted, 50.0)
}

/// Computes W20's ξ of one pair of runs: `T_QUIC / T_TCP`, W20 eq. 1. Below 1, QUIC is faster.
#[must_use]
pub fn xi(quic: f64, tcp: f64) -> Option<f64> {
    (tcp != 0.0).then(|| quic / tcp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: Option<f64>, b: f64) {
        let a = a.expect("a value");
        assert!((a - b).abs() < 1e-9 * b.abs().max(1.0), "{a} is not {b}");
    }

    #[test]
    fn nearest_rank_follows_the_usual_example() {
        // The worked example of "Percentile" in Wikipedia: 15, 20, 35, 40, 50.
        let values = [15, 20, 35, 40, 50];
        let at = |percent| nearest_rank(&values, percent).unwrap();
        assert_eq!(
            [at(5.0), at(30.0), at(40.0), at(50.0), at(100.0)],
            [15, 20, 20, 35, 50]
        );
        assert_eq!(at(0.0), 15);
        assert_eq!(nearest_rank::<u64>(&[], 50.0), None);
    }

    #[test]
    fn nearest_rank_is_not_moved_by_binary_fractions() {
        for n in [10_usize, 100, 1000, 10_000, 100_000] {
            let values: Vec<usize> = (1..=n).collect();
            for (percent, per_mille) in [
                (99.9, 999),
                (99.0, 990),
                (95.0, 950),
                (5.0, 50),
                (29.0, 290),
                (57.9, 579),
            ] {
                let rank = (n * per_mille).div_ceil(1000);
                assert_eq!(
                    nearest_rank(&values, percent),
                    Some(rank),
                    "p{percent} of {n}"
                );
            }
        }
    }

    #[test]
    fn interpolation_follows_the_usual_example() {
        // The same page, C = 1 (type 7): 15, 20, 35, 40, 50 at 40 % is 29.
        near(interpolated(&[15.0, 20.0, 35.0, 40.0, 50.0], 40.0), 29.0);
        near(interpolated(&[1.0, 2.0, 3.0, 4.0], 75.0), 3.25);
        near(interpolated(&[1.0, 2.0, 3.0, 4.0], 100.0), 4.0);
        assert_eq!(interpolated(&[], 50.0), None);
    }

    #[test]
    fn standard_deviation_divides_by_one_less() {
        // 2, 4, 4, 4, 5, 5, 7, 9: mean 5, sum of squares 32.
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        near(mean(&values), 5.0);
        near(stddev(&values), (32.0_f64 / 7.0).sqrt());
        near(rsd(&values), (32.0_f64 / 7.0).sqrt() / 5.0);
        assert_eq!(stddev(&[1.0]), None);
        assert_eq!(mean(&[]), None);
        assert_eq!(rsd(&[0.0, 0.0]), None);
    }

    #[test]
    fn median_needs_no_order() {
        near(median(&[3.0, 1.0, 2.0]), 2.0);
        near(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn xi_is_below_one_where_quic_is_faster() {
        near(xi(6.0, 10.0), 0.6);
        assert_eq!(xi(6.0, 0.0), None);
    }
}
