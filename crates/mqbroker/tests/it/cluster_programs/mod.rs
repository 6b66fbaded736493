//! A cluster of programs on loopback, run by a test: NATS servers, and nodes over them.

use std::{
    fs::{self, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use mq_testkit::{Running, free_port, nats_stream_states, program};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::block_in_place,
    time::{sleep, timeout},
};

/// Time that a program, or what it does, may take.
pub(crate) const SOON: Duration = Duration::from_mins(1);

const PASSWORD: &str = "a password of the nodes";

/// The NATS servers of a cluster, with a folder for all of its files.
pub(crate) struct Nats {
    program: PathBuf,
    /// With TLS they take no other connections.
    tls: bool,
    pub(crate) folder: TempDir,
    ports: Vec<u16>,
    /// Monitoring ports of the servers.
    http: Vec<u16>,
    pub(crate) running: Vec<Running>,
}

impl Nats {
    /// Starts so many servers. `None` where there is no nats-server.
    pub(crate) fn start(servers: usize, tls: bool) -> Option<Self> {
        let mut nats = Self::new(servers, tls)?;
        nats.begin();
        Some(nats)
    }

    /// Makes so many servers, which do not run yet. `None` where there is no nats-server.
    pub(crate) fn new(servers: usize, tls: bool) -> Option<Self> {
        let program = program(&["nats-server"])?;
        let folder = tempfile::tempdir().unwrap();
        let nats = Self {
            program,
            tls,
            folder,
            ports: (0..servers).map(|_| free_port()).collect(),
            http: (0..servers).map(|_| free_port()).collect(),
            running: Vec::new(),
        };
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(nats.place("ca.pem"), certificate.pem()).unwrap();
        fs::write(nats.place("key.pem"), key.serialize_pem()).unwrap();
        write_secret(&nats.folder.path().join("password"), PASSWORD);
        write_secret(&nats.folder.path().join("wrong"), "another password");
        nats.configure();
        Some(nats)
    }

    fn configure(&self) {
        let routes: Vec<_> = self.ports.iter().map(|_| free_port()).collect();
        let all = routes
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect::<Vec<_>>()
            .join(", ");
        for (n, (port, route)) in self.ports.iter().zip(&routes).enumerate() {
            let encryption = if self.tls {
                let (certificate, key) = (self.place("ca.pem"), self.place("key.pem"));
                format!("tls {{ cert_file: {certificate:?}, key_file: {key:?} }}\n")
            } else {
                String::new()
            };
            let cluster = if routes.len() > 1 {
                format!("cluster {{ name: test, listen: 127.0.0.1:{route}, routes: [{all}] }}\n")
            } else {
                String::new()
            };
            let config = format!(
                "server_name: n{n}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{}\nmax_payload: 8MB\n\
                 {encryption}{cluster}jetstream {{ store_dir: {:?} }}\n\
                 authorization {{ user: mq, password: {PASSWORD:?} }}\n",
                self.http[n],
                self.data(n)
            );
            fs::write(self.place(&format!("nats-{n}.conf")), config).unwrap();
        }
    }

    /// Bounds what each server stores. One that runs learns of more room by SIGHUP.
    pub(crate) fn set_max_file_store(&self, most: &str) {
        for n in 0..self.ports.len() {
            let file = self.place(&format!("nats-{n}.conf"));
            let config = fs::read_to_string(&file).unwrap();
            let lines = config
                .lines()
                .map(|line| match line.split_once("jetstream {") {
                    Some(_) => format!(
                        "jetstream {{ store_dir: {:?}, max_file_store: {most} }}",
                        self.data(n)
                    ),
                    None => line.to_owned(),
                });
            let lines: Vec<_> = lines.collect();
            fs::write(&file, lines.join("\n")).unwrap();
        }
    }

    /// Starts all servers that do not run, which are the last ones.
    pub(crate) fn begin(&mut self) {
        self.begin_first(self.ports.len());
    }

    /// Starts the first so many servers, but for those that run, which are the first of them.
    pub(crate) fn begin_first(&mut self, count: usize) {
        for n in self.running.len()..count {
            let server = self.server(n);
            self.running.push(server);
        }
    }

    fn server(&self, n: usize) -> Running {
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(self.place(&format!("nats-{n}.conf")));
        command.arg("-l").arg(self.place(&format!("nats-{n}.log")));
        Running(command.spawn().unwrap())
    }

    /// Ends one of three servers in order, and starts it again. It is in step with the others then.
    pub(crate) async fn restart(&mut self, n: usize) {
        let ended = self.running.remove(n);
        block_in_place(|| end(ended));
        let server = self.server(n);
        self.running.insert(n, server);
        let in_step = async {
            loop {
                let answer = self.ask(n, "/healthz").await;
                if answer.is_some_and(|answer| answer.contains(" 200 ")) {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(SOON, in_step).await.expect("it is in step");
    }

    /// Waits until all servers store as many messages of each stream, and the same first and last one.
    pub(crate) async fn store_the_same(&self) {
        let same = async {
            loop {
                let mut states = Vec::new();
                for n in 0..self.ports.len() {
                    let answer = self.ask(n, "/jsz?streams=true").await;
                    states.push(answer.and_then(|answer| nats_stream_states(&answer)));
                }
                let first = &states[0];
                if first.is_some() && states.iter().all(|state| state == first) {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let same = timeout(SOON, same).await;
        same.expect("all servers come to store the same");
    }

    /// Returns a server's answer at its monitoring port.
    async fn ask(&self, n: usize, path: &str) -> Option<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.http[n])).await;
        let mut stream = stream.ok()?;
        let asked = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(asked.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    /// Ends all servers in order, as an operator does.
    pub(crate) fn end(&mut self) {
        for server in self.running.drain(..) {
            end(server);
        }
    }

    /// Returns the folder of a server's storage.
    pub(crate) fn data(&self, server: usize) -> String {
        self.place(&format!("data-{server}"))
    }

    pub(crate) fn place(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let scheme = if self.tls { "tls" } else { "nats" };
        let ports = self.ports.iter();
        ports
            .map(|port| format!("{scheme}://127.0.0.1:{port}"))
            .collect()
    }

    /// Connects to the servers as an operator does.
    pub(crate) async fn jetstream(&self) -> async_nats::jetstream::Context {
        let options =
            async_nats::ConnectOptions::with_user_and_password("mq".into(), PASSWORD.into());
        let client = timeout(SOON, Box::pin(options.connect(self.urls()))).await;
        async_nats::jetstream::new(client.unwrap().unwrap())
    }

    /// Formats the table of a node, with a password that is in that file.
    pub(crate) fn table(&self, node: &str, servers: &[String], password: &str) -> String {
        let ca = if servers[0].starts_with("tls") {
            format!("ca = {:?}\n", self.place("ca.pem"))
        } else {
            String::new()
        };
        format!(
            "[cluster]\nnode = {node:?}\nservers = {servers:?}\nuser = \"mq\"\npassword_file = {:?}\n\
             replicas = {}\nshards = 2\n{ca}",
            self.place(password),
            servers.len()
        )
    }

    /// Makes the command of a broker with this configuration.
    pub(crate) fn command(&self, name: &str, configuration: &str) -> Command {
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

    /// Starts a node, which serves.
    pub(crate) fn node(&self, name: &str, lease_s: u32) -> Node {
        self.node_with(name, lease_s, None)
    }

    /// Starts a node, which serves, with a wall clock of its own by the library `faketime`, which is off by so many
    /// seconds at first.
    pub(crate) fn node_with_clock(
        &self,
        name: &str,
        lease_s: u32,
        faketime: PathBuf,
        ahead_s: i32,
    ) -> Node {
        self.set_clock(name, ahead_s);
        self.node_with(name, lease_s, Some(faketime))
    }

    /// Lets the clock of a node be off by so many seconds.
    pub(crate) fn set_clock(&self, name: &str, ahead_s: i32) {
        // It is read at any time, and never a part of it.
        let new = self.place("new.clock");
        fs::write(&new, format!("{ahead_s:+}\n")).unwrap();
        fs::rename(new, self.place(&format!("{name}.clock"))).unwrap();
    }

    fn node_with(&self, name: &str, lease_s: u32, faketime: Option<PathBuf>) -> Node {
        let mut node = Node {
            name: name.to_owned(),
            port: free_port(),
            lease_s,
            faketime,
            running: None,
        };
        node.start(self);
        node
    }

    /// Returns the status that a node shows.
    pub(crate) fn status(&self, node: &str) -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
        command.args(["cluster", "status", "--json", "--socket"]);
        command.arg(self.place(&format!("{node}.sock")));
        let output = ended(command.stdout(Stdio::piped()).spawn().unwrap());
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// A node, with everything that it needs to be started again.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) port: u16,
    lease_s: u32,
    /// The library that gives it a wall clock of its own.
    faketime: Option<PathBuf>,
    pub(crate) running: Option<Running>,
}

impl Node {
    pub(crate) fn url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// Starts it, at the same address each time. It serves then.
    pub(crate) fn start(&mut self, nats: &Nats) {
        let Self { name, port, .. } = self;
        let socket = nats.place(&format!("{name}.sock"));
        let listen =
            format!("listen = [\"tcp://127.0.0.1:{port}\"]\nadmin = {{ socket = {socket:?} }}\n");
        let table = nats.table(name, &nats.urls(), "password");
        let configuration = format!("{listen}{table}lease_s = {}\n", self.lease_s);
        let mut log = OpenOptions::new();
        let log = log.create(true).append(true);
        let log = log.open(nats.place(&format!("{name}.log"))).unwrap();
        let mut command = nats.command(name, &configuration);
        command.env("RUST_LOG", "info").stderr(log);
        if let Some(library) = &self.faketime {
            let clock = nats.place(&format!("{name}.clock"));
            mq_testkit::give_clock(&mut command, library, clock.as_ref());
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        self.running = Some(Running(child));
        let mut lines = output.lines().map(Result::unwrap);
        if !lines.any(|line| line == "ready") {
            let log = fs::read_to_string(nats.place(&format!("{name}.log")));
            panic!("{name} has ended: {}", log.unwrap());
        }
    }

    /// Ends it by SIGTERM, as systemd does. Returns how long that took.
    pub(crate) fn end(&mut self) -> Duration {
        let began = Instant::now();
        end(self.running.take().unwrap());
        began.elapsed()
    }

    /// Kills the node (SIGKILL).
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }
}

/// Ends a program by SIGTERM; it ends well.
fn end(mut program: Running) {
    signal(&program, "-TERM");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = program.0.try_wait().unwrap() {
            break status;
        }
        assert!(began.elapsed() < SOON, "a program does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    // What nats-server says of SIGTERM.
    assert!(status.success() || status.code() == Some(1), "{status}");
}

pub(crate) fn signal(program: &Running, name: &str) {
    let pid = program.0.id().to_string();
    let sent = Command::new("kill").args([name, &pid]).status();
    assert!(sent.unwrap().success());
}

/// Stops a program (SIGSTOP), and returns when no thread of it runs: on a busy machine they run on for a while.
pub(crate) fn stop(program: &Running) {
    let process = Pid::from_raw(program.0.id().try_into().unwrap());
    kill(process, Signal::SIGSTOP).unwrap();
    let state = waitpid(process, Some(WaitPidFlag::WUNTRACED));
    assert_eq!(state, Ok(WaitStatus::Stopped(process, Signal::SIGSTOP)));
}

fn write_secret(path: &Path, secret: &str) {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    writeln!(file.unwrap(), "{secret}").unwrap();
}

/// Waits for a process, and ends it if it does not end by itself.
pub(crate) fn ended(mut child: Child) -> Output {
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
