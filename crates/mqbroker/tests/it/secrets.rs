//! Passwords, tokens and payloads appear in no log, list, page or process title, at any level of the log.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
};

use mq_client::{Outgoing, QoS, Reconnect, Will};
use mq_codec::TopicName;

use mq_testkit::free_port;

use crate::program::{Broker, mqbroker};

const PASSWORD: &str = "correct-horse-7319";
const WRONG_PASSWORD: &str = "battery-staple-5502";
const PAYLOAD: &str = "blood-pressure-118";
const WILL: &str = "last-words-4471";

fn run(arguments: &[&str], input: &str) -> String {
    let output = mqbroker(arguments, input);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap() + &error
}

fn get(port: u16, path: &str, token: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

async fn visit(scheme: &str, folder: &Path) {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (passwords, tokens) = (file("passwords"), file("tokens"));
    let port = free_port();
    run(&["passwd", &passwords, "ann"], PASSWORD);
    run(&["token", &tokens], "");
    let token = std::fs::read_to_string(&tokens).unwrap().trim().to_owned();
    let configuration = format!(
        "[log]\nformat = \"json\"\n[auth]\npassword_file = {passwords:?}\n[store]\npath = \"FOLDER/store\"\n\
         [admin]\nhttp = \"127.0.0.1:{port}\"\ntoken_file = {tokens:?}\nsocket = \"FOLDER/socket\"\n"
    );
    let mut broker = Broker::with_log(scheme, &configuration, &[]);
    let socket = broker.file("socket").to_str().unwrap().to_owned();
    let ask = |arguments: &[&str]| run(&[arguments, &["--socket", &socket]].concat(), "");
    let said = ask(&["log-level", "trace"]);
    assert!(said.contains("trace"), "{said}");

    let will = Will::new(TopicName::new("will").unwrap(), WILL);
    let client = broker.client("a").reconnect(Reconnect::never());
    let client = client.credentials("ann", PASSWORD).unwrap().will(will);
    let client = client.build().await.unwrap();
    let _messages = client.subscribe("#", QoS::ExactlyOnce).await.unwrap();
    let message = Outgoing::new(TopicName::new("t").unwrap(), PAYLOAD).retain(true);
    client.send(message.qos(QoS::ExactlyOnce)).await.unwrap();
    client
        .publish("t", PAYLOAD, QoS::AtLeastOnce)
        .await
        .unwrap();
    let other = broker.client("b").reconnect(Reconnect::never());
    let other = other.credentials("ann", WRONG_PASSWORD).unwrap();
    other.build().await.unwrap_err();

    let mut shown = String::new();
    let wrong_token = format!("{}0", &token[1..]);
    let lists = [
        "status",
        "clients",
        "sessions",
        "subscriptions",
        "retained",
        "topics",
        "refusals",
        "bans",
    ];
    for list in lists {
        shown += &ask(&[list]);
        shown += &ask(&[list, "--json"]);
        shown += &get(port, &format!("/v1/{list}"), &token);
        shown += &get(port, &format!("/v1/{list}"), &wrong_token);
    }
    for path in ["/", "/metrics", "/v1/clients/a", "/v1/log"] {
        shown += &get(port, path, &token);
    }
    shown += &std::fs::read_to_string(format!("/proc/{}/cmdline", broker.pid())).unwrap();
    shown += &std::fs::read_to_string(format!("/proc/{}/comm", broker.pid())).unwrap();
    assert!(shown.contains("\"ann\"") && shown.contains("the token is wrong"));
    broker.kill();
    let log = std::fs::read_to_string(broker.file("log")).unwrap();
    let lines = log.lines().map(serde_json::from_str::<serde_json::Value>);
    let lines: Vec<_> = lines.map(|line| line.expect("each line is JSON")).collect();
    let has = |level: &str| lines.iter().any(|line| line["level"] == level);
    // Below QUIC there is a line a frame, below TCP none that is always there.
    assert!(has("DEBUG") && (has("TRACE") || scheme == "tcp"), "{log}");
    let refused = lines
        .iter()
        .find(|line| line["message"] == "refused a log-in");
    assert_eq!(refused.unwrap()["reason"], "bad user name or password");
    for secret in [
        PASSWORD,
        WRONG_PASSWORD,
        PAYLOAD,
        WILL,
        &token,
        &wrong_token,
    ] {
        assert!(!shown.contains(secret), "{secret} is shown");
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_secret_is_shown_or_logged_even_at_trace() {
    for scheme in ["tcp", "quic"] {
        let folder = tempfile::tempdir().unwrap();
        visit(scheme, folder.path()).await;
    }
}
