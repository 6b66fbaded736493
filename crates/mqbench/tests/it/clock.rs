//! Clocks of two processes with a known difference, measured over a real socket.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mq_measure::{
    Samples,
    clock::{ClockFile, CrossCheck},
    log::{Outcome, read_send_log},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_mqbench");

/// A clock that is 1.5 s ahead, and 50 ppm fast from when the test began.
#[derive(Clone, Copy)]
struct Shift {
    since_ns: u64,
}

impl Shift {
    const SHIFT_NS: i64 = 1_500_000_000;
    const DRIFT_PPB: i64 = 50_000;

    fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Self {
            since_ns: u64::try_from(now.as_nanos()).unwrap(),
        }
    }

    fn variable(self) -> String {
        format!("{}:{}:{}", Self::SHIFT_NS, Self::DRIFT_PPB, self.since_ns)
    }

    /// Returns the time by which the shifted clock is ahead of a system's clock that shows `system_ns`.
    fn ahead_ns(self, system_ns: u64) -> i64 {
        let since = i64::try_from(system_ns).unwrap() - i64::try_from(self.since_ns).unwrap();
        Self::SHIFT_NS + since * Self::DRIFT_PPB / 1_000_000_000
    }

    /// Returns the time of the system's clock at which the shifted clock shows `shown_ns`.
    fn system_ns(self, shown_ns: u64) -> u64 {
        let mut system = shown_ns.checked_add_signed(-Self::SHIFT_NS).unwrap();
        for _ in 0..3 {
            system = shown_ns.checked_add_signed(-self.ahead_ns(system)).unwrap();
        }
        system
    }
}

/// A program that ends with the test, and the first lines that it printed.
struct Running {
    child: Child,
    lines: Vec<String>,
}

impl Running {
    fn start(command: &mut Command, until: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            lines.push(line.unwrap());
            if lines.last().unwrap().contains(until) {
                break;
            }
        }
        Self { child, lines }
    }

    /// Starts a machine called `name` that serves its time; returns its address as well.
    fn clock(name: &str, shift: Option<Shift>) -> (Self, String) {
        let mut command = mqbench(name, shift);
        command.args(["clock", "serve", "--listen", "127.0.0.1:0"]);
        let running = Self::start(&mut command, "telling the time");
        let address = running.lines[0].rsplit(' ').next().unwrap().to_owned();
        (running, address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command of the program on a machine called `name`.
fn mqbench(name: &str, shift: Option<Shift>) -> Command {
    let mut command = Command::new(PROGRAM);
    command.env("MQBENCH_HOST", name).stdin(Stdio::null());
    if let Some(shift) = shift {
        command.env("MQBENCH_CLOCK_SHIFT", shift.variable());
    }
    command
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn fail(command: &mut Command) -> String {
    let output: Output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_shifted_clock_is_found_again() {
    let shift = Shift::now();
    let (_server, address) = Running::clock("far", Some(shift));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("clock.json");
    let text = succeed(
        mqbench("near", None)
            .args(["clock", "measure", &address, "--for", "4s"])
            .args(["--interval", "5ms", "--out"])
            .arg(&path),
    );
    assert!(
        text.contains("far's clock is 1.50 s ahead of near's"),
        "{text}"
    );
    assert!(text.contains("ppm faster"), "{text}");
    let file = ClockFile::load(&path).unwrap();
    let fit = file.fit().unwrap();
    let summary = &file.summary;
    println!("{text}{summary:?}");
    for at in [summary.from_ns, summary.at_ns, summary.until_ns] {
        let (offset, uncertainty) = fit.offset_at(at);
        let truth = shift.ahead_ns(at);
        assert!(
            offset.abs_diff(truth) <= uncertainty,
            "{offset} ± {uncertainty}, but {truth}"
        );
    }
    // Loopback takes microseconds; a busy machine some of thousands of them.
    assert!(summary.uncertainty_ns < 20_000_000, "{summary:?}");
    assert!(
        (summary.skew_ppb - 50_000.0).abs() < 25_000.0,
        "{summary:?}"
    );
    assert!(summary.exchanges > 100, "{summary:?}");
    assert_eq!(
        file.asked,
        file.exchanges.len() as u64,
        "loopback loses nothing"
    );
}

#[test]
fn one_way_delays_between_shifted_clocks_are_true_within_their_uncertainty() {
    let shift = Shift::now();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let broker = Running::start(
        Command::new(PROGRAM)
            .args(["broker", "--announce", "--listen", "tcp://127.0.0.1:0"])
            .stdin(Stdio::null()),
        "ready",
    );
    let url = broker.lines[0].clone();
    let (_server, address) = Running::clock("pub", Some(shift));
    let mut measuring = mqbench("sub", None)
        .args(["clock", "measure", &address, "--for", "5s"])
        .args(["--interval", "10ms", "--out"])
        .arg(file("clock.json"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut subscriber = mqbench("sub", None)
        .args(["sub", &url, "--count", "100", "--idle", "3s", "--log"])
        .arg(file("receive.csv"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Wait for its SUBSCRIBE: earlier messages would be lost and counted.
    std::thread::sleep(Duration::from_secs(1));
    succeed(
        mqbench("pub", Some(shift))
            .args(["pub", &url, "--count", "100", "--interval", "20ms", "--log"])
            .arg(file("send.csv")),
    );
    assert!(subscriber.wait().unwrap().success());
    assert!(measuring.wait().unwrap().success());

    let join = || {
        let mut join = mqbench("sub", None);
        join.arg("join")
            .args([file("send.csv"), file("receive.csv")])
            .arg("--clock")
            .arg(file("clock.json"));
        join
    };
    let text = succeed(
        join()
            .arg("--out")
            .arg(file("samples.csv"))
            .arg("--json")
            .arg(file("join.json")),
    );
    println!("{text}");
    let outcome = Outcome::load(&file("join.json")).unwrap();
    let uncertainty = outcome.uncertainty_ns.unwrap();
    assert!(text.contains("each of these is uncertain by"), "{text}");
    let samples = Samples::load(&file("samples.csv")).unwrap();
    let sends = read_send_log(&file("send.csv")).unwrap();
    assert_eq!(samples.0.len(), sends.records.len());
    let mut arrived = 0;
    for (sample, send) in samples.0.iter().zip(&sends.records) {
        // The time of the subscriber's clock at the send time in the publisher's log.
        let truth = shift.system_ns(send.sent_ns);
        assert!(
            sample.sent_ns.abs_diff(truth) <= uncertainty,
            "{sample:?}: {truth} ± {uncertainty}"
        );
        arrived += u32::from(sample.received_ns.is_some());
    }
    assert!(arrived > 50, "{arrived} arrived");

    // A run against itself differs by nothing, which is less than the uncertainty.
    let text = succeed(join().arg("--against").arg(file("join.json")));
    assert!(
        text.contains("! the clocks' offset is uncertain by"),
        "{text}"
    );
    // Without the comparison the difference is not known.
    let text = succeed(
        mqbench("sub", None)
            .arg("join")
            .args([file("send.csv"), file("receive.csv")]),
    );
    assert!(text.contains("! the logs are of two machines"), "{text}");
    assert!(text.contains("seem to have arrived before"), "{text}");
}

/// Makes a folder with a `chronyc` that prints a given report.
fn chronyc(directory: &Path, offset_s: &str) {
    use std::os::unix::fs::PermissionsExt as _;

    let line = format!(
        "C0A8010A,192.168.1.10,3,1714560000.142413385,{offset_s},0.000003428,0.000023000,-9.456,\
         -0.001,0.045,0.002000000,0.001000000,64.8,Normal"
    );
    let path = directory.join("chronyc");
    let script = format!("#!/bin/sh\n[ \"$*\" = '-c tracking' ] && echo '{line}'\n");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn chrony_is_asked_on_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", directory.path().display());
    chronyc(directory.path(), "-0.000500000");
    let measure = |shift: Option<&str>| {
        let mut server = mqbench("far", None);
        server.env("PATH", &path);
        if let Some(shift) = shift {
            server.env("MQBENCH_CLOCK_SHIFT", shift);
        }
        server.args(["clock", "serve", "--listen", "127.0.0.1:0"]);
        let server = Running::start(&mut server, "telling the time");
        let address = server.lines[0].rsplit(' ').next().unwrap();
        // The server asks its chrony when it begins.
        std::thread::sleep(Duration::from_millis(500));
        let json = succeed(
            mqbench("near", None)
                .env("PATH", &path)
                .args(["clock", "measure", address, "--for", "1s"])
                .args(["--interval", "10ms", "--json"]),
        );
        serde_json::from_str::<ClockFile>(&json).unwrap()
    };
    let file = measure(None);
    // Half a millisecond, half of the root delay of two, and a dispersion of one.
    let bound_ns = 2_500_000;
    assert_eq!(file.local.error_bound_ns, Some(bound_ns));
    assert_eq!(file.remote.error_bound_ns, Some(bound_ns));
    let agrees = CrossCheck::Agrees {
        bound_ns: 2 * bound_ns,
    };
    assert_eq!(file.cross_check, agrees, "{:?}", file.summary);
    let file = measure(Some("3000000000"));
    let disagrees = CrossCheck::Disagrees {
        bound_ns: 2 * bound_ns,
    };
    assert_eq!(file.cross_check, disagrees, "{:?}", file.summary);
    assert!(!file.validity.warnings.is_empty());
}

/// Runs a script in a lab whose publisher is behind an emulated link; `None` where there are no labs.
fn lab(link: &str, script: &str, variables: &[(&str, &str)]) -> Option<String> {
    let output = Command::new(PROGRAM)
        .args(["lab", "shell", "--link", link, "--", "sh", "-c", script])
        .envs(variables.iter().copied())
        .env("MQBENCH", PROGRAM)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if stderr.contains("namespaces") {
        println!("SKIPPED: {stderr}");
        return None;
    }
    assert!(output.status.success(), "{stderr}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_link_that_delays_one_way_is_within_the_uncertainty() {
    // 25 ms to the broker and nothing back: as unequal as it can be.
    let shift = Shift::now();
    let script = r#"
        MQBENCH_HOST=broker MQBENCH_CLOCK_SHIFT=$SHIFT \
            "$MQBENCH" lab exec broker "$MQBENCH" clock serve --listen 0.0.0.0:14568 >/dev/null &
        sleep 0.5
        for least in 0ms 25ms; do
            MQBENCH_HOST=publisher "$MQBENCH" lab exec publisher \
                "$MQBENCH" clock measure 10.77.0.2 --for 3s --interval 20ms \
                --least-there $least --out "$OUT/$least.json" || exit 1
        done
    "#;
    let directory = tempfile::tempdir().unwrap();
    let variables = [
        ("SHIFT", &shift.variable()[..]),
        ("OUT", directory.path().to_str().unwrap()),
    ];
    let Some(text) = lab("s22/wifi@loss=5%", script, &variables) else {
        return;
    };
    println!("{text}");
    for (least, width) in [("0ms", 12_500_000..20_000_000), ("25ms", 0..7_000_000)] {
        let file = ClockFile::load(&directory.path().join(format!("{least}.json"))).unwrap();
        assert_eq!(file.remote.host, "broker");
        let (offset, uncertainty) = file.fit().unwrap().offset_at(file.summary.at_ns);
        let truth = shift.ahead_ns(file.summary.at_ns);
        println!("{least}: {offset} ± {uncertainty}, truth {truth}");
        assert!(offset.abs_diff(truth) <= uncertainty, "{least}");
        assert!(width.contains(&uncertainty), "{least}: {uncertainty}");
        // Questions that the link loses are counted.
        assert!(file.exchanges.len() as u64 <= file.asked);
    }
}

#[test]
fn mistakes_are_reported_in_one_line() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = socket.local_addr().unwrap().to_string();
    drop(socket);
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.json");
    let missing = missing.to_str().unwrap();
    let sends = directory.path().join("send.csv");
    let receives = directory.path().join("receive.csv");
    fs::write(
        &sends,
        "# mq send-log v1 run=r host=pub\nseq,intended_ns,sent_ns\n",
    )
    .unwrap();
    fs::write(
        &receives,
        "# mq receive-log v1 run=r host=sub\nseq,received_ns\n",
    )
    .unwrap();
    let (sends, receives) = (sends.to_str().unwrap(), receives.to_str().unwrap());
    for (args, expected) in [
        (
            &["clock", "measure", &nobody, "--for", "100ms"][..],
            "start `mqbench clock serve` there",
        ),
        (&["clock", "measure", "h", "--interval", "0ms"], "1ms apart"),
        (&["join", sends, receives, "--clock", missing], "none.json"),
        (
            &["join", sends, receives, "--against", missing],
            "none.json",
        ),
    ] {
        let text = fail(mqbench("here", None).args(args));
        assert!(text.contains(expected), "{args:?}: {text}");
        let one = text.lines().count() == 1 || text.contains("--help");
        assert!(one, "{args:?}: {text}");
    }
    let text = fail(
        mqbench("here", None)
            .env("MQBENCH_CLOCK_SHIFT", "soon")
            .args(["clock", "serve", "--listen", "127.0.0.1:0"]),
    );
    assert!(text.contains("SHIFT_NS"), "{text}");
}
