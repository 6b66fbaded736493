//! `mqbench explain`, checked against the packets that the emulator lost.

use std::path::Path;

use serde_json::Value;

use crate::{
    captures::frames,
    command::compared,
    program::{mqbench, skipped},
};

/// Explains a comparison over a lossy link, and returns each transport's late messages.
fn explained(directory: &Path) -> Option<Vec<(String, Vec<Value>)>> {
    let folder = directory.to_str().unwrap();
    let captures = directory.join("pcap");
    let work = ["--count", "600", "--rounds", "1", "--interval", "10ms"];
    let rest = ["--connections", "1", "--link", "s22/wifi@loss=5%"];
    // Of MQTT 5 the client would send the topic once.
    let rest = [&rest[..], &["--mqtt", "3.1.1", "--json"]].concat();
    let kept = ["--out", folder, "--pcap", captures.to_str().unwrap()];
    compared(&[&["compare"][..], &work, &rest, &kept].concat())?;
    let output = mqbench(&["explain", folder, "--json", "--share", "3%"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    let parts: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let parts = parts.into_iter().map(|part| {
        let late = part["runs"][0]["late"].as_array().unwrap().clone();
        (part["name"].as_str().unwrap().to_owned(), late)
    });
    Some(parts.collect())
}

fn longest(message: &Value) -> &Value {
    let waits = message["waits"].as_array().unwrap();
    let ns = |wait: &&Value| wait["ns"].as_u64().unwrap();
    waits.iter().max_by_key(ns).unwrap()
}

#[test]
fn late_messages_are_explained_as_the_emulator_lost_packets() {
    let directory = tempfile::tempdir().unwrap();
    let Some(explained) = explained(directory.path()) else {
        return;
    };
    let names: Vec<_> = explained.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["tcp", "tls", "quic", "quic-repeat"]);
    let (mut told, mut confirmed) = (0, 0);
    for (name, late) in &explained {
        assert_eq!(late.len(), 18, "{name}");
        for message in late {
            let waits = message["waits"].as_array().unwrap();
            let all: u64 = waits.iter().map(|wait| wait["ns"].as_u64().unwrap()).sum();
            let latency = message["latency_ns"].as_u64().unwrap();
            // The ends of the parts are seen by the kernel and by the programs.
            assert!(all.abs_diff(latency) <= latency / 20, "{name}: {message}");
            told += usize::from(message["confirmed"].is_boolean());
            confirmed += usize::from(message["confirmed"] == true);
        }
    }
    assert!(told >= 20, "{told} of {explained:?}");
    assert!(confirmed * 100 >= told * 95, "{confirmed} of {told}");

    // Over TCP a packet shows its messages.
    let lost = frames(&directory.path().join("pcap/publisher-up-lost.pcap"));
    let times_lost = |message: &Value| {
        let seq = message["seq"].as_u64().unwrap();
        let text = [&b"mqbench/compare"[..], &seq.to_be_bytes()].concat();
        let has_it = |frame: &&Vec<u8>| frame.windows(text.len()).any(|part| part == text);
        lost.iter().filter(has_it).count()
    };
    let (_, late) = &explained[0];
    let is_wrong = |message: &&Value| {
        let longest = longest(message);
        let told = match longest["cause"].as_str().unwrap() {
            "lost" => longest["times"].as_u64().unwrap().try_into().unwrap(),
            "behind-loss" | "link" => 0,
            _ => return false,
        };
        told != times_lost(message)
    };
    let wrong: Vec<_> = late.iter().filter(is_wrong).collect();
    assert!(wrong.len() <= 1, "{wrong:?}");
    let lost = late.iter().filter(|one| longest(one)["cause"] == "lost");
    assert!(lost.count() > 0, "{late:?}");
}

/// Two cells of four runs each.
const CAMPAIGN: &str = r#"
title = "a test's"
source = "none"
repetitions = 4
[work]
pattern = "periodic"
link = "s22/wifi@loss=5%"
messages = 100
interval = "5ms"
[factors]
transport = ["tls", "quic"]
qos = [0]
[plot]
kind = "bars"
metric = "latency_mean"
x = "qos"
series = "transport"
"#;

#[test]
fn a_report_explains_the_first_runs_of_each_cell_whose_captures_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.toml");
    std::fs::write(&file, CAMPAIGN).unwrap();
    let out = folder.path().join("out");
    let [from, to] = [&file, &out].map(|path| path.to_str().unwrap());
    let kept = ["--keep", "samples,pcap"];
    let ended = mqbench(&[&["campaign", "run", from, "--full", "--out", to], &kept[..]].concat());
    if skipped(&ended.stderr) {
        return;
    }
    assert!(ended.status.success(), "{ended:?}");
    let page = || {
        let ended = mqbench(&["report", to]);
        assert!(ended.status.success(), "{ended:?}");
        std::fs::read_to_string(out.join("report.html")).unwrap()
    };
    let with = page();
    assert_eq!(with.matches("Why messages were late").count(), 1);
    let section = with.split("Why messages were late").nth(1).unwrap();
    let section = section.split("</details>").next().unwrap();
    let bound = "Explained: 6 of 8 runs with samples and captures, the first 3 of each cell.";
    assert!(section.contains(bound), "{section}");
    for part in [
        // Ten messages of each run.
        "<b>QoS 0, TLS</b>: the latest 30 of 300 messages took ",
        "<b>QoS 0, QUIC</b>: the latest 30 of 300 messages took ",
        "the publisher's",
        "<title>What the latest messages waited for</title>",
    ] {
        assert!(section.contains(part), "no {part} in {section}");
    }
    // A broken capture leaves the figures, and names its file.
    let captures = std::fs::read_dir(out.join("pcap")).unwrap();
    for run in captures {
        std::fs::write(run.unwrap().path().join("broker.pcap"), "no packets").unwrap();
    }
    let broken = page();
    assert!(broken.contains("The captures cannot be read: "));
    assert!(broken.contains("broker.pcap") && broken.contains("<figure"));
    std::fs::remove_dir_all(out.join("pcap")).unwrap();
    assert!(!page().contains("Why messages were late"));
}

#[test]
fn explain_says_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().to_str().unwrap();
    let output = mqbench(&["explain", folder]);
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("no results in"), "{stderr}");
    let output = mqbench(&["explain", folder, "--share", "0%"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("above 0% and up to 100%"), "{stderr}");
}
