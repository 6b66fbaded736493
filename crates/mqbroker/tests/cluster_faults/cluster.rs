//! The processes: three NATS servers and three brokers on loopback, with their files in one folder.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    net::{TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use mq_client::{Client, ClientBuilder, ConnectOptions, Connector, Reconnect, Trust};
use mq_testkit::Running;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::plan::Process;

pub(crate) const NODES: [&str; 3] = ["a", "b", "c"];

pub(crate) const SCHEMES: [&str; 3] = ["tcp", "tls", "quic"];

/// Where clients come to, and the folder of all files.
pub(crate) struct Place {
    folder: TempDir,
    /// By node, then by scheme.
    ports: [[u16; 3]; 3],
    connector: Connector,
    began: Instant,
    trace: Mutex<File>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let mut folder = tempfile::Builder::new();
        let folder = folder.prefix("cluster-faults-").disable_cleanup(true);
        let folder = folder.tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("cert.pem"), made.cert.pem()).unwrap();
        fs::write(file("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let options = ConnectOptions::new().trust(Trust::ca_file(file("cert.pem")));
        Self {
            ports: std::array::from_fn(|_| std::array::from_fn(|_| port())),
            connector: Connector::new(options).unwrap(),
            began: Instant::now(),
            trace: Mutex::new(File::create(file("trace")).unwrap()),
            folder,
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A test that fails keeps it.
    pub(crate) fn remove(&self) {
        fs::remove_dir_all(self.folder.path()).unwrap();
    }

    pub(crate) fn url(&self, node: usize, scheme: usize) -> String {
        let port = self.ports[node][scheme];
        format!("{}://127.0.0.1:{port}", SCHEMES[scheme])
    }

    /// The node that has this port.
    pub(crate) fn node_at(&self, port: u16) -> &'static str {
        let node = self.ports.iter().position(|ports| ports.contains(&port));
        node.map_or("?", |node| NODES[node])
    }

    /// A client whose session is kept. It comes to these nodes, the first that answers.
    pub(crate) fn client(&self, id: &str, nodes: &[usize], scheme: usize) -> ClientBuilder {
        let mut builder = Client::builder(&self.url(nodes[0], scheme)).unwrap();
        for node in &nodes[1..] {
            builder = builder.fallback(&self.url(*node, scheme)).unwrap();
        }
        builder
            .client_id(id)
            .unwrap()
            .connector(self.connector.clone())
            .fallback_memory(Duration::ZERO)
            .clean_start(false)
            .session_expiry(Duration::from_hours(24))
            .keep_alive(Duration::from_secs(2))
            .ping_timeout(Duration::from_secs(1))
            .connect_timeout(Duration::from_secs(3))
            .disconnect_timeout(Duration::from_secs(5))
            .reconnect(Reconnect {
                initial: Duration::from_millis(20),
                max: Duration::from_millis(500),
                ..Reconnect::default()
            })
    }

    /// Milliseconds since the campaign began.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap()
    }

    /// A line of the trace, with the time of day (UTC), as in the logs of the nodes.
    pub(crate) fn note(&self, what: &str) {
        let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let (second, milli) = (day.as_secs() % 86_400, day.subsec_millis());
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let line = format!(
            "{hour:02}:{minute:02}:{second:02}.{milli:03} {:>8} {what}",
            self.now()
        );
        writeln!(self.trace.lock().unwrap(), "{line}").unwrap();
    }
}

/// Below the ports that the system gives to sockets of clients: one that is free for a moment stays so.
fn port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        let address = ("127.0.0.1", port);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return port;
        }
    }
}

/// The processes that run.
pub(crate) struct Processes<'a> {
    place: &'a Place,
    nats: PathBuf,
    nodes: [Option<Running>; 3],
    servers: [Option<Running>; 3],
    /// Of nodes that left the cluster, as a node does whose life was ended.
    pub(crate) ended: usize,
}

impl<'a> Processes<'a> {
    /// `None` where there is no nats-server.
    pub(crate) fn start(place: &'a Place) -> Option<Self> {
        let nats = mq_testkit::program(&["nats-server"])?;
        configure(place);
        let mut all = Self {
            place,
            nats,
            nodes: [const { None }; 3],
            servers: [const { None }; 3],
            ended: 0,
        };
        for n in 0..3 {
            all.start_one(Process::Nats(n));
        }
        for n in 0..3 {
            all.start_one(Process::Node(n));
        }
        Some(all)
    }

    pub(crate) fn start_one(&mut self, process: Process) {
        let slot = match process {
            Process::Node(n) => &mut self.nodes[n],
            Process::Nats(n) => &mut self.servers[n],
        };
        *slot = Some(run(self.place, &self.nats, process));
    }

    /// SIGKILL, of one that is stopped as well.
    pub(crate) fn kill(&mut self, process: Process) {
        match process {
            Process::Node(n) => self.nodes[n] = None,
            Process::Nats(n) => self.servers[n] = None,
        }
    }

    pub(crate) fn signal(&self, process: Process, signal: Signal) {
        let running = match process {
            Process::Node(n) => &self.nodes[n],
            Process::Nats(n) => &self.servers[n],
        };
        if let Some(running) = running {
            let pid = Pid::from_raw(i32::try_from(running.0.id()).unwrap());
            kill(pid, signal).unwrap();
        }
    }

    /// Starts what has ended by itself, as systemd does.
    pub(crate) fn look_after(&mut self) {
        for (n, name) in NODES.iter().enumerate() {
            if let Some(running) = &mut self.nodes[n]
                && let Some(status) = running.0.try_wait().unwrap()
            {
                self.ended += 1;
                let log = fs::read(self.place.file(&format!("{name}.log"))).unwrap();
                let log = String::from_utf8_lossy(&log);
                let is_why = |line: &&str| line.contains("ERROR") || line.starts_with("mqbroker: ");
                let why = log.lines().rfind(is_why);
                let why = why.unwrap_or("without a word");
                self.place
                    .note(&format!("{name} has ended, {status}: {why}"));
                println!("{name} has ended, {status}: {why}");
                self.start_one(Process::Node(n));
            }
        }
        for server in self.servers.iter_mut().flatten() {
            let ended = server.0.try_wait().unwrap();
            assert!(ended.is_none(), "a NATS server has ended: {ended:?}");
        }
    }
}

fn configure(place: &Place) {
    let ports: [(u16, u16); 3] = std::array::from_fn(|_| (port(), port()));
    let list = |urls: [String; 3]| urls.join(", ");
    let routes = list(ports.map(|(_, routes)| format!("nats://127.0.0.1:{routes}")));
    for (n, (clients, others)) in ports.iter().enumerate() {
        let data = place.file(&format!("nats-{n}")).display().to_string();
        let config = format!(
            "server_name: n{n}\nlisten: 127.0.0.1:{clients}\nmax_payload: 8MB\n\
             jetstream {{ store_dir: {data:?}, sync_interval: always }}\n\
             cluster {{ name: test, listen: 127.0.0.1:{others}, routes: [{routes}] }}\n"
        );
        fs::write(place.file(&format!("nats-{n}.conf")), config).unwrap();
    }
    let servers = list(ports.map(|(clients, _)| format!("\"nats://127.0.0.1:{clients}\"")));
    for (n, node) in NODES.iter().enumerate() {
        let listen = list(std::array::from_fn(|s| format!("{:?}", place.url(n, s))));
        let of_tls = |name| place.file(name).display().to_string();
        let (certificate, key) = (of_tls("cert.pem"), of_tls("key.pem"));
        let config = format!(
            "listen = [{listen}]\n[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n\
             [limits]\nmailbox_messages = 1000000\nmailbox_bytes = 1000000000\n\
             [cluster]\nnode = {node:?}\nservers = [{servers}]\nreplicas = 3\nshards = 2\nlease_s = 3\n"
        );
        fs::write(place.file(&format!("{node}.toml")), config).unwrap();
    }
}

fn run(place: &Place, nats: &Path, process: Process) -> Running {
    let log = |name: &str| {
        let mut options = OpenOptions::new();
        let log = options.create(true).append(true).open(place.file(name));
        log.unwrap()
    };
    let mut command = match process {
        Process::Nats(n) => {
            let mut command = Command::new(nats);
            command
                .arg("-c")
                .arg(place.file(&format!("nats-{n}.conf")))
                .stdin(Stdio::null())
                .stderr(log(&format!("nats-{n}.log")));
            command
        }
        Process::Node(n) => {
            let node = NODES[n];
            let mut command = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
            command
                .args(["--until-stdin-ends", "--config"])
                .arg(place.file(&format!("{node}.toml")))
                .stdin(Stdio::piped())
                .stderr(log(&format!("{node}.log")));
            if std::env::var_os("RUST_LOG").is_none() {
                command.env("RUST_LOG", "info");
            }
            command
        }
    };
    Running(command.stdout(Stdio::null()).spawn().unwrap())
}
