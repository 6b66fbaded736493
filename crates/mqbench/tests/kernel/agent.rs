//! Agents on two hosts: a campaign shapes an interface, which is as it was however that ends.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mq_netem::Host;
use serde_json::Value;

use crate::{MQBENCH, guest::Test, network::Network};

pub(crate) const TESTS: &[Test] = &[
    (
        "a_campaign_measures_the_link_that_it_sets",
        a_campaign_measures_the_link_that_it_sets,
    ),
    (
        "a_killed_controllers_link_is_put_back",
        a_killed_controllers_link_is_put_back,
    ),
    (
        "a_killed_agents_link_is_put_back",
        a_killed_agents_link_is_put_back,
    ),
];

/// All that can be written to in this kernel.
pub(crate) const FOLDER: &str = "/run/agents";

/// Shorter than by default, so that a test need not wait for half a minute.
pub(crate) const LEASE: &str = "5s";

/// Bound on what is put back: the lease, and a slow kernel.
const SOON: Duration = Duration::from_secs(30);

/// A publisher's host, and another with broker and subscriber.
const HOSTS: &str = r#"
[[host]]
name = "near"
roles = ["publisher"]
agent = "10.0.0.1:7883"
address = "10.0.0.1"
interface = "eth0"

[[host]]
name = "far"
roles = ["broker", "subscriber"]
agent = "10.0.0.2:7883"
address = "10.0.0.2"
interface = "eth0"
"#;

const CAMPAIGN: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "periodic"
topology = "publisher"
messages = MESSAGES
interval = "20ms"
[factors]
link = ["s22/wifi"]
transport = ["quic"]
[plot]
kind = "lines"
metric = "latency_mean"
x = "link"
series = "transport"
"#;

/// Both hosts with their agents, enrolled with a controller on the near one.
struct Testbed {
    network: Network,
    near: Running,
    _far: Running,
    /// What stands on the near host's interface before anything is done.
    before: String,
}

impl Testbed {
    fn new() -> Self {
        let network = Network::new();
        let _ = std::fs::remove_dir_all(FOLDER);
        std::fs::create_dir_all(FOLDER).unwrap();
        std::fs::write(path("hosts.toml"), HOSTS).unwrap();
        let near = agent(&network.near, "near", "10.0.0.1:7883");
        let far = agent(&network.far, "far", "10.0.0.2:7883");
        for (name, address) in [("near", "10.0.0.1:7883"), ("far", "10.0.0.2:7883")] {
            let code = good(&network.near, &["agent", "code", "--state", &path(name)]);
            let identity = path("controller");
            let add = [
                "hosts",
                "add",
                address,
                code.trim(),
                "--identity",
                &identity,
            ];
            good(&network.near, &add);
        }
        Self {
            before: network.state(),
            network,
            near,
            _far: far,
        }
    }

    /// A campaign of one run that has begun.
    fn campaign(&self, messages: u32) -> Running {
        let campaign = CAMPAIGN.replace("MESSAGES", &messages.to_string());
        std::fs::write(path("some.toml"), campaign).unwrap();
        let mut command = mqbench();
        command.args(["campaign", "run", &path("some.toml"), "--out", &path("out")]);
        command.args(["--hosts", &path("hosts.toml")]);
        command.args(["--identity", &path("controller")]);
        Running(self.network.near.run(|| command.spawn()).unwrap())
    }

    /// Waits until the near host's interface is shaped.
    fn shaped(&self) {
        let is_shaped = || self.network.tc("").contains("netem 4d51:");
        until("the interface is shaped", is_shaped);
    }

    /// Waits until it is as it was.
    fn put_back(&self) {
        until("the interface is as it was", || {
            self.network.state() == self.before
        });
    }
}

fn a_campaign_measures_the_link_that_it_sets() {
    let bed = Testbed::new();
    let mut campaign = bed.campaign(50);
    bed.shaped();
    assert!(campaign.0.wait().unwrap().success());
    assert_eq!(bed.network.state(), bed.before);
    let records = std::fs::read_to_string(path("out/records/some.jsonl")).unwrap();
    let record: Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    let outcome = &record["outcome"];
    assert_eq!(outcome["error"], Value::Null, "{record}");
    assert_eq!(outcome["counts"]["received"], 50, "{record}");
    // 25 ms one way and nothing back, which the clocks' comparison crosses as well: one half of it
    // nobody can tell from clocks that differ, and the uncertainty says so.
    let metric = |name: &str| outcome["metrics"][name].as_f64().unwrap();
    let (mean, uncertainty) = (metric("latency_mean"), metric("clock_uncertainty"));
    assert!(uncertainty > 12.0, "{record}");
    let most = 25.0 + uncertainty + 20.0;
    assert!((25.0 - uncertainty..most).contains(&mean), "{record}");
}

fn a_killed_controllers_link_is_put_back() {
    let bed = Testbed::new();
    let campaign = bed.campaign(100_000);
    bed.shaped();
    // Killed, without a word to the agents.
    drop(campaign);
    bed.put_back();
}

fn a_killed_agents_link_is_put_back() {
    let mut bed = Testbed::new();
    let _campaign = bed.campaign(100_000);
    bed.shaped();
    bed.near.0.kill().unwrap();
    bed.near.0.wait().unwrap();
    bed.put_back();
}

/// A program that is killed with the value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn path(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

pub(crate) fn mqbench() -> Command {
    let mut command = Command::new(std::env::var_os(MQBENCH).unwrap());
    command.env("TMPDIR", "/run").env_remove("SSH_CONNECTION");
    command.stdin(Stdio::null());
    command
}

/// What it printed on a host.
pub(crate) fn good(host: &Host, arguments: &[&str]) -> String {
    let mut command = mqbench();
    command.args(arguments);
    let output = host.run(|| command.output()).unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// An agent that listens.
fn agent(host: &Host, name: &str, address: &str) -> Running {
    agent_with_clock(host, name, address, "0")
}

/// One whose clock is so many nanoseconds ahead.
pub(crate) fn agent_with_clock(host: &Host, name: &str, address: &str, ahead: &str) -> Running {
    let mut command = mqbench();
    command.env("MQBENCH_CLOCK_SHIFT", ahead);
    command.args(["agent", "run", "--listen", address, "--lease", LEASE]);
    command
        .args(["--state", &path(name)])
        .stdout(Stdio::piped());
    let mut child = host.run(|| command.spawn()).unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert!(line.contains(address), "{line}");
    Running(child)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what} in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}
