//! A cluster as its operator meets it: the program `mqbroker` with `[cluster]`, NATS with TLS and a password, and
//! mosquitto's clients.

#![cfg(all(unix, feature = "cluster"))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use mq_testkit::{Running, free_port, program};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

const SOON: Duration = Duration::from_mins(1);

const PASSWORD: &str = "a password of the nodes";

/// One server of NATS.
struct Nats {
    url: String,
    folder: TempDir,
    running: Running,
}

impl Nats {
    /// `None` where there is no nats-server. With `tls` it takes no other connections.
    fn start(tls: bool) -> Option<Self> {
        let program = program(&["nats-server"])?;
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name).display().to_string();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(place("ca.pem"), certificate.pem()).unwrap();
        fs::write(place("key.pem"), key.serialize_pem()).unwrap();
        write_secret(&folder.path().join("password"), PASSWORD);
        write_secret(&folder.path().join("wrong"), "another password");
        let port = free_port();
        let encryption = if tls {
            let (certificate, key) = (place("ca.pem"), place("key.pem"));
            format!("tls {{ cert_file: {certificate:?}, key_file: {key:?} }}\n")
        } else {
            String::new()
        };
        let config = format!(
            "server_name: n\nlisten: 127.0.0.1:{port}\nmax_payload: 8MB\n{encryption}\
             jetstream {{ store_dir: {:?} }}\nauthorization {{ user: mq, password: {PASSWORD:?} }}\n",
            place("data")
        );
        fs::write(place("nats.conf"), config).unwrap();
        let mut command = Command::new(program);
        command.args(["-c", &place("nats.conf"), "-l", &place("nats.log")]);
        let running = Running(command.spawn().unwrap());
        let scheme = if tls { "tls" } else { "nats" };
        Some(Self {
            url: format!("{scheme}://127.0.0.1:{port}"),
            folder,
            running,
        })
    }

    fn place(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The table of a node, with a password that is in that file.
    fn table(&self, node: &str, servers: &str, password: &str) -> String {
        let ca = if servers.starts_with("tls") {
            format!("ca = {:?}\n", self.place("ca.pem"))
        } else {
            String::new()
        };
        format!(
            "[cluster]\nnode = {node:?}\nservers = [{servers:?}]\nuser = \"mq\"\npassword_file = {:?}\n\
             replicas = 1\nshards = 2\nlease_s = 1\n{ca}",
            self.place(password)
        )
    }

    /// A broker with this configuration.
    fn command(&self, name: &str, configuration: &str) -> Command {
        let file = self.place(&format!("{name}.toml"));
        fs::write(&file, configuration).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
        command.args(["--announce", "--until-stdin-ends", "--config"]);
        command
            .arg(file)
            .stdin(Stdio::piped())
            .env_remove("RUST_LOG");
        command
    }

    /// A broker that serves: its port.
    fn node(&self, name: &str) -> (u16, Running) {
        let port = free_port();
        let socket = self.place(&format!("{name}.sock"));
        let listen =
            format!("listen = [\"tcp://127.0.0.1:{port}\"]\nadmin = {{ socket = {socket:?} }}\n");
        let configuration = listen + &self.table(name, &self.url, "password");
        let mut command = self.command(name, &configuration);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "ready"), "{name} has ended");
        (port, Running(child))
    }

    /// What a node shows.
    fn status(&self, node: &str) -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
        command.args(["cluster", "status", "--json", "--socket"]);
        command.arg(self.place(&format!("{node}.sock")));
        let output = ended(command.stdout(Stdio::piped()).spawn().unwrap());
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What a broker says that does not start.
    fn refused(&self, table: &str) -> String {
        let listen = format!("listen = [\"tcp://127.0.0.1:{}\"]\n", free_port());
        let mut command = self.command("refused", &(listen + table));
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        let Output { status, stderr, .. } = ended(command.spawn().unwrap());
        assert!(!status.success());
        let said = String::from_utf8(stderr).unwrap();
        assert!(!said.contains("password of the nodes"), "{said}");
        let last = said.lines().filter(|line| line.starts_with("mqbroker: "));
        let last: Vec<_> = last.collect();
        assert_eq!(last.len(), 1, "one line says why: {said}");
        last[0].to_owned()
    }
}

fn write_secret(path: &Path, secret: &str) {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    writeln!(file.unwrap(), "{secret}").unwrap();
}

/// Waits for a process, and ends it if it does not end by itself.
fn ended(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > SOON {
            let _ = child.kill();
            panic!("a program does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// At QoS 2: what was taken at QoS 1 shortly before a node is killed may come again.
fn mosquitto(program: &Path, port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args([
        "-h",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-V",
        "5",
        "-q",
        "2",
    ]);
    command.args(arguments);
    command
}

#[test]
fn nodes_behind_tls_and_a_password_serve_mosquittos_clients_and_outlive_one_of_them() {
    let (Some(nats), Some(publish), Some(subscribe)) = (
        Nats::start(true),
        program(&["mosquitto_pub"]),
        program(&["mosquitto_sub"]),
    ) else {
        return;
    };
    let (a, _a) = nats.node("a");
    let (b, killed) = nats.node("b");
    let (c, _c) = nats.node("c");
    let session = ["-t", "plant/#", "-i", "reader", "-c", "-x", "3600"];
    // It makes the session, and leaves.
    let made = mosquitto(&subscribe, b, &session).arg("-E").spawn();
    assert!(ended(made.unwrap()).status.success());
    let send = |port, text: &str| {
        let message = ["-t", "plant/1", "-m", text, "-i", "writer"];
        let sent = mosquitto(&publish, port, &message).spawn();
        assert!(ended(sent.unwrap()).status.success(), "{text}");
    };
    let receive = |port, count: &str| {
        let mut command = mosquitto(&subscribe, port, &session);
        command.args(["-C", count, "-W", "50"]);
        let output = ended(command.stdout(Stdio::piped()).spawn().unwrap());
        String::from_utf8(output.stdout).unwrap()
    };
    send(a, "from a");
    send(c, "from c");
    assert_eq!(receive(b, "2"), "from a\nfrom c\n");
    let shown = nats.status("b");
    assert_eq!(shown["node"], "b");
    assert_eq!(shown["majority_lost"], false);
    assert_eq!(shown["sessions"], 1);
    let names = shown["nodes"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let logs = shown["logs"].as_array().unwrap();
    assert_eq!(logs.len(), 2);
    let read = logs.iter().map(|log| log["read"].as_u64().unwrap());
    assert_eq!(read.sum::<u64>(), 2);
    assert!(
        logs.iter()
            .all(|log| log["behind"] == 0 && log["messages_waiting"] == 0)
    );
    send(a, "before");
    // SIGKILL.
    drop(killed);
    send(c, "after");
    assert_eq!(receive(a, "2"), "before\nafter\n");
}

#[test]
fn a_node_that_may_not_come_in_says_why_in_one_line() {
    let (Some(nats), Some(plain)) = (Nats::start(true), Nats::start(false)) else {
        return;
    };
    // It has to answer before it can refuse.
    let (_, _running) = nats.node("a");
    let (_, _other) = plain.node("a");
    let says = |said: String, part: &str| assert!(said.contains(part), "{said}");
    let url = nats.url.as_str();
    let said = nats.refused(&nats.table("b", url, "wrong"));
    says(said, "do not let \"mq\" in with the password");
    let said = nats.refused(&nats.table("a", url, "password"));
    says(
        said,
        "\"a\" runs already, at 127.0.0.1: give each node a name",
    );
    let other = nats
        .table("b", url, "password")
        .replace("shards = 2", "shards = 3");
    says(nats.refused(&other), "has 2, and not 3");
    let asked = plain.url.replace("nats:", "tls:");
    says(
        nats.refused(&nats.table("b", &asked, "password")),
        "speaks no TLS",
    );
    let unasked = url.replace("tls:", "nats:");
    says(
        nats.refused(&nats.table("b", &unasked, "password")),
        "want TLS",
    );
    let stranger = nats.table("b", url, "password");
    let ca = format!("{:?}", nats.place("ca.pem"));
    let stranger = stranger.replace(&ca, &format!("{:?}", plain.place("ca.pem")));
    says(nats.refused(&stranger), "no TLS with");
    let large = "[limits]\nmax_packet_size = 8388608\n".to_owned();
    let large = nats.table("b", url, "password") + &large;
    says(nats.refused(&large), "set `max_payload: 8MB` there");
}

#[test]
fn a_node_shows_that_its_servers_confirm_nothing() {
    let (Some(nats), Some(publish)) = (Nats::start(true), program(&["mosquitto_pub"])) else {
        return;
    };
    let (port, _a) = nats.node("a");
    let signal = |name: &str| {
        let pid = nats.running.0.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.unwrap().success());
    };
    let until = |holds: &dyn Fn(&serde_json::Value) -> bool| {
        let began = Instant::now();
        loop {
            let shown = nats.status("a");
            if holds(&shown) {
                return;
            }
            assert!(began.elapsed() < SOON, "{shown}");
        }
    };
    let mut lines = mosquitto(&publish, port, &["-t", "t", "-l"]);
    let mut client = lines.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    writeln!(input, "first").unwrap();
    until(&|shown| {
        let mut logs = shown["logs"].as_array().unwrap().iter();
        shown["majority_lost"] == false && logs.any(|log| log["read"] == 1)
    });
    signal("-STOP");
    writeln!(input, "waits").unwrap();
    until(&|shown| {
        let is_unknown = shown["logs"][0]["behind"].is_null();
        shown["majority_lost"] == true && shown["messages_waiting"] == 1 && is_unknown
    });
    signal("-CONT");
    // Nothing was lost: the acknowledgement comes late.
    drop(input);
    assert!(ended(client).status.success());
    until(&|shown| shown["majority_lost"] == false && shown["messages_waiting"] == 0);
}
