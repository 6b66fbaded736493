//! The project's first page: its figures are those of the kept results, and its broker runs as written.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::{
    bench_scripts::{built, lacks},
    root,
};

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

/// Runs `bench/readme --check` of a repository.
fn check(repository: &Path) -> Output {
    let mut command = Command::new("python3");
    let script = repository.join("bench/readme");
    command.arg("-B").arg(script).arg("--check");
    command.output().unwrap()
}

/// Makes a repository that has this one's script and results, and another README.
fn with_readme(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let bench = folder.path().join("bench");
    fs::create_dir(&bench).unwrap();
    fs::copy(root().join("bench/readme"), bench.join("readme")).unwrap();
    std::os::unix::fs::symlink(root().join("bench/runs"), bench.join("runs")).unwrap();
    fs::write(folder.path().join("README.md"), text).unwrap();
    folder
}

#[test]
fn figures_are_those_of_the_kept_results() {
    if lacks(&["python3"]) {
        return;
    }
    let output = check(&root());
    let difference = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{difference}");
}

#[test]
fn another_figure_is_found() {
    if lacks(&["python3"]) {
        return;
    }
    let text = readme();
    for (kept, other) in [("**13.4 ms**", "**12.4 ms**"), ("**37 KB**", "**36 KB**")] {
        assert!(text.contains(kept), "{kept}");
        let output = check(with_readme(&text.replace(kept, other)).path());
        let difference = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{difference}");
        assert!(difference.contains(other), "{difference}");
        assert!(difference.contains(kept), "{difference}");
    }
    assert!(check(with_readme(&text).path()).status.success());
}

/// Returns the commands below a heading, as one script.
fn commands(page: &str, heading: &str) -> String {
    let (_, section) = page.split_once(heading).unwrap();
    let (_, block) = section.split_once("\n```sh\n").unwrap();
    block.split("\n```").next().unwrap().to_owned()
}

#[test]
fn the_broker_carries_a_message_over_quic_as_written() {
    let programs = built(&["mqbroker", "mq"]);
    let (Some(programs), false) = (programs, lacks(&["bash", "timeout"])) else {
        return;
    };
    let written = commands(&readme(), "\n## Run a broker\n");
    assert!(written.contains("cargo build "), "{written}");
    assert!(written.contains("14567"), "{written}");
    let port = mq_testkit::free_port().to_string();
    // The programs are built, and this folder has no `target`.
    let script = format!(
        "set -euo pipefail\ncargo() {{ :; }}\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{}\n",
        written.replace("14567", &port)
    );
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("timeout")
        .args(["--kill-after=5", "60", "bash", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{path}", programs.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{log}");
    assert_eq!(printed.lines().last(), Some("21.5"), "{printed}\n{log}");
}
