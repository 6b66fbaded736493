//! A testbed as a user sets it up: agents on three hosts, which are this machine's own addresses here,
//! enrolled by their codes; then a campaign over them.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod program;

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use mq_testkit::{FakeSys, Multimeter, MultimeterModel};
use program::{mistake, mqbench};
use serde_json::Value;
use tempfile::TempDir;

/// One run of each transport: short messages, nothing shaped.
const CAMPAIGN: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "periodic"
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

const PROGRAM: &str = env!("CARGO_BIN_EXE_mqbench");

/// What it printed.
fn good(arguments: &[&str]) -> String {
    let output = mqbench(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// An agent in a process of its own, which ends with it.
struct Agent {
    process: Child,
    state: PathBuf,
    address: String,
}

impl Agent {
    /// The publisher's clock is an hour behind the others'. Sensors are in `sys`.
    fn start(folder: &Path, name: &str, ip: &str, sys: &Path) -> Self {
        Self::of(Path::new(PROGRAM), folder, name, ip, sys, &[])
    }

    /// With this program, which is installed, and these further options.
    fn of(program: &Path, folder: &Path, name: &str, ip: &str, sys: &Path, more: &[&str]) -> Self {
        let state = folder.join(name);
        let shift = if name == "publisher" {
            "-3600000000000"
        } else {
            "0"
        };
        let mut process = Command::new(program)
            .env("MQBENCH_CLOCK_SHIFT", shift)
            .env("MQBENCH_SYS", sys)
            .args(["agent", "run", "--listen", &format!("{ip}:0"), "--state"])
            .arg(&state)
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = process.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        // None where it has ended before it listened.
        let address = line.trim().trim_start_matches("quic://").to_owned();
        Self {
            process,
            state,
            address,
        }
    }

    /// The program that it is now.
    fn program(&self) -> PathBuf {
        std::fs::read_link(format!("/proc/{}/exe", self.process.id())).unwrap()
    }

    /// The program that it was sent, if it was.
    fn sent(&self) -> PathBuf {
        self.state.join("bin/mqbench")
    }

    fn code(&self) -> String {
        let state = self.state.to_str().unwrap();
        let code = good(&["agent", "code", "--state", state]);
        code.trim().to_owned()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Three hosts, enrolled or not, and the file that names them.
struct Testbed {
    folder: TempDir,
    agents: Vec<Agent>,
}

impl Testbed {
    const HOSTS: [(&str, &str); 3] = [
        ("broker", "127.0.0.1"),
        ("publisher", "127.0.0.2"),
        ("subscriber", "127.0.0.3"),
    ];

    fn new() -> Self {
        Self::with_meter("", Path::new("/nothing"))
    }

    /// With this in the file under the publisher's host, and these sensors on all of them.
    fn with_meter(meter: &str, sys: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let start = |(role, ip)| Agent::start(folder.path(), role, ip, sys);
        let agents: Vec<_> = Self::HOSTS.into_iter().map(start).collect();
        let hosts = Self::HOSTS.iter().zip(&agents).map(|((role, ip), agent)| {
            let meter = if *role == "publisher" { meter } else { "" };
            format!(
                "[[host]]\nname = \"the {role}\"\nroles = [\"{role}\"]\nagent = \"{}\"\n\
                 address = \"{ip}\"\ninterface = \"lo\"\n{meter}",
                agent.address
            )
        });
        std::fs::write(folder.path().join("hosts.toml"), hosts.collect::<String>()).unwrap();
        std::fs::write(folder.path().join("some.toml"), CAMPAIGN).unwrap();
        Self { folder, agents }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn enrol(&self) {
        for agent in &self.agents {
            let (code, identity) = (agent.code(), self.path("controller"));
            let add = [
                "hosts",
                "add",
                &agent.address,
                &code,
                "--identity",
                &identity,
            ];
            assert!(good(&add).contains("mqbench"));
        }
    }

    /// What the campaign says, when it is run as `run` does.
    fn campaign(&self, run: fn(&[&str]) -> String) -> String {
        self.campaign_with(&[], run)
    }

    /// The same with these further options.
    fn campaign_with(&self, more: &[&str], run: fn(&[&str]) -> String) -> String {
        let [file, out, hosts, identity] =
            ["some.toml", "out", "hosts.toml", "controller"].map(|name| self.path(name));
        let (file, out) = (["campaign", "run", &file], ["--out", &out]);
        let (hosts, identity) = (["--hosts", &hosts], ["--identity", &identity]);
        run(&[&file[..], &out, &hosts, &identity, more].concat())
    }

    fn records(&self) -> Vec<Value> {
        let records = self.folder.path().join("out/records/some.jsonl");
        let records = std::fs::read_to_string(records).unwrap();
        let lines = records.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

#[test]
fn hosts_are_enrolled_and_checked() {
    let bed = Testbed::new();
    let (hosts, identity) = (bed.path("hosts.toml"), bed.path("controller"));
    let check = ["hosts", "check", &hosts, "--identity", &identity];
    let stranger = mqbench(&check);
    assert!(!stranger.status.success());
    let said = String::from_utf8(stranger.stdout).unwrap();
    assert_eq!(said.matches("is not enrolled").count(), 3, "{said}");
    bed.enrol();
    let output = mqbench(&check);
    let said = String::from_utf8(output.stdout).unwrap();
    for (role, _) in Testbed::HOSTS {
        assert!(said.contains(&format!("the {role}: ")), "{said}");
    }
    assert!(!said.contains("is not enrolled"), "{said}");
}

#[test]
fn a_campaign_runs_over_three_hosts() {
    let bed = Testbed::new();
    bed.enrol();
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
    // Nothing is left where they worked.
    for agent in &bed.agents {
        let left = std::fs::read_dir(agent.state.join("work")).unwrap();
        assert_eq!(left.count(), 0);
    }
}

/// Records have this power, from that meter.
fn measured(bed: &Testbed, meter: &str, watts: f64) {
    bed.enrol();
    bed.campaign(good);
    for record in bed.records() {
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        assert_eq!(outcome["energy_meter"], meter, "{record}");
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
    let report = good(&["report", &bed.path("out"), "--markdown"]);
    let says = format!("by {meter} (measured)");
    assert!(report.contains(&says), "{report}");
    // Roles of a meter are gone as well.
    for agent in &bed.agents {
        let left = std::fs::read_dir(agent.state.join("work")).unwrap();
        assert_eq!(left.count(), 0);
    }
}

#[test]
fn a_multimeter_is_read_by_the_controller() {
    let meter = Multimeter::start(MultimeterModel::K34465A, |_| 0.28);
    let named = format!("dmm:{}", meter.address());
    let line = format!("meter = \"{named}\"\nvolts = 5.1\n");
    let bed = Testbed::with_meter(&line, Path::new("/nothing"));
    measured(&bed, &named, 5.1 * 0.28);
    for record in bed.records() {
        let outcome = &record["outcome"];
        let reading = &outcome["energy_reading"];
        // The publisher's clock is an hour behind the one that the meter was read by.
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
fn a_sensor_is_read_by_the_agent_of_its_host() {
    let sys = FakeSys::new().unwrap();
    let power = [("power1_input", "1400000")];
    sys.hwmon("hwmon0", "ina226", &power).unwrap();
    let bed = Testbed::with_meter("meter = \"hwmon:ina226\"\n", sys.root());
    measured(&bed, "hwmon:hwmon0", 1.4);
    for record in bed.records() {
        let outcome = &record["outcome"];
        // By one clock, the publisher's.
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
        let bed = Testbed::with_meter(&format!("meter = \"{meter}\"\n"), Path::new("/nothing"));
        bed.enrol();
        let said = bed.campaign(mistake_at_last);
        assert!(said.contains(says), "{said}");
        assert!(!bed.folder.path().join("out/records/some.jsonl").exists());
    }
}

/// What is wrong, in the last line: what makes figures doubtful may stand before it.
fn mistake_at_last(arguments: &[&str]) -> String {
    let output = mqbench(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    said.lines().last().unwrap().to_owned()
}

#[test]
fn what_hosts_cannot_do_is_said_before_anything_begins() {
    let bed = Testbed::new();
    let waits = CAMPAIGN.replace("\"periodic\"", "\"stop-and-wait\"");
    std::fs::write(bed.path("some.toml"), waits).unwrap();
    let said = bed.campaign(mistake);
    assert!(said.contains("pattern `periodic`"), "{said}");
}

/// One host that does everything, in the state folder `name`; with the options of an agent.
struct Alone {
    folder: TempDir,
    agent: Agent,
}

impl Alone {
    fn new(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agent = Self::start(Path::new(PROGRAM), folder.path(), more);
        let alone = Self { folder, agent };
        let (address, code) = (&alone.agent.address, alone.agent.code());
        let identity = alone.path("controller");
        good(&["hosts", "add", address, &code, "--identity", &identity]);
        let hosts = format!(
            "[[host]]\nname = \"it\"\nroles = [\"broker\", \"publisher\", \"subscriber\"]\n\
             agent = \"{address}\"\naddress = \"127.0.0.1\"\ninterface = \"lo\"\n"
        );
        std::fs::write(alone.path("hosts.toml"), hosts).unwrap();
        alone
    }

    fn start(program: &Path, folder: &Path, more: &[&str]) -> Agent {
        Agent::of(
            program,
            folder,
            "agent",
            "127.0.0.1",
            Path::new("/nothing"),
            more,
        )
    }

    /// Its agent ends, and is started again from this file, as a service would.
    fn restart(&mut self, program: &Path) {
        self.restart_with(program, &[]);
    }

    fn restart_with(&mut self, program: &Path, more: &[&str]) {
        self.agent.process.kill().unwrap();
        self.agent.process.wait().unwrap();
        self.agent = Self::start(program, self.folder.path(), more);
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// A program with these bytes.
    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, executable).unwrap();
        path
    }

    fn upgrade(&self, program: &Path) -> std::process::Output {
        let (hosts, identity) = (self.path("hosts.toml"), self.path("controller"));
        let upgrade = ["hosts", "upgrade", &hosts, "--identity", &identity];
        mqbench(&[&upgrade[..], &["--program", program.to_str().unwrap()]].concat())
    }

    /// What stands in the way of a program, which nothing has come of.
    fn refused(&self, program: &Path) -> String {
        let before = self.agent.program();
        let output = self.upgrade(program);
        assert!(!output.status.success());
        assert_eq!(self.agent.program(), before);
        assert!(!self.agent.sent().exists());
        let left = std::fs::read_dir(self.agent.state.join("work")).unwrap();
        assert_eq!(left.count(), 0);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }
}

/// This program, and yet another file: what follows its sections is not read.
fn another() -> Vec<u8> {
    [&std::fs::read(PROGRAM).unwrap()[..], b"another"].concat()
}

#[test]
fn an_agent_goes_on_as_the_program_that_it_was_sent() {
    let mut alone = Alone::new(&[]);
    let installed = alone.agent.program();
    let other = alone.write("other", &another());
    for says in ["it: upgraded from mqbench ", "it: has it already"] {
        let output = alone.upgrade(&other);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.starts_with(says), "{said}");
        // The same process.
        assert_eq!(alone.agent.program(), alone.agent.sent());
    }
    // One that was sent takes the next: the one that is installed, for once.
    assert!(alone.upgrade(&installed).status.success());
    assert_eq!(
        std::fs::read(alone.agent.sent()).unwrap().len() + 7,
        another().len()
    );
    assert!(alone.upgrade(&other).status.success());
    // It stays when the host starts again, until somebody installs yet another.
    alone.restart(&installed);
    assert_eq!(alone.agent.program(), alone.agent.sent());
    // Unless it is told not to.
    alone.restart_with(&installed, &["--no-upgrade"]);
    assert_eq!(alone.agent.program(), installed);
    assert!(alone.agent.sent().exists());
    let third = alone.write("third", &[&another()[..], b"!"].concat());
    alone.restart(&third);
    assert_eq!(alone.agent.program(), third);
    assert!(!alone.agent.sent().exists());
}

#[test]
fn a_program_that_is_none_here_is_refused_and_nothing_changes() {
    let alone = Alone::new(&[]);
    let own = std::fs::read(PROGRAM).unwrap();
    let mut foreign = own[..4096].to_vec();
    foreign[18] ^= 0xff;
    for (bytes, says) in [
        (&b"#!/bin/sh\nexec mqbench\n"[..], "no program of Linux"),
        (&foreign, "another architecture"),
        (&own[..own.len() / 16], "cannot be an agent here"),
        (&std::fs::read("/bin/true").unwrap(), "it did not listen"),
    ] {
        let said = alone.refused(&alone.write("bad", bytes));
        assert!(said.contains(says), "{said}");
    }
    assert!(
        alone
            .upgrade(&alone.write("good", &another()))
            .status
            .success()
    );
}

#[test]
fn an_agent_that_takes_no_program_says_so() {
    let alone = Alone::new(&["--no-upgrade"]);
    let said = alone.refused(&alone.write("other", &another()));
    assert!(said.contains("--no-upgrade"), "{said}");
}

#[test]
fn a_program_that_does_not_start_any_more_is_put_aside() {
    let mut alone = Alone::new(&[]);
    let installed = alone.agent.program();
    for (bytes, starts) in [
        (&b"nothing"[..], 1),
        (&std::fs::read("/bin/false").unwrap(), 2),
    ] {
        assert!(
            alone
                .upgrade(&alone.write("other", &another()))
                .status
                .success()
        );
        std::fs::remove_file(alone.agent.sent()).unwrap();
        alone.write("agent/bin/mqbench", bytes);
        for start in 1..=starts {
            alone.restart(&installed);
            // The service starts it again.
            assert_eq!(alone.agent.address.is_empty(), start < starts);
        }
        assert_eq!(alone.agent.program(), installed);
        assert!(!alone.agent.sent().exists());
        let aside = alone.agent.state.join("bin/mqbench.aside");
        assert_eq!(std::fs::read(aside).unwrap(), bytes);
        // At another port.
        let hosts = std::fs::read_to_string(alone.path("hosts.toml")).unwrap();
        let old = hosts
            .split('"')
            .find(|word| word.starts_with("127.0.0.1:"))
            .unwrap();
        std::fs::write(
            alone.path("hosts.toml"),
            hosts.replace(old, &alone.agent.address),
        )
        .unwrap();
        let agents = std::fs::read_to_string(alone.path("controller/agents")).unwrap();
        let agents = agents.replace(old, &alone.agent.address);
        std::fs::write(alone.path("controller/agents"), agents).unwrap();
    }
}

#[test]
fn a_campaign_brings_hosts_the_programs_that_it_is_given() {
    let bed = Testbed::new();
    bed.enrol();
    let name = format!("mqbench-{}", std::env::consts::ARCH);
    std::fs::write(bed.path(&name), another()).unwrap();
    let folder = bed.path("");
    bed.campaign_with(&["--programs", &folder], good);
    for agent in &bed.agents {
        assert_eq!(agent.program(), agent.sent());
    }
    for record in bed.records() {
        assert_eq!(record["outcome"]["error"], Value::Null, "{record}");
        assert_eq!(record["outcome"]["counts"]["received"], 20, "{record}");
    }
}
