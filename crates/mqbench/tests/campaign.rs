//! Campaigns as a user runs them: to the end, interrupted and resumed, and with mistakes.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod program;

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use program::skipped;
use serde_json::Value;

/// Sixteen cells of a second or so.
const CAMPAIGN: &str = r#"
title = "a test's"
source = "none"
[work]
link = "s21/wired-1ms"
messages = 10
interval = "20ms"
[factors]
loss = ["0%", "1%"]
qos = [0, 1]
transport = ["tls", "quic"]
pattern = ["periodic", "stop-and-wait"]
[plot]
kind = "lines"
metric = "latency_mean"
x = "loss"
series = "transport"
facet = "pattern"
"#;

fn campaign(args: &[&str]) -> Command {
    program::command(&[&["campaign"], args].concat())
}

fn output(args: &[&str]) -> Output {
    campaign(args).output().unwrap()
}

fn mistake(args: &[&str]) -> String {
    program::mistake(&[&["campaign"], args].concat())
}

fn records(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("records/some.jsonl")).unwrap_or_default();
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    text[..whole]
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// How often each cell was tried, by its levels; attempts are 1, 2, 3, each once.
fn attempts(out: &Path) -> BTreeMap<String, Vec<u64>> {
    let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in records(out) {
        let attempt = record["attempt"].as_u64().unwrap();
        all.entry(record["levels"].to_string())
            .or_default()
            .push(attempt);
    }
    all
}

#[test]
fn interrupted_and_resumed_runs_have_every_cell_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.toml");
    std::fs::write(&file, CAMPAIGN).unwrap();
    let out = folder.path().join("out");
    let (file, directory) = (file.to_str().unwrap(), out.to_str().unwrap());
    let seed = 11;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for interruption in 0..20 {
        let args = match interruption {
            0 => vec!["run", file, "--out", directory],
            _ => vec!["resume", directory],
        };
        let mut running = campaign(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Later interrupts come later, so that some find nothing left to do.
        let patience = Duration::from_millis(random.u64(300..900 + 100 * interruption));
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && running.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        running.kill().unwrap();
        let ended = running.wait_with_output().unwrap();
        if skipped(&ended.stderr) {
            return;
        }
        assert!(out.join("set.json").exists(), "{ended:?}");
    }
    let ended = output(&["resume", directory]);
    assert!(ended.status.success(), "{ended:?}");
    let attempts = attempts(&out);
    assert_eq!(attempts.len(), 16);
    for (levels, attempts) in attempts {
        let expected: Vec<_> = (1..=attempts.len() as u64).collect();
        assert_eq!(attempts, expected, "{levels}");
    }
    for record in records(&out) {
        assert_eq!(record["outcome"]["error"], Value::Null, "{record}");
        assert_eq!(record["outcome"]["counts"]["lost"], 0, "{record}");
        // Half of the link's round trip.
        let mean = record["outcome"]["metrics"]["latency_mean"].as_f64();
        assert!(mean.unwrap() > 0.5, "{record}");
    }
    // Nothing is left to do, and nothing is done again.
    let before = records(&out);
    assert!(output(&["resume", directory]).status.success());
    assert_eq!(records(&out), before);
    let again = mistake(&["run", file, "--out", directory]);
    assert!(again.contains("resume"), "{again}");
}

#[test]
fn a_plan_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.toml");
    std::fs::write(&file, CAMPAIGN).unwrap();
    let planned = output(&["plan", file.to_str().unwrap()]);
    assert!(planned.status.success(), "{planned:?}");
    let text = String::from_utf8(planned.stdout).unwrap();
    assert!(text.contains("16 cells, 1 times"), "{text}");
}

#[test]
fn a_mistake_in_a_file_names_its_line_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.toml");
    std::fs::write(&file, CAMPAIGN.replace("\"tls\", ", "\"udp\", ")).unwrap();
    let out = folder.path().join("out");
    let said = mistake(&[
        "run",
        file.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(said.contains("some.toml:11: transport"), "{said}");
    assert!(!out.exists());
    let said = mistake(&["status", folder.path().to_str().unwrap()]);
    assert!(said.contains("there are no results"), "{said}");
}
