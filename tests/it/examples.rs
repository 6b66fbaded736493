//! The crates' example programs, run as a user runs them, and their output.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use mq_testkit::{Scheme, TestBroker};
use mq_transport::ClientAuth;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

const SOON: Duration = Duration::from_secs(30);

/// Returns the path of that crate's example, which `cargo test --workspace` and `cargo build --workspace --examples`
/// build; reports a skipped test where it is missing or older than its source.
fn built(package: &str, name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let profile = own.parent().and_then(Path::parent).unwrap();
    let program = profile.join("examples").join(name);
    let program = program.with_extension(std::env::consts::EXE_EXTENSION);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../crates/{package}/examples/{name}.rs"));
    let changed = source.metadata().unwrap().modified().unwrap();
    let is_built = program.metadata().and_then(|program| program.modified());
    if is_built.is_ok_and(|built| built > changed) {
        return Some(program);
    }
    let program = program.display();
    mq_testkit::skipped(&format!(
        "{program} is not built, or not since it was changed: `cargo build --workspace --examples`"
    ));
    None
}

/// Makes the command of an example, which is killed if the test gives up on it.
fn example(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Returns the arguments of each example of the client: the broker's URL, `args`, and the CA's file.
fn with_broker<'a>(url: &'a str, args: &[&'a str], broker: &'a TestBroker) -> Vec<&'a str> {
    let mut all = vec![url];
    all.extend(args);
    all.push(broker.certificate().to_str().unwrap());
    all
}

/// Runs an example, which has to succeed, and returns its output; `None` if it is not built.
async fn printed(package: &str, name: &str, args: &[&str]) -> Option<String> {
    let output = example(&built(package, name)?, args).output();
    let Output {
        status,
        stdout,
        stderr,
    } = timeout(SOON, output).await.unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{name}: {stderr}");
    Some(String::from_utf8(stdout).unwrap())
}

/// Runs an example of the client against this broker, and returns its output.
async fn printed_by_client(name: &str, args: &[&str], broker: &TestBroker) -> Option<String> {
    let url = broker.address(Scheme::Quic).to_string();
    printed("mq-client", name, &with_broker(&url, args, broker)).await
}

#[tokio::test]
async fn subscribe_prints_what_publish_sends() {
    let broker = TestBroker::start().await;
    let Some(program) = built("mq-client", "subscribe") else {
        return;
    };
    let url = broker.address(Scheme::Quic).to_string();
    let mut subscriber = example(&program, &with_broker(&url, &["example/#"], &broker))
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines();
    let mut next = async || timeout(SOON, lines.next_line()).await.unwrap().unwrap();
    // The news of the connection may come before.
    while next().await.unwrap() != "-- subscribed" {}

    let args = ["example/topic", "good morning"];
    let Some(text) = printed_by_client("publish", &args, &broker).await else {
        return;
    };
    assert_eq!(text, "acknowledged\n");
    let message = loop {
        let line = next().await.unwrap();
        if !line.starts_with("--") {
            break line;
        }
    };
    assert_eq!(message, "example/topic good morning");
}

#[tokio::test]
async fn request_response_gets_its_answers() {
    let broker = TestBroker::start().await;
    let Some(text) = printed_by_client("request_response", &[], &broker).await else {
        return;
    };
    assert_eq!(text, "1 squared is 1\n2 squared is 4\n3 squared is 9\n");
}

#[tokio::test]
async fn zero_rtt_reconnect_has_its_early_data_accepted() {
    let broker = TestBroker::start().await;
    let Some(text) = printed_by_client("zero_rtt_reconnect", &[], &broker).await else {
        return;
    };
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("first: link after"), "{text}");
    assert!(
        lines[0].ends_with("handshake Full, early data NotOffered"),
        "{text}"
    );
    assert!(lines[1].starts_with("second: link after"), "{text}");
    assert!(
        lines[1].ends_with("handshake Resumed, early data Accepted"),
        "{text}"
    );
}

#[tokio::test]
async fn blocking_reads_what_it_published() {
    let broker = TestBroker::start().await;
    let Some(text) = printed_by_client("blocking", &[], &broker).await else {
        return;
    };
    assert_eq!(
        text,
        "example/count: 1\nexample/count: 2\nexample/count: 3\n"
    );
}

#[tokio::test]
async fn mtls_is_let_in_with_its_certificate_alone() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["sensor-7".to_owned()]).unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let certificate = file("client.pem", made.cert.pem());
    let key = file("client.key", made.signing_key.serialize_pem());
    let broker = TestBroker::start_with(|settings| {
        settings.listen.client_auth = ClientAuth::Required(folder.path().join("client.pem"));
    });
    let broker = broker.await;
    for scheme in [Scheme::Quic, Scheme::Tls] {
        let url = broker.address(scheme).to_string();
        let args = with_broker(&url, &[&certificate, &key], &broker);
        let Some(text) = printed("mq-client", "mtls", &args).await else {
            return;
        };
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("without a certificate: "), "{text}");
        assert!(!lines[0].ends_with("let in"), "{text}");
        assert_eq!(lines[1..], ["with a certificate: let in"], "{text}");
    }
}

#[tokio::test]
async fn embedded_broker_carries_a_message() {
    let Some(text) = printed("mq-broker", "embedded_broker", &[]).await else {
        return;
    };
    assert_eq!(text, "plant/7: 21.5\n2 clients\nshut down\n");
}

#[tokio::test]
async fn link_is_answered_and_resumed_over_each_transport() {
    for (scheme, second) in [
        ("quic", "handshake Resumed, early data Accepted"),
        ("tls", "handshake Resumed, early data Accepted"),
        ("wss", "handshake Resumed, early data Accepted"),
        ("tcp", "handshake None, early data NotOffered"),
        ("ws", "handshake None, early data NotOffered"),
    ] {
        let Some(text) = printed("mq-transport", "link", &[scheme]).await else {
            return;
        };
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("FIRST: handshake "), "{text}");
        assert_eq!(lines[1..], [format!("SECOND: {second}")], "{text}");
    }
}

#[tokio::test]
async fn packets_are_encoded_decoded_and_refused() {
    let Some(text) = printed("mq-codec", "packets", &[]).await else {
        return;
    };
    assert!(text.starts_with("29 bytes: 30 1b 00 07 "), "{text}");
    assert!(text.contains("after 10 bytes: None\n"), "{text}");
    assert!(
        text.contains("after all: plant/7 at AtMostOnce: 21.5\n"),
        "{text}"
    );
    assert!(
        text.ends_with("refused with MalformedPacket: QoS 3 is reserved\n"),
        "{text}"
    );
}

#[tokio::test]
async fn latency_counts_every_message() {
    let Some(text) = printed("mq-measure", "latency", &["50"]).await else {
        return;
    };
    assert!(text.starts_with("50 latencies, mean "), "{text}");
    assert!(text.contains("\nlost 0, duplicates 0\n"), "{text}");
    assert!(text.contains("\nwarning: p99.9 of 50 samples "), "{text}");
}

#[tokio::test]
async fn emulated_link_is_the_same_for_the_same_seed() {
    let run = async |seed| printed("mq-netem", "emulated_link", &["s22/wifi@loss=5%", seed]).await;
    let (Some(first), Some(again), Some(other)) = (run("1").await, run("1").await, run("2").await)
    else {
        return;
    };
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert!(first.starts_with("s22/wifi@loss=5%: "), "{first}");
}
