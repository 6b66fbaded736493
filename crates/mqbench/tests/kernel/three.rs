//! Three hosts that are reached by ssh, and a fourth with their controller and a multimeter.
//!
//! They have a measured network, which is shaped, and another one for the controller.

use std::{
    io::Read as _,
    path::Path,
    process::{Command, Stdio},
};

use mq_netem::Host;
use mq_testkit::{Multimeter, MultimeterModel};
use nix::unistd::Pid;

use crate::{
    METER, MQBENCH,
    network::{STATE, TC, batch},
    sshd::Keys,
    testbed::{PORT, Running, Server, keys, mqbench, on_hosts, path},
};

/// The multimeter's address on the controller's host.
pub(crate) const METER_AT: &str = "127.0.0.1:5025";

/// The current that the multimeter measures.
pub(crate) const AMPERE: f64 = 0.28;

/// The hosts' names in the order of their addresses, from 10.0.0.1 on.
pub(crate) const NAMES: [&str; 3] = ["hub", "pi-1", "pi-2"];

const HOSTS: &str = r#"
[[host]]
name = "hub"
roles = ["broker"]
ssh = "hub"
program = "PROGRAM"
address = "10.0.0.1"
interface = "eth0"

[[host]]
name = "pi-1"
roles = ["publisher"]
ssh = "pi-1"
program = "PROGRAM"
address = "10.0.0.2"
interface = "eth0"
meter = "dmm:127.0.0.1:5025"
volts = 5.0

[[host]]
name = "pi-2"
roles = ["subscriber"]
ssh = "pi-2"
program = "PROGRAM"
address = "10.0.0.3"
interface = "eth0"
"#;

/// Three hosts with their servers, and a fourth with the controller and the meter.
pub(crate) struct Three {
    keys: Keys,
    hosts: [Host; 3],
    desk: Host,
    _switch: Host,
    /// The hosts' ssh servers; `None` for a killed one.
    pub(crate) servers: [Option<Server>; 3],
    pub(crate) meter: Option<Running>,
    /// The state of the hosts' interfaces before anything is done.
    before: [String; 3],
}

impl Three {
    /// Starts the hosts, their servers and the meter, with this campaign to run.
    pub(crate) fn new(campaign: &str) -> Self {
        let _ = std::fs::remove_dir_all(STATE);
        let keys = keys(HOSTS);
        std::fs::create_dir_all(temporary()).unwrap();
        std::fs::write(path("some.toml"), campaign).unwrap();
        let switch = Host::new().unwrap();
        batch(
            &switch,
            "link add data type dummy\nlink set data up\n\
             link add control type dummy\nlink set control up\n",
        );
        let desk = Host::new().unwrap();
        attach(&switch, "control", &desk, "ctl0", "10.1.0.9/24");
        let hosts = [1, 2, 3].map(|number| {
            let host = Host::new().unwrap();
            attach(
                &switch,
                "data",
                &host,
                "eth0",
                &format!("10.0.0.{number}/24"),
            );
            attach(
                &switch,
                "control",
                &host,
                "ctl0",
                &format!("10.1.0.{number}/24"),
            );
            host
        });
        let before = [0, 1, 2].map(|which| disciplines(&hosts[which]));
        let mut bed = Self {
            keys,
            hosts,
            desk,
            _switch: switch,
            servers: [None, None, None],
            meter: None,
            before,
        };
        for (which, name) in NAMES.into_iter().enumerate() {
            bed.keys.introduce(name, &ip(which), PORT);
            bed.start_server(which);
        }
        bed.start_meter();
        bed
    }

    /// Starts a host's server unless it is running.
    pub(crate) fn start_server(&mut self, which: usize) {
        if self.servers[which].is_none() {
            // The publisher's clock is an hour behind, the subscriber's five seconds ahead.
            let ahead = ["0", "-3600000000000", "5000000000"][which];
            let shift = [("MQBENCH_CLOCK_SHIFT", ahead)];
            let server = Server::start(&self.hosts[which], &self.keys, &ip(which), &shift);
            self.servers[which] = Some(server);
        }
    }

    /// Starts the meter unless it is running.
    pub(crate) fn start_meter(&mut self) {
        if self.meter.is_none() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(METER, METER_AT).stdin(Stdio::null());
            command.stdout(Stdio::piped());
            let mut child = self.desk.run(|| command.spawn()).unwrap();
            let mut ready = [0; 5];
            let output = child.stdout.as_mut().unwrap();
            output.read_exact(&mut ready).unwrap();
            self.meter = Some(Running(child));
        }
    }

    /// Starts or resumes the campaign; its messages are on its standard error.
    pub(crate) fn campaign(&self, out: &Path) -> Running {
        let mut command = mqbench();
        command.arg("campaign");
        if out.join("set.json").exists() {
            command.arg("resume").arg(out);
        } else {
            command.args(["run", &path("some.toml"), "--out"]).arg(out);
        }
        command.args(on_hosts());
        command.env("TMPDIR", temporary());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Running(self.desk.run(|| command.spawn()).unwrap())
    }

    /// Returns the processes of roles that have this word in their command.
    pub(crate) fn roles(word: &str) -> Vec<Pid> {
        let has = |(_, line): &(Pid, Vec<String>)| {
            line.iter().any(|part| part.starts_with("--lease="))
                && line.iter().any(|part| part == word)
        };
        let found = processes().into_iter().filter(has);
        found.map(|(process, _)| process).collect()
    }

    /// Returns all traces of a campaign: shaped interfaces, processes, temporary files.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (which, host) in self.hosts.iter().enumerate() {
            let now = disciplines(host);
            if now != self.before[which] {
                left.push(format!("on {}: {now}", NAMES[which]));
            }
            left.extend(files(Path::new(&path(&format!("work-{}", ip(which))))));
        }
        let running = processes().into_iter();
        left.extend(running.map(|(process, line)| format!("{process}: {}", line.join(" "))));
        let remembered = files(Path::new(STATE)).into_iter();
        left.extend(remembered.filter(|file| file.contains(".json")));
        left.extend(files(Path::new(&temporary())));
        left
    }
}

/// Lists every process of the program and of ssh clients, with its command.
fn processes() -> Vec<(Pid, Vec<String>)> {
    let program = std::env::var(MQBENCH).unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let line: Vec<_> = line.split('\0').map(str::to_owned).collect();
        if line[0] == program || line[0] == "ssh" {
            found.push((Pid::from_raw(name.parse().unwrap()), line));
        }
    }
    found
}

/// Returns a host's address for the controller.
fn ip(which: usize) -> String {
    format!("10.1.0.{}", which + 1)
}

/// Returns the folder of the controller's own temporary files.
fn temporary() -> String {
    path("tmp")
}

/// Lists the content of a folder; nothing if there is no such folder.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.path().display().to_string());
    names.collect()
}

/// Attaches a host to a network by a new interface.
fn attach(switch: &Host, network: &str, host: &Host, interface: &str, address: &str) {
    let namespace = host.path().display().to_string();
    batch(
        switch,
        &format!(
            "link add link {network} name {interface} netns {namespace} type macvlan mode bridge\n"
        ),
    );
    batch(
        host,
        &format!("link set {interface} up\naddress add {address} dev {interface}\n"),
    );
}

fn disciplines(host: &Host) -> String {
    let mut command = Command::new(TC);
    command.args(["qdisc", "show", "dev", "eth0"]);
    let output = host.run(|| command.output()).unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the multimeter, as the work of a process of the guest.
pub(crate) fn meter(address: &str) {
    let model = MultimeterModel::K34465A;
    let _meter = Multimeter::start_at(address.parse().unwrap(), model, |_| AMPERE);
    println!("ready");
    loop {
        std::thread::park();
    }
}
