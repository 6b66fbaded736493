//! Puts the git revision into the program, for the manifest of each result.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/refs/heads");
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output();
    // Built from an archive there is none, and the manifest says null.
    if let Ok(output) = output
        && output.status.success()
        && let Ok(revision) = String::from_utf8(output.stdout)
    {
        println!("cargo::rustc-env=MQ_GIT_REVISION={}", revision.trim());
    }
}
