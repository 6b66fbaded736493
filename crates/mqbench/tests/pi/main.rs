//! `docs/guide/testbed.md` on an emulated Raspberry Pi 3B, with the program that ships. The test runs every command of the
//! page, in order, and checks the machine while a campaign runs and afterwards.
//!
//! ```text
//!   namespace of the test                        QEMU, raspi3b
//!   roles of pi-1 (broker), <── eth0: messages ──── roles of pi-2 (publisher),
//!          pi-3 (subscriber) <── wlan0: control ─── controller, which does what the page says
//! ```
//!
//! Stand-ins in `guest/` replace machines and programs that do not exist here.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod image;
mod machine;
mod outside;
mod page;
#[path = "../it/shipped/mod.rs"]
mod shipped;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use machine::{Machine, Said};

/// The variable that is set when the test runs in its namespaces.
const INSIDE: &str = "MQ_PI_INSIDE";

/// The packages of the needed programs, with their paths: a search path may lack `usr/sbin`.
const PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-aarch64", "qemu-system-arm"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
];

#[test]
#[ignore = "boots an emulated Raspberry Pi, which takes minutes: just test-pi"]
fn from_three_pis_to_a_figure() {
    if std::env::var_os(INSIDE).is_none() {
        let parts = target().join("pi");
        prepare(&parts);
        // The test has a network of its own, which ends with it, whatever the reason.
        let inside = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture"])
            .arg("from_three_pis_to_a_figure")
            .env(INSIDE, parts)
            .status()
            .unwrap();
        assert!(inside.success(), "see above");
        return;
    }
    outside::start();
    let image = image::build(&root(), &shipped());
    let said = Machine::boot(&root(), &image).run();
    println!(
        "its first process after {} s ({} s of its own), the page done after {} s",
        said.booted.as_secs(),
        said.of("booted").trim(),
        said.took.as_secs()
    );
    let guide = said.of("guide");
    assert_eq!(said.of("ended").trim(), "0", "the page:\n{guide}");
    the_page_says_what_comes(guide, &said);
    runs_are_good_and_marked(&said);
    the_link_was_there_and_is_gone(&said);
    nothing_is_left(&said);
}

/// Checks that the commands print the lines that the page announces.
fn the_page_says_what_comes(guide: &str, said: &Said) {
    for seen in [
        "wrote /usr/local/bin/mqbench",
        "this host is ready",
        "pi-2: ! it is emulated",
        "shaped: eth0 of pi-2",
        "3 packets transmitted, 3 packets received",
        "3 of 3 runs good",
        "2 of 2 runs good",
    ] {
        assert!(guide.contains(seen), "`{seen}` is not in:\n{guide}");
    }
    // The script ran three times and wrote once: all three hosts are one machine.
    let written = guide.matches("wrote /usr/local/bin/mqbench").count();
    assert_eq!(written, 1, "{guide}");
    let asked = said.of("asked");
    for call in [
        "apt-get install --yes --quiet chrony",
        "setcap cap_net_admin+ep /usr/local/bin/mqbench",
        "systemd-tmpfiles --create /etc/tmpfiles.d/mqbench.conf /etc/tmpfiles.d/mqbench-memory.conf",
        "systemctl restart chrony",
        "chronyc waitsync 12 0.001",
        "nmcli connection up messages",
        "cargo build --release --locked -p mqbench",
        "just pi",
    ] {
        assert!(asked.lines().any(|line| line == call), "{call}: {asked}");
    }
    let pages = said.of("pages");
    for page in ["first/report.html", "fig4.html"] {
        assert!(pages.contains(&format!("/checkout/{page}")), "{pages}");
    }
}

fn runs_are_good_and_marked(said: &Said) {
    let (first, fig4) = (said.of("records-first"), said.of("records-fig4"));
    for (records, transports, messages) in [
        (first, &["tcp", "tls", "quic"][..], 20),
        (fig4, &["tls", "quic"], page::FIG4_MESSAGES),
    ] {
        let records: Vec<Value> = records
            .trim()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for transport in transports {
            // The last attempt counts.
            let of_it = |record: &&Value| record["levels"]["transport"] == *transport;
            let record = records.iter().rfind(of_it).unwrap();
            let outcome = &record["outcome"];
            assert_eq!(outcome["error"], Value::Null, "{record}");
            for count in ["sent", "received"] {
                assert_eq!(outcome["counts"][count], messages, "{record}");
            }
            let shaped = &outcome["link"]["configured"][0];
            assert_eq!(shaped["host"], "pi-2", "{record}");
            assert_eq!(shaped["interface"], "eth0", "{record}");
            // The link's 25 ms, within the clocks' uncertainty.
            let metric = |name: &str| outcome["metrics"][name].as_f64().unwrap();
            let (mean, uncertainty) = (metric("latency_mean"), metric("clock_uncertainty"));
            assert!(mean + uncertainty > 25.0, "{record}");
            // The figure is marked as an emulator's.
            let warnings = outcome["warnings"].as_array().unwrap();
            let marked = |warning: &&Value| warning["kind"] == "emulated";
            let marked: Vec<_> = warnings.iter().filter(marked).collect();
            assert_eq!(marked.len(), 1, "{record}");
            assert_eq!(marked[0]["host"], "pi-2", "{record}");
        }
    }
    let report = said.of("report");
    assert!(report.contains("host pi-2 is emulated"), "{report}");
}

fn the_link_was_there_and_is_gone(said: &Said) {
    let before = said.of("before");
    assert!(before.starts_with("eth0: "), "{before}");
    assert_eq!(said.of("after"), before);
    let pings = said.of("pings").trim();
    let (mut shaped, mut free) = (Vec::new(), Vec::new());
    for ping in pings.lines() {
        let (ms, standing) = ping.split_once(' ').unwrap();
        let ms: f64 = ms.parse().unwrap();
        match standing {
            "eth0: netem limit 1000 delay 25ms rate 20mbit" => shaped.push(ms),
            _ => free.push(ms),
        }
    }
    // Medians: the link may be set or removed between a look and a ping, and an emulator is late at times.
    let median = |of: &mut Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    assert!(shaped.len() > 3 && free.len() > 3, "{pings}");
    assert!(median(&mut shaped) >= 25.0, "{pings}");
    assert!(median(&mut free) < 25.0, "{pings}");
}

fn nothing_is_left(said: &Said) {
    assert_eq!(said.of("work").trim(), "");
    let memories = said.of("memory");
    assert!(!memories.contains(".json"), "{memories}");
    let left = said.of("left").lines();
    let left: Vec<_> = left.filter(|line| line.contains("mqbench ")).collect();
    assert_eq!(left, [""; 0]);
}

/// Checks all requirements; fails with one line that names the missing one.
fn prepare(parts: &Path) {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let is_missing = |program: &str| {
        !path
            .split(':')
            .any(|folder| Path::new(folder).join(program).exists())
    };
    let missing: Vec<_> = PROGRAMS
        .iter()
        .filter(|(program, _)| is_missing(program))
        .map(|(_, package)| *package)
        .collect();
    assert!(missing.is_empty(), "apt-get install {}", missing.join(" "));
    let shipped = shipped();
    let at = shipped.display();
    assert!(shipped.exists(), "there is no {at}: `just pi` makes it");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pi/packages");
    let fetched = Command::new(script).arg(parts).status().unwrap();
    assert!(
        fetched.success(),
        "Debian's packages for arm64 could not be had"
    );
}

/// Returns the folder into which the packages of the emulated machine are unpacked.
fn root() -> PathBuf {
    PathBuf::from(std::env::var_os(INSIDE).unwrap()).join("root")
}

/// Returns the path of the static program.
fn shipped() -> PathBuf {
    target().join("aarch64-unknown-linux-musl/dist/mqbench")
}

/// Returns Cargo's target directory: above the profile's.
fn target() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_mqbench"));
    program.ancestors().nth(2).unwrap().to_owned()
}
