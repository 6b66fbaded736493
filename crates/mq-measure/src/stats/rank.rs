//! The Kruskal-Wallis test, which DL §V compares its protocols with.

use crate::num;

/// The outcome of a Kruskal-Wallis test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KruskalWallis {
    /// The statistic H, corrected for ties.
    pub h: f64,
    /// Degrees of freedom: groups - 1.
    pub degrees: u32,
    /// The probability of an H at least this large if all groups are of one distribution, by the
    /// χ² approximation; good from about five values a group.
    pub p: f64,
}

/// Tests whether all `groups` come from one distribution, with ranks only (Kruskal and Wallis,
/// JASA 47, 1952): `H = 12 / (N (N + 1)) * sum(R_i^2 / n_i) - 3 (N + 1)`, divided by
/// `1 - sum(t^3 - t) / (N^3 - N)` for ties of t values.
///
/// `None` with fewer than two groups, an empty group, or if all values are equal. With many
/// samples any difference is significant: look at its size first.
#[must_use]
pub fn kruskal_wallis(groups: &[&[f64]]) -> Option<KruskalWallis> {
    if groups.len() < 2 || groups.iter().any(|group| group.is_empty()) {
        return None;
    }
    let mut all: Vec<(f64, usize)> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, values)| values.iter().map(move |value| (*value, group)))
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = num::float_len(all.len());
    let mut rank_sums = vec![0.0; groups.len()];
    let mut ties = 0.0;
    let mut before = 0.0;
    for tied in all.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq()) {
        let t = num::float_len(tied.len());
        for (_, group) in tied {
            rank_sums[*group] += before + f64::midpoint(t, 1.0);
        }
        ties += t.powi(3) - t;
        before += t;
    }
    let correction = 1.0 - ties / (n.powi(3) - n);
    if correction <= 0.0 {
        return None;
    }
    let squares: f64 = groups
        .iter()
        .zip(&rank_sums)
        .map(|(g, sum)| sum * sum / num::float_len(g.len()))
        .sum();
    let h = (12.0 / (n * (n + 1.0)) * squares - 3.0 * (n + 1.0)) / correction;
    let degrees = u32::try_from(groups.len() - 1).ok()?;
    Some(KruskalWallis {
        h,
        degrees,
        p: chi_square_tail(h.max(0.0), degrees),
    })
}

/// `P(X >= x)` for χ² with `degrees` of freedom, by the recurrence of its closed forms:
/// `Q(x; k + 2) = Q(x; k) + (x/2)^(k/2) e^(-x/2) / Γ(k/2 + 1)`,
/// from `Q(x; 2) = e^(-x/2)` and `Q(x; 1) = erfc(sqrt(x/2))` (Abramowitz and Stegun, 26.4.4, 26.4.5).
fn chi_square_tail(x: f64, degrees: u32) -> f64 {
    let half = x / 2.0;
    let (mut k, mut tail, mut term) = if degrees.is_multiple_of(2) {
        (2, (-half).exp(), half * (-half).exp())
    } else {
        // The first term has Γ(3/2) = sqrt(π) / 2.
        let term = half.sqrt() * (-half).exp() / (std::f64::consts::PI.sqrt() / 2.0);
        (1, erfc(half.sqrt()), term)
    };
    while k < degrees {
        tail += term;
        k += 2;
        term *= half / (f64::from(k) / 2.0);
    }
    tail.clamp(0.0, 1.0)
}

/// The complementary error function for x ≥ 0: its Taylor series below 2, its continued fraction
/// (Abramowitz and Stegun, 7.1.6 and 7.1.14) above.
fn erfc(x: f64) -> f64 {
    let scale = (-x * x).exp() / std::f64::consts::PI.sqrt();
    if x < 2.0 {
        // erf x = 2/sqrt(π) e^(-x²) sum 2^n x^(2n+1) / (1·3·…·(2n+1))
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= 2.0 * x * x / (2.0 * f64::from(n) + 1.0);
            sum += term;
        }
        1.0 - 2.0 * scale * sum
    } else {
        let fraction = (1..=60)
            .rev()
            .fold(x, |rest, n| x + f64::from(n) / 2.0 / rest);
        scale / fraction
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chi_square_tail_matches_the_tables() {
        // The 5 % and 1 % critical values of any table.
        for (x, degrees, p) in [
            (3.841_459, 1, 0.05),
            (5.991_465, 2, 0.05),
            (7.814_728, 3, 0.05),
            (9.487_729, 4, 0.05),
            (11.070_498, 5, 0.05),
            (6.634_897, 1, 0.01),
            (15.086_272, 5, 0.01),
            (0.003_932, 1, 0.95),
        ] {
            let tail = chi_square_tail(x, degrees);
            assert!(
                (tail - p).abs() < 1e-5,
                "χ²({degrees}) tail at {x}: {tail}, should be {p}"
            );
        }
    }

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
