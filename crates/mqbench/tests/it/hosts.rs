//! A testbed as a user sets it up: three hosts that are reached by ssh, and campaigns over them. The hosts are
//! addresses of this machine.

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread::sleep,
    time::{Duration, Instant},
};

use mq_testkit::{FakeSys, Multimeter, MultimeterModel, free_port};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    program::{mistake, mqbench},
    sshd::{Keys, SSHD},
};

/// A campaign with one run of each transport: few messages, nothing shaped. Every kernel permits Reno to every user.
const CAMPAIGN: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "periodic"
congestion = "reno"
messages = 20
interval = "10ms"
[factors]
qos = [1]
transport = ["tcp", "tls", "quic"]
[plot]
kind = "lines"
metric = "latency_mean"
x = "qos"
series = "transport"
"#;

/// Timeout of a server's start.
const START: Duration = Duration::from_secs(10);

const PROGRAM: &str = env!("CARGO_BIN_EXE_mqbench");

/// Runs the program, asserts that it succeeds, and returns its output.
fn good(arguments: &[&str]) -> String {
    let output = mqbench(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// An ssh server. A drop kills it; its sessions end with their clients.
struct Server(Child);

impl Server {
    /// Starts a server; returns once it listens.
    fn start(mut command: Command, ip: &str, port: u16) -> Self {
        if nix::unistd::geteuid().is_root() {
            // The ssh server needs this folder.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let server = Self(command.spawn().unwrap());
        let began = Instant::now();
        while TcpStream::connect((ip, port)).is_err() {
            assert!(
                began.elapsed() < START,
                "sshd does not listen at {ip}:{port}"
            );
            sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three hosts, and the file that names them.
struct Testbed {
    folder: TempDir,
    keys: Keys,
    servers: Vec<Server>,
}

impl Testbed {
    const HOSTS: [(&str, &str); 3] = [
        ("broker", "127.0.0.1"),
        ("publisher", "127.0.0.2"),
        ("subscriber", "127.0.0.3"),
    ];

    /// Builds a testbed without a meter; `None`, with a message, without OpenSSH.
    fn new() -> Option<Self> {
        Self::with_meter("", Path::new("/nothing"))
    }

    /// Builds a testbed with these lines about the publisher's host, and these sensors on all hosts. The publisher's
    /// clock is an hour behind the others'.
    fn with_meter(meter: &str, sys: &Path) -> Option<Self> {
        if !Path::new(SSHD).exists() {
            mq_testkit::skipped("no OpenSSH server: apt-get install openssh-server");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::make(folder.path());
        let mut servers = Vec::new();
        let mut hosts = Vec::new();
        for (role, ip) in Self::HOSTS {
            let work = folder.path().join(format!("work of the {role}"));
            fs::create_dir(&work).unwrap();
            let shift = if role == "publisher" {
                "-3600000000000"
            } else {
                "0"
            };
            let work = format!("\"{}\"", work.display());
            let environment = [
                ("TMPDIR", &work[..]),
                ("MQBENCH_CLOCK_SHIFT", shift),
                ("MQBENCH_SYS", sys.to_str().unwrap()),
            ];
            let port = free_port();
            keys.introduce(role, ip, port);
            servers.push(Server::start(keys.server(ip, port, &environment), ip, port));
            let meter = if role == "publisher" { meter } else { "" };
            hosts.push(format!(
                "[[host]]\nname = \"the {role}\"\nroles = [\"{role}\"]\nssh = \"{role}\"\n\
                 program = \"{PROGRAM}\"\naddress = \"{ip}\"\ninterface = \"lo\"\n{meter}"
            ));
        }
        fs::write(folder.path().join("hosts.toml"), hosts.concat()).unwrap();
        fs::write(folder.path().join("some.toml"), CAMPAIGN).unwrap();
        Some(Self {
            folder,
            keys,
            servers,
        })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Returns the arguments of every command that reaches hosts.
    fn ssh(&self) -> [String; 2] {
        let file = self.keys.configuration();
        ["--ssh-config".to_owned(), file.to_str().unwrap().to_owned()]
    }

    /// Runs `hosts` with these arguments.
    fn hosts(&self, action: &str, more: &[&str]) -> std::process::Output {
        let (hosts, ssh) = (self.path("hosts.toml"), self.ssh());
        let ssh = ssh.each_ref().map(|word| &word[..]);
        mqbench(&[&["hosts", action, &hosts], &ssh[..], more].concat())
    }

    /// Lists the content of the hosts' folder for temporary files.
    fn left(&self) -> Vec<PathBuf> {
        let folders = Self::HOSTS.iter();
        let folders =
            folders.map(|(role, _)| self.folder.path().join(format!("work of the {role}")));
        let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
        files.map(|file| file.unwrap().path()).collect()
    }

    /// Runs the campaign by `run`; returns its messages.
    fn campaign(&self, run: fn(&[&str]) -> String) -> String {
        let [file, out, hosts] = ["some.toml", "out", "hosts.toml"].map(|name| self.path(name));
        let (file, out) = (["campaign", "run", &file], ["--out", &out]);
        let (hosts, ssh) = (["--hosts", &hosts], self.ssh());
        let ssh = ssh.each_ref().map(|word| &word[..]);
        run(&[&file[..], &out, &hosts, &ssh].concat())
    }

    /// Removes plain TCP from the campaign: it has no sessions to resume.
    fn without_tcp(&self) {
        let text = CAMPAIGN.replace("\"tcp\", ", "");
        fs::write(self.path("some.toml"), text).unwrap();
    }

    /// Runs the campaign with another pattern; returns its records, after a check that no run failed.
    fn pattern(&self, pattern: &str, messages: u64, more: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path("some.toml")).unwrap();
        let text = text.replace("\"periodic\"", &format!("\"{pattern}\""));
        let text = text.replace("messages = 20", &format!("messages = {messages}\n{more}"));
        fs::write(self.path("some.toml"), text).unwrap();
        self.campaign(good);
        let records = self.records();
        for record in &records {
            assert_eq!(record["outcome"]["error"], Value::Null, "{record}");
        }
        assert_eq!(self.left(), [""; 0].map(PathBuf::from));
        records
    }

    fn records(&self) -> Vec<Value> {
        let records = self.folder.path().join("out/records/some.jsonl");
        let records = fs::read_to_string(records).unwrap();
        let lines = records.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

#[test]
fn hosts_are_checked() {
    let Some(bed) = Testbed::new() else { return };
    let output = bed.hosts("check", &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    for (role, _) in Testbed::HOSTS {
        assert!(said.contains(&format!("the {role}: ")), "{said}");
    }
    // A host whose key is not known, one that does not exist, and one without the program.
    fs::write(bed.path("known_hosts"), "").unwrap();
    let output = bed.hosts("check", &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success());
    assert_eq!(
        said.matches("Host key verification failed").count(),
        3,
        "{said}"
    );
    let hosts = fs::read_to_string(bed.path("hosts.toml")).unwrap();
    let hosts = hosts.replace(PROGRAM, "/nowhere/mqbench");
    fs::write(bed.path("hosts.toml"), hosts).unwrap();
    let Some(mut bed) = Testbed::new() else {
        return;
    };
    bed.servers.pop();
    let hosts = fs::read_to_string(bed.path("hosts.toml")).unwrap();
    let hosts = hosts.replacen(PROGRAM, "/nowhere/mqbench", 1);
    fs::write(bed.path("hosts.toml"), hosts).unwrap();
    let said = String::from_utf8(bed.hosts("check", &[]).stdout).unwrap();
    let mut lines = said.lines();
    let gone = lines.next().unwrap();
    assert!(
        gone.contains("host the broker") && gone.contains("/nowhere/mqbench"),
        "{said}"
    );
    assert!(
        said.lines().last().unwrap().contains("onnection refused"),
        "{said}"
    );
}

#[test]
fn a_campaign_runs_over_three_hosts() {
    let Some(bed) = Testbed::new() else { return };
    let said = bed.campaign(good);
    let records = bed.records();
    assert!(
        said.contains("3 of 3 runs good") || records.len() > 3,
        "{said}"
    );
    for record in &records {
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        assert_eq!(outcome["counts"]["received"], 20, "{record}");
        let mean = outcome["metrics"]["latency_mean"].as_f64().unwrap();
        assert!(mean > 0.0 && mean < 1000.0, "{mean}");
        let uncertainty = outcome["metrics"]["clock_uncertainty"].as_f64().unwrap();
        assert!(uncertainty > 0.0 && uncertainty < 1000.0, "{uncertainty}");
    }
    // The hosts' folder is empty.
    assert_eq!(bed.left(), [""; 0].map(PathBuf::from));
}

/// Runs the campaign, and asserts that records have this power, from that meter.
fn measured(bed: &Testbed, meter: &str, watts: f64) {
    bed.campaign(good);
    let mut whole = 0;
    for record in bed.records() {
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        assert_eq!(outcome["energy_meter"], meter, "{record}");
        // A busy machine may miss readings, and says so; the run is tried again.
        let mut warnings = outcome["warnings"].as_array().unwrap().iter();
        if warnings.any(|warning| warning["kind"] == "energy-gaps") {
            continue;
        }
        whole += 1;
        let metric = |name: &str| outcome["metrics"][name].as_f64().unwrap();
        assert!((metric("power_w") - watts).abs() < 1e-3 * watts, "{record}");
        let sent = &outcome["sending"];
        let lasted = sent["to_ns"].as_f64().unwrap() - sent["from_ns"].as_f64().unwrap();
        // Twenty messages, 10 ms apart.
        assert!((0.19e9..2e9).contains(&lasted), "{record}");
        let joules = watts * lasted / 1e9;
        assert!(
            (metric("energy_j") - joules).abs() < 2e-3 * joules,
            "{record}"
        );
        let each = metric("energy_per_message_uj");
        assert!((each - joules * 1e6 / 20.0).abs() < 2e-3 * each, "{record}");
    }
    assert!(whole > 0);
    let report = good(&["report", &bed.path("out"), "--markdown"]);
    let says = format!("by {meter} (measured)");
    assert!(report.contains(&says), "{report}");
    // The roles that read meters have ended as well.
    assert_eq!(bed.left(), [""; 0].map(PathBuf::from));
}

#[test]
fn a_multimeter_is_read_by_the_controller() {
    let meter = Multimeter::start(MultimeterModel::K34465A, |_| 0.28);
    let named = format!("dmm:{}", meter.address());
    let line = format!("meter = \"{named}\"\nvolts = 5.1\n");
    let Some(bed) = Testbed::with_meter(&line, Path::new("/nothing")) else {
        return;
    };
    measured(&bed, &named, 5.1 * 0.28);
    for record in bed.records() {
        let outcome = &record["outcome"];
        let reading = &outcome["energy_reading"];
        // The publisher's clock is an hour behind the meter's.
        let from = |window: &Value| window["from_ns"].as_u64().unwrap();
        let apart = from(&reading["window"]) - from(&outcome["sending"]);
        let uncertainty = reading["uncertainty_ns"].as_u64().unwrap();
        assert!(apart.abs_diff(3_600_000_000_000) <= uncertainty, "{record}");
        assert!(uncertainty < 100_000_000, "{record}");
        let journal = reading["journal"].as_str().unwrap();
        assert!(bed.folder.path().join("out/meters").join(journal).is_file());
    }
}

#[test]
fn a_sensor_is_read_on_its_host() {
    let sys = FakeSys::new().unwrap();
    let power = [("power1_input", "1400000")];
    sys.hwmon("hwmon0", "ina226", &power).unwrap();
    let Some(bed) = Testbed::with_meter("meter = \"hwmon:ina226\"\n", sys.root()) else {
        return;
    };
    measured(&bed, "hwmon:hwmon0", 1.4);
    for record in bed.records() {
        let outcome = &record["outcome"];
        // Both windows are by the publisher's clock.
        let reading = &outcome["energy_reading"];
        assert_eq!(reading["window"], outcome["sending"], "{record}");
        assert_eq!(reading["journal"], Value::Null, "{record}");
    }
}

#[test]
fn a_meter_that_is_not_there_is_said_before_anything_begins() {
    for (meter, says) in [
        ("iio:ina226", "it has no meter iio:ina226"),
        ("dmm:127.0.0.1:1", "its meter dmm:127.0.0.1:1: "),
    ] {
        let line = format!("meter = \"{meter}\"\n");
        let Some(bed) = Testbed::with_meter(&line, Path::new("/nothing")) else {
            return;
        };
        let said = bed.campaign(mistake_at_last);
        assert!(said.contains(says), "{said}");
        assert!(!bed.folder.path().join("out/records/some.jsonl").exists());
    }
}

/// Asserts that the program fails; returns the last line of its messages. Lines before it may warn of doubtful figures.
fn mistake_at_last(arguments: &[&str]) -> String {
    let output = mqbench(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    said.lines().last().unwrap().to_owned()
}

#[test]
fn what_hosts_cannot_do_is_said_before_anything_begins() {
    let Some(bed) = Testbed::new() else { return };
    let channel = CAMPAIGN.replace("[factors]", "medium = \"s21/medium\"\n[factors]");
    fs::write(bed.path("some.toml"), channel).unwrap();
    let said = bed.campaign(mistake);
    assert!(said.contains("a shared channel"), "{said}");
}

#[test]
fn messages_one_after_the_other_reach_another_host() {
    let Some(bed) = Testbed::new() else { return };
    for record in bed.pattern("stop-and-wait", 10, "topology = \"both\"") {
        let outcome = &record["outcome"];
        assert_eq!(outcome["counts"]["received"], 10, "{record}");
        let metric = |name: &str| outcome["metrics"][name].as_f64().unwrap();
        // The sum of all delays.
        let sum = metric("latency_mean") * 10.0;
        assert!((metric("delta") - sum).abs() < 1e-3 * sum, "{record}");
        assert!(metric("clock_uncertainty") > 0.0, "{record}");
    }
}

#[test]
fn a_connection_for_each_message_is_measured_on_hosts() {
    let Some(bed) = Testbed::new() else { return };
    bed.without_tcp();
    for record in bed.pattern(
        "reconnect",
        5,
        "topology = \"both\"\nresumption = \"0-rtt\"",
    ) {
        let metric = |name: &str| record["outcome"]["metrics"][name].as_f64().unwrap();
        let (delta, sent) = (metric("delta_dagger"), metric("dial_to_sent"));
        assert!(delta > 0.0 && delta < 5000.0, "{record}");
        assert!(sent > 0.0 && sent < 5000.0, "{record}");
    }
}

#[test]
fn jobs_are_answered_on_another_host() {
    let Some(bed) = Testbed::new() else { return };
    for record in bed.pattern("job-result", 20, "") {
        let outcome = &record["outcome"];
        assert_eq!(outcome["counts"]["received"], 20, "{record}");
        for metric in ["rtt_mean", "rtt_last_mean"] {
            let found = outcome["metrics"][metric].as_f64().unwrap();
            assert!(found > 0.0 && found < 1000.0, "{record}");
        }
    }
}

#[test]
fn connections_are_timed_on_hosts() {
    let Some(bed) = Testbed::new() else { return };
    bed.without_tcp();
    for record in bed.pattern("connect", 5, "resumption = \"resumed\"") {
        let metric = |name: &str| record["outcome"]["metrics"][name].as_f64().unwrap();
        assert!((0.0..1000.0).contains(&metric("connack_mean")), "{record}");
        assert!(metric("failed").abs() < f64::EPSILON, "{record}");
    }
}

#[test]
fn hosts_get_the_program_that_they_are_to_have() {
    let Some(bed) = Testbed::new() else { return };
    // A fresh machine does not have the program.
    let at = bed.path("some mqbench");
    let hosts = fs::read_to_string(bed.path("hosts.toml")).unwrap();
    fs::write(bed.path("hosts.toml"), hosts.replace(PROGRAM, &at)).unwrap();
    let own = fs::read(PROGRAM).unwrap();
    let name = format!("mqbench-{}", std::env::consts::ARCH);
    // The bytes after a program's sections are not read.
    let another = [&own[..], b"another"].concat();
    for (bytes, is_good) in [
        (&own[..], true),
        (&another, true),
        (&own[..own.len() / 16], false),
    ] {
        fs::write(bed.path(&name), bytes).unwrap();
        let output = bed.hosts("upgrade", &["--programs", &bed.path("")]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.success(), is_good, "{output:?}");
        assert_eq!(
            said.matches("mqbench 0.").count(),
            if is_good { 3 } else { 0 },
            "{said}"
        );
        // A program that cannot be run there changes nothing.
        let expected = if is_good { bytes } else { &another };
        assert!(fs::read(&at).unwrap() == expected);
        assert!(bed.hosts("check", &[]).status.success());
    }
}
