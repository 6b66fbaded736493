//! `bench/cluster`: each shape has figures of messages that came from one end to the other, and `bench/tables` writes a
//! table of them.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::bench_scripts::{built, copy_writers, lacks, number, only, run};

const PROGRAMS: &[&str] = &["mqbroker", "examples/across", "examples/sessions"];

const SHAPE: &str = "cluster of 3";

const DESCRIBED: &str = r#"
labels = {}
runs = { cluster = "now" }

[[table]]
name = "through"
page = "cluster"
rounds = "cluster"
part = "loads"
title = "Messages a second"
settings = "{seconds} s a run"
rows = [{ factor = "shape", head = "" }]
where = { way = "saturated", qos = 1 }
columns = [{ head = "a second", field = "a_second", digits = 0 }]
"#;

/// Returns a page with a table of these figures, as `bench/tables` writes it in a repository in this folder.
fn page_with_table(repository: &Path, figures: &str) -> String {
    let bench = repository.join("bench");
    let runs = bench.join("runs/now");
    let pages = repository.join("docs/results");
    for folder in [&runs, &pages] {
        fs::create_dir_all(folder).unwrap();
    }
    copy_writers(repository);
    fs::write(bench.join("tables.toml"), DESCRIBED).unwrap();
    fs::copy(figures, runs.join("figures.json")).unwrap();
    let page = pages.join("cluster.md");
    fs::write(&page, "<!-- table: through -->\n<!-- end -->\n").unwrap();
    let mut command = Command::new("python3");
    command.arg("-B").arg(bench.join("tables"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(page).unwrap()
}

#[test]
fn each_shape_has_delays_and_what_goes_through() {
    if lacks(&["python3", "nats-server"]) {
        return;
    }
    let Some(built) = built(PROGRAMS) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let (place, file) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
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
        place,
        "--only",
        SHAPE,
        "--json",
        file,
    ];
    let measure = |parts| {
        run(
            "cluster",
            &built,
            &[&args[..], &["--parts", parts]].concat(),
        )
    };
    // Each adds its parts to the file.
    for parts in ["loads,failovers,takeovers", "sessions,strangers"] {
        let output = measure(parts);
        assert!(output.status.success(), "{output:?}");
    }
    let found: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(found["schema"], "mq-cluster/1");
    let runs = |part: &str| &found["parts"][part]["runs"];
    for qos in 0..3 {
        let loads = runs("loads").as_array().unwrap().iter();
        let of_qos = loads.filter(|load| load["qos"] == qos).cloned();
        let of_qos = Value::Array(of_qos.collect());
        let of = |way| only(&of_qos, &[("shape", SHAPE), ("way", way)]);
        let paced = of("paced 200");
        if qos > 0 {
            assert_eq!(paced["came"], paced["sent"], "{qos}: {paced}");
        }
        assert!(number(&paced["delay_ns"], "p50") > 1e3, "{paced}");
        assert!(number(of("saturated"), "a_second") > 0.0, "{found}");
    }
    let gaps = runs("failovers").as_array().unwrap();
    assert_eq!(gaps.len(), 2, "{gaps:?}");
    let takeover = only(runs("takeovers"), &[("shape", SHAPE)]);
    assert_eq!(takeover["sessions"], 100);
    for programs in ["brokers", "servers", "clients"] {
        assert!(number(&takeover["cpu_s"], programs) > 0.0, "{takeover}");
    }
    assert!(number(takeover, "seconds") > 1.0, "{takeover}");
    let sessions = only(runs("sessions"), &[("shape", SHAPE)]);
    assert!(number(sessions, "moved_a_second") > 0.0, "{sessions}");
    let stranger = only(runs("strangers"), &[("shape", SHAPE)]);
    assert!(number(stranger, "came") > 0.0, "{stranger}");
    assert!(
        number(stranger, "more") < number(stranger, "came") / 4.0,
        "it receives what others subscribe to: {stranger}"
    );

    let page = page_with_table(folder.path(), file);
    assert!(page.contains("\n| cluster of 3 | "), "{page}");
    // Where its lines end depends on what the machine is called.
    let words: Vec<_> = page.split_whitespace().collect();
    assert!(words.join(" ").contains("none of 12 runs failed"), "{page}");
    // Some shapes do not stand in the place of all.
    let output = measure("sessions");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("has `sessions` already"), "{said}");
}
