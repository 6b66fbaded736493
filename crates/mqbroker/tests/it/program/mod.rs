//! The program `mqbroker`, run by a test.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use mq_client::{Client, ClientBuilder, ConnectOptions, Connector, Trust};

/// The program, with everything that it needs to be started again.
pub(crate) struct Broker {
    folder: tempfile::TempDir,
    pub(crate) url: String,
    arguments: Vec<String>,
    child: Option<Child>,
    /// `true` if the log is written to the broker's file `log`. Else its errors are written to this
    /// test's standard error.
    logs: bool,
    environment: Vec<(String, String)>,
}

impl Broker {
    /// Starts a broker that listens with `scheme`; `FOLDER` in its configuration is its own folder.
    pub(crate) fn new(scheme: &str, configuration: &str) -> Self {
        Self::start_new(scheme, configuration, &[], &[], false, &[])
    }

    /// Starts a broker with these files in its folder, and with its log in the file `log`.
    pub(crate) fn with_log(scheme: &str, configuration: &str, files: &[(&str, &str)]) -> Self {
        Self::start_new(scheme, configuration, files, &[], true, &[])
    }

    /// Starts a broker like [`new`](Self::new) with more arguments, in which `FOLDER` is its folder
    /// as well.
    pub(crate) fn with_arguments(scheme: &str, configuration: &str, arguments: &[&str]) -> Self {
        Self::start_new(scheme, configuration, &[], arguments, false, &[])
    }

    /// Starts a broker with these variables in its environment, and with its log in its file `log`.
    pub(crate) fn with_environment(
        scheme: &str,
        configuration: &str,
        environment: &[(String, String)],
    ) -> Self {
        Self::start_new(scheme, configuration, &[], &[], true, environment)
    }

    fn start_new(
        scheme: &str,
        configuration: &str,
        files: &[(&str, &str)],
        arguments: &[&str],
        logs: bool,
        environment: &[(String, String)],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().to_str().unwrap();
        let arguments = arguments
            .iter()
            .map(|argument| argument.replace("FOLDER", own));
        let arguments = arguments.collect();
        let configuration = configuration.replace("FOLDER", folder.path().to_str().unwrap());
        std::fs::write(folder.path().join("broker.toml"), configuration).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        let key = made.signing_key.serialize_pem();
        std::fs::write(folder.path().join("key.pem"), key).unwrap();
        let url = format!("{scheme}://127.0.0.1:{}", mq_testkit::free_port());
        let mut broker = Self {
            folder,
            url,
            arguments,
            child: None,
            logs,
            environment: environment.to_vec(),
        };
        broker.start();
        let output = broker.child.as_mut().unwrap().stdout.take().unwrap();
        let mut lines = BufReader::new(output).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "it has ended");
        broker
    }

    /// Returns the path of a file in the broker's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the resident memory and its peak, in bytes.
    pub(crate) fn resident(&self) -> (usize, usize) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
            kibibytes.parse::<usize>().unwrap() * 1024
        };
        (field("VmRSS:"), field("VmHWM:"))
    }

    /// Starts it again, at the same address.
    pub(crate) fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
        let (level, log) = if self.logs {
            let log = std::fs::File::create(self.file("log")).unwrap();
            ("info", Stdio::from(log))
        } else {
            ("error", Stdio::inherit())
        };
        let child = command
            .args(["--listen", &self.url, "--announce", "--until-stdin-ends"])
            .arg("--config")
            .arg(self.file("broker.toml"))
            .arg("--cert")
            .arg(self.file("cert.pem"))
            .arg("--key")
            .arg(self.file("key.pem"))
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .env("RUST_LOG", level)
            .envs(self.environment.iter().cloned())
            .spawn();
        self.child = Some(child.unwrap());
    }

    /// Returns the log, once it has a line with all of `parts`.
    pub(crate) fn log_with(&self, parts: &[&str]) -> String {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let log = std::fs::read_to_string(self.file("log")).unwrap();
            let has_all = |line: &str| parts.iter().all(|part| line.contains(part));
            if log.lines().any(has_all) {
                return log;
            }
            assert!(Instant::now() < until, "{parts:?} in\n{log}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the program (SIGKILL): no destructor runs, no buffer is flushed.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends the program by closing its standard input, and checks that it ends in order.
    pub(crate) fn end(&mut self) {
        let mut child = self.child.take().unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    /// Ends the program, and returns its exit code if it has ended within that time.
    pub(crate) fn end_within(&mut self, within: Duration) -> Option<i32> {
        let child = self.child.as_mut().unwrap();
        drop(child.stdin.take());
        let until = Instant::now() + within;
        while Instant::now() < until {
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                return status.code();
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("it has not ended within {within:?}");
    }

    /// Returns the id of the running process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Returns options that trust the broker's certificate.
    pub(crate) fn connect_options(&self) -> ConnectOptions {
        ConnectOptions {
            trust: Trust::CaFile(self.file("cert.pem")),
            ..ConnectOptions::default()
        }
    }

    /// Returns a builder for a client that trusts the broker's certificate.
    pub(crate) fn client(&self, client_id: &str) -> ClientBuilder {
        Client::builder(&self.url)
            .unwrap()
            .client_id(client_id)
            .unwrap()
            .connector(Connector::new(self.connect_options()).unwrap())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

/// Runs `mqbroker` with these arguments and this standard input.
pub(crate) fn mqbroker<A: AsRef<std::ffi::OsStr>>(arguments: &[A], input: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mqbroker"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that fails at once has closed its standard input.
    let _ = program.stdin.take().unwrap().write_all(input.as_bytes());
    program.wait_with_output().unwrap()
}

/// Returns status and body of the answer to an operator's GET.
pub(crate) fn get(port: u16, path: &str) -> (u16, String) {
    get_with(port, path, "")
}

/// Sends the request of [`get`] with further header lines, each with its line end. Returns the
/// status and the body.
pub(crate) fn get_with(port: u16, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    (status, body)
}

/// Compiles a library in C to preload, `library.so` in this folder; reports a skipped test if there is no compiler.
pub(crate) fn preloaded(folder: &Path, source: &str) -> Option<PathBuf> {
    let compiler = mq_testkit::program(&["cc"])?;
    let (file, library) = (folder.join("library.c"), folder.join("library.so"));
    std::fs::write(&file, source).unwrap();
    let mut compile = Command::new(compiler);
    compile.args(["-shared", "-fPIC", "-o"]);
    compile.arg(&library).arg(file);
    assert!(compile.status().unwrap().success());
    Some(library)
}
