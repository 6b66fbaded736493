//! The testbed's other two hosts: agents in the test's own network namespace.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

/// The last parts of their addresses, as the page has them.
const HOSTS: [u8; 2] = [10, 12];

/// Agents that listen, each with a code that it has made.
pub(crate) struct Outside {
    agents: Vec<Child>,
    codes: Vec<(String, String)>,
    _folder: TempDir,
}

impl Outside {
    pub(crate) fn new() -> Self {
        // The interface is to be there, though what is for this machine's own addresses passes lo.
        for words in [
            "link set lo up",
            "link add eth0 type veth peer name nobody",
            "link set eth0 up",
        ] {
            ip(words);
        }
        // The emulator passes pings on where its user may send them.
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (mut agents, mut codes) = (Vec::new(), Vec::new());
        for host in HOSTS {
            for network in ["10.0.0", "192.168.1"] {
                ip(&format!("address add {network}.{host}/32 dev eth0"));
            }
            let host = format!("192.168.1.{host}");
            let state = folder.path().join(&host);
            let mqbench = |words: &[&str]| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_mqbench"));
                command.args(words).arg("--state").arg(&state);
                command.stdin(Stdio::null());
                command
            };
            let mut agent = mqbench(&["agent", "run", "--listen", &format!("{host}:7883")]);
            let mut agent = agent.stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            let output = agent.stdout.take().unwrap();
            agents.push(agent);
            BufReader::new(output).read_line(&mut line).unwrap();
            assert!(line.contains(&host), "{line}");
            let code = mqbench(&["agent", "code"]).output().unwrap();
            assert!(code.status.success(), "{code:?}");
            codes.push((host, String::from_utf8(code.stdout).unwrap()));
        }
        Self {
            agents,
            codes,
            _folder: folder,
        }
    }

    /// Hosts, and the codes to enrol with their agents.
    pub(crate) fn codes(&self) -> &[(String, String)] {
        &self.codes
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn ip(words: &str) {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let done = Command::new("ip")
        .args(words.split(' '))
        .env("PATH", path)
        .status()
        .unwrap();
    assert!(done.success(), "ip {words}");
}
