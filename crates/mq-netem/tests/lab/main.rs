//! Emulated links, measured from outside: by probes between two hosts, and by programs of others.
//!
//! The tests are a program of its own: a network is made before there are threads, and the usual harness has
//! threads. Each test runs in a process of its own, some beside each other. If the system does not permit namespaces, the
//! program says so and passes. With arguments, only tests run whose names contain one of them.

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

/// Tests that run at a time. They wait more than they work, but each packet is to be on time.
#[cfg(target_os = "linux")]
const AT_ONCE: usize = 3;

/// Exit code of a test's process where the system permits no namespaces.
#[cfg(target_os = "linux")]
const SKIPPED: i32 = 77;

#[cfg(target_os = "linux")]
fn main() {
    let arguments = std::env::args().skip(1);
    let wanted: Vec<_> = arguments
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let tests = || behaviour::TESTS.iter().chain(fidelity::TESTS);
    if let [name] = &wanted[..]
        && let Some((_, test)) = tests().find(|(test, _)| test == name)
    {
        return alone(*test);
    }
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let names = tests()
        .map(|(name, _)| *name)
        .filter(|name| is_wanted(name));
    beside_each_other(names);
}

/// Runs one test, in this process.
#[cfg(target_os = "linux")]
fn alone(test: fn(&mut mq_netem::Lab)) {
    use mq_netem::{Error, Lab};

    match Lab::enter() {
        Ok(mut lab) => test(&mut lab),
        Err(error @ Error::Namespaces { .. }) => {
            println!("SKIPPED: {error}");
            std::process::exit(SKIPPED);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs each test in a process of its own.
#[cfg(target_os = "linux")]
fn beside_each_other(names: impl Iterator<Item = &'static str> + Send) {
    use std::{
        process::Command,
        sync::{
            Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    let names = Mutex::new(names);
    let [passed, skipped, failed] = [const { AtomicUsize::new(0) }; 3];
    let work = || {
        loop {
            let Some(name) = names.lock().unwrap().next() else {
                return;
            };
            let mut test = Command::new(std::env::current_exe().unwrap());
            let output = test.arg(name).output().unwrap();
            let (count, verdict) = match output.status.code() {
                Some(0) => (&passed, "ok"),
                Some(SKIPPED) => (&skipped, "skipped"),
                _ => (&failed, "FAILED"),
            };
            count.fetch_add(1, Ordering::Relaxed);
            let [out, error] = [output.stdout, output.stderr].map(String::from_utf8);
            let (out, error) = (out.unwrap(), error.unwrap());
            println!("{out}{error}test {name} ... {verdict}");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner();
    println!(
        "\ntest result: {}. {} passed; {failed} failed; {} skipped",
        if failed == 0 { "ok" } else { "FAILED" },
        passed.into_inner(),
        skipped.into_inner(),
    );
    assert!(failed == 0, "{failed} tests failed");
}
