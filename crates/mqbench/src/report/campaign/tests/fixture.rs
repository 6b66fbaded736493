//! A result set made by hand, for tests: S22's figure with a facet for each link, one with boxes, and
//! one with ξ.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use mq_energy::Window;
use mq_measure::{
    Counts, LatencyRecorder, Warning,
    manifest::{LinkContext, Manifest, Software},
    recorder::encode,
    stats::SplitMix64,
};
use serde_json::json;

use crate::campaign::{
    file::{Campaign, Extent},
    record::{MeterReading, Outcome, Record},
    store::ResultSet,
};

const FIG4: &str = r#"
title = "Mean delay over loss"
source = "S22 Fig. 4"
claims = ["s22"]
repetitions = 6
work.pattern = "periodic"
[factors]
link = ["s22/wifi", "s22/satellite"]
loss = ["0%", "2%", "5%"]
transport = ["tls", "quic"]
[plot]
kind = "bars"
metric = "latency_mean"
x = "loss"
series = "transport"
facet = "link"
"#;

const FIG5: &str = r#"
title = "Delays over WiFi"
source = "S22 Fig. 5"
repetitions = 1
work.link = "s22/wifi"
factors.loss = ["0%", "5%"]
factors.transport = ["tcp", "tls", "quic"]
[plot]
kind = "box-percentiles"
metric = "latency_mean"
x = "loss"
series = "transport"
"#;

const XI: &str = r#"
title = "ξ over loss"
source = "W20 Fig. 4"
repetitions = 6
work.pattern = "reconnect"
[factors]
link = ["w20/wifi", "w20/satellite"]
loss = ["0%", "5%"]
resumption = ["full", "0-rtt"]
transport = ["tls", "quic"]
[[exclude]]
transport = "tls"
resumption = "0-rtt"
[[exclude]]
transport = "quic"
resumption = "full"
[plot]
kind = "lines"
metric = "xi_w20:delta"
x = "loss"
series = "link"
"#;

/// Writes the set and reads it back.
pub(crate) fn set(directory: &Path) -> ResultSet {
    let sources = directory.join("sources");
    std::fs::create_dir_all(&sources).unwrap();
    let files: Vec<PathBuf> = [("s22-fig4", FIG4), ("s22-fig5", FIG5), ("w20-fig4", XI)]
        .map(|(name, text)| {
            let file = sources.join(format!("{name}.toml"));
            std::fs::write(&file, text).unwrap();
            file
        })
        .to_vec();
    let results = directory.join("results");
    let mut set = ResultSet::create(&results, Extent::Full, &files, manifest()).unwrap();
    let mut random = SplitMix64::new(11);
    for campaign in set.campaigns.clone() {
        for repetition in 0..campaign.repetitions {
            for cell in 0..campaign.cells.len() {
                for record in runs(&campaign, cell, repetition, &mut random) {
                    set.add(record).unwrap();
                }
            }
        }
    }
    ResultSet::load(&results).unwrap()
}

pub(crate) fn manifest() -> Manifest {
    let software = |name: &str| Software {
        name: name.to_owned(),
        version: Some("0.1.0".to_owned()),
        revision: None,
    };
    Manifest::now(software("mqbench"), software("mqbroker"), json!({}))
}

/// Makes the record of a run, or two records if the first attempt was disturbed.
fn runs(campaign: &Campaign, cell: usize, repetition: u32, random: &mut SplitMix64) -> Vec<Record> {
    let combination = &campaign.cells[cell];
    let levels = &combination.levels;
    let loss: f64 = levels["loss"].trim_end_matches('%').parse().unwrap();
    let quic = levels["transport"] == "quic";
    let delay = match levels.get("link").map(String::as_str) {
        Some(link) if link.ends_with("satellite") => 600.0,
        _ => 25.0,
    };
    // The time that a loss costs: a round trip and a timer, less over QUIC.
    let cost = if quic { 90.0 } else { 330.0 };
    let mut recorder = LatencyRecorder::new();
    let mut uniform = || f64::from(u32::try_from(random.index(1_000_000)).unwrap()) / 1e6;
    for _ in 0..200 {
        let resent = if uniform() < loss / 100.0 {
            cost * (0.5 + uniform())
        } else {
            0.0
        };
        let handled = 0.4 + 0.9 * uniform() * uniform();
        recorder.record(nanoseconds(delay + handled + resent));
    }
    let mean = recorder.moments().mean().unwrap() / 1e6;
    let rsd = recorder.moments().stddev().unwrap() / 1e6 / mean;
    let metrics = [
        ("latency_mean", mean),
        ("latency_rsd", rsd),
        ("delta", mean * 200.0),
        ("lost", 0.0),
    ];
    let direction = json!({
        "delay_ns": nanoseconds(delay), "rate_bps": 20_000_000, "queue": "Packets(1000)",
        "mean_loss": loss / 100.0,
    });
    let perfect =
        json!({ "delay_ns": 0, "rate_bps": null, "queue": "Unlimited", "mean_loss": 0.0 });
    let report = json!({
        "packets": 412, "lost": nanoseconds(412.0 * loss / 100.0) / 1_000_000, "overflowed": 0,
        "lateness_p99_ns": 48_000,
    });
    let outcome = Outcome {
        metrics: metrics.map(|(name, value)| (name.to_owned(), value)).into(),
        histograms: BTreeMap::from([("latency".to_owned(), encode(&recorder).unwrap())]),
        counts: Counts {
            sent: 200,
            received: 200,
            ..Counts::default()
        },
        link: LinkContext {
            configured: Some(json!([{
                "of": "publisher", "name": combination.cell.link, "up": direction, "down": perfect,
            }])),
            measured: Some(json!([{ "of": "publisher", "up": report, "down": report }])),
        },
        ..Outcome::default()
    };
    let record = Record {
        campaign: campaign.name.clone(),
        levels: levels.clone(),
        repetition,
        attempt: 1,
        seed: 1,
        cell: combination.cell.clone(),
        outcome,
    };
    let mut all = vec![record];
    if cell == 1 && repetition == 2 {
        let mut disturbed = all[0].clone();
        disturbed.outcome.warnings.push(Warning::GeneratorLate {
            p99_late_ns: 7_000_000,
            interval_ns: 10_000_000,
        });
        disturbed
            .outcome
            .metrics
            .insert("latency_mean".to_owned(), 1e6);
        all[0].attempt = 2;
        all.insert(0, disturbed);
    }
    if campaign.name == "s22-fig5" {
        let outcome = &mut all.last_mut().unwrap().outcome;
        outcome.energy_meter = Some("iio:iio:device0".to_owned());
        outcome.energy_reading = Some(MeterReading {
            scope: "what flows through the sensor".to_owned(),
            window: Window::new(1, 2),
            uncertainty_ns: 0,
            journal: None,
            notes: Vec::new(),
        });
    }
    if repetition == 0 && quic {
        let warnings = &mut all.last_mut().unwrap().outcome.warnings;
        warnings.push(Warning::ReorderedMessages {
            reordered: 3,
            received: 200,
        });
    }
    all
}

fn nanoseconds(ms: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(ms / 1e3).as_nanos()).unwrap()
}

/// Copies some campaigns of a kept result set, with their records, and loads them.
pub(crate) fn kept(folder: &Path, set: &str, campaigns: &[&str]) -> ResultSet {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/runs");
    let kept = kept.join(set);
    let copy = |name: &str| {
        let to = folder.join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(kept.join(name), to).unwrap();
    };
    copy("set.json");
    for name in campaigns {
        copy(&format!("campaigns/{name}.toml"));
        copy(&format!("records/{name}.jsonl.gz"));
    }
    ResultSet::load(folder).unwrap()
}
