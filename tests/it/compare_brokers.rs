//! `bench/compare-brokers`: its figures are of the traffic that it offers, and its ratios of its figures.

use std::{fs, path::Path, process::Output};

use serde_json::Value;

use crate::bench_scripts::{self, built, lacks, number, only};

fn compare(built: &Path, args: &[&str]) -> Output {
    bench_scripts::run("compare-brokers", built, args)
}

#[test]
fn both_brokers_have_figures_of_the_offered_traffic_and_their_ratio() {
    if lacks(&["python3", "mosquitto", "openssl"]) {
        return;
    }
    let Some(built) = built(&["mqbench", "mqbroker", "examples/crowd"]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let brokers = ["mq", "mosquitto"];
    let output = compare(
        &built,
        &[
            "--quick",
            "--seconds",
            "1",
            "--only",
            "one-to-one,connections",
            "--transports",
            "tcp",
            "--brokers",
            "mq,mosquitto",
            "--goals",
            "--json",
            file.to_str().unwrap(),
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(found["schema"], "mq-compare-brokers/1");
    assert_eq!(found["skipped"].as_array().unwrap().len(), 0, "{said}");
    assert_eq!(found["runs"].as_array().unwrap().len(), 4, "{said}");

    for broker in brokers {
        let run = only(
            &found["runs"],
            &[("shape", "one-to-one"), ("broker", broker)],
        );
        // A loaded machine delays messages, but the broker cannot deliver more than came, nor at no cost.
        let rate = number(run, "a_second");
        assert!((500.0..1_200.0).contains(&rate), "{run}");
        let cpu_ns = number(run, "cpu_ns");
        assert!((500.0..2_000_000.0).contains(&cpu_ns), "{run}");
        let cores = cpu_ns * rate / 1e9;
        // On a loaded machine the times over which the two are taken differ by more.
        assert!(
            (cores / number(run, "broker_cores") - 1.0).abs() < 0.2,
            "{run}"
        );

        let run = only(
            &found["runs"],
            &[("shape", "connections"), ("broker", broker)],
        );
        assert_eq!(run["failed"], 0, "{run}");
        assert!(number(run, "connections") >= 20.0, "{run}");
        assert!(
            (2_000.0..20_000_000.0).contains(&number(run, "cpu_ns")),
            "{run}"
        );
        assert!(
            said.contains(found["versions"][broker].as_str().unwrap()),
            "{said}"
        );
    }

    let cpu = |broker| {
        let wanted = [
            ("metric", "cpu"),
            ("shape", "one-to-one"),
            ("broker", broker),
        ];
        only(&found["rows"], &wanted)
    };
    let ratio = number(cpu("mq"), "median") / number(cpu("mosquitto"), "median");
    assert!((number(cpu("mq"), "ratio") - ratio).abs() < 1e-9, "{said}");
    assert!(
        (number(cpu("mosquitto"), "ratio") - 1.0).abs() < 1e-9,
        "{said}"
    );
    let wanted = [
        ("metric", "cpu"),
        ("shape", "one-to-one"),
        ("transport", "tcp"),
    ];
    let goal = only(&found["goals"], &wanted);
    assert!(
        (number(&goal["figures"], "mq") - ratio).abs() < 1e-9,
        "{goal}"
    );
}

#[test]
fn a_connection_stands_beside_what_its_handshake_costs_alone() {
    if lacks(&["python3", "openssl"]) {
        return;
    }
    let Some(built) = built(&[
        "mqbench",
        "mqbroker",
        "examples/crowd",
        "examples/handshake",
    ]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let file = file.to_str().unwrap();
    let options =
        "--quick --seconds 1 --only connections --transports tls,quic --brokers mq --goals --json";
    let options: Vec<_> = options.split(' ').chain([file]).collect();
    let output = compare(&built, &options);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let median = |metric, transport| {
        let wanted = [("metric", metric), ("transport", transport)];
        number(only(&found["rows"], &wanted), "median")
    };
    for transport in ["tls", "quic"] {
        // A signature alone takes longer than this.
        assert!(median("alone", transport) > 5.0, "{said}");
    }
    let ratio = median("handshake", "tls") / median("alone", "tls");
    let wanted = [("metric", "handshake"), ("transport", "tls")];
    let goal = only(&found["goals"], &wanted);
    assert!(
        (number(&goal["figures"], "mq") - ratio).abs() < 1e-9,
        "{goal}"
    );
    assert!(said.contains("of its handshake in memory"), "{said}");
}

#[test]
fn a_row_that_does_not_exist_is_one_line() {
    if lacks(&["python3"]) {
        return;
    }
    let output = compare(Path::new("."), &["--only", "one-to-one,elephants"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        last.contains("`elephants` is none of one-to-one, "),
        "{said}"
    );
}
