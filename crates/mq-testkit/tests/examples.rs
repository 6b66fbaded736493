//! The client's example programs, run as a user runs them: with a URL and the CA's file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::OnceLock,
    time::Duration,
};

use mq_testkit::{Scheme, TestBroker};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

const SOON: Duration = Duration::from_secs(30);

/// The programs, which `cargo test --workspace` builds. Where only this crate is tested nobody has
/// built them, or not since they were changed, so cargo is asked for them: it knows.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let profile = own.parent().and_then(Path::parent).unwrap();
        let programs = profile.join("examples");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mq-client/examples");
        let is_built = std::fs::read_dir(sources).unwrap().all(|source| {
            let source = source.unwrap();
            let program = programs.join(source.path().file_stem().unwrap());
            let built = program.with_extension(std::env::consts::EXE_EXTENSION);
            let built = built.metadata().and_then(|program| program.modified());
            built.is_ok_and(|built| built > source.metadata().unwrap().modified().unwrap())
        });
        if !is_built {
            let mut cargo = std::process::Command::new(env!("CARGO"));
            cargo
                .args(["build", "--locked", "-p", "mq-client", "--examples"])
                .arg("--target-dir")
                .arg(profile.parent().unwrap());
            if profile.ends_with("release") {
                cargo.arg("--release");
            }
            assert!(cargo.status().unwrap().success());
        }
        programs
    })
}

/// An example on its way; it is killed if the test gives up on it.
fn example(name: &str, args: &[&str], broker: &TestBroker) -> Command {
    let mut command = Command::new(programs().join(name));
    command
        .arg(broker.address(Scheme::Quic).to_string())
        .args(args)
        .arg(broker.certificate())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// What an example prints that succeeds.
async fn printed(name: &str, args: &[&str], broker: &TestBroker) -> String {
    let output = example(name, args, broker).output();
    let Output {
        status,
        stdout,
        stderr,
    } = timeout(SOON, output).await.unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{name}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

#[tokio::test]
async fn subscribe_prints_what_publish_sends() {
    let broker = TestBroker::start().await;
    let mut subscriber = example("subscribe", &["example/#"], &broker)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines();
    let mut next = async || timeout(SOON, lines.next_line()).await.unwrap().unwrap();
    // The news of the connection may come before.
    while next().await.unwrap() != "-- subscribed" {}

    let text = printed("publish", &["example/topic", "good morning"], &broker).await;
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
    let text = printed("request_response", &[], &broker).await;
    assert_eq!(text, "1 squared is 1\n2 squared is 4\n3 squared is 9\n");
}

#[tokio::test]
async fn zero_rtt_reconnect_has_its_early_data_accepted() {
    let broker = TestBroker::start().await;
    let text = printed("zero_rtt_reconnect", &[], &broker).await;
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
