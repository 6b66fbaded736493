//! Statistics against other implementations: `data/reference.json`, which `data/reference.py` made.

use mq_measure::stats::{BoxPlot, dominance, dunn, kruskal_wallis};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../data/reference.json")).unwrap();
    all["cases"].as_array().unwrap().clone()
}

fn numbers(value: &Value) -> Vec<f64> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap()).collect()
}

fn groups(case: &Value) -> Vec<Vec<f64>> {
    case["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(numbers)
        .collect()
}

/// Compares to 1e-9 of the value, or to 1e-15 where a probability is next to nothing.
fn same(ours: f64, theirs: &Value, what: &str) {
    let theirs = theirs.as_f64().unwrap();
    let off = (ours - theirs).abs();
    assert!(
        off <= 1e-9 * theirs.abs().max(1e-6),
        "{what}: {ours} is not {theirs}"
    );
}

#[test]
fn rank_tests_agree() {
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let groups = groups(&case);
        let groups: Vec<&[f64]> = groups.iter().map(Vec::as_slice).collect();
        let test = kruskal_wallis(&groups).unwrap();
        same(test.h, &case["kruskal_wallis"]["h"], name);
        same(test.p, &case["kruskal_wallis"]["p"], name);
        let dunn = dunn(&groups).unwrap();
        let pairs = case["pairs"].as_array().unwrap();
        assert_eq!(dunn.len(), pairs.len());
        for (test, pair) in dunn.iter().zip(pairs) {
            let (a, b) = test.pair;
            assert_eq!(
                [pair["a"].as_u64(), pair["b"].as_u64()],
                [a, b].map(|n| Some(n as u64))
            );
            let what = format!("{name} {a} {b}");
            same(test.p, &pair["dunn_p"], &what);
            same(test.holm_p, &pair["dunn_holm_p"], &what);
            let (below, above) = dominance(groups[a], groups[b]);
            same(above - below, &pair["mann_whitney"]["delta"], &what);
        }
    }
}

#[test]
fn boxes_agree() {
    for case in cases() {
        for (values, theirs) in groups(&case).iter().zip(case["boxes"].as_array().unwrap()) {
            let what = case["name"].as_str().unwrap();
            let plot = BoxPlot::tukey(values).unwrap();
            for (ours, key) in [
                (plot.q1, "q1"),
                (plot.median, "median"),
                (plot.q3, "q3"),
                (plot.low, "low"),
                (plot.high, "high"),
            ] {
                same(ours, &theirs["tukey"][key], what);
            }
            assert_eq!(plot.outliers, numbers(&theirs["tukey_outliers"]), "{what}");
            let plot = BoxPlot::percentiles(values).unwrap();
            same(plot.low, &theirs["p5"], what);
            same(plot.high, &theirs["p95"], what);
            let beyond = |value: &&f64| **value < plot.low || **value > plot.high;
            assert_eq!(
                plot.outliers.len(),
                values.iter().filter(beyond).count(),
                "{what}"
            );
        }
    }
}

#[test]
fn what_is_undefined_is_none() {
    assert_eq!(dominance(&[1.0, 1.0], &[1.0]), (0.0, 0.0));
    assert_eq!(dominance(&[], &[1.0]), (0.0, 0.0));
    assert_eq!(dunn(&[&[1.0]]), None);
    assert_eq!(BoxPlot::tukey(&[]), None);
    assert_eq!(BoxPlot::percentiles(&[]), None);
}
