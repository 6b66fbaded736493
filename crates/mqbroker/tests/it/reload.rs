//! The program reloads certificates and rules on SIGHUP, and without a signal.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use mq_client::{Client, ConnectOptions, Connector, QoS, Reconnect, Subscription, Trust};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::task::{JoinHandle, JoinSet};

/// The longest wait for operations that are usually immediate.
const PATIENCE: Duration = Duration::from_secs(30);

struct Program {
    folder: tempfile::TempDir,
    child: Child,
    /// URLs of the listeners by TLS, QUIC and secure WebSocket.
    urls: Vec<String>,
    /// Lines of the program's log.
    log: mpsc::Receiver<String>,
}

impl Program {
    fn start(watch: bool) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), watch, "")
    }

    /// Starts the program with this folder for its files, and with `more` in its configuration.
    fn start_in(folder: tempfile::TempDir, watch: bool, more: &str) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
        make(&folder);
        configure(&folder, watch, more);
        let mut child = program
            .args(["--announce", "--until-stdin-ends", "--config"])
            .arg(folder.path().join("broker.toml"))
            .env("RUST_LOG", "info")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, log) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines() {
                let _ = lines.send(line.unwrap());
            }
        });
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = stdout.lines().map(Result::unwrap);
        let urls: Vec<_> = lines.take_while(|line| line != "ready").collect();
        assert_eq!(urls.len(), 3);
        Self {
            folder,
            child,
            urls,
            log,
        }
    }

    fn hang_up(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(pid, Signal::SIGHUP).unwrap();
    }

    /// Waits for a log line that contains `part`.
    fn says(&self, part: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("it did not say `{part}`"));
            if line.contains(part) {
                return line;
            }
        }
    }

    fn client(&self, url: &str) -> mq_client::ClientBuilder {
        let options = ConnectOptions {
            trust: Trust::CaFile(self.certificate()),
            ..ConnectOptions::default()
        };
        let connector = Connector::new(options).unwrap();
        Client::builder(url).unwrap().connector(connector)
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Replaces certificate and key by new ones.
fn make(folder: &tempfile::TempDir) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    replace(folder, "key.pem", &made.signing_key.serialize_pem());
    replace(folder, "cert.pem", &made.cert.pem());
}

/// Replaces a file as a whole.
fn replace(folder: &tempfile::TempDir, name: &str, text: &str) {
    let new = folder.path().join("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, folder.path().join(name)).unwrap();
}

fn configure(folder: &tempfile::TempDir, watch: bool, more: &str) {
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) = (at("cert.pem"), at("key.pem"));
    let text = format!(
        "listen = [\"tls://127.0.0.1:0\", \"quic://127.0.0.1:0\", \"wss://127.0.0.1:0/mqtt\"]\n\
         [tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n\
         [reload]\nwatch = {watch}\n{more}"
    );
    fs::write(at("broker.toml"), text).unwrap();
}

/// Checks clients connected before a replacement, and new ones after it, over each transport.
async fn outlives(program: &Program, replace: impl AsyncFn()) {
    let mut clients = Vec::new();
    for url in &program.urls {
        let client = program.client(url).build().await.unwrap();
        let messages = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
        clients.push((client, messages));
    }
    replace().await;
    for ((client, messages), url) in clients.iter_mut().zip(&program.urls) {
        let mut events = client.events();
        // The client trusts the new certificate alone.
        let new = program.client(url).build().await.unwrap();
        new.publish("t", "x", QoS::AtLeastOnce).await.unwrap();
        let message = tokio::time::timeout(PATIENCE, messages.recv()).await;
        assert!(message.unwrap().is_some());
        let event = tokio::time::timeout(Duration::from_millis(10), events.recv()).await;
        assert!(event.is_err(), "{event:?}");
    }
}

#[tokio::test]
async fn a_hang_up_reads_certificates_again_and_names_what_needs_a_restart() {
    let program = Program::start(false);
    outlives(&program, async || {
        make(&program.folder);
        configure(&program.folder, false, "[limits]\nmax_packet_size = 77\n");
        program.hang_up();
        program.says(" reloaded");
        let line = program.says("need a restart");
        assert!(line.ends_with(r#"need a restart keys="limits""#), "{line}");
    })
    .await;
    // A mistake changes nothing, and is one line of the log.
    outlives(&program, async || {
        configure(&program.folder, false, "[limits]\nmax_packet_sizes = 77\n");
        program.hang_up();
        program.says("nothing was changed error=");
    })
    .await;
}

#[tokio::test]
async fn certificates_that_were_replaced_are_taken_without_a_signal() {
    let program = Program::start(true);
    outlives(&program, async || {
        make(&program.folder);
        program.says(" reloaded");
    })
    .await;
}

/// Publishers and their subscriber over one transport, at full speed.
struct Load {
    stop: Arc<AtomicBool>,
    writer: Client,
    topic: String,
    /// Tasks of the publishers, which return the number of acknowledged messages.
    publishers: JoinSet<u64>,
    /// Task of the reader, which returns the number of messages received.
    reader: JoinHandle<u64>,
}

impl Load {
    /// The number of publishers, each of which has one message in flight.
    const AT_ONCE: usize = 16;

    async fn start(program: &Program, url: &str, topic: &str) -> Self {
        let client = || program.client(url).reconnect(Reconnect::never()).build();
        let (writer, reader) = (client().await.unwrap(), client().await.unwrap());
        let filter = format!("load/{topic}/+");
        let messages = reader.subscribe(&*filter, QoS::AtLeastOnce).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut publishers = JoinSet::new();
        for publisher in 0..Self::AT_ONCE {
            let (writer, stop) = (writer.clone(), Arc::clone(&stop));
            let topic = format!("load/{topic}/{publisher}");
            publishers.spawn(async move {
                let mut number = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let payload = number.to_le_bytes().to_vec();
                    let sent = writer.publish(&*topic, payload, QoS::AtLeastOnce).await;
                    sent.expect("the connection stays");
                    number += 1;
                }
                number
            });
        }
        Self {
            stop,
            writer,
            topic: topic.to_owned(),
            publishers,
            reader: tokio::spawn(Self::read(reader, messages)),
        }
    }

    /// Receives each publisher's messages, none missing and none twice, until one of no publisher.
    async fn read(reader: Client, mut messages: Subscription) -> u64 {
        let mut next = [0_u64; Self::AT_ONCE];
        loop {
            let message = tokio::time::timeout(PATIENCE, messages.recv()).await;
            let message = message.expect("a message").expect("the connection stays");
            let publisher: usize = message.topic.rsplit('/').next().unwrap().parse().unwrap();
            let Some(next) = next.get_mut(publisher) else {
                break;
            };
            assert_eq!(*message.payload, next.to_le_bytes());
            *next += 1;
        }
        drop(reader);
        next.iter().sum()
    }

    /// Ends the load; returns the number of acknowledged messages, all of which were received.
    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged: u64 = self.publishers.join_all().await.into_iter().sum();
        let last = format!("load/{}/{}", self.topic, Self::AT_ONCE);
        let sent = self.writer.publish(last, "", QoS::AtLeastOnce).await;
        sent.unwrap();
        assert_eq!(self.reader.await.unwrap(), acknowledged);
        acknowledged
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_reloads_under_load_drop_nobody() {
    const ROUNDS: usize = 100;
    let rules = |open: usize| format!("topic readwrite load/#\ntopic write open-{open}\n");
    let folder = tempfile::tempdir().unwrap();
    replace(&folder, "acl", &rules(ROUNDS));
    let auth = format!(
        "[auth]\nallow_anonymous = true\nacl_file = \"{}\"\n",
        folder.path().join("acl").display()
    );
    let program = Program::start_in(folder, false, &auth);
    let began = Instant::now();
    let mut loads = Vec::new();
    for (number, url) in program.urls.iter().enumerate() {
        loads.push(Load::start(&program, url, &number.to_string()).await);
    }
    for round in 0..ROUNDS {
        make(&program.folder);
        replace(&program.folder, "acl", &rules(round));
        program.hang_up();
        program.says("users and access rules reloaded");
        for url in &program.urls {
            // The client trusts the new certificate alone.
            let new = program.client(url).build().await.unwrap();
            let closed = (round + ROUNDS) % (ROUNDS + 1);
            for (name, may) in [(round, true), (closed, false)] {
                let topic = format!("open-{name}");
                let sent = new.publish(topic, "", QoS::AtLeastOnce).await;
                assert_eq!(sent.is_ok(), may, "{round}: {sent:?}");
            }
        }
    }
    for (load, url) in loads.into_iter().zip(&program.urls) {
        let messages = load.end().await;
        println!("{url}: {messages} messages in {:?}", began.elapsed());
        assert!(messages > 0);
    }
}
