//! Traces of QUIC connections.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{path::Path, time::Duration};

use mq_testkit::{Scheme, TestBroker};
use mq_transport::{ConnectOptions, Connector};
use serde_json::Value;

/// The records of a file in the form of RFC 7464; `None` while it is not complete.
fn records(file: &Path) -> Option<Vec<Value>> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.strip_suffix('\n')?.lines();
    lines
        .map(|line| serde_json::from_str(line.strip_prefix('\x1e')?).ok())
        .collect()
}

#[tokio::test]
async fn a_qlog_file_has_a_json_record_a_line_on_either_side() {
    let directory = tempfile::tempdir().unwrap();
    let traced = Some(directory.path().to_owned());
    let broker = TestBroker::start_with(|settings| {
        settings.listen.quic.qlog_directory.clone_from(&traced);
    })
    .await;
    let mut options: ConnectOptions = broker.connect_options();
    options.quic.qlog_directory = traced;
    let client = broker.client(Scheme::Quic, "traced");
    let client = client.connector(Connector::new(options).unwrap());
    let client = client.build().await.unwrap();
    client.disconnect().await.unwrap();
    broker.shutdown().await;

    // A file is complete when quinn forgets the connection, some probe timeouts after its end.
    let mut complete = Vec::new();
    let all = async {
        while complete.len() < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let files = std::fs::read_dir(directory.path()).unwrap();
            let files = files.map(|file| file.unwrap().path());
            complete = files.filter_map(|file| records(&file)).collect();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all)
        .await
        .expect("each side should write a file that can be read");
    for records in complete {
        assert!(records[0].get("qlog_version").is_some(), "{}", records[0]);
        for name in ["packet_sent", "packet_received"] {
            let mut named = records[1..]
                .iter()
                .filter_map(|event| event["name"].as_str());
            assert!(named.any(|full| full.ends_with(name)), "{name}");
        }
    }
}
