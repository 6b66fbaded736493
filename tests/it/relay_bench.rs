//! `bench/relay`: a way through relays has figures of messages that went it, and of clients that are idle on it.

use std::fs;

use serde_json::Value;

use crate::bench_scripts::{built, lacks, number, only, run};

const PROGRAMS: &[&str] = &["mqbroker", "mq", "examples/across", "examples/crowd"];

const SHAPE: &str = "mq relay pair over QUIC";

/// Runs the bench once with these arguments, and returns its figures; `None` where it cannot run.
fn figures(args: &[&str]) -> Option<Value> {
    if lacks(&["python3", "openssl"]) {
        return None;
    }
    let built = built(PROGRAMS)?;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let (place, file) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
    let always = ["--rounds", "1", "--folder", place, "--json", file];
    let output = run("relay", &built, &[&always[..], args].concat());
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&fs::read(file).unwrap()).unwrap())
}

#[test]
fn a_way_has_delays_and_what_its_relays_take() {
    let few = ["--seconds", "1", "--clients", "100", "--only", SHAPE];
    let Some(found) = figures(&[&few[..], &["--parts", "loads,idle"]].concat()) else {
        return;
    };
    assert_eq!(found["schema"], "mq-relay/1");
    let loads = &found["parts"]["loads"]["runs"];
    let of_qos_1 = loads.as_array().unwrap().iter();
    let of_qos_1 = Value::Array(of_qos_1.filter(|load| load["qos"] == 1).cloned().collect());
    let paced = only(&of_qos_1, &[("way", "paced 200")]);
    assert_eq!(paced["came"], paced["sent"], "{paced}");
    assert!(number(&paced["delay_ns"], "p50") > 1e3, "{paced}");
    assert!(number(paced, "cpu_us_a_message") > 0.0, "{paced}");
    let idle = only(&found["parts"]["idle"]["runs"], &[("shape", SHAPE)]);
    assert!(number(idle, "bytes_a_client") > 0.0, "{idle}");
}

#[test]
fn a_relay_that_is_started_again_has_all_of_its_clients_back() {
    let Some(found) = figures(&["--clients", "50", "--parts", "restart"]) else {
        return;
    };
    let runs = &found["parts"]["restart"]["runs"];
    for relay in ["beside", "before"] {
        for signal in ["SIGKILL", "SIGTERM"] {
            let run = only(runs, &[("way", &format!("{relay}, {signal}"))]);
            assert_eq!((&run["lost"], &run["never_back"]), (&50.into(), &0.into()));
            assert!(number(run, "back_s") > 1.0, "{run}");
            assert!(number(run, "most_a_second") > 0.0, "{run}");
        }
    }
}
