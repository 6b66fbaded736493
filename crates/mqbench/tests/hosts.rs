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
        let state = folder.join(name);
        let shift = if name == "publisher" {
            "-3600000000000"
        } else {
            "0"
        };
        let mut process = Command::new(env!("CARGO_BIN_EXE_mqbench"))
            .env("MQBENCH_CLOCK_SHIFT", shift)
            .env("MQBENCH_SYS", sys)
            .args(["agent", "run", "--listen", &format!("{ip}:0"), "--state"])
            .arg(&state)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = process.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("quic://").unwrap().to_owned();
        Self {
            process,
            state,
            address,
        }
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
        let [file, out, hosts, identity] =
            ["some.toml", "out", "hosts.toml", "controller"].map(|name| self.path(name));
        let (file, out) = (["campaign", "run", &file], ["--out", &out]);
        let (hosts, identity) = (["--hosts", &hosts], ["--identity", &identity]);
        run(&[&file[..], &out, &hosts, &identity].concat())
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
