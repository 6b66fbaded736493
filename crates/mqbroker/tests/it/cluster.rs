//! A cluster as its operator runs it: the program `mqbroker` with `[cluster]`, NATS with TLS and a
//! password, and mosquitto's clients.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use mq_testkit::{free_port, program};

use crate::{
    cluster_operation::until_shown,
    cluster_programs::{Nats, SOON, ended, signal, stop},
};

/// Returns the error of a broker whose start is refused.
fn refused(nats: &Nats, table: &str) -> String {
    let listen = format!("listen = [\"tcp://127.0.0.1:{}\"]\n", free_port());
    let mut command = nats.command("refused", &(listen + table));
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let Output { status, stderr, .. } = ended(command.spawn().unwrap());
    assert!(!status.success());
    let said = String::from_utf8(stderr).unwrap();
    assert!(!said.contains("password of the nodes"), "{said}");
    let last = said.lines().filter(|line| line.starts_with("mqbroker: "));
    let last: Vec<_> = last.collect();
    assert_eq!(last.len(), 1, "one line says why: {said}");
    last[0].to_owned()
}

/// Runs a client of mosquitto at QoS 2: a message received at QoS 1 shortly before a node is killed
/// may arrive again.
fn mosquitto(program: &Path, port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args([
        "-h",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-V",
        "5",
        "-q",
        "2",
    ]);
    command.args(arguments);
    command
}

#[test]
fn nodes_behind_tls_and_a_password_serve_mosquittos_clients_and_outlive_one_of_them() {
    let (Some(nats), Some(publish), Some(subscribe)) = (
        Nats::start(1, true),
        program(&["mosquitto_pub"]),
        program(&["mosquitto_sub"]),
    ) else {
        return;
    };
    let [node_a, mut node_b, node_c] = ["a", "b", "c"].map(|name| nats.node(name, 1));
    let [a, b, c] = [&node_a, &node_b, &node_c].map(|node| node.port);
    let session = ["-t", "plant/#", "-i", "reader", "-c", "-x", "3600"];
    // The client makes the session, and disconnects.
    let made = mosquitto(&subscribe, b, &session).arg("-E").spawn();
    assert!(ended(made.unwrap()).status.success());
    let send = |port, text: &str| {
        let message = ["-t", "plant/1", "-m", text, "-i", "writer"];
        let sent = mosquitto(&publish, port, &message).spawn();
        assert!(ended(sent.unwrap()).status.success(), "{text}");
    };
    let receive = |port, count: &str| {
        let mut command = mosquitto(&subscribe, port, &session);
        command.args(["-C", count, "-W", "50"]);
        let output = ended(command.stdout(Stdio::piped()).spawn().unwrap());
        String::from_utf8(output.stdout).unwrap()
    };
    send(a, "from a");
    send(c, "from c");
    assert_eq!(receive(b, "2"), "from a\nfrom c\n");
    let shown = nats.status("b");
    assert_eq!(shown["node"], "b");
    assert_eq!(shown["majority_lost"], false);
    assert_eq!(shown["sessions"], 1);
    let names = shown["nodes"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let logs = shown["logs"].as_array().unwrap();
    assert_eq!(logs.len(), 2);
    let read = logs.iter().map(|log| log["read"].as_u64().unwrap());
    assert_eq!(read.sum::<u64>(), 2);
    assert!(
        logs.iter()
            .all(|log| log["behind"] == 0 && log["messages_waiting"] == 0)
    );
    send(a, "before");
    node_b.kill();
    send(c, "after");
    assert_eq!(receive(a, "2"), "before\nafter\n");
}

#[test]
fn a_will_that_a_node_has_published_does_not_come_again_when_the_node_dies() {
    let (Some(nats), Some(subscribe)) = (Nats::start(1, false), program(&["mosquitto_sub"])) else {
        return;
    };
    let [mut a, b] = ["a", "b"].map(|name| nats.node(name, 1));
    let mut watcher = mosquitto(&subscribe, b.port, &["-t", "will", "-W", "12"]);
    let mut watcher = watcher.stdout(Stdio::piped()).spawn().unwrap();
    let mut wills = BufReader::new(watcher.stdout.take().unwrap()).lines();
    until_shown(&nats, &b, |shown| shown["sessions"] == 1);
    let session = ["-i", "gone", "-c", "-x", "3600", "-t", "t"];
    let mut gone = mosquitto(&subscribe, a.port, &session);
    gone.args(["--will-topic", "will", "--will-payload", "gone"]);
    let mut gone = gone.args(["--will-qos", "1"]).spawn().unwrap();
    until_shown(&nats, &a, |shown| shown["sessions"] == 1);
    gone.kill().unwrap();
    gone.wait().unwrap();
    assert_eq!(wills.next().unwrap().unwrap(), "gone");
    sleep(Duration::from_millis(1_500));
    a.kill();
    // No further will arrives until the watcher ends.
    let again: Vec<_> = wills.map(Result::unwrap).collect();
    assert!(again.is_empty(), "{again:?}");
    ended(watcher);
    assert_eq!(nats.status("b")["sessions"], 1, "the session has gone on");
}

#[test]
fn a_node_that_may_not_come_in_says_why_in_one_line() {
    let (Some(nats), Some(plain)) = (Nats::start(1, true), Nats::start(1, false)) else {
        return;
    };
    // A NATS server must answer before it can refuse a node; a running node shows that it does.
    let _running = nats.node("a", 1);
    let _other = plain.node("a", 1);
    let says = |said: String, part: &str| assert!(said.contains(part), "{said}");
    let urls = nats.urls();
    let said = refused(&nats, &nats.table("b", &urls, "wrong"));
    says(said, "do not let \"mq\" in with the password");
    let said = refused(&nats, &nats.table("a", &urls, "password"));
    says(
        said,
        "\"a\" runs already, at 127.0.0.1: give each node a name",
    );
    let other = nats
        .table("b", &urls, "password")
        .replace("shards = 2", "shards = 3");
    says(refused(&nats, &other), "has 2, and not 3");
    let asked = plain.urls()[0].replace("nats:", "tls:");
    says(
        refused(&nats, &nats.table("b", &[asked], "password")),
        "answer without TLS",
    );
    let unasked = urls[0].replace("tls:", "nats:");
    says(
        refused(&nats, &nats.table("b", &[unasked], "password")),
        "want TLS",
    );
    let stranger = nats.table("b", &urls, "password");
    let ca = format!("{:?}", nats.place("ca.pem"));
    let stranger = stranger.replace(&ca, &format!("{:?}", plain.place("ca.pem")));
    says(refused(&nats, &stranger), "no TLS with");
    let large = "[limits]\nmax_packet_size = 8388608\n";
    let large = nats.table("b", &urls, "password") + large;
    says(refused(&nats, &large), "set `max_payload: 8MB` there");
}

#[test]
fn a_node_shows_that_its_servers_confirm_nothing() {
    let (Some(nats), Some(publish)) = (Nats::start(1, true), program(&["mosquitto_pub"])) else {
        return;
    };
    let a = nats.node("a", 1);
    let until = |holds: &dyn Fn(&serde_json::Value) -> bool| {
        let began = Instant::now();
        loop {
            let shown = nats.status("a");
            if holds(&shown) {
                return;
            }
            assert!(began.elapsed() < SOON, "{shown}");
        }
    };
    let mut lines = mosquitto(&publish, a.port, &["-t", "t", "-l"]);
    let mut client = lines.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    writeln!(input, "first").unwrap();
    until(&|shown| {
        let mut logs = shown["logs"].as_array().unwrap().iter();
        shown["majority_lost"] == false && logs.any(|log| log["read"] == 1)
    });
    stop(&nats.running[0]);
    writeln!(input, "waits").unwrap();
    until(&|shown| {
        let is_unknown = shown["logs"][0]["behind"].is_null();
        shown["majority_lost"] == true && shown["messages_waiting"] == 1 && is_unknown
    });
    signal(&nats.running[0], "-CONT");
    // No message was lost: the acknowledgement is late.
    drop(input);
    assert!(ended(client).status.success());
    until(&|shown| shown["majority_lost"] == false && shown["messages_waiting"] == 0);
}
