//! Sentences from points made by hand.

use super::*;
use crate::campaign::file::PlotKind;

fn plot(x: &str, series: &str) -> PlotReport {
    PlotReport {
        kind: PlotKind::Bars,
        metric: "latency_mean".to_owned(),
        quantity: String::new(),
        meaning: String::new(),
        unit: "ms".to_owned(),
        x: x.to_owned(),
        abscissa: labels::factor(x),
        series: series.to_owned(),
        facet: None,
    }
}

/// Makes a point with an interval of 1 to each side of its mean, over two runs; over one without.
fn point(mean: f64, n: usize) -> Point {
    Point {
        n,
        disturbed: 0,
        values: vec![mean; n],
        mean,
        median: mean,
        low: (n > 1).then_some(mean - 1.0),
        high: (n > 1).then_some(mean + 1.0),
        interval_of: Basis::Repetitions,
        quartiles: None,
    }
}

fn panel(x: &[&str], series: &[(&str, &[f64])], n: usize) -> Panel {
    let series = series.iter().map(|(name, means)| Series {
        name: (*name).to_owned(),
        points: means.iter().map(|mean| Some(point(*mean, n))).collect(),
    });
    Panel {
        levels: std::collections::BTreeMap::new(),
        shows: String::new(),
        disturbed: 0,
        baseline: None,
        x: x.iter().map(|x| (*x).to_owned()).collect(),
        series: series.collect(),
        tests: Vec::new(),
        distributions: Vec::new(),
    }
}

#[test]
fn a_difference_is_doubted_where_the_runs_do_not_show_it() {
    let plot = plot("loss", "transport");
    let of = |quic: f64, n| {
        let series: &[(&str, &[f64])] = &[("tls", &[25.0, 40.0]), ("quic", &[25.1, quic])];
        sentence(&plot, &panel(&["0%", "5%"], series, n), "tls")
    };
    let head = "At 5 % packet loss QUIC's mean delay is";
    let tail = "; without loss they differ by less than 1 %.";
    assert_eq!(
        of(30.0, 3),
        format!("{head} 30 ms and TLS's 40 ms: QUIC is 25 % lower{tail}")
    );
    assert_eq!(
        of(39.0, 3),
        format!(
            "{head} 39 ms and TLS's 40 ms: QUIC is 2.5 % lower, within the spread of the runs{tail}"
        )
    );
    assert_eq!(
        of(100.0, 1),
        format!("{head} 100 ms and TLS's 40 ms: QUIC is 2.5 times as high (one run each){tail}")
    );
    assert_eq!(
        of(40.0, 3),
        format!(
            "{head} 40 ms and TLS's 40 ms: they differ by less than 1 %; without loss likewise."
        )
    );
}

#[test]
fn an_energy_that_no_meter_measured_is_called_modelled() {
    let mut plot = plot("interval", "transport");
    plot.quantity = format!("average power, {}", mq_energy::Basis::Modelled);
    plot.metric = "power_w".to_owned();
    let panel = panel(&["1ms"], &[("tls", &[1.41]), ("quic", &[1.42])], 3);
    let text = sentence(&plot, &panel, "");
    let head = "With 1 ms between messages QUIC's modelled average power is 1.42 ms";
    assert!(text.starts_with(head), "{text}");
}

#[test]
fn of_many_series_the_lowest_and_the_highest_are_named() {
    let series: &[(&str, &[f64])] = &[
        ("TLS", &[50.0, 600.0]),
        ("QUIC", &[30.0, 700.0]),
        ("QUIC, repeat auto", &[14.5, 601.0]),
    ];
    let panel = panel(&["w20/wifi", "w20/satellite"], series, 3);
    assert_eq!(
        sentence(&plot("link", "variant"), &panel, ""),
        "Over WiFi “QUIC, repeat auto” has the lowest mean delay (14.5 ms) and TLS the highest \
         (50 ms); over satellite TLS has the lowest mean delay (600 ms) and QUIC the highest (700 \
         ms)."
    );
}

#[test]
fn one_series_has_its_values_and_no_run_no_sentence() {
    let one = panel(&["100", "16000"], &[("quic", &[20.0, 36.5])], 3);
    assert_eq!(
        sentence(&plot("size", "transport"), &one, ""),
        "QUIC's mean delay is 20 ms at 100 bytes, 36.5 ms at 16000 bytes."
    );
    let none = panel(&["100"], &[], 3);
    assert_eq!(sentence(&plot("size", "transport"), &none, ""), "");
}
