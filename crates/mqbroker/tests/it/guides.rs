//! The guides in `docs/guide/`, run as they are written.
//!
//! All `sh` blocks of a page are one script. It runs in a folder of its own: `/etc`, `/var/lib`,
//! `/run` and `/usr/local` mean folders in it, ports are replaced by free ones, and operations of
//! root are done by stand-ins: `systemctl` starts the unit's program, waits until the program is
//! ready, and reloads and stops it as in the unit.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use mq_testkit::free_port;

/// A stand-in for systemd: one service, whose unit is where it was installed.
const SYSTEMCTL: &str = r#"#!/usr/bin/env python3
import os, signal, socket, subprocess, sys, time

root = os.environ["ROOT"]
unit = root + "/etc/systemd/system/mqbroker.service"
pid_file = root + "/pid"
asked = [word for word in sys.argv[1:] if not word.startswith("--") and word != "mqbroker"][0]

def field(name):
    [line] = [line for line in open(unit) if line.startswith(name + "=")]
    return line.split("=", 1)[1].strip()

def start():
    for folder in ("/var/lib/mqbroker", "/run/mqbroker"):
        os.makedirs(root + folder, mode=0o700, exist_ok=True)
    assert field("Type") == "notify"
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    place = root + "/notify"
    if os.path.exists(place):
        os.remove(place)
    told.bind(place)
    told.settimeout(20)
    log = open(root + "/log", "a")
    program = subprocess.Popen(field("ExecStart").split(), stdin=subprocess.DEVNULL,
        stdout=log, stderr=log, start_new_session=True,
        env=dict(os.environ, NOTIFY_SOCKET=place))
    open(pid_file, "w").write(str(program.pid))
    while b"READY=1" not in told.recv(1000):
        pass

def stop():
    pid = int(open(pid_file).read())
    os.remove(pid_file)
    os.kill(pid, signal.SIGTERM)
    for _ in range(200):
        try:
            if open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
    sys.exit("it does not end")

if "mosquitto" in sys.argv:
    pass  # It does not run here, where it would be stopped.
elif asked in ("start", "enable"):
    start()
elif asked == "stop":
    stop()
elif asked == "restart":
    stop()
    start()
elif asked == "reload":
    command = field("ExecReload").replace("$MAINPID", open(pid_file).read())
    subprocess.run(command.split(), check=True)
    time.sleep(1)
elif asked != "daemon-reload":
    sys.exit("what is " + asked)
"#;

/// A stand-in for install(1) that leaves groups alone.
const INSTALL: &str = r#"#!/bin/bash
words=()
while [ $# -gt 0 ]; do
    case $1 in -g) shift ;; *) words+=("$1") ;; esac
    shift
done
exec /usr/bin/install "${words[@]}"
"#;

/// The ports of deploy/cluster/try, and the variables that set them.
const CLUSTER_PORTS: [(&str, [&str; 3]); 4] = [
    ("MQTT_PORTS", ["1883", "1884", "1885"]),
    ("NATS_PORTS", ["4222", "4223", "4224"]),
    ("ROUTE_PORTS", ["6222", "6223", "6224"]),
    ("HTTP_PORTS", ["8222", "8223", "8224"]),
];

/// The folder and the stand-ins that a guide runs with.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Self { folder };
        for name in [
            "bin",
            "deploy/systemd",
            "etc/systemd/system",
            "var/lib",
            "run",
            "usr/local/bin",
        ] {
            fs::create_dir_all(place.path(name)).unwrap();
        }
        place.program("systemctl", SYSTEMCTL);
        place.program("install", INSTALL);
        // Operations that need root.
        for name in ["useradd", "chgrp", "chown"] {
            place.program(name, "#!/bin/sh\nexit 0\n");
        }
        for name in ["mqbroker", "mqbench", "mq"] {
            let program = built(name);
            if program.exists() {
                for link in [place.path(name), place.path("usr/local/bin").join(name)] {
                    std::os::unix::fs::symlink(&program, link).unwrap();
                }
            }
        }
        let unit = "deploy/systemd/mqbroker.service";
        let text = fs::read_to_string(repository().join(unit)).unwrap();
        fs::write(place.path(unit), place.moved(&text)).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Replaces the machine's folders in a text by those of this place.
    fn moved(&self, text: &str) -> String {
        let root = self.folder.path().to_str().unwrap();
        ["/etc/", "/var/lib/", "/run/", "/usr/local/"]
            .iter()
            .fold(text.to_owned(), |text, folder| {
                text.replace(folder, &format!("{root}{folder}"))
            })
    }

    /// Runs a guide; `before` is a script for its prerequisites.
    fn run(&self, name: &str, before: &str) {
        let page = fs::read_to_string(repository().join("docs/guide").join(name)).unwrap();
        let mut script = format!("set -euo pipefail\n{before}\n");
        let mut blocks = 0;
        for block in page.split("\n```sh\n").skip(1) {
            script.push_str(block.split("\n```").next().unwrap());
            script.push('\n');
            blocks += 1;
        }
        assert!(blocks > 3, "{name} has {blocks} blocks");
        let mut script = self.moved(&script);
        let ports = ["1883", "8883", "14567", "8084", "9883"];
        let ports = ports
            .iter()
            .chain(CLUSTER_PORTS.iter().flat_map(|(_, ports)| ports));
        // Replaced by a placeholder first, so that no part of a new port is taken for an old one.
        for (at, port) in ports.clone().enumerate() {
            script = script.replace(port, &format!("<port {at}>"));
        }
        for (at, _) in ports.enumerate() {
            script = script.replace(&format!("<port {at}>"), &free_port().to_string());
        }
        let path = std::env::var("PATH").unwrap();
        let (own, local) = (self.path("bin"), self.path("usr/local/bin"));
        let output = Command::new("bash")
            .arg("-c")
            .arg(script)
            .current_dir(self.folder.path())
            .env(
                "PATH",
                format!("{}:{}:{path}", own.display(), local.display()),
            )
            .env("ROOT", self.folder.path())
            .env("RUST_LOG", "info")
            .output()
            .unwrap();
        let said = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        assert!(
            output.status.success(),
            "{name}: {}\n{}\n{}\nthe broker:\n{log}",
            output.status,
            said(&output.stdout),
            said(&output.stderr)
        );
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A broker still runs if the guide failed or leaves it running.
        if let Ok(pid) = fs::read_to_string(self.path("pid"))
            && let Ok(pid) = pid.parse()
        {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the path of a program of this workspace.
fn built(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_mqbroker")).with_file_name(name)
}

/// Returns `true` if the programs that a guide uses are installed; reports a missing one.
fn can_run(programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let is_here = |program: &str| {
        built(program).exists()
            || path
                .split(':')
                .any(|folder| Path::new(folder).join(program).exists())
    };
    let missing = programs.iter().find(|program| !is_here(program));
    if let Some(program) = missing {
        println!("skipped: there is no {program}");
        let is_ci = std::env::var("CI").as_deref() == Ok("true");
        assert!(!is_ci, "CI has to have {program}");
    }
    missing.is_none()
}

const UNIT: &str = "install -m 644 deploy/systemd/mqbroker.service /etc/systemd/system/";

#[test]
fn a_service_with_tls_and_quic() {
    if can_run(&[
        "bash",
        "python3",
        "openssl",
        "curl",
        "mosquitto_pub",
        "mqbench",
    ]) {
        Place::new().run("systemd.md", "");
    }
}

/// Script that makes the files and folders of the Debian package in /etc and /var.
fn packaged() -> String {
    let file = repository().join("deploy/debian/mqbroker.toml");
    let text = fs::read_to_string(file).unwrap();
    format!(
        "{UNIT}\nmkdir -p /etc/mqbroker /var/lib/mqbroker\ncat >/etc/mqbroker/mqbroker.toml <<'END'\n{text}\nEND\n"
    )
}

#[test]
fn five_minutes_to_a_broker() {
    if can_run(&["bash", "python3", "openssl", "curl", "mq"]) {
        Place::new().run("five-minutes.md", &packaged());
    }
}

#[test]
fn moving_from_emqx() {
    if can_run(&["bash", "python3", "openssl", "mq"]) {
        Place::new().run("from-emqx.md", &packaged());
    }
}

#[test]
fn from_the_edge_to_the_cloud() {
    if can_run(&["bash", "python3", "openssl", "curl", "mq"]) {
        Place::new().run("bridge.md", &packaged());
    }
}

#[cfg(feature = "cluster")]
fn run_cluster(page: &str) {
    if can_run(&["bash", "nats-server", "mosquitto_pub", "curl"]) {
        let place = Place::new();
        fs::create_dir_all(place.path("deploy/cluster")).unwrap();
        let script = "deploy/cluster/try";
        fs::copy(repository().join(script), place.path(script)).unwrap();
        let ports =
            CLUSTER_PORTS.map(|(name, ports)| format!("export {name}='{}'", ports.join(" ")));
        place.run(page, &ports.join("\n"));
    }
}

#[cfg(feature = "cluster")]
#[test]
fn three_brokers_as_one() {
    run_cluster("cluster.md");
}

#[cfg(feature = "cluster")]
#[test]
fn two_brokers_and_a_witness() {
    run_cluster("two-nodes.md");
}

#[test]
fn a_sensor_with_early_data() {
    if can_run(&["bash", "python3", "openssl", "curl", "mq"]) {
        Place::new().run("sensor.md", &packaged());
    }
}

/// Needs root, which alone may capture packets.
#[test]
fn mqtt_over_quic_in_wireshark() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("skipped: only root may capture");
        return;
    }
    if can_run(&["bash", "python3", "tshark", "mq"]) {
        let place = Place::new();
        let script = "deploy/wireshark/mqtt-over-quic.lua";
        fs::create_dir_all(place.path("deploy/wireshark")).unwrap();
        fs::copy(repository().join(script), place.path(script)).unwrap();
        place.run("wireshark.md", &packaged());
    }
}

#[test]
fn devices_with_certificates() {
    if can_run(&["bash", "python3", "openssl", "mosquitto_pub", "mqbench"]) {
        Place::new().run("mtls.md", UNIT);
    }
}

#[test]
fn moving_from_mosquitto() {
    let mosquitto = r"
mkdir -p /etc/mosquitto
cd /etc/mosquitto
for user in operator sensor; do
    touch passwords
    mosquitto_passwd -b passwords $user secret 2>/dev/null
done
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout server.key -out server.pem
cat >acl <<'END'
user operator
topic readwrite #

pattern readwrite sensors/%u/#
END
cat >mosquitto.conf <<'END'
listener 8883
certfile /etc/mosquitto/server.pem
keyfile /etc/mosquitto/server.key
password_file /etc/mosquitto/passwords
acl_file /etc/mosquitto/acl
allow_anonymous false
persistence true
max_queued_messages 5000
message_size_limit 262144
END
";
    if can_run(&[
        "bash",
        "python3",
        "openssl",
        "mosquitto_pub",
        "mosquitto_passwd",
    ]) {
        let place = Place::new();
        // Paths that the program writes mean the folders of this place as well.
        let program = built("mqbroker");
        let moved = format!(
            "#!/bin/bash\nif [ \"$1\" = import-mosquitto ]; then\n    {0} \"$@\" | \
             sed \"s,/var/lib/,$ROOT/var/lib/,; s,/run/,$ROOT/run/,; s,14567,{1},\"\nelse\n    exec {0} \"$@\"\nfi\n",
            program.display(),
            free_port()
        );
        place.program("mqbroker", &moved);
        place.run("from-mosquitto.md", &format!("{UNIT}\n{mosquitto}"));
    }
}
