//! `mq relay` between Debian's mosquitto and its clients, which know nothing of QUIC.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use mq_testkit::{Running, mosquitto, program};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    brokers::certificate,
    ends::{PATIENCE, exit_code},
};

/// Starts a relay, and returns it with the port on which it says to listen.
fn relay(args: &[&str]) -> (Running, u16) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
    command.arg("relay").args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let (address, _) = line
        .split_once(" -> ")
        .unwrap_or_else(|| panic!("{line:?}"));
    let (_, port) = address.rsplit_once(':').unwrap();
    (Running(child), port.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn mosquitto_and_its_clients_speak_quic_through_a_pair() {
    let Some((_broker, broker_port)) = mosquitto("").await else {
        return;
    };
    let (Some(sub), Some(publ)) = (program(&["mosquitto_sub"]), program(&["mosquitto_pub"])) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let [chain, key] = certificate(folder.path(), "localhost");
    let to_broker = format!("mqtt://127.0.0.1:{broker_port}");
    let at_broker = ["--listen", "quic://127.0.0.1:0", "--to", &to_broker];
    let (_before, quic) = relay(&[&at_broker[..], &["--cert", &chain, "--key", &key]].concat());
    let to_relay = format!("quic://localhost:{quic}");
    let at_client = ["--listen", "mqtt://127.0.0.1:0", "--to", &to_relay];
    let (mut beside, port) = relay(&[&at_client[..], &["--cafile", &chain]].concat());
    let port = port.to_string();
    for version in ["mqttv31", "mqttv311", "mqttv5"] {
        // A retained message needs no order of the two programs.
        let topic = format!("plant/{version}");
        let common = ["-p", &port, "-V", version];
        let message = ["-t", &topic, "-q", "2", "-r", "-m", "21.5"];
        let published = Command::new(&publ).args(common).args(message).status();
        assert!(published.unwrap().success(), "{version}");
        let mut reading = Command::new(&sub);
        reading
            .args(common)
            .args(["-t", &topic, "-q", "2", "-C", "1", "-W", "20"]);
        let read = reading.output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&read.stdout),
            "21.5\n",
            "{version}: {read:?}"
        );
    }
    let pid = Pid::from_raw(beside.0.id().try_into().unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    let ended = tokio::time::timeout(PATIENCE, exit_code(&mut beside.0)).await;
    assert_eq!(ended.unwrap(), Some(0));
}

#[test]
fn a_mistake_in_the_options_is_one_line() {
    for (args, line) in [
        (
            &["--listen", "quic://127.0.0.1:0", "--to", "mqtt://localhost"][..],
            "mq: quic://127.0.0.1:0: clients need a certificate there: --cert and --key\n",
        ),
        (
            &["--listen", "mqtt://[::1]:7", "--to", "mqtt://[::1]:7"],
            "mq: mqtt://[::1]:7: the relay would connect to itself\n",
        ),
        (
            &["--listen", "mem://a", "--to", "mqtt://localhost"],
            "mq: mem://a: a pipe inside one process\n",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
        let output = command.arg("relay").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stderr), line);
    }
}
