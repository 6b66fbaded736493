//! A campaign over three hosts, two of which have wrong clocks, has the verdicts of one machine.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    guest::Test,
    testbed::{mqbench, path},
    three::Three,
};

pub(crate) const TESTS: &[Test] = &[(
    "three_hosts_and_one_machine_come_to_the_same_verdicts",
    three_hosts_and_one_machine_come_to_the_same_verdicts,
)];

/// Links of 1, 25 and 100 ms. Runs are short, for this kernel's timers are late, so that it tries each
/// up to three times.
const CAMPAIGN: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "periodic"
topology = "publisher"
messages = 25
interval = "20ms"
qos = 1
[factors]
link = ["s21/wired-1ms", "s22/wifi", "s22/cellular"]
transport = ["quic"]
[plot]
kind = "bars"
metric = "latency_mean"
x = "transport"
series = "link"
"#;

/// Result of a comparison: `true` if there is a difference, its size in words, and `true` if it is positive.
type Verdict = (bool, String, bool);

fn three_hosts_and_one_machine_come_to_the_same_verdicts() {
    let bed = Three::new(CAMPAIGN);
    let [over_hosts, on_one] = ["over-hosts", "on-one"].map(|name| PathBuf::from(path(name)));
    let mut campaign = bed.campaign(&over_hosts);
    assert!(campaign.0.wait().unwrap().success());
    let mut command = mqbench();
    command.args(["campaign", "run", &path("some.toml"), "--out"]);
    let alone = command.arg(&on_one).output().unwrap();
    assert!(alone.status.success(), "{alone:?}");
    let [over_hosts, on_one] = [over_hosts, on_one].map(|out| verdicts(&out));
    println!("{over_hosts:?}");
    assert_eq!(over_hosts, on_one);
    // All links differ, and the first of two is the longer one.
    assert_eq!(over_hosts.len(), 3);
    let right: Verdict = (true, "large".to_owned(), true);
    assert!(over_hosts.values().all(|verdict| *verdict == right));
}

/// Returns the verdict on each pair of links, by their names.
fn verdicts(out: &Path) -> BTreeMap<String, Verdict> {
    let mut command = mqbench();
    command.arg("report").arg(out).arg("--json");
    let report = command.output().unwrap();
    assert!(report.status.success(), "{report:?}");
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let campaign = &report["campaigns"][0];
    assert_eq!(campaign["runs"]["finished"], 3, "{campaign}");
    let mut verdicts = BTreeMap::new();
    let test = &campaign["panels"][0]["tests"][0];
    for pair in test["pairs"].as_array().unwrap() {
        let verdict = (
            pair["p"].as_f64().unwrap() < 0.05,
            pair["size"].as_str().unwrap().to_owned(),
            pair["cliffs_delta"].as_f64().unwrap() > 0.0,
        );
        verdicts.insert(format!("{} and {}", pair["a"], pair["b"]), verdict);
    }
    verdicts
}
