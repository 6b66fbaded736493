//! Commands on other machines, by OpenSSH.
//!
//! A role of a run is this program with another command (`broker`, `pub`, `net apply`), started by
//! `ssh HOST mqbench --lease 30s ROLE`. A role ends as SIGTERM would end it when its standard input ends, or is
//! silent for as long as the lease. So a host frees its link and its processes when the controller or the
//! connection to it is gone.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use super::Machine;
use crate::broker_under_test::read_announcement;

/// Time that a role goes on without a line from its controller.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The interval of the lines that keep a role alive: several fit into the shortest lease.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(300);

/// Time within which a role has to be ready, its ssh connection included.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Time within which a role has to end in order.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Greatest number of bytes of a role's standard error that are kept: the last lines matter.
const STDERR_TAIL: usize = 2000;

/// OpenSSH's exit code if it has no connection, or has lost it.
const NO_CONNECTION: i32 = 255;

/// The way to other machines by OpenSSH.
#[derive(Debug)]
pub(crate) struct Ssh {
    /// A configuration in place of the user's own.
    config: Option<PathBuf>,
    lease: Duration,
    /// The beginning of the paths of the sockets by which sessions with one host share a connection. Other
    /// users cannot guess it, and the sockets are gone when the sessions have ended.
    sockets: String,
}

impl Ssh {
    /// Uses the user's configuration of OpenSSH, or another file.
    pub(crate) fn new(config: Option<PathBuf>, lease: Duration) -> Self {
        let name = format!("mqbench-{:016x}", rand::random::<u64>());
        let sockets = std::env::temp_dir().join(name).display().to_string();
        Self {
            config,
            lease,
            sockets,
        }
    }

    /// Starts ssh with a script for the shell of a host.
    fn shell(&self, host: &Machine, script: &str) -> anyhow::Result<Shell> {
        let mut command = Command::new("ssh");
        if let Some(config) = &self.config {
            command.arg("-F").arg(config);
        }
        // ssh asks the user nothing, and an unknown host key is an error.
        command.args(["-T", "-a", "-x", "-oBatchMode=yes", "-oLogLevel=ERROR"]);
        command.args(["-oConnectTimeout=10", "-oServerAliveInterval=5"]);
        command.args(["-oControlMaster=auto", "-oControlPersist=no"]);
        command.arg(format!("-oControlPath={}-{}", self.sockets, host.address));
        command.args(["--", &host.ssh, script]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = command.spawn();
        let mut child = child.context("cannot start ssh: OpenSSH's client has to be installed")?;
        Ok(Shell {
            input: child.stdin.take().context("ssh has no input")?,
            output: child.stdout.take().context("ssh has no output")?,
            errors: child.stderr.take().context("ssh has no errors")?,
            child,
        })
    }

    /// Starts this program on a host with these arguments, with sudo if `by_sudo`.
    pub(crate) fn start(
        &self,
        host: &Machine,
        arguments: &[String],
        by_sudo: bool,
    ) -> anyhow::Result<RemoteRole> {
        let lease = format!("--lease={}ms", self.lease.as_millis());
        let words = std::iter::once(&lease[..]).chain(arguments.iter().map(String::as_str));
        let script = format!("exec {}", mqbench(host, by_sudo, words));
        let shell = self.shell(host, &script)?;
        let (mut feeding, mut stderr) = (JoinSet::new(), JoinSet::new());
        let (tell, told) = channel(8);
        feeding.spawn(write_lines(shell.input, told));
        stderr.spawn(read_stderr_tail(shell.errors));
        Ok(RemoteRole {
            name: match arguments {
                [role, ..] if role != "host" => format!("host {}: its {role}", host.name),
                _ => format!("host {}", host.name),
            },
            child: shell.child,
            tell: Some(tell),
            output: BufReader::new(shell.output).lines(),
            _feeding: feeding,
            stderr,
        })
    }

    /// Writes a file on a host that no other user there can read.
    pub(crate) async fn put(
        &self,
        host: &Machine,
        path: &Path,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        let path = quoted(&path.display().to_string());
        let script = format!("umask 077 && cat >{path}");
        self.run(host, &script, bytes).await.map(drop)
    }

    /// Reads a file of a host.
    pub(crate) async fn get(&self, host: &Machine, path: &Path) -> anyhow::Result<Vec<u8>> {
        let path = quoted(&path.display().to_string());
        self.run(host, &format!("cat {path}"), b"").await
    }

    /// Restores a host's interface, which a killed role may have left shaped.
    pub(crate) async fn clear(&self, host: &Machine, by_sudo: bool) -> anyhow::Result<()> {
        let clear = ["net", "clear", "--", &host.interface];
        let script = mqbench(host, by_sudo, clear.into_iter());
        self.run(host, &script, b"").await.map(drop)
    }

    /// Runs a script on a host, and returns what it printed.
    ///
    /// # Errors
    /// The script's own message if it failed.
    pub(crate) async fn run(
        &self,
        host: &Machine,
        script: &str,
        input: &[u8],
    ) -> anyhow::Result<Vec<u8>> {
        let shell = self.shell(host, script)?;
        let (mut to, mut from, mut child) = (shell.input, shell.output, shell.child);
        let mut bytes = Vec::new();
        let ((), read, stderr) = tokio::join!(
            async move {
                // If the script does not read all of it, its exit code tells why.
                let _ = to.write_all(input).await;
            },
            from.read_to_end(&mut bytes),
            read_stderr_tail(shell.errors),
        );
        read.context("cannot hear the host")?;
        let status = child.wait().await.context("cannot wait for ssh")?;
        if !status.success() {
            bail!("host {}: {}", host.name, failure_reason(status, &stderr));
        }
        Ok(bytes)
    }
}

/// A running ssh with the ends of its pipes. A drop kills it.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    errors: ChildStderr,
}

/// A running role on a host. A drop ends it.
#[derive(Debug)]
pub(crate) struct RemoteRole {
    /// The host and the role, for messages.
    name: String,
    child: Child,
    /// Lines for the role's standard input, which stays open as long as this sender exists.
    tell: Option<Sender<String>>,
    output: Lines<BufReader<ChildStdout>>,
    _feeding: JoinSet<()>,
    /// The last lines of the role's standard error.
    stderr: JoinSet<String>,
}

impl RemoteRole {
    /// Waits until the role announces that it is ready; returns the addresses that it listens at.
    pub(crate) async fn wait_until_ready(&mut self) -> anyhow::Result<Vec<String>> {
        let found = timeout(START_TIMEOUT, read_announcement(&mut self.output)).await;
        let found = found.context("it was not ready in time").flatten();
        match found {
            Ok(found) => Ok(found.iter().map(ToString::to_string).collect()),
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// Waits for the first line that the role prints, within a bounded time.
    pub(crate) async fn first_line(&mut self) -> anyhow::Result<String> {
        let line = timeout(START_TIMEOUT, self.next_line()).await;
        match line.unwrap_or_else(|_| bail!("no answer within {START_TIMEOUT:?}")) {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(self.failed(anyhow::anyhow!("it said nothing")).await),
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// Waits for the next line that the role prints; `None` at the end. Cancel-safe.
    pub(crate) async fn next_line(&mut self) -> anyhow::Result<Option<String>> {
        let line = self.output.next_line().await;
        line.with_context(|| format!("{}: it is not heard", self.name))
    }

    /// Writes a line to the role's standard input.
    pub(crate) async fn send_line(&self, line: String) -> anyhow::Result<()> {
        let tell = self.tell.as_ref().context("it is ending")?;
        let told = tell.send(line).await;
        told.map_err(|_| anyhow::anyhow!("{}: it is gone", self.name))
    }

    /// Returns true if the role has ended. The error has the reason of a failure.
    pub(crate) async fn has_ended(&mut self) -> anyhow::Result<bool> {
        match self.child.try_wait().context("cannot look at ssh")? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(_) => Err(self.failed(anyhow::anyhow!("it ended")).await),
        }
    }

    /// Ends the role in order, and returns the rest of its output.
    pub(crate) async fn stop(mut self) -> anyhow::Result<String> {
        self.tell = None;
        let mut printed = String::new();
        let ended = timeout(END_TIMEOUT, async {
            while let Some(line) = self.output.next_line().await? {
                printed.push_str(&line);
                printed.push('\n');
            }
            self.child.wait().await
        });
        let status = ended.await;
        let status = status.with_context(|| format!("{}: it does not end", self.name))?;
        let status = status.with_context(|| format!("{}: cannot wait for ssh", self.name))?;
        if !status.success() {
            let reason = failure_reason(status, &self.stderr_tail().await);
            bail!("{}: {reason}", self.name);
        }
        Ok(printed)
    }

    /// Makes an error with the role's last words.
    async fn failed(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.tell = None;
        match timeout(END_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) => {
                let reason = failure_reason(status, &self.stderr_tail().await);
                anyhow::anyhow!("{}: {reason}", self.name)
            }
            _ => error.context(self.name.clone()),
        }
    }

    async fn stderr_tail(&mut self) -> String {
        let stderr = self.stderr.join_next().await;
        stderr.and_then(Result::ok).unwrap_or_default()
    }
}

/// Writes lines, and an empty one now and then, until the sender is dropped.
async fn write_lines(mut input: ChildStdin, mut lines: Receiver<String>) {
    let mut alive = interval(KEEP_ALIVE_INTERVAL);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut line = tokio::select! {
            line = lines.recv() => match line {
                Some(line) => line,
                None => return,
            },
            _ = alive.tick() => String::new(),
        };
        line.push('\n');
        if input.write_all(line.as_bytes()).await.is_err() {
            // The role has ended, which its owner will see.
            return;
        }
    }
}

/// Collects the last lines of standard error.
async fn read_stderr_tail(mut errors: ChildStderr) -> String {
    let mut stderr = Vec::new();
    let mut piece = [0; 512];
    while let Ok(read @ 1..) = errors.read(&mut piece).await {
        stderr.extend_from_slice(&piece[..read]);
        stderr.drain(..stderr.len().saturating_sub(STDERR_TAIL));
    }
    String::from_utf8_lossy(&stderr).trim().to_owned()
}

/// Returns the reason for which a command on a host failed.
fn failure_reason(status: ExitStatus, stderr: &str) -> String {
    // This program's last line has the reason; for a wrong command line it is the first.
    let wrong = stderr.lines().find_map(|line| line.strip_prefix("error: "));
    let last = wrong.or(stderr.lines().last()).unwrap_or_default();
    let last = last.trim_start_matches("mqbench: ");
    match status.code() {
        Some(NO_CONNECTION) if last.contains("Host key verification failed") => {
            format!("{last} `ssh` by hand shows the key of a host that is new")
        }
        _ if last.is_empty() => status.to_string(),
        _ => last.to_owned(),
    }
}

/// Formats the shell command that runs this program on a host.
pub(super) fn mqbench<'a>(
    host: &'a Machine,
    by_sudo: bool,
    arguments: impl Iterator<Item = &'a str>,
) -> String {
    let sudo = by_sudo.then_some(["sudo", "-n"]);
    let words = sudo.into_iter().flatten().chain([host.program()]);
    let words: Vec<_> = words.chain(arguments).map(quoted).collect();
    words.join(" ")
}

/// Quotes a text as one word for a shell.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_any_quoted_text_as_one_word() {
        for word in [
            "--topic=a b",
            "$(reboot)",
            "it's",
            "",
            "a;b",
            "~",
            "`x`",
            "a\nb",
            "*",
        ] {
            let script = format!("printf %s {}", quoted(word));
            let mut shell = std::process::Command::new("sh");
            let output = shell.args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
        assert_eq!(quoted("--run=cell"), "--run=cell");
    }
}
