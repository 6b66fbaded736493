//! The program takes new certificates on SIGHUP, and without being told.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use mq_client::{Client, ConnectOptions, QoS, Trust};

/// How long things may take that take no time.
const PATIENCE: Duration = Duration::from_secs(30);

struct Program {
    folder: tempfile::TempDir,
    child: Child,
    /// Of TLS and QUIC.
    urls: Vec<String>,
    /// What it logs.
    log: mpsc::Receiver<String>,
}

impl Program {
    /// With this in its configuration file.
    fn start(watch: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
        make(&folder);
        configure(&folder, watch, "");
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
        assert_eq!(urls.len(), 2);
        Self {
            folder,
            child,
            urls,
            log,
        }
    }

    fn hang_up(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-HUP", &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for a line with this in it.
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
        Client::builder(url).unwrap().transport(options)
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

/// Another certificate and key in the place of those that are there.
fn make(folder: &tempfile::TempDir) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = made.signing_key.serialize_pem();
    for (name, text) in [("key.pem", key), ("cert.pem", made.cert.pem())] {
        let new = folder.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, folder.path().join(name)).unwrap();
    }
}

fn configure(folder: &tempfile::TempDir, watch: bool, more: &str) {
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) = (at("cert.pem"), at("key.pem"));
    let text = format!(
        "listen = [\"tls://127.0.0.1:0\", \"quic://127.0.0.1:0\"]\n\
         [tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n\
         [reload]\nwatch = {watch}\n{more}"
    );
    fs::write(at("broker.toml"), text).unwrap();
}

/// Clients that are connected before, and new ones after, over each transport.
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
        // It knows the new certificate alone.
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
        program.says("were read again");
        let line = program.says("needs a restart");
        assert!(line.ends_with("needs a restart: limits"), "{line}");
    })
    .await;
    // A mistake changes nothing, and is one line.
    outlives(&program, async || {
        configure(&program.folder, false, "[limits]\nmax_packet_sizes = 77\n");
        program.hang_up();
        program.says("nothing was changed: ");
    })
    .await;
}

#[tokio::test]
async fn certificates_that_were_replaced_are_taken_without_a_signal() {
    let program = Program::start(true);
    outlives(&program, async || {
        make(&program.folder);
        program.says("were read again");
    })
    .await;
}
