//! `mqbench load` against a broker in a process of its own.

use std::process::Command;

use serde_json::Value;

use crate::program::{command, mqbench, usage_mistake as mistake};

#[test]
fn load_connects_under_the_identifiers_that_it_is_given() {
    let mut broker = Broker::start();
    let ids = ["load", &broker.url, "--client-id", "plant-%r-%i"];
    let more = ["--publishers", "2", "--subscribers", "1", "--rate", "50"];
    let output = mqbench(&[&ids[..], &more, &["--duration", "100ms"]].concat());
    assert!(output.status.success(), "{output:?}");
    let log = broker.end();
    for id in ["plant-pub-0", "plant-pub-1", "plant-sub-0"] {
        assert!(log.contains(&format!("connected client={id}")), "{log}");
    }
}

#[test]
fn load_does_not_give_two_clients_one_identifier() {
    let text = mistake(&["load", "mqtt://h", "--client-id", "device-%i"]);
    assert!(text.contains("`device-0`") && text.contains("%r"), "{text}");
}

/// Returns the result that `load --json` printed.
fn result(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["schema"], "mq-load/1");
    result
}

#[test]
fn load_tells_the_latency_of_what_it_measures() {
    let broker = Broker::start();
    let load = |arguments: &[&str]| {
        let fixed = [
            "load",
            &broker.url,
            "--json",
            "--duration",
            "1s",
            "--qos",
            "1",
        ];
        let output = mqbench(&[&fixed[..], arguments].concat());
        assert!(output.stderr.is_empty(), "{output:?}");
        result(&output)
    };
    for (arguments, kind, from) in [
        (&["--rate", "500", "--subscribers", "2"][..], "open", "due"),
        (&[], "open", "sent"),
        (&["--loop", "closed", "--in-flight", "8"], "closed", "sent"),
    ] {
        let result = load(arguments);
        assert_eq!(
            (&result["loop"], &result["latency_from"]),
            (&kind.into(), &from.into())
        );
        let latency: mq_measure::Summary =
            serde_json::from_value(result["latency"].clone()).unwrap();
        assert!(latency.count > 50, "{result}");
        assert!(
            latency.p50_ns > 0 && latency.p99_ns <= latency.max_ns,
            "{result}"
        );
    }
    let nobody = load(&["--rate", "500", "--subscribers", "0"]);
    assert!(nobody["latency"].is_null(), "{nobody}");
}

#[test]
fn load_shows_each_second_beside_its_result() {
    let broker = Broker::start();
    let fixed = ["load", &broker.url, "--rate", "200", "--progress"];
    let output = mqbench(&[&fixed[..], &["--warm-up", "100ms", "--duration", "2s"]].concat());
    assert!(output.status.success(), "{output:?}");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (result, shown) = (text(output.stdout), text(output.stderr));
    assert_eq!(result.lines().count(), 1, "{result}");
    assert!(result.contains("latency p50 "), "{result}");
    let lines: Vec<_> = shown.lines().map(str::trim_start).collect();
    let begins: Vec<_> = lines
        .iter()
        .map(|line| line.split("  ").next().unwrap())
        .collect();
    assert_eq!(begins, ["warm-up", "1 s", "2 s"], "{shown}");
    for line in &lines[1..] {
        assert!(
            line.contains(" p99 ") && line.contains("received "),
            "{shown}"
        );
    }
}

/// The broker is stopped for 600 ms of 2 s.
#[cfg(unix)]
#[test]
fn an_open_loop_counts_what_was_due_while_the_broker_stood_still() {
    use std::{thread::sleep, time::Duration};

    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };

    let load = |arguments: &[&str]| {
        let broker = Broker::start();
        let fixed = [
            "load",
            &broker.url,
            "--json",
            "--qos",
            "1",
            "--duration",
            "2s",
        ];
        let load = command(&[&fixed[..], arguments].concat())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(broker.child.id().try_into().unwrap());
        sleep(Duration::from_millis(1200));
        kill(pid, Signal::SIGSTOP).unwrap();
        sleep(Duration::from_millis(600));
        kill(pid, Signal::SIGCONT).unwrap();
        let result = result(&load.wait_with_output().unwrap());
        let latency: mq_measure::Summary =
            serde_json::from_value(result["latency"].clone()).unwrap();
        latency
    };
    let open = load(&["--rate", "1000"]);
    let closed = load(&["--loop", "closed"]);
    // Nearly a third of the messages were due meanwhile, and one was in flight.
    assert!(open.p90_ns > 200_000_000, "{open:?}");
    assert!(
        closed.p99_ns < 100_000_000 && closed.max_ns > 500_000_000,
        "{closed:?}"
    );
}

#[test]
fn load_refuses_what_a_loop_has_not() {
    for (arguments, told) in [
        (&["--loop", "closed"][..], "--qos 1 or 2"),
        (
            &["--loop", "closed", "--qos", "1", "--rate", "5"],
            "--loop open",
        ),
        (&["--in-flight", "5"], "--loop closed"),
        (&["--rate", "0"], "--rate must be above 0"),
        (&["--duration", "0s"], "--duration must be above 0"),
    ] {
        let text = mistake(&[&["load", "mqtt://h"], arguments].concat());
        assert!(text.contains(told), "{text}");
    }
}

/// A broker in a process of its own.
struct Broker {
    child: std::process::Child,
    url: String,
}

impl Broker {
    fn start() -> Self {
        use std::io::BufRead as _;

        let mut child = Command::new(env!("CARGO_BIN_EXE_mqbench"))
            .args(["broker", "--listen", "tcp://127.0.0.1:0", "--announce"])
            .env("RUST_LOG", "info")
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let out = child.stdout.as_mut().unwrap();
        std::io::BufReader::new(out).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        Self { child, url }
    }

    /// Ends the broker; returns its log.
    fn end(&mut self) -> String {
        let mut log = String::new();
        self.child.kill().unwrap();
        let stderr = self.child.stderr.as_mut().unwrap();
        std::io::Read::read_to_string(stderr, &mut log).unwrap();
        self.child.wait().unwrap();
        log
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
