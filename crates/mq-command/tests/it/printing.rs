//! Messages as `mq sub` prints them: to a terminal, to a pipe, and as JSON.

use std::{
    fs::File,
    io::Read as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mq_client::{Outgoing, QoS};
use mq_testkit::{Scheme, TestBroker};
use nix::pty::{OpenptyResult, openpty};

/// A step that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Clears the screen and sets the title, once with 7 and once with 8 bits, and turns the direction of writing.
const HOSTILE: &[u8] = b"a\x1b[2J\x1b]0;t\x07\xc2\x9b2J\x9b1H\xe2\x80\xae\tb";

/// Prints the message that `mq sub ARGS` receives on the topic `t/x`.
async fn printed(args: &[&str], to_terminal: bool, payload: &[u8]) -> Vec<u8> {
    let broker = TestBroker::start().await;
    let url = broker.address(Scheme::Tcp).to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
    command.args(["sub", "-t", "t/+", "-C", "1", "-W", "20", &url]);
    command.args(args).stdin(Stdio::null());
    let mut output = Vec::new();
    let (mut child, mut reader): (_, Box<dyn std::io::Read + Send>) = if to_terminal {
        let OpenptyResult { master, slave } = openpty(None, None).unwrap();
        let child = command.stdout(slave).spawn().unwrap();
        (child, Box::new(File::from(master)))
    } else {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        (child, Box::new(stdout))
    };
    drop(command);
    let begin = Instant::now();
    while broker.broker().metrics().subscriptions.get() == 0 {
        assert!(begin.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let publisher = broker.client(Scheme::Tcp, "publisher").build().await;
    let message = Outgoing::to("t/x", payload.to_vec()).unwrap();
    let message = message.qos(QoS::AtLeastOnce);
    let mut receipt = publisher.unwrap().send(message).await.unwrap();
    receipt.acknowledged().await.unwrap();
    let output = tokio::task::spawn_blocking(move || {
        let mut buffer = [0; 4096];
        // A terminal ends with an error once no process has it.
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            output.extend_from_slice(&buffer[..count]);
        }
        output
    });
    let output = output.await.unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    broker.shutdown().await;
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_cannot_control_a_terminal() {
    let shown = r"a\u001b[2J\u001b]0;t\u0007\u009b2J\x9b1H\u202e";
    let shown = String::from_utf8(printed(&["-v"], true, HOSTILE).await)
        .map(|text| (text.contains(shown), text));
    let (is_escaped, text) = shown.unwrap();
    assert!(is_escaped, "{text:?}");
    assert!(text.starts_with("t/x a"), "{text:?}");
    // A format's own control characters are the user's.
    let shown = printed(&["-F", "\\e[1m%p\\e[0m"], true, HOSTILE).await;
    assert!(shown.starts_with(b"\x1b[1ma\\u001b"), "{shown:?}");
    let json = printed(&["-F", "%j"], true, HOSTILE).await;
    assert!(!json.contains(&0x1b) && !json.contains(&0x9b), "{json:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_raw_in_a_pipe_and_where_asked_for() {
    assert_eq!(printed(&["-N"], false, HOSTILE).await, HOSTILE);
    assert_eq!(printed(&["-N", "--raw"], false, HOSTILE).await, HOSTILE);
    let raw = printed(&["-N", "--raw"], true, b"a\x1b[2Jb").await;
    assert_eq!(raw, b"a\x1b[2Jb");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_keeps_the_numbers_of_the_payload() {
    let payload = br#"{"z": 9007199254740993, "big": 123456789012345678901, "a": [1.10, 1e400]}"#;
    let line = String::from_utf8(printed(&["-F", "%J"], false, payload).await).unwrap();
    let kept = r#""payload":{"z":9007199254740993,"big":123456789012345678901,"a":[1.10,1e400]}"#;
    assert!(line.contains(kept), "{line}");
    assert_eq!(line.lines().count(), 1);
    let pretty = printed(&["-F", "%J", "--pretty"], false, payload).await;
    let pretty = String::from_utf8(pretty).unwrap();
    assert!(
        pretty.contains("    \"z\": 9007199254740993,\n    \"big\": 123456789012345678901,"),
        "{pretty}"
    );
}
