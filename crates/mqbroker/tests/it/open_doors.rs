//! Clients that a broker without a list of users accepts: those of this machine, and web pages of
//! its own host.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
};

use crate::program::{Broker, mqbroker};

/// An address that no machine has (RFC 5737): listening fails there, after the rules were checked.
const ELSEWHERE: &str = "tcp://192.0.2.1:1883";

fn mistake(arguments: &[&str]) -> String {
    let output = mqbroker(arguments, "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("mqbroker:"))
        .collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].to_owned()
}

#[test]
fn a_broker_that_other_machines_reach_wants_users_or_to_be_told_that_none_are_needed() {
    let said = mistake(&["--listen", ELSEWHERE]);
    for part in ["//192.0.2.1:1883", "[auth]", "--allow-anonymous"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let said = mistake(&["--listen", ELSEWHERE, "--allow-anonymous"]);
    assert!(said.contains("cannot listen on"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    let shown = config.to_str().unwrap();
    let listen = format!("listen = [\"{ELSEWHERE}\"]\n");
    std::fs::write(&config, &listen).unwrap();
    assert!(mistake(&["--config", shown]).contains("every client would be let in"));
    let output = mqbroker(&["check-config", shown], "");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("every client would be let in"), "{told}");
    std::fs::write(&config, format!("{listen}[auth]\nallow_anonymous = true\n")).unwrap();
    assert!(mistake(&["--config", shown]).contains("cannot listen on"));
}

#[test]
fn a_broker_that_is_told_nothing_listens_on_loopback() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mqbroker"))
        .args(["--announce", "--until-stdin-ends"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines: Vec<_> = output
        .map(Result::unwrap)
        .take_while(|line| line != "ready")
        .collect();
    drop(child.stdin.take());
    let ended = child.wait_with_output().unwrap();
    if ended.status.success() {
        assert_eq!(lines, ["mqtt://127.0.0.1:1883", "quic://127.0.0.1:14567"]);
    } else {
        // Another broker may use one of the ports on this machine.
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("127.0.0.1:1"), "{said}");
        assert!(said.contains("in use"), "{said}");
    }
}

/// Returns the status of the answer to a page's request.
fn asked(broker: &Broker, origin: Option<&str>) -> String {
    let at = broker.url.trim_start_matches("ws://");
    let mut stream = TcpStream::connect(at).unwrap();
    let origin = origin.map_or_else(String::new, |origin| format!("Origin: {origin}\r\n"));
    let request = format!(
        "GET /mqtt HTTP/1.1\r\nHost: {at}\r\n{origin}Upgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn pages_of_other_hosts_do_not_use_a_broker_that_asks_nobody_for_a_name() {
    let own = "http://127.0.0.1:3000";
    let evil = "https://evil.example";
    for (configuration, welcome) in [
        ("", "403"),
        ("[ws]\nallowed_origins = [\"*\"]\n", "101"),
        ("[auth]\npassword_file = \"FOLDER/passwords\"\n", "101"),
    ] {
        let broker = Broker::with_log("ws", configuration, &[("passwords", "")]);
        assert_eq!(asked(&broker, None), "101");
        assert_eq!(asked(&broker, Some(own)), "101");
        assert_eq!(asked(&broker, Some(evil)), welcome, "{configuration}");
    }
}
