//! An interface is restored, however a program ends.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::{
    guest::Test,
    network::{Network, STATE, mqbench, one_line},
};

pub(crate) const TESTS: &[Test] = &[
    ("a_discipline_comes_back", a_discipline_comes_back),
    ("defaults_come_back", defaults_come_back),
    ("signals_restore", signals_restore),
    (
        "a_command_keeps_its_exit_code",
        a_command_keeps_its_exit_code,
    ),
    (
        "a_killed_program_is_cleaned_up",
        a_killed_program_is_cleaned_up,
    ),
    ("half_a_restore_is_finished", half_a_restore_is_finished),
    (
        "a_second_link_replaces_the_first",
        a_second_link_replaces_the_first,
    ),
    ("one_process_has_an_interface", one_process_has_an_interface),
    (
        "an_interface_that_goes_is_forgotten",
        an_interface_that_goes_is_forgotten,
    ),
];

/// Roots before the change: none, and disciplines that iproute2 sets.
const BEFORE: &[&str] = &[
    "",
    "qdisc add dev eth0 root pfifo limit 50",
    "qdisc add dev eth0 root handle 8: bfifo limit 54321",
    "qdisc add dev eth0 root pfifo_head_drop limit 51",
    "qdisc add dev eth0 root pfifo_fast",
    "qdisc add dev eth0 root handle 3: fq_codel limit 500 target 3ms interval 60ms noecn flows 64",
    "qdisc add dev eth0 root fq limit 300 flow_limit 20 maxrate 50mbit",
    "qdisc add dev eth0 root sfq limit 60 perturb 10 divisor 512",
    "qdisc add dev eth0 root cake bandwidth 30mbit besteffort rtt 30ms",
    "qdisc add dev eth0 root tbf rate 20mbit burst 1514 limit 62500",
    "qdisc add dev eth0 root tbf rate 3gbit burst 3000 limit 625000 mpu 0",
    "qdisc add dev eth0 root netem delay 7ms loss 1% 5% duplicate 1% reorder 3% gap 4 rate 9mbit",
    "qdisc add dev eth0 root netem limit 60 loss gemodel 1% 10% 70% 1%",
    "qdisc add dev eth0 root handle 5: netem delay 9ms\n\
     qdisc add dev eth0 parent 5:1 handle 6: tbf rate 8mbit burst 2000 limit 9999",
];

fn a_discipline_comes_back() {
    let network = Network::new();
    for lines in BEFORE {
        network.set(lines);
        let before = network.state();
        network.net_ok(&["apply", "eth0", "w20/wifi@duplicate=1%", "--keep"]);
        let said = network.net_ok(&["clear", "eth0"]);
        assert!(
            said.starts_with("eth0: ") && said.ends_with(" restored\n"),
            "{said}"
        );
        assert_eq!(network.state(), before, "after clear");
        let output = network.net(&["apply", "eth0", "s22/wifi", "--", "true"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(network.state(), before, "at the end of apply");
        nothing_is_remembered();
        if !lines.is_empty() {
            network.set("qdisc del dev eth0 root");
        }
    }
    let said = network.net_ok(&["clear", "eth0"]);
    assert!(said.contains("nothing of this program's"), "{said}");
}

fn nothing_is_remembered() {
    let entries = std::fs::read_dir(STATE).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: Vec<_> = names.filter(|name| name.contains(".json")).collect();
    assert!(files.is_empty(), "{files:?}");
}

/// Cards with one queue, with more, and one that is down.
fn defaults_come_back() {
    for (card, root) in [
        ("type ifb", "pfifo_fast"),
        ("numtxqueues 2 type ifb", "mq"),
        ("type dummy", "noqueue"),
    ] {
        let network = Network::new();
        network.ip(&format!(
            "link del eth0\nlink add eth0 {card}\nlink set eth0 up"
        ));
        let before = network.state();
        assert!(before.contains(root), "{before}");
        network.net_ok(&["apply", "eth0", "w20/wifi", "--keep"]);
        network.net_ok(&["clear"]);
        assert_eq!(network.state(), before);
        // An interface that is down may have no discipline until it is up again.
        network.ip("link set eth0 down");
        network.net_ok(&["apply", "eth0", "w20/wifi", "--keep"]);
        network.net_ok(&["clear"]);
        network.ip("link set eth0 up");
        assert_eq!(network.state(), before);
    }
}

fn signals_restore() {
    let network = Network::new();
    network.set(BEFORE[5]);
    let before = network.state();
    let forever = ["apply", "eth0", "s22/wifi"];
    let with_command = [&forever[..], &["--", "sleep", "60"]].concat();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let (code, said) = network.hold(&forever).end(signal);
        assert_eq!((code, &said[..]), (0, "eth0: s22/wifi up, until Ctrl-C\n"));
        assert_eq!(network.state(), before, "{signal}");
        // The command is ended by SIGTERM, and says so.
        if signal != Signal::SIGINT {
            let (code, _) = network.hold(&with_command).end(signal);
            assert_eq!(code, 128 + 15);
            assert_eq!(network.state(), before, "{signal}");
        }
    }
    nothing_is_remembered();
}

fn a_command_keeps_its_exit_code() {
    let network = Network::new();
    network.set(BEFORE[1]);
    let before = network.state();
    let run = |command: &[&str]| {
        let apply = ["apply", "eth0", "s22/wifi", "--"];
        network.net(&[&apply[..], command].concat())
    };
    // The command runs with the link set.
    let output = run(&["sh", "-c", "/usr/sbin/tc qdisc show dev eth0; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("delay 25ms"), "{said}");
    assert_eq!(network.state(), before);
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    assert_eq!(network.state(), before);
    let text = one_line(&run(&["/nonexistent/program"]));
    assert!(text.contains("cannot start /nonexistent/program"), "{text}");
    assert_eq!(network.state(), before);
    nothing_is_remembered();
}

fn a_killed_program_is_cleaned_up() {
    let network = Network::new();
    network.set(BEFORE[9]);
    let before = network.state();
    let (code, _) = network
        .hold(&["apply", "eth0", "w20/wifi"])
        .end(Signal::SIGKILL);
    assert_eq!(code, 128 + 9);
    assert!(network.state().contains("netem 4d51:"));
    let said = network.net_ok(&["show", "eth0"]);
    assert!(
        said.contains("w20/wifi up, until `mqbench net clear eth0`; then tbf 8"),
        "{said}"
    );
    // The next apply restores the same discipline.
    let output = network.net(&["apply", "eth0", "s22/wifi", "--", "true"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(network.state(), before);
    network
        .hold(&["apply", "eth0", "w20/wifi"])
        .end(Signal::SIGKILL);
    let said = network.net_ok(&["clear"]);
    assert!(
        said.contains("eth0: tbf 8") && said.contains(": restored"),
        "{said}"
    );
    assert_eq!(network.state(), before);
    nothing_is_remembered();
}

/// Checks that the program finishes a restore, wherever it was killed: before anything was set, between netem and tbf,
/// or in the middle of the restore.
fn half_a_restore_is_finished() {
    let meanwhile = [
        "qdisc del dev eth0 root",
        "qdisc del dev eth0 parent 4d51:1",
        "qdisc replace dev eth0 root handle 5: netem delay 9ms",
        "qdisc replace dev eth0 root handle 5: netem delay 9ms\n\
         qdisc add dev eth0 parent 5:1 handle 6: tbf rate 8mbit burst 2000 limit 9999",
    ];
    let apply = &["apply", "eth0", "s22/wifi", "--", "true"][..];
    let network = Network::new();
    network.set(BEFORE[13]);
    let before = network.state();
    for lines in meanwhile {
        for again in [&["clear"][..], apply] {
            network.net_ok(&["apply", "eth0", "w20/wifi", "--keep"]);
            network.set(lines);
            network.net_ok(again);
            assert_eq!(network.state(), before, "{lines}");
            nothing_is_remembered();
        }
    }
    // A link without its file.
    let network = Network::new();
    network.net_ok(&["apply", "eth0", "w20/wifi", "--keep"]);
    std::fs::remove_dir_all(STATE).unwrap();
    network.net_ok(&["clear"]);
    assert!(network.state().starts_with("qdisc noqueue 0: root"));
}

fn a_second_link_replaces_the_first() {
    let network = Network::new();
    network.set(BEFORE[5]);
    let before = network.state();
    network.net_ok(&["apply", "eth0", "s22/wifi@loss=5%,jitter=1ms", "--keep"]);
    network.net_ok(&["apply", "eth0", "w20/cellular", "--keep"]);
    network.net_ok(&["check", "eth0", "w20/cellular"]);
    network.net_ok(&["apply", "eth0", "s22/satellite", "--keep"]);
    network.net_ok(&["check", "eth0", "s22/satellite"]);
    network.net_ok(&["clear"]);
    assert_eq!(network.state(), before);
}

fn one_process_has_an_interface() {
    let network = Network::new();
    let before = network.state();
    let mut held = network.hold(&["apply", "eth0", "s22/wifi"]);
    let set = network.state();
    let process = format!("process {}", held.id());
    for other in [
        &["apply", "eth0", "w20/wifi"][..],
        &["clear", "eth0"],
        &["clear"],
    ] {
        let text = network.refused(other);
        assert!(text.contains(&process) && text.contains("eth0"), "{text}");
    }
    let said = network.net_ok(&["show", "eth0"]);
    assert!(said.contains(&format!("until {process} ends")), "{said}");
    assert_eq!(network.state(), set);
    held.end(Signal::SIGTERM);
    assert_eq!(network.state(), before);
}

fn an_interface_that_goes_is_forgotten() {
    let network = Network::new();
    let mut held = network.hold(&["apply", "eth0", "s22/wifi"]);
    network.ip("link del eth0");
    assert_eq!(held.end(Signal::SIGTERM).0, 0);
    nothing_is_remembered();
    network.ip("link add eth0 type dummy");
    network.net_ok(&["apply", "eth0", "s22/wifi", "--keep"]);
    network.ip("link del eth0");
    let said = network.net_ok(&["clear"]);
    assert_eq!(said, "eth0 has gone: nothing to restore\n");
    nothing_is_remembered();
    // Standard output and error may be closed as well.
    let network = Network::new();
    let mut command = Command::new("sh");
    let program = mqbench();
    command.args(["-c", "exec \"$0\" \"$@\" >&- 2>&-"]);
    command.arg(program.get_program()).args(program.get_args());
    command.args(["apply", "eth0", "s22/wifi", "--", "true"]);
    assert!(network.run(command).status.success());
    assert!(network.state().starts_with("qdisc noqueue 0: root"));
}
