//! Emulated links, measured from outside: by probes between two hosts, and by programs of others.
//!
//! The tests are a program of its own: a network is made before there are threads, and the usual harness has
//! threads. If the system does not permit namespaces, the program says so and passes. With arguments, only
//! tests run whose names contain one of them.

#![expect(clippy::print_stdout, reason = "it stands in for the test harness")]
#![cfg_attr(
    target_os = "linux",
    expect(clippy::unwrap_used, reason = "a test fails by panicking")
)]

#[cfg(target_os = "linux")]
mod behaviour;
#[cfg(target_os = "linux")]
mod fidelity;
#[cfg(target_os = "linux")]
mod probe;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("SKIPPED: emulated links need Linux");
}

/// A test: its name and its function.
#[cfg(target_os = "linux")]
type Test = (&'static str, fn(&mut mq_netem::Lab));

#[cfg(target_os = "linux")]
fn main() {
    use mq_netem::{Error, Lab};

    let mut lab = match Lab::enter() {
        Ok(lab) => lab,
        Err(error @ Error::Namespaces { .. }) => {
            println!("SKIPPED: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let arguments = std::env::args().skip(1);
    let chosen: Vec<_> = arguments
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(part));
    let mut passed = 0;
    for (name, test) in behaviour::TESTS.iter().chain(fidelity::TESTS) {
        if wanted(name) {
            test(&mut lab);
            println!("test {name} ... ok");
            passed += 1;
        }
    }
    println!("\ntest result: ok. {passed} passed; 0 failed");
}
