//! Tests and effect sizes of the differences between series at one level of the abscissa.

use mq_measure::stats;

use super::{
    group::{ENOUGH, RunGroup},
    metric_values::Statistic,
    model::{Basis, Pair, SignificanceTest},
    resample::Resample,
};

/// Tests all series against each other at one level of the abscissa; `None` with fewer than two series.
pub(super) fn test(
    x: &str,
    names: &[String],
    groups: &[RunGroup],
    seed: u64,
) -> Option<SignificanceTest> {
    let some = names
        .iter()
        .zip(groups)
        .filter(|(_, group)| !group.values.is_empty());
    let (names, groups): (Vec<_>, Vec<_>) = some.unzip();
    if groups.len() < 2 {
        return None;
    }
    let enough = groups.iter().all(|group| group.values.len() >= ENOUGH);
    // A jitter is one value a run, and no value of a message.
    let of_messages = groups.iter().all(|group| {
        group.statistic.is_some_and(|s| s != Statistic::Rsd) && !group.messages.is_empty()
    });
    let (of, values): (_, Vec<&[f64]>) = if enough {
        (
            Basis::Repetitions,
            groups.iter().map(|group| &group.values[..]).collect(),
        )
    } else if of_messages {
        (
            Basis::Messages,
            groups.iter().map(|group| &group.messages[..]).collect(),
        )
    } else {
        return None;
    };
    let dunn = stats::dunn(&values).unwrap_or_default();
    let resample = Resample::new(seed);
    // The later series is compared with the earlier one: QUIC with TLS.
    let pairs = (0..values.len()).flat_map(|b| (b + 1..values.len()).map(move |a| (a, b)));
    let pairs = pairs.map(|(a, b)| {
        let (below, above) = stats::dominance(values[a], values[b]);
        let cliffs_delta = above - below;
        Pair {
            a: names[a].clone(),
            b: names[b].clone(),
            p: dunn
                .iter()
                .find(|test| test.pair == (b, a))
                .map(|test| test.holm_p),
            below,
            above,
            cliffs_delta,
            size: size(cliffs_delta),
            ratio: resample.ratio(values[a], values[b]),
        }
    });
    Some(SignificanceTest {
        x: x.to_owned(),
        of,
        kruskal_wallis: stats::kruskal_wallis(&values),
        pairs: pairs.collect(),
    })
}

/// Returns Romano's word for a size of Cliff's δ.
fn size(cliffs_delta: f64) -> &'static str {
    match cliffs_delta.abs() {
        delta if delta < 0.147 => "negligible",
        delta if delta < 0.33 => "small",
        delta if delta < 0.474 => "medium",
        _ => "large",
    }
}
