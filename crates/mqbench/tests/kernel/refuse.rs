//! Refusals: one line gives the reason, and nothing has changed.

use std::{os::unix::fs::chown, process::Command};

use crate::{
    guest::{Test, without_module},
    network::{Network, STATE, mqbench, mqbench_in, one_line},
};

pub(crate) const TESTS: &[Test] = &[
    (
        "a_discipline_that_cannot_be_restored_stays",
        a_discipline_that_cannot_be_restored_stays,
    ),
    ("an_ssh_session_is_left_alone", an_ssh_session_is_left_alone),
    ("a_missing_module_is_named", a_missing_module_is_named),
    (
        "an_ordinary_user_may_show_and_check",
        an_ordinary_user_may_show_and_check,
    ),
    (
        "a_discipline_that_was_set_later_stays",
        a_discipline_that_was_set_later_stays,
    ),
];

fn a_discipline_that_cannot_be_restored_stays() {
    for (lines, names) in [
        (
            "qdisc add dev eth0 root handle 1: htb default 1\n\
             class add dev eth0 parent 1: classid 1:1 htb rate 10mbit\n\
             qdisc add dev eth0 parent 1:1 handle 10: fq_codel",
            "htb 1:",
        ),
        (
            "qdisc add dev eth0 root handle 2: fq_codel\n\
             filter add dev eth0 parent 2: protocol ip matchall classid 2:1",
            "fq_codel 2: with filters",
        ),
        (
            "qdisc add dev eth0 root handle 3: netem delay 9ms 1ms distribution normal",
            "netem 3: with jitter",
        ),
        (
            "qdisc add dev eth0 root handle 4: tbf rate 8mbit burst 2000 limit 9999\n\
             qdisc add dev eth0 parent 4:1 handle 5: fq_codel",
            "tbf 4:",
        ),
        (
            "qdisc add dev eth0 root handle 6: tbf rate 8mbit burst 2000 limit 9999 \
             peakrate 9mbit mtu 1514",
            "tbf 6: with a peak rate",
        ),
        (
            "qdisc add dev eth0 root handle 7: stab overhead 4 linklayer ethernet fq_codel",
            "fq_codel 7: with a size table",
        ),
        (
            "qdisc add dev eth0 root handle 8: netem delay 1ms slot 1ms 2ms",
            "netem 8: with slots",
        ),
    ] {
        let network = Network::new();
        network.set(lines);
        let before = network.state();
        let text = network.refused(&["apply", "eth0", "s22/wifi"]);
        let says = format!("eth0 has {names}");
        assert!(text.contains(&says), "{text}");
        assert!(text.contains("tc qdisc del dev eth0 root"), "{text}");
        assert_eq!(network.state(), before);
    }
    let network = Network::new();
    let text = network.refused(&["apply", "wlan7", "s22/wifi"]);
    assert!(
        text.contains("no interface `wlan7`: there are lo, eth0"),
        "{text}"
    );
}

fn an_ssh_session_is_left_alone() {
    const SESSION: &str = "10.0.0.2 50000 10.0.0.1 22";
    let network = Network::new();
    let before = network.state();
    let mut direct = mqbench();
    direct.env("SSH_CONNECTION", SESSION);
    // As under sudo: the shell has the variable, and the program does not.
    let mut through_sudo = Command::new("sh");
    through_sudo.env("SSH_CONNECTION", SESSION);
    through_sudo.args(["-c", "env -u SSH_CONNECTION \"$0\" \"$@\"; exit $?"]);
    let program = mqbench();
    through_sudo
        .arg(program.get_program())
        .args(program.get_args());
    for mut command in [direct, through_sudo] {
        command.args(["apply", "eth0", "s22/wifi", "--keep"]);
        let text = one_line(&network.run(command));
        assert!(text.contains("SSH session goes through eth0"), "{text}");
        assert_eq!(network.state(), before);
    }
    // A VLAN or bridge on top of the interface has the address now.
    network.ip(
        "address del 10.0.0.1/24 dev eth0\nlink add up0 link eth0 type macvlan\n\
         link set up0 up\naddress add 10.0.0.1/24 dev up0",
    );
    let apply = |session: &str, arguments: &[&str]| {
        let mut command = mqbench();
        command.env("SSH_CONNECTION", session).args(arguments);
        network.run(command)
    };
    let text = one_line(&apply(SESSION, &["apply", "eth0", "s22/wifi", "--keep"]));
    assert!(text.contains("SSH session goes through eth0"), "{text}");
    // By another interface, or an address that this machine does not have.
    network.ip("link add eth5 type dummy\naddress add 10.5.0.1/24 dev eth5\nlink set eth5 up");
    for (session, switch) in [
        (SESSION, Some("--even-ssh")),
        ("10.5.0.2 50000 10.5.0.1 22", None),
        ("10.6.0.2 50000 10.6.0.1 22", None),
    ] {
        let mut arguments = vec!["apply", "eth0", "s22/wifi", "--keep"];
        arguments.extend(switch);
        let output = apply(session, &arguments);
        assert!(output.status.success(), "{output:?}");
        network.net_ok(&["clear"]);
    }
}

fn a_missing_module_is_named() {
    for (module, kind) in [("sch_netem", "netem"), ("sch_tbf", "tbf")] {
        let network = Network::new();
        network.set("qdisc add dev eth0 root handle 9: fq_codel limit 123");
        let before = network.state();
        without_module(module, || {
            let text = network.refused(&["apply", "eth0", "w20/wifi"]);
            let says = format!("this kernel does not have {kind}: `modprobe {module}` loads it");
            assert!(text.contains(&says), "{text}");
        });
        assert_eq!(network.state(), before);
    }
}

fn an_ordinary_user_may_show_and_check() {
    let network = Network::new();
    network.net_ok(&["apply", "eth0", "s22/wifi", "--keep"]);
    let set = network.state();
    let run_in = |state: &str, arguments: &[&str]| {
        let program = mqbench_in(state);
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        command.arg(program.get_program()).args(program.get_args());
        command.args(arguments);
        network.run(command)
    };
    let run = |arguments: &[&str]| run_in(STATE, arguments);
    for change in [
        &["apply", "eth0", "w20/wifi"][..],
        &["clear"],
        &["clear", "eth0"],
    ] {
        let text = one_line(&run(change));
        assert!(text.contains("needs root (CAP_NET_ADMIN)"), "{text}");
    }
    // Even if the user may write files, the kernel refuses.
    let own = "/run/nobodys";
    std::fs::create_dir_all(own).unwrap();
    chown(own, Some(65_534), None).unwrap();
    let text = one_line(&run_in(own, &["apply", "eth0", "w20/wifi"]));
    assert!(text.contains("needs root"), "{text}");
    assert_eq!(network.state(), set);
    for look in [&["show"][..], &["check", "eth0", "s22/wifi"]] {
        assert!(run(look).status.success());
    }
}

fn a_discipline_that_was_set_later_stays() {
    let network = Network::new();
    network.set("qdisc add dev eth0 root handle 9: fq_codel limit 123");
    let before = network.state();
    network.net_ok(&["apply", "eth0", "w20/wifi", "--keep"]);
    network.set("qdisc replace dev eth0 root handle 7: pfifo limit 99");
    let set = network.state();
    for again in [&["clear"][..], &["apply", "eth0", "w20/wifi"]] {
        let text = network.refused(again);
        assert!(
            text.contains("pfifo 7:") && text.contains("fq_codel 9:"),
            "{text}"
        );
        assert!(text.contains("/run/mqbench/net/"), "{text}");
        assert_eq!(network.state(), set);
    }
    // The command that the line names restores the interface.
    network.set("qdisc del dev eth0 root");
    network.net_ok(&["clear"]);
    assert_eq!(network.state(), before);
}
