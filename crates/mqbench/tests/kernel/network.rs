//! Two hosts with a cable between them, and commands on the near host.

use std::{
    io::Write as _,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use mq_netem::Host;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::MQBENCH;

/// The directory in which the commands of one network keep the state of its interfaces.
pub(crate) const STATE: &str = "/run/mqbench/net";

/// Programs of the system, never Busybox's.
const IP: &str = "/usr/sbin/ip";
pub(crate) const TC: &str = "/usr/sbin/tc";

/// Two hosts, each with eth0, which has 10.0.0.1 or 10.0.0.2.
pub(crate) struct Network {
    pub(crate) near: Host,
    pub(crate) far: Host,
}

impl Network {
    pub(crate) fn new() -> Self {
        // The kernel gives the number of an ended namespace to a new one.
        let _ = std::fs::remove_dir_all(STATE);
        let network = Self {
            near: Host::new().unwrap(),
            far: Host::new().unwrap(),
        };
        // This process is the first one, whose files the program may open.
        let far = network.far.path().display().to_string();
        let far = far.replace("self", "1");
        batch(
            &network.near,
            &format!(
                "link add eth0 type veth peer name far netns {far}\n\
                 link set eth0 address 02:00:00:00:00:01 up\n\
                 address add 10.0.0.1/24 dev eth0\n\
                 neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev eth0\n"
            ),
        );
        batch(
            &network.far,
            "link set far name eth0\n\
             link set eth0 address 02:00:00:00:00:02 up\n\
             address add 10.0.0.2/24 dev eth0\n\
             neighbour add 10.0.0.1 lladdr 02:00:00:00:00:01 dev eth0\n",
        );
        network
    }

    /// Runs `mqbench net` on the near host.
    pub(crate) fn net(&self, arguments: &[&str]) -> Output {
        let mut command = mqbench();
        command.args(arguments);
        self.run(command)
    }

    /// Runs `mqbench net` on the near host, asserts that it succeeds, and returns its output.
    pub(crate) fn net_ok(&self, arguments: &[&str]) -> String {
        let output = self.net(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `mqbench net` on the near host, asserts that it fails with one line, and returns the line.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        one_line(&self.net(arguments))
    }

    /// Disconnects the hosts.
    pub(crate) fn cut(&self) {
        batch(&self.far, "link set eth0 down\n");
    }

    pub(crate) fn run(&self, mut command: Command) -> Output {
        self.near.run(|| command.output()).unwrap()
    }

    /// Starts a command in the foreground; returns when its link is set.
    pub(crate) fn hold(&self, arguments: &[&str]) -> Held {
        let mut command = mqbench();
        command.args(arguments).stderr(Stdio::piped());
        let child = self.near.run(|| command.spawn()).unwrap();
        let held = Held { child };
        let end = Instant::now() + Duration::from_secs(5);
        while !self.tc("").contains("netem 4d51:") {
            assert!(Instant::now() < end, "not set in time");
            std::thread::sleep(Duration::from_millis(20));
        }
        held
    }

    /// Lists the disciplines of the near host's eth0 by iproute2, with options such as `-d`.
    pub(crate) fn tc(&self, options: &str) -> String {
        let mut command = Command::new(TC);
        command.args(options.split_whitespace());
        command.args(["qdisc", "show", "dev", "eth0"]);
        let output = self.run(command);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Reads everything that a change could leave behind: disciplines, filters, bundles.
    pub(crate) fn state(&self) -> String {
        let mut link = Command::new(IP);
        link.args(["-d", "link", "show", "dev", "eth0"]);
        let link = String::from_utf8(self.run(link).stdout).unwrap();
        let mut words = link.split_whitespace();
        let bundles = words.find(|word| *word == "gso_max_segs").and(words.next());
        let disciplines = self.tc("-d");
        // The number of references is not a setting.
        let disciplines: Vec<_> = disciplines
            .split_whitespace()
            .filter(|word| !["refcnt", "1", "2", "3", "4", "5"].contains(word))
            .collect();
        format!(
            "{} gso_max_segs {}",
            disciplines.join(" "),
            bundles.unwrap()
        )
    }

    /// Runs lines of `tc` on the near host.
    pub(crate) fn set(&self, lines: &str) {
        for line in lines.lines() {
            let mut command = Command::new(TC);
            command.args(line.split_whitespace());
            let output = self.run(command);
            assert!(output.status.success(), "{line}: {output:?}");
        }
    }

    /// Runs lines of `ip` on the near host.
    pub(crate) fn ip(&self, lines: &str) {
        batch(&self.near, lines);
    }
}

/// Makes the command of the program under test.
pub(crate) fn mqbench() -> Command {
    mqbench_in(STATE)
}

pub(crate) fn mqbench_in(state: &str) -> Command {
    let mut command = Command::new(std::env::var_os(MQBENCH).unwrap());
    command.args(["net", "--state", state]);
    command.env_remove("SSH_CONNECTION");
    command
}

/// Returns the only line of a failure.
pub(crate) fn one_line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("mqbench: "), "{text}");
    text
}

/// A command in the foreground.
pub(crate) struct Held {
    child: Child,
}

impl Held {
    /// Ends the command with a signal. Returns its exit code, or 128 plus the signal that killed it, and its
    /// standard error.
    pub(crate) fn end(&mut self, signal: Signal) -> (i32, String) {
        let id = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
        self.wait()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn wait(&mut self) -> (i32, String) {
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        std::io::Read::read_to_string(stderr, &mut said).unwrap();
        let killed = status.signal().map(|signal| 128 + signal);
        (status.code().or(killed).unwrap(), said)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn batch(host: &Host, lines: &str) {
    let run = || {
        let mut child = Command::new(IP)
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()?;
        child.stdin.take().unwrap().write_all(lines.as_bytes())?;
        child.wait()
    };
    let status = host.run(run).unwrap();
    assert!(status.success(), "{lines}");
}
