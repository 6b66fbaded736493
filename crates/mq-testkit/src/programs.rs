//! Programs that a test needs and a machine may lack.

use std::{
    net::{SocketAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

/// Returns `nightly` where `MQ_NIGHTLY` is in the environment, as `.ci/run nightly` has it, and `usual` elsewhere.
pub fn nightly<T>(usual: T, nightly: T) -> T {
    if std::env::var_os("MQ_NIGHTLY").is_some() {
        nightly
    } else {
        usual
    }
}

/// Reports that a test is skipped, with the reason.
///
/// # Panics
/// Where `MQ_NO_SKIPS` is in the environment: `.ci/run` has installed everything.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub fn skipped(reason: &str) {
    let line = format!("SKIPPED: {reason}");
    assert!(std::env::var_os("MQ_NO_SKIPS").is_none(), "{line}");
    println!("{line}");
}

/// Finds the first of these programs on the PATH; reports a skipped test if there is none.
///
/// # Panics
/// As [`skipped`].
#[must_use]
pub fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find(|file| file.is_file());
    if found.is_none() {
        skipped(&format!("there is no {} on the PATH", names.join(", ")));
    }
    found
}

/// Finds a Chromium, under any of its names; reports a skipped test if there is none.
///
/// # Panics
/// As [`skipped`].
#[must_use]
pub fn chromium() -> Option<PathBuf> {
    program(&["chromium", "chromium-browser", "google-chrome"])
}

/// Finds the library that gives a program another wall clock than the machine's, where Debian keeps it; reports a
/// skipped test if there is none.
///
/// # Panics
/// If there is none, where `MQ_NO_SKIPS` is in the environment.
#[must_use]
pub fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    let mut files = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let found = files.find(|file| file.is_file());
    if found.is_none() {
        skipped("there is no libfaketime");
    }
    found
}

/// Gives a program a wall clock of its own, by [`faketime`]: the file has the seconds by which it is ahead, such as `+60`,
/// and may be replaced at any time. Its timers go by the machine's clock.
pub fn give_clock(command: &mut Command, faketime: &Path, file: &Path) {
    command
        .env("LD_PRELOAD", faketime)
        .env("FAKETIME_TIMESTAMP_FILE", file)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

/// A process that ends with the test.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Finds a port of 127.0.0.1 that nobody has now, for TCP and UDP.
///
/// The port is below those that systems give to connections and to port 0 (49152 and up, on Linux 32768 and up), so that
/// no other socket has it by the time at which a program binds it. No two calls of a process return the same port.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 22_000;
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..)));
    let is_free = |port: &u16| {
        let at = ("127.0.0.1", *port);
        TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok()
    };
    (0..1_000)
        .map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)
        .find(is_free)
        .expect("there is a port")
}

/// Waits until a program listens at that TCP port of 127.0.0.1.
///
/// # Panics
/// If none does within 20 s.
pub async fn listens(port: u16) {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let listening = async {
        while TcpStream::connect(address).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let listening = timeout(Duration::from_secs(20), listening).await;
    listening.expect("the peer should listen");
}

/// Starts a mosquitto at a TCP port of 127.0.0.1, with these lines behind its listener, and the port; reports a skipped
/// test if there is no such program.
///
/// # Panics
/// As [`skipped`], and if it does not listen within 20 s.
pub async fn mosquitto(lines: &str) -> Option<(Running, u16)> {
    let program = program(&["mosquitto"])?;
    let port = free_port();
    let config = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = format!("listener {port} 127.0.0.1\nallow_anonymous true\n{lines}");
    std::fs::write(config.path(), text).expect("a temporary file");
    let mut command = Command::new(program);
    command.arg("-c").arg(config.path()).stderr(Stdio::null());
    let running = Running(command.spawn().expect("it can be run"));
    listens(port).await;
    Some((running, port))
}
