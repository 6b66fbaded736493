//! No process, namespace or interface of a run over emulated links remains, whatever ends the run.

use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

/// A function that ends a run.
type End = fn(&Run);

const PROGRAM: &str = env!("CARGO_BIN_EXE_mqbench");

/// A run in a process group of its own. A variable marks every process that it starts.
struct Run {
    child: Child,
    mark: String,
    /// Network namespaces that the run's processes were seen in.
    namespaces: BTreeSet<String>,
    interfaces: BTreeSet<String>,
}

impl Run {
    fn start(name: &str, args: &[&str]) -> Self {
        let mark = format!("MQ_TEST_RUN={name}-{}", std::process::id());
        let (key, value) = mark.split_once('=').unwrap();
        let interfaces = interfaces();
        let child = Command::new(PROGRAM)
            .args(args)
            .env(key, value)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            child,
            mark,
            namespaces: BTreeSet::new(),
            interfaces,
        }
    }

    /// Starts a lab with a command in it, and waits until it runs. `None` where the machine has no labs.
    fn lab(name: &str, command: &str) -> Option<Self> {
        let script = format!("echo up; {command}");
        let args = [
            "lab", "shell", "--link", "w20/wifi", "--", "sh", "-c", &script,
        ];
        let mut run = Self::start(name, &args);
        let mut up = [0; 3];
        if run
            .child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut up)
            .is_err()
        {
            let mut said = String::new();
            let stderr = run.child.stderr.as_mut().unwrap();
            stderr.read_to_string(&mut said).unwrap();
            assert!(said.contains("namespaces"), "{said}");
            println!("SKIPPED: {said}");
            run.child.wait().unwrap();
            return None;
        }
        assert_eq!(up, *b"up\n");
        run.look();
        // The lab's own, and three hosts.
        assert!(run.namespaces.len() >= 4, "{:?}", run.namespaces);
        Some(run)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    fn processes(&self) -> Vec<PathBuf> {
        let mut found = processes();
        found.retain(|process| {
            let variables = fs::read(process.join("environ")).unwrap_or_default();
            let mut variables = variables.split(|byte| *byte == 0);
            variables.any(|variable| variable == self.mark.as_bytes())
        });
        found
    }

    /// Returns a process of the run whose command line has this word; waits until there is one.
    fn process(&self, word: &str) -> Pid {
        let has_word = |process: &PathBuf| {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0)
                .any(|part| part == word.as_bytes())
        };
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            if let Some(found) = self.processes().into_iter().find(has_word) {
                let name = found.file_name().unwrap().to_str().unwrap();
                return Pid::from_raw(name.parse().unwrap());
            }
            assert!(Instant::now() < deadline, "no `{word}` runs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Remembers the namespaces that the run's processes are in, or hold.
    fn look(&mut self) {
        let own = namespaces(Path::new("/proc/self"));
        let found: Vec<_> = self.processes();
        let found = found.iter().flat_map(|process| namespaces(process));
        self.namespaces
            .extend(found.filter(|namespace| !own.contains(namespace)));
    }

    /// Waits for the end of the run, and returns its exit status; fails if the run does not end within 30 s.
    fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                let _ = killpg(self.pid(), Signal::SIGKILL);
                panic!("{} has not ended", self.mark);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn nothing_remains(&mut self) {
        self.ended();
        // The system takes a moment to end what was killed.
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let left = self.processes();
            let held: Vec<_> = processes()
                .iter()
                .flat_map(|process| namespaces(process))
                .filter(|namespace| self.namespaces.contains(namespace))
                .collect();
            if left.is_empty() && held.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "left: {left:?}, {held:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(interfaces(), self.interfaces);
    }
}

fn processes() -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.map(|entry| entry.path())
        .filter(|path| path.join("environ").exists())
        .collect()
}

/// Returns the network namespaces that a process's threads are in, and those that it has open.
fn namespaces(process: &Path) -> BTreeSet<String> {
    let entries = |folder: &str| {
        fs::read_dir(process.join(folder))
            .into_iter()
            .flatten()
            .flatten()
    };
    let threads = entries("task").map(|thread| thread.path().join("ns/net"));
    let open = entries("fd").map(|file| file.path());
    threads
        .chain(open)
        .filter_map(|link| fs::read_link(link).ok())
        .filter_map(|target| Some(target.to_str()?.to_owned()))
        .filter(|target| target.starts_with("net:["))
        .collect()
}

/// Returns `true` if this process ignores a signal, as then do all processes that it starts.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
    mask >> (signal as i32 - 1) & 1 == 1
}

/// Returns the interfaces of this machine.
fn interfaces() -> BTreeSet<String> {
    let all = fs::read_dir("/sys/class/net").unwrap().flatten();
    all.map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_lab_ends_with_its_command() {
    for (name, code) in [("success", 0), ("failure", 3)] {
        let folder = tempfile::tempdir().unwrap();
        let seen = folder.path().join("seen");
        // A process that the command leaves running ends as well. The command waits until it has been seen.
        let command = format!(
            "sleep 1000 & until [ -e {} ]; do sleep 0.02; done; exit {code}",
            seen.display()
        );
        let Some(mut run) = Run::lab(name, &command) else {
            return;
        };
        fs::write(seen, "").unwrap();
        assert_eq!(run.ended().code(), Some(code));
        run.nothing_remains();
    }
}

#[test]
fn an_interrupted_lab_leaves_nothing() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        if is_ignored(signal) {
            println!("SKIPPED: {signal} is ignored here, as under nohup");
            continue;
        }
        let Some(mut run) = Run::lab(signal.as_str(), "sleep 1000 & sleep 1001; sleep 0") else {
            return;
        };
        // A shell without a foreground command may handle the signal itself.
        run.process("1001");
        // A terminal signals the whole group.
        killpg(run.pid(), signal).unwrap();
        run.nothing_remains();
    }
}

#[test]
fn a_killed_lab_leaves_nothing() {
    let started = format!("{PROGRAM} lab exec broker sleep 1002 & setsid sleep 1003 & sleep 1004");
    for victim in ["the lab", "its first process", "a role"] {
        let Some(mut run) = Run::lab(victim, &started) else {
            return;
        };
        let killed = match victim {
            "the lab" => run.pid(),
            "a role" => run.process("1002"),
            _ => run.process("init"),
        };
        kill(killed, Signal::SIGKILL).unwrap();
        if victim == "a role" {
            // The other roles continue; the leftovers of this one are visible when they end.
            kill(run.process("1004"), Signal::SIGTERM).unwrap();
        }
        run.nothing_remains();
    }
}

#[test]
fn a_comparison_leaves_nothing_however_it_ends() {
    let args = [
        "compare",
        "--link",
        "w20/wifi",
        "--count",
        "100000",
        "--interval",
        "10ms",
    ];
    let ends: [(&str, End); 3] = [
        ("Ctrl-C", |run| killpg(run.pid(), Signal::SIGINT).unwrap()),
        ("killed", |run| kill(run.pid(), Signal::SIGKILL).unwrap()),
        ("broker killed", |run| {
            kill(run.process("broker"), Signal::SIGKILL).unwrap();
        }),
    ];
    for (name, end) in ends {
        let mut run = Run::start(name, &args);
        let started = Instant::now();
        while run.namespaces.len() < 4 || run.processes().len() < 2 {
            if let Some(status) = run.child.try_wait().unwrap() {
                let mut said = String::new();
                run.child
                    .stderr
                    .as_mut()
                    .unwrap()
                    .read_to_string(&mut said)
                    .unwrap();
                assert!(said.contains("namespaces"), "{status}: {said}");
                println!("SKIPPED: {said}");
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(20));
            run.look();
        }
        // In the middle of sending.
        std::thread::sleep(Duration::from_millis(500));
        end(&run);
        run.nothing_remains();
    }
}
