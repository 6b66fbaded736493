//! `mqbroker clients`, `kick` and their like, against a running broker.

use std::collections::BTreeMap;

use mq_client::{QoS, Reconnect};

use crate::program::{Broker, mqbroker};

fn said(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = mqbroker(arguments, "");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn an_operator_sees_what_a_bridge_does_in_a_table() {
    let configuration = "[admin]\nsocket = \"FOLDER/socket\"\n\
        [[bridge]]\nname = \"cloud\"\naddress = [\"tcp://127.0.0.1:9\", \"tcp://[::1]:9\"]\n\
        topic = [{ pattern = \"a/#\" }]\n";
    let mut broker = Broker::new("tcp", configuration);
    let socket = broker.file("socket");
    let (code, shown, error) = said(&["status", "--socket", socket.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{error}");
    let mut lines = shown.lines().skip_while(|line| *line != "bridges:");
    lines.next().unwrap();
    let mut words = || -> Vec<_> { lines.next().unwrap().split_whitespace().collect() };
    let row: BTreeMap<_, _> = words().into_iter().zip(words()).collect();
    assert_eq!(row["name"], "cloud", "{shown}");
    assert_eq!(row["connected"], "false", "{shown}");
    assert_eq!(row["queued"], "0", "{shown}");
    assert_eq!(row["addresses"], "mqtt://127.0.0.1:9,mqtt://[::1]:9");
    broker.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_sees_a_client_and_throws_it_out() {
    let configuration =
        "[limits]\nallow_control_characters = true\n[admin]\nsocket = \"FOLDER/socket\"\n";
    let mut broker = Broker::new("tcp", configuration);
    let (socket, config) = (broker.file("socket"), broker.file("broker.toml"));
    let (socket, config) = (socket.to_str().unwrap(), config.to_str().unwrap());
    let hostile = "\u{1b}[2J\nroot";
    let client = broker.client(hostile).reconnect(Reconnect::never());
    let client = client.build().await.unwrap();
    let _messages = client.subscribe("a/+", QoS::AtLeastOnce).await.unwrap();
    for list in ["clients", "subscriptions"] {
        let (code, shown, _) = said(&[list, "--socket", socket]);
        assert_eq!((code, shown.lines().count()), (Some(0), 2), "{shown}");
        assert!(shown.contains(r#""\u{1b}[2J\nroot""#), "{shown}");
    }
    let (_, json, _) = said(&["clients", "--json", "--config", config]);
    let page: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(page["items"][0]["client_id"], hostile);
    for arguments in [
        ["client", hostile, "--socket", socket],
        ["kick", hostile, "--socket", socket],
    ] {
        let (code, _, error) = said(&arguments);
        assert_eq!(code, Some(0), "{error}");
    }
    let _closed = client.closed().await;
    for list in ["status", "sessions", "retained"] {
        let (code, _, error) = said(&[list, "--socket", socket]);
        assert_eq!(code, Some(0), "{error}");
    }
    let (code, _, error) = said(&["kick", "nobody", "--socket", socket]);
    assert_eq!(
        (code, error.as_str()),
        (Some(1), "mqbroker: no client nobody is connected\n")
    );
    broker.end();
    let (code, _, error) = said(&["clients", "--socket", socket]);
    assert_eq!((code, error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("no broker answers at"), "{error}");
}
