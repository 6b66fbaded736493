//! Traces of QUIC connections.

use std::{path::Path, time::Duration};

use mq_codec::QoS;
use mq_testkit::{Scheme, TestBroker};
use mq_transport::{ConnectOptions, Connector, Qlog, Repeat};
use serde_json::Value;

/// Reads the records of a file in the form of RFC 7464; `None` while it is not complete.
fn records(file: &Path) -> Option<Vec<Value>> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.strip_suffix('\n')?.lines();
    lines
        .map(|line| serde_json::from_str(line.strip_prefix('\x1e')?).ok())
        .collect()
}

/// Returns the side in the name of a file, `PROCESS-SIDE-NUMBER.sqlog`.
fn side(file: &Path) -> String {
    assert_eq!(file.extension().unwrap(), "sqlog");
    let name = file.file_stem().unwrap().to_str().unwrap();
    name.split('-').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn a_qlog_file_has_a_json_record_a_line_on_either_side() {
    let directory = tempfile::tempdir().unwrap();
    let traced = Qlog::all(directory.path());
    let broker = TestBroker::start_with(|settings| {
        settings.listen.quic.qlog = Some(traced.clone());
    })
    .await;
    let mut options: ConnectOptions = broker.connect_options();
    options.quic.qlog = Some(traced);
    options.quic.repeat = Repeat::after(Duration::from_millis(1));
    let client = broker.client(Scheme::Quic, "traced");
    let client = client.connector(Connector::new(options).unwrap());
    let client = client.build().await.unwrap();
    // The broker has nothing to answer, and acknowledges later than the copy is sent.
    client
        .publish("topic", "message", QoS::AtMostOnce)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    client.disconnect().await.unwrap();
    broker.shutdown().await;

    // A file is complete when quinn forgets the connection, some probe timeouts after its end.
    let mut complete = Vec::new();
    let all = async {
        while complete.len() < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let files = std::fs::read_dir(directory.path()).unwrap();
            let files = files.map(|file| file.unwrap().path());
            complete = files
                .filter_map(|file| Some((side(&file), records(&file)?)))
                .collect();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all)
        .await
        .expect("each side should write a file that can be read");
    for (side, records) in complete {
        let head = &records[0];
        assert_eq!(head["qlog_version"], "0.3", "{head}");
        assert_eq!(head["qlog_format"], "JSON-SEQ", "{head}");
        let trace = &head["trace"];
        assert_eq!(trace["vantage_point"]["type"], side, "{head}");
        assert_eq!(trace["common_fields"]["time_format"], "relative");
        assert!(trace["common_fields"]["reference_time"].as_f64() > Some(1e12));
        let events = &records[1..];
        let group = |event: &Value| event["group_id"].clone();
        assert!(events.iter().all(|event| group(event) == group(&events[0])));
        // All times are in milliseconds. The first round-trip time is assumed to be 333 ms, and is less on
        // loopback; the connection lasts some seconds at most.
        let rtts = events
            .iter()
            .filter_map(|event| event["data"]["smoothed_rtt"].as_f64());
        let rtts: Vec<_> = rtts.collect();
        assert!((rtts[0] - 333.0).abs() < 1.0, "{rtts:?}");
        assert!(rtts[1..].iter().any(|rtt| *rtt > 0.01), "{rtts:?}");
        let again = |event: &&Value| event["name"] == "mq:datagram_repeated";
        let again = events.iter().find(again);
        assert_eq!(again.is_some(), side == "client");
        if let Some(again) = again {
            assert!(
                again["data"]["raw"]["length"].as_u64() > Some(40),
                "{again}"
            );
            assert!(again["data"]["after"].as_f64() >= Some(1.0), "{again}");
        }
        let sent = events
            .iter()
            .find(|event| event["name"] == "transport:packet_sent");
        let sent = &sent.unwrap()["data"];
        assert!(sent["raw"]["length"].as_u64() > Some(100), "{sent}");
        assert_eq!(sent["header"].get("length"), None);
        let times = events.iter().map(|event| event["time"].as_f64().unwrap());
        assert!(times.is_sorted());
        let last = events.last().unwrap()["time"].as_f64().unwrap();
        assert!(last > 1.0, "{last}");
        for name in ["packet_sent", "packet_received"] {
            let mut named = records[1..]
                .iter()
                .filter_map(|event| event["name"].as_str());
            assert!(named.any(|full| full.ends_with(name)), "{name}");
        }
    }
}
