//! `bench/cluster`: each shape has figures of messages that came from one end to the other.

use std::fs;

use serde_json::Value;

use crate::bench_scripts::{built, lacks, number, only, run};

const PROGRAMS: &[&str] = &["mqbroker", "examples/across", "examples/sessions"];

#[test]
fn each_shape_has_delays_and_what_goes_through() {
    if lacks(&["python3", "nats-server"]) {
        return;
    }
    let Some(built) = built(PROGRAMS) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let (folder, file) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
    let shapes = "cluster of 3";
    let args = [
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--sessions",
        "100",
        "--dying",
        "100",
        "--folder",
        folder,
    ];
    let args = [&args[..], &["--only", shapes, "--json", file]].concat();
    let output = run("cluster", &built, &args);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    for qos in 0..3 {
        let loads = found["loads"].as_array().unwrap().iter();
        let of_qos = loads.filter(|load| load["qos"] == qos).cloned();
        let of_qos = Value::Array(of_qos.collect());
        let of = |way| &only(&of_qos, &[("shape", shapes), ("way", way)])["runs"][0];
        let paced = of("paced 200");
        if qos > 0 {
            assert_eq!(paced["came"], paced["sent"], "{qos}: {paced}");
        }
        assert!(number(&paced["delay_ns"], "p50") > 1e3, "{paced}");
        assert!(number(of("saturated"), "a_second") > 0.0, "{said}");
    }
    let sessions = &found["sessions"][shapes];
    assert!(number(sessions, "moved_a_second") > 0.0, "{found}");
    assert!(said.contains("The last of 100 sessions"), "{said}");
    let stranger = &found["strangers"]["cluster of 3"];
    assert!(number(stranger, "came") > 0.0, "{stranger}");
    let more = number(stranger, "loaded") - number(stranger, "idle");
    assert!(
        more < number(stranger, "came") / 4.0,
        "it receives what others subscribe to: {stranger}"
    );
}
