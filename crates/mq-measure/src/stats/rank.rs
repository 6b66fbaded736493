//! Tests by ranks, as DL §V compares its protocols, and the size of a difference. They assume nothing of a
//! distribution's shape.
//!
//! With many samples any difference is significant: look at its size first, by [`dominance`].

use serde::Serialize;
use statrs::distribution::{ChiSquared, ContinuousCDF as _, Normal};

use crate::convert;

/// The outcome of a Kruskal-Wallis test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KruskalWallis {
    /// The statistic H, corrected for ties.
    pub h: f64,
    /// Degrees of freedom: groups - 1.
    pub degrees: u32,
    /// The probability of an H at least this large if all groups are of one distribution, by the
    /// χ² approximation; good from about five values a group.
    pub p: f64,
}

/// Tests whether all `groups` come from one distribution (Kruskal and Wallis, JASA 47, 1952):
/// `H = 12 / (N (N + 1)) * sum(R_i^2 / n_i) - 3 (N + 1)`, divided by
/// `1 - sum(t^3 - t) / (N^3 - N)` for ties of t values.
///
/// `None` with fewer than two groups, an empty group, or if all values are equal.
#[must_use]
pub fn kruskal_wallis(groups: &[&[f64]]) -> Option<KruskalWallis> {
    let ranks = Ranks::new(groups)?;
    let squares = groups.iter().zip(&ranks.sums);
    let squares: f64 = squares
        .map(|(g, sum)| sum * sum / convert::float_len(g.len()))
        .sum();
    let n = ranks.n;
    let h = (12.0 / (n * (n + 1.0)) * squares - 3.0 * (n + 1.0)) / ranks.correction();
    let degrees = u32::try_from(groups.len() - 1).ok()?;
    let chi_squared = ChiSquared::new(f64::from(degrees)).ok()?;
    Some(KruskalWallis {
        h,
        degrees,
        p: chi_squared.sf(h.max(0.0)),
    })
}

/// Two groups in Dunn's test.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Dunn {
    /// The indices of the two groups.
    pub pair: (usize, usize),
    /// Difference of the two mean ranks, in standard deviations of that difference; positive if the first group's is
    /// higher.
    pub z: f64,
    /// The two-sided probability of a difference at least this large if there is none; not adjusted.
    pub p: f64,
    /// The probability `p` adjusted for the number of pairs (Holm): compare this with a significance level.
    pub holm_p: f64,
}

/// Makes Dunn's test of each pair of groups (Technometrics 6, 1964), with Holm's adjustment: which groups differ, after
/// [`kruskal_wallis`] found that some do.
///
/// The standard deviation of a pair's difference is
/// `sqrt((N (N + 1) / 12 - sum(t^3 - t) / (12 (N - 1))) (1 / n_a + 1 / n_b))`.
#[must_use]
pub fn dunn(groups: &[&[f64]]) -> Option<Vec<Dunn>> {
    let ranks = Ranks::new(groups)?;
    let n = ranks.n;
    let variance = n * (n + 1.0) / 12.0 - ranks.ties / (12.0 * (n - 1.0));
    let size = |group: usize| convert::float_len(groups[group].len());
    let mean = |group: usize| ranks.sums[group] / size(group);
    let pairs = (0..groups.len()).flat_map(|a| (a + 1..groups.len()).map(move |b| (a, b)));
    let tests = pairs.map(|(a, b)| {
        let z = (mean(a) - mean(b)) / (variance * (1.0 / size(a) + 1.0 / size(b))).sqrt();
        let p = two_sided(z);
        Dunn {
            pair: (a, b),
            z,
            p,
            holm_p: p,
        }
    });
    let mut tests: Vec<_> = tests.collect();
    let adjusted = holm(&tests.iter().map(|test| test.p).collect::<Vec<_>>());
    for (test, holm_p) in tests.iter_mut().zip(adjusted) {
        test.holm_p = holm_p;
    }
    Some(tests)
}

/// Adjusts the p-values of several tests after Holm (Scand. J. Statist. 6, 1979), and returns them in their order: with m
/// tests the smallest p is multiplied by m, the next by m - 1, and so on; none becomes less than the one before it.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut by_p: Vec<usize> = (0..p.len()).collect();
    by_p.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut least = 0.0_f64;
    for (before, test) in by_p.into_iter().enumerate() {
        least = least.max((convert::float_len(p.len() - before) * p[test]).min(1.0));
        adjusted[test] = least;
    }
    adjusted
}

/// Returns two shares of all pairs of a value of `a` and a value of `b`: the pairs in which that of `a` is less, and
/// those in which it is more. Both are 0 if a group is empty.
///
/// The second share minus the first is Cliff's δ (Cliff, Psychol. Bull. 114, 1993).
#[must_use]
pub fn dominance(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut sorted = b.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (mut below, mut above) = (0, 0);
    for value in a {
        above += sorted.partition_point(|other| other < value);
        below += sorted.len() - sorted.partition_point(|other| other <= value);
    }
    let all = convert::float_len((a.len() * b.len()).max(1));
    (
        convert::float_len(below) / all,
        convert::float_len(above) / all,
    )
}

/// All values' ranks from 1, equal values sharing the mean of theirs.
struct Ranks {
    /// Number of all values.
    n: f64,
    /// Sum of the ranks of each group.
    sums: Vec<f64>,
    /// `sum(t^3 - t)` over ties of t values.
    ties: f64,
}

impl Ranks {
    /// Ranks the values of all groups; `None` with fewer than two groups, an empty group, or if all values are equal.
    fn new(groups: &[&[f64]]) -> Option<Self> {
        if groups.len() < 2 || groups.iter().any(|group| group.is_empty()) {
            return None;
        }
        let numbered = groups.iter().enumerate();
        let mut all: Vec<(f64, usize)> = numbered
            .flat_map(|(group, values)| values.iter().map(move |value| (*value, group)))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut ranks = Self {
            n: convert::float_len(all.len()),
            sums: vec![0.0; groups.len()],
            ties: 0.0,
        };
        let mut before = 0.0;
        for tied in all.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq()) {
            let t = convert::float_len(tied.len());
            for (_, group) in tied {
                ranks.sums[*group] += before + f64::midpoint(t, 1.0);
            }
            ranks.ties += t.powi(3) - t;
            before += t;
        }
        (ranks.correction() > 0.0).then_some(ranks)
    }

    /// Returns the factor, up to 1, by which ties reduce the variance of ranks.
    fn correction(&self) -> f64 {
        1.0 - self.ties / (self.n.powi(3) - self.n)
    }
}

fn two_sided(z: f64) -> f64 {
    2.0 * upper_tail(z.abs())
}

fn upper_tail(z: f64) -> f64 {
    Normal::standard().sf(z)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kruskal_wallis_matches_a_published_example() {
        // R's help page of kruskal.test, Hollander and Wolfe 1973, p. 116: mucociliary efficiency;
        // R prints chi-squared = 0.77143, df = 2, p-value = 0.68.
        let normal = [2.9, 3.0, 2.5, 2.6, 3.2];
        let obstructive = [3.8, 2.7, 4.0, 2.4];
        let asbestosis = [2.8, 3.4, 3.7, 2.2, 2.0];
        let test = kruskal_wallis(&[&normal, &obstructive, &asbestosis]).unwrap();
        assert!((test.h - 0.77143).abs() < 5e-6, "{test:?}");
        assert_eq!(test.degrees, 2);
        assert!((test.p - 0.68).abs() < 5e-4, "{test:?}");
    }

    #[test]
    fn ties_are_corrected_and_all_equal_is_undefined() {
        // By hand: ranks 1.5 1.5 3.5 | 3.5 5 6; H = 12/42 (6.5²/3 + 14.5²/3) - 21 = 3.047619,
        // ties 2 (8 - 2) = 12, correction 1 - 12/210, so 3.232323.
        let test = kruskal_wallis(&[&[1.0, 1.0, 2.0], &[2.0, 3.0, 4.0]]).unwrap();
        assert!((test.h - 3.232_323).abs() < 1e-6, "{test:?}");
        assert_eq!(kruskal_wallis(&[&[1.0], &[1.0]]), None);
        assert_eq!(kruskal_wallis(&[&[1.0], &[]]), None);
        assert_eq!(kruskal_wallis(&[&[1.0]]), None);
    }
}
