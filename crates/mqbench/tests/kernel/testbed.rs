//! Two hosts that are reached by ssh: a campaign shapes an interface, and however it ends the interface is restored.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mq_netem::Host;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    MQBENCH,
    guest::Test,
    network::Network,
    sshd::{Keys, SSHD},
};

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
        "a_link_is_put_back_when_its_ssh_server_is_killed",
        a_link_is_put_back_when_its_ssh_server_is_killed,
    ),
    (
        "a_host_that_cannot_be_reached_removes_its_link",
        a_host_that_cannot_be_reached_removes_its_link,
    ),
];

/// The only folder that can be written to in this kernel.
pub(crate) const FOLDER: &str = "/run/testbed";

/// A lease that is shorter than the default, so that a test need not wait for half a minute.
pub(crate) const LEASE: &str = "5s";

/// The port of each host's ssh server.
pub(crate) const PORT: u16 = 2222;

/// The time limit for a restored interface: the lease, and time for a slow kernel.
const SOON: Duration = Duration::from_mins(1);

/// A publisher's host, and another with broker and subscriber. PROGRAM is the command under test.
const HOSTS: &str = r#"
[[host]]
name = "near"
roles = ["publisher"]
ssh = "near"
program = "PROGRAM"
address = "10.0.0.1"
interface = "eth0"

[[host]]
name = "far"
roles = ["broker", "subscriber"]
ssh = "far"
program = "PROGRAM"
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

/// Both hosts with their servers, and a controller on the near one.
struct Testbed {
    network: Network,
    _near: Server,
    _far: Server,
    /// The state of the near host's interface before anything is done.
    before: String,
}

impl Testbed {
    fn new() -> Self {
        let network = Network::new();
        let keys = keys(HOSTS);
        let start = |host: &Host, name: &str, ip: &str| {
            keys.introduce(name, ip, PORT);
            Server::start(host, &keys, ip, &[])
        };
        let near = start(&network.near, "near", "10.0.0.1");
        let far = start(&network.far, "far", "10.0.0.2");
        Self {
            before: network.state(),
            network,
            _near: near,
            _far: far,
        }
    }

    /// Starts a campaign of one run.
    fn campaign(&self, messages: u32) -> Running {
        Self::campaign_on(&self.network.near, messages)
    }

    /// Starts a campaign of one run, with the controller on this host.
    fn campaign_on(controller: &Host, messages: u32) -> Running {
        let campaign = CAMPAIGN.replace("MESSAGES", &messages.to_string());
        std::fs::write(path("some.toml"), campaign).unwrap();
        let mut command = mqbench();
        command.args(["campaign", "run", &path("some.toml"), "--out", &path("out")]);
        command.args(on_hosts());
        Running(controller.run(|| command.spawn()).unwrap())
    }

    /// Waits until the near host's interface is shaped.
    fn shaped(&self) {
        let is_shaped = || self.network.tc("").contains("netem 4d51:");
        until("the interface is shaped", is_shaped);
    }

    /// Waits until the near host's interface is restored.
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
    // The comparison of clocks crosses the link as well, with 25 ms one way and nothing back. Half of that looks
    // like clocks that differ, so it is part of the uncertainty.
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
    // The controller is killed and sends the hosts no message.
    drop(campaign);
    bed.put_back();
}

fn a_link_is_put_back_when_its_ssh_server_is_killed() {
    let bed = Testbed::new();
    let _campaign = bed.campaign(100_000);
    bed.shaped();
    end_sessions(&bed.network.near);
    bed.put_back();
}

/// Checks that a host removes its link when the network between controller and host fails: neither of them sees the
/// connection end.
fn a_host_that_cannot_be_reached_removes_its_link() {
    let bed = Testbed::new();
    // The controller is on the far host, so all its messages to the near one pass the cable.
    let far = Testbed::campaign_on(&bed.network.far, 100_000);
    bed.shaped();
    bed.network.cut();
    bed.put_back();
    drop(far);
}

/// A program that is killed when the value is dropped.
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

/// Makes a folder with these hosts, and keys for them.
pub(crate) fn keys(hosts: &str) -> Keys {
    let _ = fs::remove_dir_all(FOLDER);
    fs::create_dir_all(FOLDER).unwrap();
    let program = std::env::var(MQBENCH).unwrap();
    fs::write(path("hosts.toml"), hosts.replace("PROGRAM", &program)).unwrap();
    // The ssh server needs this folder.
    fs::create_dir_all("/run/sshd").unwrap();
    Keys::make(Path::new(FOLDER))
}

/// Returns the options of a campaign that runs on the hosts.
pub(crate) fn on_hosts() -> [String; 6] {
    let words = ["--hosts", "hosts.toml", "--ssh-config", "ssh_config"];
    let [hosts, file, ssh, configuration] = words;
    [
        hosts,
        &path(file),
        ssh,
        &path(configuration),
        "--hosts-lease",
        LEASE,
    ]
    .map(str::to_owned)
}

/// A host's ssh server. A drop kills it with all of its sessions.
pub(crate) struct Server {
    process: Child,
    network: u64,
}

impl Server {
    /// Starts a server whose sessions have this environment, and `work-IP` as the folder for temporary files.
    pub(crate) fn start(host: &Host, keys: &Keys, ip: &str, environment: &[(&str, &str)]) -> Self {
        let work = path(&format!("work-{ip}"));
        fs::create_dir_all(&work).unwrap();
        let environment = [&[("TMPDIR", &work[..])], environment].concat();
        let mut command = keys.server(ip, PORT, &environment);
        let process = host.run(|| command.spawn()).unwrap();
        let log = path(&format!("log-{ip}"));
        until("sshd listens", || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains("Server listening"))
        });
        fs::remove_file(log).unwrap();
        Self {
            process,
            network: host.run(|| network_of("thread-self")).unwrap(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        end_servers_in(self.network);
    }
}

/// Kills the servers of a host, each of which has a session.
fn end_sessions(host: &Host) {
    end_servers_in(host.run(|| network_of("thread-self")).unwrap());
}

fn end_servers_in(network: u64) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let is_server =
            fs::read_link(entry.path().join("exe")).is_ok_and(|program| program == Path::new(SSHD));
        if is_server && network_of(&name).is_ok_and(|found| found == network) {
            let _ = kill(Pid::from_raw(name.parse().unwrap()), Signal::SIGKILL);
        }
    }
}

/// Returns the inode of a process's network namespace.
fn network_of(process: &str) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(fs::metadata(format!("/proc/{process}/ns/net"))?.ino())
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what} in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}
