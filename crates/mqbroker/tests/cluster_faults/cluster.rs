//! The processes: three machines, each with a NATS server and a broker, with their files in one folder.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use mq_client::{Client, ClientBuilder, ConnectOptions, Connector, Reconnect, Trust};
use mq_testkit::Running;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    history::{History, Operation},
    net::Net,
    plan::Process,
    pulses::Pulses,
};

pub(crate) const NODES: [&str; 3] = ["a", "b", "c"];

pub(crate) const SCHEMES: [(&str, u16); 3] = [("tcp", 1883), ("tls", 8883), ("quic", 14_567)];

/// Logs of the cluster.
pub(crate) const SHARDS: usize = 2;

/// Monitoring port of a NATS server.
pub(crate) const HTTP_PORT: u16 = 8222;

/// User of the servers' own account, and its password: who may remove a server.
pub(crate) const SYSTEM: &str = "system";

/// Bytes that a NATS server may store: few, so that a stream that is to take the room does it in seconds.
const MAX_FILE_STORE: u64 = 48_000_000;

/// Machines of a campaign, and the folder of all files.
pub(crate) struct Place {
    folder: TempDir,
    pub(crate) net: Net,
    connector: Connector,
    began: Instant,
    trace: Mutex<File>,
    history: History,
}

impl Place {
    pub(crate) fn new(net: Net) -> Self {
        let mut folder = tempfile::Builder::new();
        // Guests are another user's.
        let folder = folder.permissions(fs::Permissions::from_mode(0o711));
        let folder = folder.prefix("cluster-faults-").disable_cleanup(true);
        let folder = folder.tempdir().unwrap();
        let names = [0, 1, 2].map(|machine| net.address(machine).to_string());
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("cert.pem"), made.cert.pem()).unwrap();
        fs::write(file("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let options = ConnectOptions::new().trust(Trust::ca_file(file("cert.pem")));
        Self {
            net,
            connector: Connector::new(options).unwrap(),
            began: Instant::now(),
            trace: Mutex::new(File::create(file("trace")).unwrap()),
            history: History::begin(&file("history.jsonl")),
            folder,
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Removes the folder, which a test that fails keeps.
    pub(crate) fn remove(&self) {
        fs::remove_dir_all(self.folder.path()).unwrap();
    }

    pub(crate) fn url(&self, node: usize, scheme: usize) -> String {
        let (scheme, port) = SCHEMES[scheme];
        format!("{scheme}://{}:{port}", self.net.address(node))
    }

    /// Returns the node that has this address.
    pub(crate) fn node_at(&self, address: IpAddr) -> &'static str {
        let node = (0..3).find(|node| self.net.address(*node) == address);
        node.map_or("?", |node| NODES[node])
    }

    /// Lets the clock of a node, or of the guest with a NATS server, be off by so many seconds.
    pub(crate) fn set_clock(&self, process: Process, seconds: i32) {
        let name = match process {
            Process::Node(node) => format!("{}.clock", NODES[node]),
            Process::Nats(server) => format!("nats-{server}.clock"),
        };
        // It is read at any time, and never a part of it.
        let new = self.file("clock");
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(new, self.file(&name)).unwrap();
    }

    /// Builds a client whose session is kept. It connects to the first of these nodes that answers.
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

    /// Writes a line of the history.
    pub(crate) fn record(&self, client: &str, operation: &Operation<'_>) {
        self.history.note(self.now(), client, operation);
    }

    pub(crate) fn end_history(&self) {
        self.history.flush();
    }

    /// Writes a line of the trace, with the time of day (UTC), as in the logs of the nodes.
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

/// The processes that run.
pub(crate) struct Processes<'a> {
    place: &'a Place,
    nats: PathBuf,
    /// Library that gives nodes clocks of their own.
    pub(crate) faketime: Option<PathBuf>,
    nodes: [Option<Started>; 3],
    /// Pulses of servers that run for a part of the time. This field is dropped first, as their processes live then.
    slowed: [Option<Pulses>; 3],
    servers: [Option<Started>; 3],
    /// Number of times that each server was replaced by another one.
    replaced: [usize; 3],
    /// Number of nodes that left the cluster because another node ended their life.
    pub(crate) ended: usize,
    /// The server whose storage was damaged since all stored the same, and `true` if it has ended by itself since.
    pub(crate) damaged: Option<(usize, bool)>,
}

/// A program that ends with the test.
struct Started {
    running: Running,
    /// `true` for a kernel. Its guest's processes are processes of this machine as well, and of its group.
    is_kernel: bool,
}

impl Started {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.running.0.id()).unwrap())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.is_kernel {
            let _ = killpg(self.pid(), Signal::SIGKILL);
        }
    }
}

impl<'a> Processes<'a> {
    /// Starts all processes; `None` where there is no nats-server.
    pub(crate) fn start(place: &'a Place) -> Option<Self> {
        let nats = mq_testkit::program(&["nats-server"])?;
        configure(place);
        // Where clocks of NATS servers jump, the others go right.
        let has_clocks = !place.net.has_guests();
        let mut all = Self {
            place,
            nats: place.net.stage(nats),
            faketime: has_clocks.then(mq_testkit::faketime).flatten(),
            nodes: [const { None }; 3],
            servers: [const { None }; 3],
            replaced: [0; 3],
            slowed: [const { None }; 3],
            ended: 0,
            damaged: None,
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
        let running = self.run(process);
        match process {
            Process::Node(n) => self.nodes[n] = Some(running),
            Process::Nats(n) => self.servers[n] = Some(running),
        }
    }

    /// Kills a process (SIGKILL), also one that is stopped.
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
            kill(running.pid(), signal).unwrap();
        }
    }

    /// Lets a NATS server run for a part of the time.
    pub(crate) fn slow(&mut self, server: usize) {
        let process = self.servers[server].as_ref().map(Started::pid);
        self.slowed[server] = process.map(Pulses::begin);
    }

    /// Lets it run all the time.
    pub(crate) fn steady(&mut self, server: usize) {
        self.slowed[server] = None;
    }

    /// Returns the name that a server has among the servers.
    pub(crate) fn server_name(&self, server: usize) -> String {
        server_name(server, self.replaced[server])
    }

    /// Gives a server that is down a name that none has had.
    pub(crate) fn rename_server(&mut self, server: usize) {
        self.replaced[server] += 1;
        configure_server(self.place, server, &self.server_name(server));
    }

    /// Starts what has ended by itself, as systemd does.
    pub(crate) fn look_after(&mut self) {
        for (n, name) in NODES.iter().enumerate() {
            if let Some(started) = &mut self.nodes[n]
                && let Some(status) = started.running.0.try_wait().unwrap()
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
        for (n, slot) in self.servers.iter_mut().enumerate() {
            let server = slot.as_mut();
            let Some(status) = server.and_then(|server| server.running.0.try_wait().unwrap())
            else {
                continue;
            };
            self.place.note(&format!("server {n} has ended, {status}"));
            match &mut self.damaged {
                Some((damaged, has_ended)) if *damaged == n => *has_ended = true,
                _ => panic!("server {n} has ended, {status}, and its storage was well"),
            }
            *slot = None;
        }
    }
}

/// Machines but for one.
fn others(machine: usize) -> impl Iterator<Item = usize> {
    (0..3).filter(move |other| *other != machine)
}

fn server_name(server: usize, replaced: usize) -> String {
    match replaced {
        0 => format!("n{server}"),
        _ => format!("n{server}-{replaced}"),
    }
}

fn configure_server(place: &Place, n: usize, name: &str) {
    let route = |other| format!("nats://{}:6222", place.net.server_from(n, other));
    let routes = others(n).map(route);
    let routes = routes.collect::<Vec<_>>().join(", ");
    let data = place.file(&format!("nats-{n}")).display().to_string();
    let config = format!(
        "server_name: {name}\nlisten: 0.0.0.0:4222\nhttp: 0.0.0.0:{HTTP_PORT}\nmax_payload: 8MB\n\
         jetstream {{ store_dir: {data:?}, sync_interval: always, max_file_store: {MAX_FILE_STORE} }}\n\
         cluster {{ name: test, listen: 0.0.0.0:6222, no_advertise: true, routes: [{routes}] }}\n\
         accounts {{ $SYS {{ users: [{{ user: {SYSTEM:?}, password: {SYSTEM:?} }}] }} }}\n"
    );
    fs::write(place.file(&format!("nats-{n}.conf")), config).unwrap();
}

fn configure(place: &Place) {
    for n in 0..3 {
        place.set_clock(Process::Nats(n), 0);
        let data = place.file(&format!("nats-{n}"));
        place.net.make_store(&data).unwrap();
        configure_server(place, n, &server_name(n, 0));
    }
    for (n, node) in NODES.iter().enumerate() {
        place.set_clock(Process::Node(n), 0);
        let listen = std::array::from_fn::<_, 3, _>(|scheme| format!("{:?}", place.url(n, scheme)));
        let listen = listen.join(", ");
        let servers = [n].into_iter().chain(others(n));
        let servers =
            servers.map(|server| format!("\"nats://{}:4222\"", place.net.server_from(n, server)));
        let servers = servers.collect::<Vec<_>>().join(", ");
        let of_tls = |name| place.file(name).display().to_string();
        let (certificate, key) = (of_tls("cert.pem"), of_tls("key.pem"));
        let config = format!(
            "listen = [{listen}]\n[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n\
             [auth]\nallow_anonymous = true\n\
             [limits]\nmailbox_messages = 50000\nmailbox_bytes = 1000000000\n\
             [cluster]\nnode = {node:?}\nservers = [{servers}]\nplaintext = true\nreplicas = 3\nshards = {SHARDS}\nlease_s = 3\n"
        );
        fs::write(place.file(&format!("{node}.toml")), config).unwrap();
    }
}

impl Processes<'_> {
    fn run(&self, process: Process) -> Started {
        let file = |name: String| self.place.file(&name);
        let log = |name: &str| {
            let mut options = OpenOptions::new();
            let log = options.create(true).append(true);
            log.open(file(format!("{name}.log"))).unwrap()
        };
        let net = &self.place.net;
        let mut command = match process {
            Process::Nats(n) => {
                let log = log(&format!("nats-{n}"));
                let mut command = net.serve(n, &self.nats, &file(String::new()));
                // A guest has one output for all.
                command.stderr(log.try_clone().unwrap()).stdout(log);
                command
            }
            Process::Node(n) => {
                let node = NODES[n];
                let mut command = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
                command
                    .args(["--until-stdin-ends", "--config"])
                    .arg(file(format!("{node}.toml")))
                    .stdout(Stdio::null())
                    .stderr(log(node));
                if std::env::var_os("RUST_LOG").is_none() {
                    command.env("RUST_LOG", "info");
                }
                if let Some(library) = &self.faketime {
                    let clock = file(format!("{node}.clock"));
                    mq_testkit::give_clock(&mut command, library, &clock);
                }
                command
            }
        };
        // A node ends with this process, and so does a guest, whose console that is.
        command.stdin(Stdio::piped());
        Started {
            running: Running(net.start(process, &mut command).unwrap()),
            is_kernel: matches!(process, Process::Nats(_)) && net.has_guests(),
        }
    }
}
