//! The main job needs no privilege: where the tests run as root, it is started as `nobody`.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

use mq_measure::result::RunResult;

const NOBODY: u32 = 65_534;

/// Runs the program as an ordinary user. `None` if that user cannot run it, or may not make namespaces.
fn as_nobody(args: &[&str]) -> Option<std::process::Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqbench"));
    command.args(args).current_dir("/").stdin(Stdio::null());
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: an ordinary user cannot run the program: {error}");
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("namespaces") {
        println!("SKIPPED: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(output)
}

#[test]
fn an_ordinary_user_compares_over_an_emulated_link() {
    let args = [
        "compare",
        "--quick",
        "--count",
        "200",
        "--rounds",
        "1",
        "--connections",
        "2",
    ];
    let Some(output) = as_nobody(&[&args[..], &["--link", "s22/wifi@loss=5%", "--json"]].concat())
    else {
        return;
    };
    let printed = String::from_utf8(output.stdout).unwrap();
    let result: RunResult = serde_json::from_str(&printed).unwrap();
    for transport in &result.transports {
        assert_eq!((transport.counts.sent, transport.counts.lost), (20, 0));
        assert!(transport.latency.unwrap().min_ns > 25_000_000);
    }
}

#[test]
fn an_ordinary_user_is_root_in_a_lab() {
    let script = "id -u; ls /proc/self/ns/net";
    if let Some(output) = as_nobody(&["lab", "shell", "--", "sh", "-c", script]) {
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.starts_with("0\n"), "{printed}");
    }
}
