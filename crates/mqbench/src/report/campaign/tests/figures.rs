//! Figures and sentences of kept result sets.

use std::path::Path;

use serde_json::Value;

use super::{fixture, page};
use crate::{
    campaign::{claims, store::ResultSet},
    report::campaign::{
        assemble::report,
        chart, markdown,
        model::{Point, Report},
        svg::file as svg,
    },
};

/// Makes the report of some campaigns of a kept set, with the claims that ship.
pub(super) fn kept(set: &str, campaigns: &[&str]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let set = fixture::kept(folder.path(), set, campaigns);
    let claims = claims::shipped().unwrap();
    report(&set.head, &set.campaigns, &set.records, &claims)
}

/// A median of both would be 14 ms over WiFi, which no connection took.
#[test]
fn first_and_later_connections_have_boxes_of_their_own() {
    let report = kept("2026-11-24-papers", &["w20-fig5"]);
    let panel = &report.campaigns[0].panels[0];
    let names: Vec<_> = panel.series.iter().map(|one| &one.name[..]).collect();
    assert_eq!(names, ["tls full", "quic full", "quic 0-rtt"]);
    let wifi = panel.series.iter().map(|one| {
        let point = one.points[0].as_ref().unwrap();
        let quartiles = point.quartiles.as_ref().unwrap();
        (point.n, quartiles.n, quartiles.median)
    });
    let wifi: Vec<(usize, u64, f64)> = wifi.collect();
    let [(20, 40, tls), (20, 20, full), (20, 20, early)] = wifi[..] else {
        panic!("{wifi:?}");
    };
    assert!((51.0..53.0).contains(&tls), "{wifi:?}");
    assert!((26.0..30.0).contains(&full) && early < 1.0, "{wifi:?}");
    // The lines of the distribution are the same connections.
    let lines = panel.distributions.iter().filter(|one| one.x == "w20/wifi");
    let lines: Vec<_> = lines.map(|one| (&one.series[..], one.count)).collect();
    assert_eq!(
        lines,
        [("tls full", 40), ("quic full", 20), ("quic 0-rtt", 20)]
    );
    let says = "The first connection of a run and the later ones have boxes of their own; W20 draws one box of both.";
    assert!(panel.shows.ends_with(says), "{}", panel.shows);
    assert!(
        panel
            .shows
            .starts_with("Over WiFi “QUIC, 0-RTT” has the lowest median"),
        "{}",
        panel.shows
    );
    assert!(chart::starts_logarithmic(&report.campaigns[0], panel));
}

/// A run over TLS took 1.4 s, the other 19 about 13 ms.
#[test]
fn bars_that_a_linear_axis_would_hide_have_a_logarithmic_one() {
    let report = kept("2026-11-24-papers", &["dl-fig4"]);
    let campaign = &report.campaigns[0];
    let panel = &campaign.panels[0];
    let ends = |of: fn(&Point) -> f64| panel.points().map(of).collect::<Vec<_>>();
    assert!(ends(chart::high).into_iter().fold(0.0, f64::max) > 100.0);
    assert!(
        ends(|point| point.mean)
            .into_iter()
            .fold(f64::MAX, f64::min)
            < 1.0
    );
    assert!(chart::starts_logarithmic(campaign, panel));
    assert!(page(&report).contains("The axis is logarithmic."));
    assert!(
        panel
            .shows
            .contains("; TLS's mean at 20 % packet loss is mostly that of one run of 20, 1357 ms: their median is 12."),
        "{}",
        panel.shows
    );
    // Each whisker ends below the drawing's upper edge, where the axis ends.
    let (_, drawing) = svg(campaign, panel);
    assert!(drawing.contains(">500</text>"), "{drawing}");
}

/// Text of the page, with what a browser does not show left out.
fn shown(page: &str) -> String {
    // The figures' data has the names of series and axes.
    let (page, scripts) = page.split_once("<script").unwrap();
    let data = scripts.split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data.split_once('>').unwrap().1).unwrap();
    let mut text = String::new();
    words(&data, &mut text);
    let (head, body) = page.split_once("<style>").unwrap();
    let body = body.split_once("</style>").unwrap().1;
    for part in [head, body].concat().split('<') {
        let (tag, rest) = part.split_once('>').unwrap_or(("", part));
        let name = tag.split_whitespace().next().unwrap_or_default();
        let is_inline = ["b", "/b", "span", "/span", "small", "/small", "a", "/a"];
        if !is_inline.contains(&name) {
            text.push('\n');
        }
        text.push_str(rest);
    }
    text
}

/// Adds each text of the data as a line.
fn words(data: &Value, lines: &mut String) {
    match data {
        Value::String(text) => lines.push_str(&format!("{text}\n")),
        Value::Array(items) => items.iter().for_each(|item| words(item, lines)),
        Value::Object(fields) => fields.values().for_each(|item| words(item, lines)),
        _ => {}
    }
}

/// Returns `true` if a parenthesis is opened within another one.
fn is_nested(text: &str) -> bool {
    let mut depth = 0_u32;
    text.chars().any(|letter| {
        depth = match letter {
            '(' => depth + 1,
            ')' => depth.saturating_sub(1),
            _ => depth,
        };
        depth > 1
    })
}

/// Campaigns with changes of links have names with parentheses of their own.
#[test]
fn parentheses_are_neither_empty_nor_nested() {
    let kept = "../../bench/runs/2026-11-21-quick";
    let set = ResultSet::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(kept)).unwrap();
    assert_eq!(set.campaigns.len(), 28);
    let mut claims = claims::shipped().unwrap();
    let with = [
        &claims.clone()[..],
        &claims
            .iter_mut()
            .map(|claim| {
                claim.says.push_str(": WiFi (5 % loss, bursts of 2)");
                claim.note = Some("the text (§5.1) has no number".to_owned());
                claim.clone()
            })
            .collect::<Vec<_>>(),
    ]
    .map(|claims| report(&set.head, &set.campaigns, &set.records, claims));
    for report in &with {
        for text in [shown(&page(report)), markdown::render(report)] {
            for line in text.lines() {
                assert!(!line.contains("()") && !line.contains("( )"), "{line}");
                assert!(!line.contains(") ("), "{line}");
                assert!(!is_nested(line), "{line}");
            }
        }
    }
}
