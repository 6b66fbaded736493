//! `bench/scale`: each row has as many as were asked for, and figures of each of its phases.

use std::fs;

use serde_json::Value;

use crate::bench_scripts::{built, lacks, number, only, run};

const PROGRAMS: &[&str] = &["mqbroker", "examples/scale"];

/// Returns the number of the bystander's messages in a phase, and checks that all have arrived.
fn messages(row: &Value, phase: &str) -> f64 {
    let phase = only(&row["phases"], &[("phase", phase)]);
    let bystander = &phase["bystander"];
    assert_eq!(bystander["lost"], 0, "{phase}");
    let sent = number(bystander, "sent");
    // A short phase may have none.
    if sent > 0.0 {
        assert!(number(bystander, "p50_ns") > 0.0, "{phase}");
        assert!(
            number(bystander, "p50_ns") <= number(bystander, "p99_ns"),
            "{phase}"
        );
        assert!(
            number(bystander, "p99_ns") <= number(bystander, "max_ns"),
            "{phase}"
        );
    }
    assert!(number(phase, "broker_cpu_s") >= 0.0, "{phase}");
    assert!(number(phase, "broker_rss") > 1e6, "{phase}");
    sent
}

#[test]
fn each_row_has_what_was_asked_for_and_a_bystander_in_each_phase() {
    if lacks(&["python3", "openssl", "nice"]) {
        return;
    }
    let Some(built) = built(PROGRAMS) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let file = file.to_str().unwrap();
    let args = ["--quick", "--share", "0.005", "--json", file];
    let output = run("scale", &built, &args);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(found["schema"], "mq-scale/1");
    assert_eq!(found["skipped"].as_array().unwrap().len(), 0, "{said}");
    assert_eq!(found["settings"]["keep_alive_s"], 300);

    let row = |name| only(&found["rows"], &[("row", name)]);
    for (name, clients) in [("tcp", 100), ("tls", 100), ("quic", 500)] {
        let row = row(name);
        assert_eq!(row["number"], clients, "{row}");
        for (what, count) in [
            ("coming", "clients"),
            ("pinging", "pongs"),
            ("leaving", "left"),
        ] {
            assert_eq!(row[what][count], clients, "{row}");
        }
        for phase in ["before", "idle", "pinging", "leaving", "after"] {
            let sent = messages(row, phase);
            assert!(sent > 20.0, "{phase} {row}");
        }
        messages(row, "coming");
        assert!(number(&row["summary"], "cpu_ns_each") > 1e3, "{row}");
    }
    let subscriptions = row("subscriptions");
    assert_eq!(subscriptions["coming"]["subscriptions"], 5_000);
    // Of each kind of filter one, and no other.
    assert_eq!(subscriptions["matching"]["messages"], 4);
    assert_eq!(subscriptions["leaving"]["left"], 5);
    messages(subscriptions, "idle");
    let retained = row("retained");
    assert_eq!(retained["coming"]["messages"], 5_000);
    assert_eq!(retained["narrow"]["messages"], 1);
    assert_eq!(retained["all"]["messages"], 5_000);
    assert_eq!(retained["leaving"]["refused"], 0);
    messages(retained, "a fast reader beside it");
}

#[test]
fn a_row_for_which_the_machine_is_too_small_is_skipped_with_the_reason() {
    if lacks(&["python3", "openssl"]) {
        return;
    }
    let Some(built) = built(PROGRAMS) else { return };
    let args = ["--quick", "--only", "tcp", "--clients", "2000000000"];
    let output = run("scale", &built, &args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        said.contains("SKIPPED: tcp: 2,000,000,000 TCP clients need 2,000,000,300 descriptors"),
        "{said}"
    );
    assert!(
        said.lines()
            .last()
            .unwrap_or_default()
            .contains("no row has a figure"),
        "{said}"
    );
}

#[test]
fn a_row_that_does_not_exist_is_one_line() {
    if lacks(&["python3"]) {
        return;
    }
    let output = run("scale", ".".as_ref(), &["--only", "tcp,elephants"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(last.contains("`elephants` is none of tcp, "), "{said}");
}
