//! `mqbench net` against a real netem: in a kernel of its own, that of User-Mode Linux.
//!
//! The test is a program of its own instead of the usual harness, because it has two parts. On the host it
//! starts the kernel as an ordinary user, with the host's files to read. In that kernel it is the first
//! process and root: it makes networks, runs the tests and reports their results.
//!
//! The kernel is Debian's package user-mode-linux, unpacked into `target/uml`; `MQ_UML` names
//! another one. Without one, the test says so and passes. A word behind `--` runs the tests that
//! have it in their name.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it stands in for the test harness, and a test fails by panicking"
)]
#![cfg_attr(
    not(target_os = "linux"),
    expect(unused, reason = "Linux has the kernel's netem")
)]

#[cfg(target_os = "linux")]
mod guest;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod kills;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod refuse;
#[cfg(target_os = "linux")]
mod restore;
#[cfg(target_os = "linux")]
mod shape;
#[cfg(target_os = "linux")]
#[path = "../it/sshd/mod.rs"]
mod sshd;
#[cfg(target_os = "linux")]
mod testbed;
#[cfg(target_os = "linux")]
mod three;
#[cfg(target_os = "linux")]
mod verdicts;

/// The variable that marks the guest and has the folder of its modules. The host sets it on the kernel's command line,
/// which passes it to the first process.
const GUEST: &str = "MQ_UML_MODULES";

/// The variable with the path of the command under test.
const MQBENCH: &str = "MQ_UML_MQBENCH";

/// The variable with a word that the names of the tests to run have.
const ONLY: &str = "MQ_UML_ONLY";

/// The variable that enables the tests of [`NIGHTLY_TESTS`](guest::NIGHTLY_TESTS) as well.
const NIGHTLY: &str = "MQ_NIGHTLY";

/// The variable with the number of kills in `kills`; 2 by default.
const KILLS: &str = "MQ_KILLS";

/// The variable that makes a process of the guest a multimeter, and has its address.
const METER: &str = "MQ_UML_METER";

/// The guest's first line; lines before it are the kernel's.
const BOOTED: &str = "running tests in User-Mode Linux";

/// The guest's last line.
const PASSED: &str = "test result: ok.";

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("SKIPPED: the kernel's netem needs Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    if let Ok(address) = std::env::var(METER) {
        return three::meter(&address);
    }
    match std::env::var(GUEST) {
        Ok(modules) => guest::main(&modules),
        Err(_) => host::main(),
    }
}
