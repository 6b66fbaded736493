//! The guides in `docs/guide/`, run as they are written, each on a machine that has nothing.
//!
//! All `sh` blocks of a page are one script. It runs in a container with a root of its own: the machine's `/usr` without
//! its programs and without a right to write, an `/etc` as a fresh Debian's, empty folders for all else, and a network
//! of loopback alone. The programs are those of a Debian as debootstrap makes it, and of the packages that the page
//! installs itself. So a command fails if it works only where a developer has a file, a user, a program or an open port.
//!
//! `machine.py` has the stand-ins, for apt and systemctl alone. Users, owners and rights are real: the service is
//! started as the unit's user, without its capabilities.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::runc::{self, Bundle, bind};

/// Capabilities that a container's root has with Docker, and two for captures.
const CAPABILITIES: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
];

/// The folder in which a reader of a guide types its commands.
const HERE: &str = "/root/here";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns a program of this workspace.
fn built(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_mqbroker")).with_file_name(name)
}

fn page(name: &str) -> String {
    fs::read_to_string(repository().join("docs/guide").join(name)).unwrap()
}

/// Returns the blocks of a page in that language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    let each = page.split(&fence).skip(1);
    each.map(|block| block.split("\n```").next().unwrap())
        .collect()
}

/// A machine that has nothing.
struct Machine {
    bundle: Bundle,
    mounts: Vec<serde_json::Value>,
}

impl Machine {
    /// Makes the root. Returns `None`, and reports a skipped test, on a machine that is no Debian or runs no containers,
    /// and if a program is not built.
    fn new() -> Option<Self> {
        if !runc::is_usable() {
            return None;
        }
        let base = Path::new("/usr/share/base-passwd");
        if !base.exists() {
            mq_testkit::skipped("only a Debian knows the packages of a fresh one");
            return None;
        }
        let bundle = Bundle::new(tempfile::tempdir().unwrap());
        let root = bundle.root();
        for folder in [
            "usr",
            "etc/systemd/system",
            "home",
            "run",
            "tmp",
            "var/lib",
            "var/log",
            "var/tmp",
            ".machine/programs",
            &HERE[1..],
        ] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for link in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{link}"), root.join(link)).unwrap();
        }
        // As base-passwd makes them.
        for (from, to) in [("passwd.master", "passwd"), ("group.master", "group")] {
            fs::copy(base.join(from), root.join("etc").join(to)).unwrap();
        }
        fs::write(
            root.join("etc/hosts"),
            "127.0.0.1 localhost\n::1 localhost\n",
        )
        .unwrap();
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}),
            bind("/usr", "/usr", "ro"),
            bind("/usr", "/.machine/usr", "ro"),
            bind("/etc", "/.machine/etc", "ro"),
            bind("/var/lib/dpkg", "/.machine/dpkg", "ro"),
            bind(repository().join("deploy"), "/.machine/deploy", "ro"),
        ];
        for folder in ["bin", "sbin", "local"] {
            let own = bundle.folder().join(folder);
            fs::create_dir_all(own.join(if folder == "local" { "bin" } else { "" })).unwrap();
            mounts.push(bind(own, &format!("/usr/{folder}"), "rw"));
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guides/machine.py");
        mounts.push(bind(script, "/.machine/machine.py", "ro"));
        for name in ["mqbroker", "mqbench", "mq"] {
            let program = built(name);
            if !program.exists() {
                mq_testkit::skipped(&format!("{} is not built", program.display()));
                return None;
            }
            mounts.push(bind(program, &format!("/.machine/programs/{name}"), "ro"));
        }
        Some(Self { bundle, mounts })
    }

    /// Puts a folder or a file of the repository, or a program, where the guide's commands are typed.
    fn has(mut self, source: &Path, name: &str) -> Self {
        self.mounts
            .push(bind(source, &format!("{HERE}/{name}"), "ro"));
        self
    }

    /// Puts this project's Debian packages where the guide's commands are typed.
    fn has_packages(self) -> Self {
        for name in ["mqbroker", "mq", "mqbench"] {
            let file = format!("{name}_{}_amd64.deb", env!("CARGO_PKG_VERSION"));
            fs::write(self.bundle.root().join(&HERE[1..]).join(file), "").unwrap();
        }
        self
    }

    /// Runs a script; fails with all that it wrote, and the broker's log, if a command of it fails.
    fn run(self, name: &str, script: &str) {
        let script = format!("set -euo pipefail\n{script}\n");
        fs::write(self.bundle.root().join(".machine/script"), script).unwrap();
        let process = json!({
            "user": {"uid": 0, "gid": 0},
            "args": ["/.machine/usr/bin/python3", "/.machine/machine.py"],
            "env": [
                "HOME=/root",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "RUST_LOG=info",
            ],
            "cwd": HERE,
            "capabilities": {
                "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
            },
        });
        let id = format!("mq-guide-{name}-{}", std::process::id());
        let namespaces = ["pid", "ipc", "uts", "mount", "network"];
        let mut command = self
            .bundle
            .run(&id, &process, false, &self.mounts, &namespaces);
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let log = self.bundle.root().join("var/log/mqbroker.log");
        assert!(
            output.status.success(),
            "{name}: {}\n{}\n{}\nthe broker:\n{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr),
            fs::read_to_string(log).unwrap_or_default(),
        );
    }

    /// Runs a guide; `before` makes what its first paragraph takes for granted.
    fn follow(self, name: &str, before: &str) {
        let page = page(name);
        let script = blocks(&page, "sh").join("\n");
        self.run(name, &format!("{before}\n{script}"));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Where runc was stopped by a signal, its container still runs; elsewhere there is none.
        let state = self.bundle.folder().join("runc");
        for container in fs::read_dir(state).into_iter().flatten().flatten() {
            let mut runc = self.bundle.runc();
            let _ = runc
                .arg("delete")
                .arg("--force")
                .arg(container.file_name())
                .output();
        }
    }
}

/// Returns what docs/guide/systemd.md has of the program, its user and its unit: other pages begin there.
fn by_hand() -> String {
    let page = page("systemd.md");
    let all = blocks(&page, "sh");
    let has = |words: &str| {
        *all.iter()
            .find(|block| block.contains(words))
            .unwrap_or_else(|| panic!("systemd.md has no {words}"))
    };
    let unit = has("systemctl enable");
    let unit = unit.lines().next().unwrap();
    format!("{}\n{unit}", has("useradd"))
}

const PACKAGED: &str = "apt install -y ./mqbroker_*.deb ./mq_*.deb";

/// Makes a machine for guides that begin with docs/guide/systemd.md.
fn machine_for_programs() -> Option<Machine> {
    let machine = Machine::new()?
        .has(&built("mqbroker"), "mqbroker")
        .has(&built("mqbench"), "mqbench");
    Some(machine.has(&repository().join("deploy"), "deploy"))
}

#[test]
fn a_service_with_tls_and_quic() {
    if let Some(machine) = machine_for_programs() {
        machine.follow("systemd.md", "");
    }
}

#[test]
fn five_minutes_to_a_broker() {
    if let Some(machine) = Machine::new() {
        machine.has_packages().follow("five-minutes.md", "");
    }
}

#[test]
fn a_broker_at_home() {
    if let Some(machine) = Machine::new() {
        machine.has_packages().follow("home.md", "");
    }
}

#[test]
fn moving_from_emqx() {
    if let Some(machine) = Machine::new() {
        machine.has_packages().follow("from-emqx.md", "");
    }
}

#[test]
fn from_the_edge_to_the_cloud() {
    if let Some(machine) = Machine::new() {
        machine.has_packages().follow("bridge.md", "");
    }
}

#[cfg(feature = "cluster")]
fn run_cluster(page: &str) {
    let Some(nats) = mq_testkit::program(&["nats-server"]) else {
        return;
    };
    if let Some(machine) = machine_for_programs() {
        let local = machine.bundle.folder().join("local/bin/nats-server");
        fs::copy(nats, local).unwrap();
        machine.follow(page, "");
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
    if let Some(machine) = Machine::new() {
        machine.has_packages().follow("sensor.md", "");
    }
}

#[test]
fn mqtt_over_quic_in_wireshark() {
    if let Some(machine) = Machine::new() {
        let machine = machine.has(&repository().join("deploy"), "deploy");
        machine.has_packages().follow("wireshark.md", "");
    }
}

#[test]
fn devices_with_certificates() {
    if let Some(machine) = machine_for_programs() {
        machine.follow("mtls.md", &by_hand());
    }
}

#[test]
fn who_may_do_what() {
    let page = page("access.md");
    // The files that the page shows, and those that they name.
    let mut before = PACKAGED.to_owned();
    for block in blocks(&page, "toml").into_iter().chain(blocks(&page, "")) {
        if let Some(file) = block
            .lines()
            .next()
            .unwrap_or_default()
            .strip_prefix("# /etc/")
        {
            write!(before, "\ncat >/etc/{file} <<'END'\n{block}\nEND").unwrap();
        }
    }
    before.push_str(
        r#"
apt install -y openssl
cd /etc/mqbroker
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout server.key -out server.pem
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj "/CN=Plant 7" -keyout /dev/null -out devices-ca.pem
x=$(openssl genpkey -algorithm ed25519 | openssl pkey -pubout -outform DER | tail -c 32 | base64 | tr '+/' '-_' | tr -d =)
echo "{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"alg\":\"EdDSA\",\"x\":\"$x\"}]}" >jwks.json
chown mqbroker: server.key
chmod 600 server.key
SECRET=secret
exec < <(yes secret)
"#,
    );
    if let Some(machine) = Machine::new() {
        machine.has_packages().follow("access.md", &before);
    }
}

#[test]
fn moving_from_mosquitto() {
    let mosquitto = r"
apt install -y mosquitto mosquitto-clients openssl
(
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
)
";
    if let Some(machine) = machine_for_programs() {
        machine.follow("from-mosquitto.md", &format!("{mosquitto}\n{}", by_hand()));
    }
}

/// Pages whose commands another test runs.
const ELSEWHERE: &[(&str, &str)] = &[("testbed.md", "crates/mqbench/tests/pi")];

#[test]
fn every_guide_with_commands_is_run() {
    let own =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guides/mod.rs"));
    let own = own.unwrap();
    for file in fs::read_dir(repository().join("docs/guide")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let page = page(&name);
        let elsewhere = ELSEWHERE.iter().find(|(page, _)| *page == name);
        if let Some((_, test)) = elsewhere {
            assert!(repository().join(test).exists(), "there is no {test}");
            continue;
        }
        let is_run = own.contains(&format!("(\"{name}\", "))
            || own.contains(&format!("run_cluster(\"{name}\")"));
        assert!(
            is_run || blocks(&page, "sh").is_empty(),
            "no test runs {name}"
        );
    }
}
