//! Campaigns as a user runs them: to the end, interrupted and resumed, and with mistakes.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    program::{self, records, run_campaign as run, skipped},
    shipped::with_quick,
};

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

/// Returns the attempts of each cell, by its levels.
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
        // Interrupts come later and later, so that the last ones find nothing left to do.
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

/// A restart under a few devices, over each transport.
const STORM: &str = r#"
title = "a test's"
source = "none"
[work]
messages = 20
[variants.tcp]
transport = "tcp"
[variants."tls kept"]
transport = "tls"
resumption = "resumed"
[variants."tls lost"]
transport = "tls"
resumption = "resumed"
tickets = "lost"
[variants."quic full"]
transport = "quic"
[variants."quic kept"]
transport = "quic"
resumption = "0-rtt"
[variants."quic lost"]
transport = "quic"
resumption = "0-rtt"
tickets = "lost"
[factors]
pattern = ["storm"]
variant = ["tcp", "tls kept", "tls lost", "quic full", "quic kept", "quic lost"]
[plot]
kind = "bars"
metric = "back_99"
x = "pattern"
series = "variant"
"#;

#[test]
fn devices_are_back_after_a_restart_and_resume_if_the_broker_kept_its_tickets() {
    let Some(records) = run(STORM) else {
        return;
    };
    assert_eq!(records.len(), 6, "{records:?}");
    for record in &records {
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        let metric = |name: &str| outcome["metrics"][name].as_f64();
        assert_eq!(metric("failed"), Some(0.0), "{record}");
        let [half, nearly, all] =
            ["back_50", "back_99", "back_all"].map(|name| metric(name).unwrap());
        assert!(half <= nearly && nearly <= all, "{record}");
        // The longest of a device's first waits and dials.
        assert!(all < 30_000.0, "{record}");
        assert!(metric("broker_down").unwrap() > 0.0, "{record}");
        for cpu in ["broker_cpu_s", "client_cpu_s"] {
            let seconds = metric(cpu).unwrap();
            assert!(0.0 < seconds && seconds < 60.0, "{cpu}: {record}");
        }
        let kinds = ["back_full", "back_resumed", "back_early"].map(metric);
        let expected = match record["levels"]["variant"].as_str().unwrap() {
            "tcp" => [None; 3],
            "tls kept" => [Some(0.0), Some(20.0), Some(0.0)],
            "quic kept" => [Some(0.0), Some(0.0), Some(20.0)],
            _ => [Some(20.0), Some(0.0), Some(0.0)],
        };
        assert_eq!(kinds, expected, "{record}");
    }
}

/// A publisher that gets another address and link after ten of twenty messages.
const HANDOVER: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "periodic"
link = "w20/wifi"
handover = "w20/cellular"
messages = 20
interval = "50ms"
keep_alive = "1s"
qos = 1
mqtt = "5"
[variants."quic moves"]
transport = "quic"
[variants."quic 0-rtt"]
transport = "quic"
on_handover = "reconnect"
resumption = "0-rtt"
[variants."tls told"]
transport = "tls"
on_handover = "reconnect"
[variants."tls silent"]
transport = "tls"
[factors]
variant = ["quic moves", "quic 0-rtt", "tls told", "tls silent"]
loss = ["0%"]
[plot]
kind = "bars"
metric = "gap"
x = "loss"
series = "variant"
"#;

#[test]
fn a_publisher_goes_on_over_another_network_and_loses_nothing() {
    let Some(records) = run(HANDOVER) else {
        return;
    };
    for variant in ["quic moves", "quic 0-rtt", "tls told", "tls silent"] {
        let of_variant = |record: &&Value| record["levels"]["variant"] == variant;
        // A disturbed run is repeated, and the last one counts.
        let record = records.iter().rfind(of_variant).unwrap();
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        assert_eq!(outcome["metrics"]["lost"].as_f64(), Some(0.0), "{record}");
        let gap = outcome["metrics"]["gap"].as_f64().unwrap();
        let late = outcome["metrics"]["late"].as_f64().unwrap();
        // The cellular network's delay is 38 ms longer each way. A client without a notification waits for its
        // keep-alive first.
        let is_silent = variant == "tls silent";
        assert!(gap > if is_silent { 1_000.0 } else { 80.0 }, "{record}");
        assert!(late > 0.0 || !is_silent, "{record}");
    }
}

/// Each post-quantum part of a handshake has its bytes on the link: a key share each way, of 1,184 and 1,088 bytes, and the padding of
/// the broker's certificate.
#[test]
fn post_quantum_handshakes_cost_a_connection_their_bytes() {
    let quick = "work.messages = 2\nfactors.link = [\"w20/wifi\"]\nfactors.loss = [\"0%\"]\n";
    let text = with_quick("pq", quick).replace("repetitions = 1\n", "repetitions = 3\n");
    let Some(records) = run(&text) else {
        return;
    };
    for transport in ["TLS", "QUIC"] {
        // A busy machine sends packets again, so the smallest of three counts.
        let bytes = |variant: &str| {
            let name = format!("{transport}, {variant}");
            let of_variant = |record: &&Value| record["levels"]["variant"] == *name;
            let each = records.iter().filter(of_variant).map(|record| {
                let outcome = &record["outcome"];
                assert_eq!(outcome["error"], Value::Null, "{record}");
                let metrics = &outcome["metrics"];
                assert_eq!(metrics["failed"].as_f64(), Some(0.0), "{record}");
                metrics["link_bytes_per_message"].as_f64().unwrap()
            });
            each.fold(f64::MAX, f64::min)
        };
        let plain = bytes("X25519");
        let [exchange, chain] = [bytes("ML-KEM"), bytes("ML-KEM and ML-DSA")];
        let all = format!("{transport}: {plain}, {exchange}, {chain}");
        assert!(exchange - plain > 1_184.0 + 1_088.0, "{all}");
        assert!(chain - exchange > 8_000.0, "{all}");
    }
}

/// `CoAP` over a link that loses a tenth of the packets.
const COAP: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "coap"
link = "lw26@delay=10ms"
loss = "10%"
interval = "100ms"
[variants.once]
qos = 0
messages = 60
[variants.acknowledged]
qos = 1
messages = 8
[factors]
variant = ["once", "acknowledged"]
[plot]
kind = "bars"
metric = "lost"
x = "variant"
series = "variant"
"#;

#[test]
fn a_confirmable_message_of_coap_is_sent_again_and_another_is_lost() {
    let Some(records) = run(COAP) else {
        return;
    };
    for record in &records {
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        let metric = |name: &str| outcome["metrics"][name].as_f64();
        let duplicates = outcome["counts"]["duplicates"].as_u64();
        assert_eq!(duplicates, Some(0), "{record}");
        if record["levels"]["variant"] == "once" {
            assert!((1.0..20.0).contains(&metric("lost").unwrap()), "{record}");
            assert_eq!(metric("link_packets_per_message"), Some(1.0), "{record}");
        } else {
            // The seed loses some of the first copies: RFC 7252 §4.8 sends them again after two seconds.
            assert_eq!(metric("lost"), Some(0.0), "{record}");
            assert!(metric("latency_max") > Some(1_500.0), "{record}");
        }
    }
}

/// Publishers with a subscriber each, below what the link carries.
const LOAD: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "load"
topology = "shared"
link = "lw26@delay=1ms"
topics = 2
interval = "50ms"
[factors]
messages = [6]
transport = ["tcp", "quic"]
[plot]
kind = "bars"
metric = "cpu_per_message"
x = "transport"
series = "messages"
"#;

#[test]
fn publishers_of_a_load_keep_their_rate_and_the_broker_is_measured() {
    let Some(records) = run(LOAD) else {
        return;
    };
    assert_eq!(records.len(), 2);
    for record in &records {
        assert_eq!(record["outcome"]["error"], Value::Null, "{record}");
        let metric = |name: &str| record["outcome"]["metrics"][name].as_f64().unwrap();
        // Three publishers with 20 messages a second.
        assert!(
            (50.0..70.0).contains(&metric("arrived_per_second")),
            "{record}"
        );
        for measured in [
            "cpu_per_message",
            "broker_peak_memory",
            "clients_peak_memory",
        ] {
            assert!(metric(measured) > 0.0, "{record}");
        }
    }
}

/// Clients that vanish, over few transports and soon.
const VANISHING: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "half-open"
link = "lw26@delay=10ms"
messages = 40
keep_alive = "2s"
mqtt = "5"
[factors]
phase = ["dialled", "session"]
transport = ["tcp", "quic"]
[plot]
kind = "bars"
metric = "client_memory"
x = "phase"
series = "transport"
"#;

#[test]
fn clients_that_vanish_cost_the_broker_what_their_phase_and_transport_need() {
    let Some(records) = run(VANISHING) else {
        return;
    };
    let metric = |phase: &str, transport: &str, name: &str| {
        let is_asked = |record: &&Value| {
            record["levels"]["phase"] == phase && record["levels"]["transport"] == transport
        };
        let record = records.iter().find(is_asked).unwrap();
        assert_eq!(record["outcome"]["error"], Value::Null, "{record}");
        record["outcome"]["metrics"][name].as_f64().unwrap()
    };
    for transport in ["tcp", "quic"] {
        let sent = |phase| metric(phase, transport, "sent_to_broker");
        assert!(sent("dialled") >= 60.0 && sent("session") > 2.0 * sent("dialled"));
        let answered = metric("dialled", transport, "sent_by_broker");
        // RFC 9000 §8.1, before the broker knows the client's address.
        assert!(
            answered > 0.0 && answered <= 3.0 * sent("dialled"),
            "{transport}: {answered}"
        );
    }
    // The kernel alone knows of a TCP connection whose handshake has not ended.
    let cpu = |transport| metric("dialled", transport, "client_cpu");
    assert!(
        cpu("tcp") * 3.0 < cpu("quic"),
        "{} {}",
        cpu("tcp"),
        cpu("quic")
    );
    let memory = |transport| metric("session", transport, "client_memory");
    assert!(
        memory("tcp") < memory("quic"),
        "{} {}",
        memory("tcp"),
        memory("quic")
    );
}

/// Mean time from the dial until the message has arrived, in milliseconds, and the share of connections with data in the SYN, by
/// variant of the campaign `tfo`.
fn fast_opens() -> Option<HashMap<String, (f64, Option<f64>)>> {
    let quick = "work.messages = 3\nfactors.link = [\"w20/cellular\"]\nfactors.loss = [\"0%\"]\n";
    let records = run(&with_quick("tfo", quick))?;
    let of = |record: &Value| {
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        let variant = record["levels"]["variant"].as_str().unwrap().to_owned();
        let metrics = &outcome["metrics"];
        let delay = metrics["delta_dagger"].as_f64().unwrap();
        (variant, (delay, metrics["data_in_syn"].as_f64()))
    };
    Some(records.iter().map(of).collect())
}

/// The link's round trip is 100 ms.
#[test]
fn data_in_a_syn_saves_a_round_trip_until_the_broker_refuses_its_cookie() {
    let Some(variants) = fast_opens() else {
        return;
    };
    let trips = |variant: &str| variants[variant].0 / 100.0;
    for (with, without) in [
        ("TCP, Fast Open", "TCP"),
        ("TLS, early data, Fast Open", "TLS, early data"),
    ] {
        let saved = trips(without) - trips(with);
        assert!((0.75..1.25).contains(&saved), "{with}: {variants:?}");
        assert_eq!(variants[with].1, Some(1.0), "{variants:?}");
        assert_eq!(variants[without].1, None, "{variants:?}");
    }
    let lost = "TLS, early data, cookie lost";
    assert_eq!(variants[lost].1, Some(0.0), "{variants:?}");
    assert!((1.25..1.9).contains(&trips(lost)), "{variants:?}");
    let quic = trips("QUIC, 0-RTT");
    assert!(quic < 0.9, "{variants:?}");
}

/// Four publishers that share a channel, each with the same pattern.
const CHANNEL: &str = r#"
title = "a test's"
source = "none"
[work]
medium = "s21/medium"
sub_link = "s21/wired-25ms"
stations = 4
messages = 30
interval = "20ms"
[factors]
pattern = ["stop-and-wait", "reconnect", "periodic"]
transport = ["tls", "quic"]
[plot]
kind = "bars"
metric = "air_time_share"
x = "pattern"
series = "transport"
"#;

#[test]
fn stations_of_a_channel_do_as_much_as_the_measured_publisher_and_contend_with_it() {
    let Some(records) = run(CHANNEL) else {
        return;
    };
    for (pattern, measured) in [
        ("stop-and-wait", 30.0),
        // The first connection is one more.
        ("reconnect", 31.0),
        ("periodic", 30.0),
    ] {
        for transport in ["tls", "quic"] {
            let of_cell = |record: &&Value| {
                record["levels"]["pattern"] == pattern && record["levels"]["transport"] == transport
            };
            // A disturbed run is repeated, and the last one counts.
            let record = records.iter().rfind(of_cell).unwrap();
            let outcome = &record["outcome"];
            assert_eq!(outcome["error"], Value::Null, "{record}");
            let metric = |name: &str| outcome["metrics"][name].as_f64().unwrap();
            // A connection that needs a second attempt delays one station and not the others.
            let each = metric("neighbour_messages") / 3.0;
            assert!((measured / 4.0..measured * 4.0).contains(&each), "{record}");
            let air = metric("air_time_share");
            assert!(0.0 < air && air < 1.0, "{record}");
            // On busy processors frames of all stations come in bursts, and collide more often.
            assert!((0.0..=1.0).contains(&metric("collision_rate")), "{record}");
            assert!(metric("retries_per_frame") >= 0.0, "{record}");
            let medium = &outcome["link"]["measured"][0];
            let stations = medium["stations"].as_array().unwrap();
            assert_eq!(stations.len(), 5, "{record}");
            for station in stations {
                // A frame with its acknowledgement and spaces takes 92 µs at least, and 311 µs at most.
                let count = |key: &str| station[key].as_u64().unwrap();
                let frame = count("air_time_ns") / count("transmissions");
                assert!((92_000..311_000).contains(&frame), "{station}");
            }
            let in_use = medium["in_use_ns"].as_u64().unwrap();
            let air_time = stations
                .iter()
                .map(|one| one["air_time_ns"].as_u64().unwrap());
            // Frames that collide are in use at the same time.
            assert!(in_use > 0 && in_use <= air_time.sum(), "{medium}");
            assert!(medium["in_use_share"].as_f64().unwrap() < 1.0, "{medium}");
        }
    }
}

/// Patterns with all kinds of samples.
const KEPT: &str = r#"
title = "a test's"
source = "none"
[work]
link = "s21/wired-1ms"
messages = 10
interval = "20ms"
[factors]
transport = ["quic"]
pattern = ["periodic", "stop-and-wait", "reconnect", "job-result", "connect"]
[plot]
kind = "bars"
metric = "packets_per_second"
x = "pattern"
series = "transport"
"#;

#[test]
fn samples_and_captures_of_each_run_are_kept_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.toml");
    std::fs::write(&file, KEPT).unwrap();
    let out = folder.path().join("out");
    let [from, to] = [&file, &out].map(|path| path.to_str().unwrap());
    let ended = output(&["run", from, "--out", to, "--keep", "samples,pcap"]);
    if skipped(&ended.stderr) {
        return;
    }
    assert!(ended.status.success(), "{ended:?}");
    let records = records(&out);
    for record in &records {
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        let name = outcome["files"].as_str().unwrap();
        let pattern = record["levels"]["pattern"].as_str().unwrap();
        let samples = out.join(format!("samples/{name}.csv"));
        let messages = match pattern {
            // A pattern without messages.
            "connect" => None,
            "reconnect" => Some(11),
            _ => Some(10),
        };
        match messages {
            None => assert!(!samples.exists(), "{record}"),
            Some(messages) => {
                let samples = mq_measure::Samples::load(&samples).unwrap();
                assert_eq!(samples.0.len(), messages, "{record}");
                let arrived = |one: &&mq_measure::Sample| one.received_ns.is_some();
                let arrived = samples.0.iter().filter(arrived).count();
                assert_eq!(arrived, messages, "{record}");
            }
        }
        for role in ["publisher", "broker", "subscriber"] {
            let pcap = std::fs::read(out.join(format!("pcap/{name}/{role}.pcap"))).unwrap();
            // Nanoseconds; the file ends with a whole packet.
            assert_eq!(pcap[..4], 0xA1B2_3C4D_u32.to_ne_bytes(), "{record}");
            let mut packets = 0;
            let mut rest = &pcap[24..];
            while !rest.is_empty() {
                let length = u32::from_ne_bytes(rest[8..12].try_into().unwrap());
                rest = &rest[16 + usize::try_from(length).unwrap()..];
                packets += 1;
            }
            assert!(packets >= 10 || pattern == "connect", "{record}: {packets}");
        }
    }
    let patterns = records.iter().map(|record| &record["levels"]["pattern"]);
    assert_eq!(
        patterns
            .map(Value::to_string)
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        5
    );
    let unknown = program::usage_mistake(&["campaign", "resume", to, "--keep", "logs"]);
    assert!(
        unknown.contains("samples and pcap can be kept"),
        "{unknown}"
    );
    let hosts = [
        "campaign",
        "resume",
        to,
        "--keep",
        "pcap",
        "--hosts",
        "hosts.toml",
    ];
    let refused = program::usage_mistake(&hosts);
    assert!(
        refused.contains("--hosts") && refused.contains("--keep"),
        "{refused}"
    );
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
    assert!(said.contains("no results in "), "{said}");
}
