//! The program `mqbench`, run by a test.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// Makes the command of the program with these arguments and an empty standard input.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqbench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program with these arguments, and returns its result.
pub(crate) fn mqbench(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Asserts that a command fails; returns its error, which is one line.
pub(crate) fn mistake(arguments: &[&str]) -> String {
    let output = mqbench(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// Asserts that the program fails for a mistake in its arguments; returns the line for it. The program prints nothing
/// on standard output and this line on standard error; clap may add a hint below.
pub(crate) fn usage_mistake(arguments: &[&str]) -> String {
    let output = mqbench(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let first = text.lines().next().unwrap_or_default().to_owned();
    // clap adds its hint on usage under the line that matters.
    assert!(
        text.lines().count() == 1 || text.contains("--help"),
        "{arguments:?}: {text}"
    );
    first
}

/// Returns `true`, and prints a line, if a program could not run because the machine has no namespaces.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub(crate) fn skipped(stderr: &[u8]) -> bool {
    let said = String::from_utf8_lossy(stderr);
    let skipped = said.contains("namespaces");
    if skipped {
        println!("SKIPPED: {said}");
    }
    skipped
}

/// Returns the records of the campaign `some` in a result set, without an incomplete last line.
pub(crate) fn records(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("records/some.jsonl")).unwrap_or_default();
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    text[..whole]
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Runs a campaign; returns its records, or `None` where this machine cannot emulate a network.
pub(crate) fn run_campaign(campaign: &str) -> Option<Vec<Value>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.toml");
    std::fs::write(&file, campaign).unwrap();
    let out = folder.path().join("out");
    let [from, to] = [&file, &out].map(|path| path.to_str().unwrap());
    let ended = mqbench(&["campaign", "run", from, "--out", to]);
    if skipped(&ended.stderr) {
        return None;
    }
    assert!(ended.status.success(), "{ended:?}");
    Some(records(&out))
}
