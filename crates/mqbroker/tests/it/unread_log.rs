//! Standard error that nobody reads: the broker goes on, says how many lines were lost, and ends in time.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::Shutdown,
    process::{Child, ChildStderr, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use mq_testkit::free_port;

use crate::{program, raw::RawClients};

/// Links whose lines are some 1.3 MB.
const LINKS: usize = 12_000;

/// A broker whose log goes into a pipe.
struct Piped {
    child: Child,
    input: Option<ChildStdin>,
    log: Option<ChildStderr>,
    clients: RawClients,
    admin: u16,
}

impl Piped {
    fn start() -> Self {
        let (port, admin) = (free_port(), free_port());
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("broker.toml");
        std::fs::write(&config, format!("[admin]\nhttp = \"127.0.0.1:{admin}\"\n")).unwrap();
        let url = format!("tcp://127.0.0.1:{port}");
        let mut child = Command::new(env!("CARGO_BIN_EXE_mqbroker"))
            .args([
                "--listen",
                &url,
                "--announce",
                "--until-stdin-ends",
                "--config",
            ])
            .arg(&config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env("RUST_LOG", "info,mq_broker::conn::closing=debug")
            .spawn()
            .unwrap();
        let mut said = [0; 1];
        let mut output = child.stdout.take().unwrap();
        let mut all = Vec::new();
        while !all.ends_with(b"ready\n") {
            output.read_exact(&mut said).unwrap();
            all.push(said[0]);
        }
        Self {
            input: child.stdin.take(),
            log: child.stderr.take(),
            child,
            clients: RawClients::new(&url),
            admin,
        }
    }

    /// Has links come and go, a line each, until these are more than the pipe and the buffer hold.
    fn fill(&self) {
        for _ in 0..LINKS {
            let mut link = self.clients.stream();
            link.shutdown(Shutdown::Write).unwrap();
            let left = link
                .read(&mut [0])
                .expect("the broker serves while nobody reads its log");
            assert_eq!(left, 0);
        }
    }

    /// Ends the broker as an operator does, and returns its exit code and the time that it took.
    fn end(&mut self) -> (Option<i32>, Duration) {
        drop(self.input.take());
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), began.elapsed());
            }
            assert!(began.elapsed() < Duration::from_secs(30), "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_broker_whose_log_nobody_reads_serves_clients_and_counts_the_lines_that_are_lost() {
    let mut broker = Piped::start();
    broker.fill();
    assert_eq!(program::get(broker.admin, "/healthz").0, 200);
    let mut reader = BufReader::new(broker.log.take().unwrap());
    let mut log = String::new();
    while !log.contains("lost=") {
        assert!(reader.read_line(&mut log).unwrap() > 0, "{log}");
    }
    let (_, metrics) = program::get(broker.admin, "/metrics");
    let counted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("mqbroker_log_lines_lost_total "));
    let counted: usize = counted.unwrap().parse().unwrap();
    let (code, _) = broker.end();
    assert_eq!(code, Some(0));
    reader.read_to_string(&mut log).unwrap();
    let count = |part: &str| log.lines().filter(|line| line.contains(part)).count();
    let (written, told) = (count("connection ended without a session"), "lost=");
    let lost = log.lines().filter_map(|line| line.split(told).nth(1));
    let lost = lost.map(|rest| rest.trim().parse::<usize>().unwrap());
    let lost: Vec<_> = lost.collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(written + lost[0], LINKS, "no line is lost uncounted");
    assert_eq!(lost[0], counted);
    assert!(log.lines().last().unwrap().contains("shutting down"));
}

#[test]
fn a_broker_whose_log_nobody_reads_ends_in_time() {
    let mut broker = Piped::start();
    broker.fill();
    let (code, took) = broker.end();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn the_reason_of_a_failed_start_is_the_last_line() {
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", busy.local_addr().unwrap());
    let output = crate::program::mqbroker(&["--listen", &url], "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.lines().last().unwrap().starts_with("mqbroker: "),
        "{said}"
    );
}
