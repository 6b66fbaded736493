//! Each end that the user causes sends DISCONNECT: the broker has no ghost, and publishes no will.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mq_client::{Outgoing, QoS, Subscription};
use mq_testkit::{Scheme, TestBroker};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::ends::{PATIENCE, exit_code};

/// Time in which the broker has to know of the end: less than QUIC's idle timeout and any keep-alive.
const SOON: Duration = Duration::from_secs(5);

/// The end of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Signal(Signal),
    /// `-W`
    Time,
    /// `-C`
    Count,
    /// The reader of the standard output goes away.
    Pipe,
    /// The end of the standard input.
    Input,
}

async fn wait_for(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < limit, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Starts `mq` with a will.
fn mq(broker: &TestBroker, scheme: Scheme, args: &[&str]) -> Child {
    let url = broker.address(scheme).to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
    command.args(args).arg(url);
    command.args(["--will-topic", "w", "--will-payload", "gone"]);
    if scheme == Scheme::Quic {
        command.arg("--insecure");
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn next(messages: &mut Subscription) -> Vec<u8> {
    let message = tokio::time::timeout(PATIENCE, messages.recv()).await;
    message.unwrap().unwrap().payload.to_vec()
}

async fn check(scheme: Scheme, args: &[&str], end: End, expected: i32) {
    let what = format!("{scheme} {args:?} {end:?}");
    let broker = TestBroker::start().await;
    let watcher = broker.client(Scheme::Tcp, "watcher").build().await.unwrap();
    let mut wills = watcher.subscribe("w", QoS::AtMostOnce).await.unwrap();
    let subscriptions = || broker.broker().metrics().subscriptions.get();
    let connections = || broker.broker().metrics().connections.get();
    let mut child = mq(&broker, scheme, args);
    if args[0] == "pub" {
        wait_for(&what, PATIENCE, || connections() == 2).await;
    } else {
        wait_for(&what, PATIENCE, || subscriptions() == 2).await;
    }
    let publish = async || {
        let message = Outgoing::to("news", "hello").unwrap();
        watcher.send(message).await.unwrap();
    };
    match end {
        End::Signal(signal) => {
            let pid = i32::try_from(child.id()).unwrap();
            kill(Pid::from_raw(pid), signal).unwrap();
        }
        End::Time => {}
        End::Count => publish().await,
        End::Pipe => {
            // The program has printed a message, so it waits for the next.
            publish().await;
            let mut line = String::new();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            stdout.read_line(&mut line).unwrap();
            assert_eq!(line, "hello\n", "{what}");
            drop(stdout);
            publish().await;
        }
        End::Input => {
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(b"last\n").unwrap();
        }
    }
    assert_eq!(exit_code(&mut child).await, Some(expected), "{what}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{what}");
    wait_for(&what, SOON, || connections() == 1).await;
    let message = Outgoing::to("w", "no will").unwrap();
    watcher.send(message).await.unwrap();
    assert_eq!(next(&mut wills).await, b"no will", "{what}");
    broker.shutdown().await;
}

const SUBSCRIBE: &[&str] = &["sub", "-t", "news", "-q", "1"];
const SCHEMES: [Scheme; 2] = [Scheme::Tcp, Scheme::Quic];

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_disconnects() {
    for scheme in SCHEMES {
        check(scheme, SUBSCRIBE, End::Signal(Signal::SIGINT), 0).await;
        check(scheme, SUBSCRIBE, End::Signal(Signal::SIGTERM), 143).await;
        let lines = ["pub", "-t", "news", "-l"];
        check(scheme, &lines, End::Signal(Signal::SIGINT), 130).await;
        check(scheme, &lines, End::Signal(Signal::SIGTERM), 143).await;
        let request = ["rr", "-t", "news", "-m", "x"];
        check(scheme, &request, End::Signal(Signal::SIGTERM), 143).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_time_disconnects() {
    for scheme in SCHEMES {
        check(scheme, &[SUBSCRIBE, &["-W", "2"]].concat(), End::Time, 27).await;
        let request = ["rr", "-t", "news", "-m", "x", "-W", "2"];
        check(scheme, &request, End::Time, 27).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_message_and_the_end_of_the_input_disconnect() {
    for scheme in SCHEMES {
        check(scheme, &[SUBSCRIBE, &["-C", "1"]].concat(), End::Count, 0).await;
        check(scheme, &["pub", "-t", "news", "-l"], End::Input, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_has_gone_is_a_quiet_end() {
    for scheme in SCHEMES {
        check(scheme, SUBSCRIBE, End::Pipe, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_leaves_the_subscriptions_of_a_session_that_is_kept() {
    let broker = TestBroker::start().await;
    let kept = [SUBSCRIBE, &["-i", "kept", "-c"]].concat();
    let mut child = mq(&broker, Scheme::Tcp, &kept);
    let subscriptions = || broker.broker().metrics().subscriptions.get();
    wait_for("subscribes", PATIENCE, || subscriptions() == 1).await;
    let pid = i32::try_from(child.id()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    assert_eq!(exit_code(&mut child).await, Some(143));
    let connections = || broker.broker().metrics().connections.get();
    wait_for("leaves", SOON, || connections() == 0).await;
    assert_eq!(subscriptions(), 1);
    broker.shutdown().await;
}
