//! The distribution of values within runs: shares on a logarithmic axis, and percentiles.

use mq_measure::{LatencyRecorder, convert::float};

use super::{
    connections::{self, SeriesCells},
    metric_values::{FinishedRuns, Levels},
    model::Distribution,
};
use crate::units::ns_to_ms;

/// Number of parts that the axis of values is divided into.
const PARTS: u32 = 48;
/// Percentiles that a curve goes through; they are denser towards the tail.
const PERCENTILES: [f64; 25] = [
    0.0, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0,
    90.0, 92.5, 95.0, 97.0, 98.0, 99.0, 99.5, 99.9, 100.0,
];

/// Makes the distributions of all cells of a figure that have recorded values. All series of an x have the same bounds,
/// so that their heights can be compared.
pub(crate) fn distributions(
    finished: &FinishedRuns,
    of: &str,
    xs: &[String],
    series: &[SeriesCells],
) -> Vec<Distribution> {
    let factor = &finished.campaign.plot.x;
    let mut all = Vec::new();
    for x in xs {
        let recorders: Vec<(&String, LatencyRecorder)> = series
            .iter()
            .filter_map(|one| Some((&one.name, pooled(finished, of, one, &one.at(factor, x))?)))
            .collect();
        let moments = || recorders.iter().map(|(_, recorder)| recorder.moments());
        let least = moments().filter_map(mq_measure::stats::Moments::min).min();
        let most = moments().filter_map(mq_measure::stats::Moments::max).max();
        let (Some(least), Some(most)) = (least, most) else {
            continue;
        };
        let bounds_ms = bounds(ns_to_ms(least), ns_to_ms(most));
        all.extend(recorders.iter().map(|(name, recorder)| Distribution {
            x: x.clone(),
            series: (*name).clone(),
            of: of.to_owned(),
            count: recorder.count(),
            shares: shares(recorder, &bounds_ms),
            bounds_ms: bounds_ms.clone(),
            percentiles_ms: percentiles(recorder),
        }));
    }
    all
}

/// Pools the values of a series' runs with these levels; `None` without any.
fn pooled(
    finished: &FinishedRuns,
    of: &str,
    series: &SeriesCells,
    levels: &Levels,
) -> Option<LatencyRecorder> {
    let Some(handshake) = series.handshake else {
        return finished.pooled(of, levels);
    };
    let mut all = LatencyRecorder::new();
    for run in finished.runs_at(levels) {
        all.merge(&connections::times(run, handshake));
    }
    (!all.is_empty()).then_some(all)
}

/// Bounds in equal ratios, from a little below the least value to a little above the greatest.
fn bounds(least: f64, most: f64) -> Vec<f64> {
    let low = least.max(1e-6) * 0.999;
    let high = most.max(low) * 1.001;
    let part = |i: u32| low * (high / low).powf(f64::from(i) / f64::from(PARTS));
    (0..=PARTS).map(part).collect()
}

fn shares(recorder: &LatencyRecorder, bounds: &[f64]) -> Vec<f64> {
    let histogram = recorder.histogram();
    let mut counts = vec![0_u64; bounds.len() - 1];
    for bucket in histogram.iter_recorded() {
        let value = ns_to_ms(histogram.median_equivalent(bucket.value_iterated_to()));
        let above = bounds.partition_point(|bound| *bound <= value);
        counts[above.clamp(1, bounds.len() - 1) - 1] += bucket.count_at_value();
    }
    let all = float(recorder.count().max(1));
    counts.iter().map(|count| float(*count) / all).collect()
}

fn percentiles(recorder: &LatencyRecorder) -> Vec<(f64, f64)> {
    let at = |percent: f64| {
        let value = if percent <= 0.0 {
            recorder.moments().min()
        } else {
            recorder.percentile_ns(percent)
        };
        value.map(|value| (percent, ns_to_ms(value)))
    };
    PERCENTILES.into_iter().filter_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_everything() {
        let mut recorder = LatencyRecorder::new();
        recorder.extend((1..=1000).map(|n| n * 1_000_000));
        let bounds = bounds(1.0, 1000.0);
        let shares = shares(&recorder, &bounds);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!((bounds.len(), shares.len()), (49, 48));
        let percentiles = percentiles(&recorder);
        let of = |percent: f64| {
            let mut all = percentiles.iter();
            all.find(|(p, _)| (*p - percent).abs() < 0.01).unwrap().1
        };
        assert!((of(50.0) - 500.0).abs() < 1.0 && (of(100.0) - 1000.0).abs() < 1.0);
    }
}
