//! A recorder's latencies in a few buckets of equal ratio, for drawing.

use serde::{Deserialize, Serialize};

use crate::{LatencyRecorder, convert, stats::Moments};

/// A bucket of a latency histogram: two bounds and the number of latencies between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// The lower bound, inclusive.
    pub from_ns: u64,
    /// The upper bound, exclusive but in the last bucket, where it is the greatest latency.
    pub to_ns: u64,
    /// Number of latencies in the bucket.
    pub count: u64,
}

/// Returns up to `n` buckets from the least to the greatest latency, each upper bound in one ratio to the lower, `(max
/// / min)^(1 / n)`.
///
/// Bounds are whole nanoseconds; buckets with equal bounds are merged, so there can be fewer than `n`.
/// There is none if nothing was recorded or `n` is 0. The counts add up to the recorder's. A latency
/// within 0.1 % of a bound may be counted on its other side.
#[must_use]
pub fn buckets(recorder: &LatencyRecorder, n: usize) -> Vec<Bucket> {
    side_by_side(&[recorder], n).pop().unwrap_or_default()
}

/// Returns the [buckets](buckets()) of several recorders, with the same bounds for all, so that they can be drawn on
/// one scale.
#[must_use]
pub fn side_by_side(recorders: &[&LatencyRecorder], n: usize) -> Vec<Vec<Bucket>> {
    let all = || recorders.iter().map(|recorder| recorder.moments());
    let min = all().filter_map(Moments::min).min();
    let max = all().filter_map(Moments::max).max();
    let empty = min
        .zip(max)
        .map_or_else(Vec::new, |(min, max)| between(min, max, n));
    let each = recorders.iter().map(|recorder| {
        let mut buckets = empty.clone();
        count(recorder, &mut buckets);
        buckets
    });
    each.collect()
}

fn between(min: u64, max: u64, n: usize) -> Vec<Bucket> {
    // 0 has no logarithm: the ratio counts from 1 then, and the first bucket from 0.
    let low = convert::float(min.max(1));
    let ratio = convert::float(max.max(1)) / low;
    let mut bounds: Vec<u64> = (1..n)
        .map(|i| convert::round(low * ratio.powf(convert::float_len(i) / convert::float_len(n))))
        .filter(|bound| (min + 1..max).contains(bound))
        .collect();
    bounds.dedup();
    if n > 0 {
        bounds.push(max);
    }
    let mut buckets = Vec::with_capacity(bounds.len());
    let mut from_ns = min;
    for to_ns in bounds {
        buckets.push(Bucket {
            from_ns,
            to_ns,
            count: 0,
        });
        from_ns = to_ns;
    }
    buckets
}

fn count(recorder: &LatencyRecorder, buckets: &mut [Bucket]) {
    let Some(last) = buckets.len().checked_sub(1) else {
        return;
    };
    let histogram = recorder.histogram();
    for recorded in histogram.iter_recorded() {
        let value = histogram.median_equivalent(recorded.value_iterated_to());
        let index = buckets
            .partition_point(|bucket| bucket.to_ns <= value)
            .min(last);
        buckets[index].count += recorded.count_at_value();
    }
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
    fn decades_are_told_apart() {
        let buckets = buckets(&recorder(&[1_000, 2_000, 20_000, 200_000, 1_000_000]), 3);
        let bounds: Vec<_> = buckets
            .iter()
            .map(|b| (b.from_ns, b.to_ns, b.count))
            .collect();
        assert_eq!(
            bounds,
            [
                (1_000, 10_000, 2),
                (10_000, 100_000, 1),
                (100_000, 1_000_000, 2)
            ]
        );
    }

    #[test]
    fn equal_latencies_are_one_bucket() {
        assert_eq!(
            buckets(&recorder(&[500, 500]), 10),
            [Bucket {
                from_ns: 500,
                to_ns: 500,
                count: 2
            }]
        );
        assert_eq!(
            buckets(&recorder(&[0]), 3),
            [Bucket {
                from_ns: 0,
                to_ns: 0,
                count: 1
            }]
        );
    }

    #[test]
    fn nothing_gives_no_buckets() {
        assert!(buckets(&LatencyRecorder::new(), 10).is_empty());
        assert!(buckets(&recorder(&[1]), 0).is_empty());
    }

    #[test]
    fn recorders_side_by_side_have_the_bounds_of_both() {
        let (short, long) = (recorder(&[10, 20]), recorder(&[900, 1_000]));
        let none = LatencyRecorder::new();
        let all = side_by_side(&[&short, &none, &long], 2);
        let counts = all.iter().map(|one| {
            assert_eq!(
                (one[0].from_ns, one[0].to_ns, one[1].to_ns),
                (10, 100, 1_000)
            );
            [one[0].count, one[1].count]
        });
        assert_eq!(counts.collect::<Vec<_>>(), [[2, 0], [0, 0], [0, 2]]);
        assert_eq!(side_by_side(&[&none], 2), [[]]);
    }

    proptest! {
        #[test]
        fn buckets_adjoin_and_count_everything(
            latencies in prop::collection::vec(0_u64..7_200_000_000_000, 1..100),
            n in 1_usize..40,
        ) {
            let buckets = buckets(&recorder(&latencies), n);
            prop_assert!(buckets.len() <= n);
            prop_assert_eq!(buckets.iter().map(|b| b.count).sum::<u64>(), latencies.len() as u64);
            prop_assert_eq!(buckets.first().map(|b| b.from_ns), latencies.iter().min().copied());
            prop_assert_eq!(buckets.last().map(|b| b.to_ns), latencies.iter().max().copied());
            for pair in buckets.windows(2) {
                prop_assert_eq!(pair[0].to_ns, pair[1].from_ns);
                prop_assert!(pair[0].from_ns < pair[0].to_ns);
            }
        }
    }
}
