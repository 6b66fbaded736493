//! Distributions of a varying delay.

use std::f64::consts::{PI, SQRT_2};

use serde::Deserialize;

/// Distribution of jitter around the delay, with netem's names and tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Distribution {
    /// Evenly between the delay minus the jitter and the delay plus the jitter.
    #[default]
    Uniform,
    /// Normal; the jitter is the standard deviation.
    Normal,
    /// A long tail of late packets: Pareto of shape 3, centred; about half of all packets come
    /// earlier than the delay by up to two thirds of the jitter.
    Pareto,
    /// A quarter of normal and three quarters of Pareto.
    ParetoNormal,
}

impl Distribution {
    /// The value of an entry that stands for the jitter.
    pub(crate) const SCALE: i64 = 8192;

    /// Returns equally likely quantiles, in `1 / SCALE` of the jitter; `None` for uniform, which needs no table.
    pub(crate) fn table(self) -> Option<Vec<i16>> {
        let values: Vec<f64> = match self {
            Self::Uniform => return None,
            Self::Normal => normal(),
            Self::Pareto => pareto().collect(),
            Self::ParetoNormal => normal()
                .into_iter()
                .zip(pareto())
                .map(|(normal, pareto)| 0.25 * normal + 0.75 * clipped(pareto))
                .collect(),
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "clipped to what an i16 holds"
        )]
        let entry = |value: f64| (clipped(value) * 8192.0) as i16;
        Some(values.into_iter().map(entry).collect())
    }
}

/// The number of entries in a table, as in iproute2's.
const ENTRIES: u16 = 4096;

/// Limits a value to the range of an entry, which is an `i16`: four times the jitter.
fn clipped(value: f64) -> f64 {
    value.clamp(-4.0, 32767.0 / 8192.0)
}

/// Returns the probability in the middle of each entry's share.
fn shares() -> impl Iterator<Item = f64> {
    (0..ENTRIES).map(|entry| (f64::from(entry) + 0.5) / f64::from(ENTRIES))
}

/// Quantiles of the standard normal distribution: its density summed up in small steps.
fn normal() -> Vec<f64> {
    const STEP: f64 = 1e-4;
    let mut quantiles = Vec::with_capacity(ENTRIES.into());
    let (mut x, mut below) = (-5.0, 0.0);
    for share in shares() {
        while below < share {
            let middle: f64 = x + STEP / 2.0;
            below += (-middle * middle / 2.0).exp() / (SQRT_2 * PI.sqrt()) * STEP;
            x += STEP;
        }
        quantiles.push(x);
    }
    quantiles
}

/// Quantiles of the Pareto distribution of shape 3, less its mean of 3/2 and spread to 4/3.
fn pareto() -> impl Iterator<Item = f64> {
    shares().map(|share| ((1.0 - share).cbrt().recip() - 1.5) * (4.0 / 3.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From iproute2's files: first quartile, median, third quartile, and mean.
    #[test]
    fn the_tables_are_those_of_iproute2() {
        for (distribution, quartiles, mean) in [
            (Distribution::Normal, [-5531, -5, 5520], -6.4),
            (Distribution::Pareto, [-4363, -2625, 949], -274.4),
            (Distribution::ParetoNormal, [-4655, -1970, 2091], -207.3),
        ] {
            let table = distribution.table().unwrap();
            assert_eq!(table.len(), 4096);
            assert!(table.is_sorted());
            for (at, theirs) in [1023, 2047, 3071].into_iter().zip(quartiles) {
                let ours = table[at];
                assert!(
                    (ours - theirs).abs() < 20,
                    "{distribution:?} {at}: {ours} {theirs}"
                );
            }
            let ours = table.iter().map(|entry| f64::from(*entry)).sum::<f64>() / 4096.0;
            assert!(
                (ours - mean).abs() < 15.0,
                "{distribution:?}: {ours} {mean}"
            );
        }
        assert_eq!(Distribution::Uniform.table(), None);
    }
}
