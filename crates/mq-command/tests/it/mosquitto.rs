//! `mq` in the place of Debian's `mosquitto_pub`, `mosquitto_sub` and `mosquitto_rr`: the same arguments, and the
//! same output and exit code.

use std::{
    process::{Output, Stdio},
    time::Duration,
};

use mq_testkit::{Scheme, TestBroker};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
    time::timeout,
};

/// A step that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Project whose programs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Mosquitto,
    Ours,
}

impl Whose {
    /// Makes the command of `pub`, `sub` or `rr`, with a broker on a port.
    fn command(self, name: &str, port: u16, args: &[&str]) -> Command {
        let mut command = match self {
            Self::Mosquitto => Command::new(format!("mosquitto_{name}")),
            Self::Ours => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
                command.arg(name);
                command
            }
        };
        command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        command.args(args);
        command
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }
}

/// A publisher's arguments and standard input.
type Publish = (&'static [&'static str], &'static str);

/// A subscriber's arguments, and what is published before it is there and after.
struct Case {
    subscribe: &'static [&'static str],
    before: &'static [Publish],
    publish: &'static [Publish],
}

const fn case(subscribe: &'static [&'static str], publish: &'static [Publish]) -> Case {
    Case {
        subscribe,
        before: &[],
        publish,
    }
}

const CASES: &[Case] = &[
    case(
        &["-t", "a/b", "-C", "1"],
        &[(&["-t", "a/b", "-m", "hello"], "")],
    ),
    case(
        &["-t", "a/#", "-C", "1", "-v"],
        &[(&["-t", "a/b", "-m", "hello"], "")],
    ),
    case(
        &["-t", "a/#", "-C", "2", "-v"],
        &[(&["-t", "a/b", "-n"], ""), (&["-t", "a/c", "-m", "x"], "")],
    ),
    case(
        &["-t", "a", "-C", "2"],
        &[(&["-t", "a", "-n"], ""), (&["-t", "a", "-m", "x"], "")],
    ),
    case(
        &["-t", "a", "-C", "2", "-N"],
        &[(&["-t", "a", "-m", "x", "--repeat", "2"], "")],
    ),
    case(
        &[
            "-t",
            "a",
            "-C",
            "1",
            "-q",
            "2",
            "-F",
            "%t %q %r %l %x %X|%p",
        ],
        &[(&["-t", "a", "-m", "Hey", "-q", "2"], "")],
    ),
    case(
        &["-t", "a", "-C", "1", "-q", "1", "-F", "%%@@\\t|%q\\n%p"],
        &[(&["-t", "a", "-m", "x", "-q", "1"], "")],
    ),
    case(
        &["-t", "a", "-t", "b", "-C", "2", "-v"],
        &[(&["-t", "b", "-m", "1"], ""), (&["-t", "a", "-m", "2"], "")],
    ),
    case(
        &["-t", "#", "-T", "a/+", "-C", "1", "-v"],
        &[
            (&["-t", "a/b", "-m", "1"], ""),
            (&["-t", "c", "-m", "2"], ""),
        ],
    ),
    Case {
        subscribe: &["-t", "r/#", "-R", "-C", "1", "-v"],
        before: &[(&["-t", "r/1", "-m", "old", "-r", "-q", "1"], "")],
        publish: &[(&["-t", "r/2", "-m", "new"], "")],
    },
    Case {
        subscribe: &["-t", "r/#", "--retained-only", "-v", "-F", "%t %r %p"],
        before: &[(&["-t", "r/1", "-m", "old", "-r", "-q", "1"], "")],
        publish: &[(&["-t", "r/2", "-m", "new"], "")],
    },
    Case {
        subscribe: &["-t", "r/#", "-F", "%r%p", "-C", "2"],
        before: &[(&["-t", "r/1", "-m", "old", "-r", "-q", "1"], "")],
        publish: &[(&["-t", "r/1", "-m", "now", "-r"], "")],
    },
    case(&["-t", "never", "-W", "1"], &[]),
    case(&["-t", "granted", "-E"], &[]),
    case(
        &["-t", "a", "-C", "3"],
        &[(&["-t", "a", "-l"], "one\ntwo\nthree\n")],
    ),
    case(
        &["-t", "a", "-C", "1"],
        &[(&["-t", "a", "-s"], "all\nof it\n")],
    ),
    case(
        &["-t", "a", "-C", "1", "-F", "%j"],
        &[(&["-t", "a", "-m", "say \"hi\""], "")],
    ),
    case(
        &["-t", "a", "-C", "1", "-F", "%J"],
        &[(&["-t", "a", "-m", "{\"n\":1}"], "")],
    ),
    case(
        &[
            "-V",
            "mqttv5",
            "-t",
            "a",
            "-C",
            "1",
            "-F",
            "%C|%D|%E|%F|%R|%P|%p",
        ],
        &[(
            &[
                "-V",
                "mqttv5",
                "-t",
                "a",
                "-m",
                "x",
                "-D",
                "publish",
                "content-type",
                "text/plain",
                "-D",
                "publish",
                "correlation-data",
                "abc",
                "-D",
                "publish",
                "payload-format-indicator",
                "1",
                "-D",
                "publish",
                "response-topic",
                "b",
                "-D",
                "publish",
                "user-property",
                "k",
                "v",
            ],
            "",
        )],
    ),
    case(
        &["-V", "mqttv31", "-t", "a", "-C", "1", "-i", "old"],
        &[(&["-V", "mqttv31", "-t", "a", "-m", "x"], "")],
    ),
];

/// Digits of a time become zeros. mosquitto 2.0 writes both `Z` and an offset, which ISO 8601 does not know.
fn without_times(text: &str) -> String {
    let Some((before, rest)) = text.split_once("\"tst\":\"") else {
        return text.to_owned();
    };
    let (time, after) = rest.split_once('"').unwrap();
    let shape: String = time
        .chars()
        .map(|one| if one.is_ascii_digit() { '0' } else { one })
        .collect();
    let shape = shape.replace("Z+", "+");
    format!("{before}\"tst\":\"{shape}\"{after}")
}

async fn finish(child: Child, input: &str) -> Output {
    let mut child = child;
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = timeout(PATIENCE, child.wait_with_output()).await;
    output.expect("it ends").unwrap()
}

async fn publish(whose: Whose, port: u16, (args, input): &Publish) -> Option<i32> {
    let child = whose.command("pub", port, args).spawn().unwrap();
    let output = finish(child, input).await;
    output.status.code()
}

/// Runs a case. Returns the subscriber's output and exit code, and the publishers' exit codes.
async fn outcome(whose: Whose, case: &Case) -> (String, Option<i32>, Vec<Option<i32>>) {
    let broker = TestBroker::start().await;
    let port = broker.address(Scheme::Tcp).port;
    let mut codes = Vec::new();
    for one in case.before {
        codes.push(publish(whose, port, one).await);
    }
    let subscriber = whose.command("sub", port, case.subscribe).spawn().unwrap();
    let filters = case.subscribe.iter().filter(|arg| **arg == "-t").count();
    if !case.publish.is_empty() {
        let is_there = async {
            while broker.broker().metrics().subscriptions.get() < filters {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let is_there = timeout(PATIENCE, is_there).await;
        is_there.unwrap_or_else(|_| panic!("{whose:?} does not subscribe: {:?}", case.subscribe));
    }
    for one in case.publish {
        codes.push(publish(whose, port, one).await);
    }
    let output = finish(subscriber, "").await;
    let text = String::from_utf8(output.stdout).unwrap();
    broker.shutdown().await;
    (without_times(&text), output.status.code(), codes)
}

fn has_mosquitto() -> bool {
    let found = std::process::Command::new("mosquitto_sub")
        .arg("--help")
        .output()
        .is_ok();
    if !found {
        println!("SKIPPED: mosquitto_sub is not installed (Debian's mosquitto-clients)");
        assert!(std::env::var_os("CI").is_none(), "CI installs it");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_arguments_print_the_same_and_end_the_same() {
    if !has_mosquitto() {
        return;
    }
    let mut differences = Vec::new();
    for case in CASES {
        let theirs = outcome(Whose::Mosquitto, case).await;
        let ours = outcome(Whose::Ours, case).await;
        if ours != theirs {
            let what = (case.subscribe, case.publish);
            differences.push(format!("{what:?}:\n  ours {ours:?}\n  theirs {theirs:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_not_there_or_refuses_is_an_error_of_both() {
    if !has_mosquitto() {
        return;
    }
    // A port that nobody listens on.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    for (name, args) in [
        ("pub", &["-t", "a", "-m", "x"][..]),
        ("sub", &["-t", "a"]),
        ("rr", &["-t", "a", "-e", "b", "-m", "x"]),
    ] {
        for whose in [Whose::Mosquitto, Whose::Ours] {
            let child = whose.command(name, port, args).spawn().unwrap();
            let output = finish(child, "").await;
            assert_eq!(output.status.code(), Some(1), "{whose:?} {name}");
            assert!(!output.stderr.is_empty() && output.stdout.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_in_a_kept_session_is_printed_by_both() {
    if !has_mosquitto() {
        return;
    }
    for whose in [Whose::Mosquitto, Whose::Ours] {
        for version in ["mqttv311", "mqttv5"] {
            let broker = TestBroker::start().await;
            let port = broker.address(Scheme::Tcp).port;
            let mut kept = vec!["-V", version, "-i", "kept", "-c", "-q", "1", "-t", "a"];
            if version == "mqttv5" {
                kept.extend(["-x", "600"]);
            }
            let away = [&kept[..], &["-E"]].concat();
            finish(whose.command("sub", port, &away).spawn().unwrap(), "").await;
            let lines: Publish = (&["-t", "a", "-q", "1", "-l"], "1\n2\n3\n");
            let back = [&kept[..], &["-C", "3", "-W", "10"]].concat();
            // mosquitto_sub leaves without acknowledging its last messages.
            for time in 0..if matches!(whose, Whose::Ours) { 2 } else { 1 } {
                publish(whose, port, &lines).await;
                let output = finish(whose.command("sub", port, &back).spawn().unwrap(), "").await;
                let text = String::from_utf8(output.stdout).unwrap();
                assert_eq!(text, "1\n2\n3\n", "{whose:?} {version} {time}");
            }
            broker.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_gets_its_response() {
    if !has_mosquitto() {
        return;
    }
    let broker = TestBroker::start().await;
    let port = broker.address(Scheme::Tcp).port;
    let responder = broker
        .client(Scheme::Tcp, "responder")
        .build()
        .await
        .unwrap();
    let mut requests = responder
        .subscribe("ask/#", mq_client::QoS::AtLeastOnce)
        .await
        .unwrap();
    let answers = tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            let payload = format!("re: {}", request.text().unwrap());
            responder.respond(&request, payload).await.unwrap();
        }
    });
    for whose in [Whose::Mosquitto, Whose::Ours] {
        let args = [
            "-V", "mqttv5", "-t", "ask/1", "-e", "answer/1", "-m", "x", "-W", "10",
        ];
        let child = whose.command("rr", port, &args).spawn().unwrap();
        let output = finish(child, "").await;
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "re: x\n",
            "{whose:?}"
        );
        assert_eq!(output.status.code(), Some(0), "{whose:?}");
    }
    answers.abort();
    broker.shutdown().await;
}
