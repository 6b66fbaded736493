//! `mq relay` between Debian's mosquitto and its clients, which know nothing of QUIC.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    time::Duration,
};

use mq_broker::view::Query;
use mq_client::{Client, QoS};
use mq_testkit::{Running, Scheme, TestBroker, free_port, listens, mosquitto, program};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
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

/// The shell sets the hard limit as well, which the relay cannot raise.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_descriptors_that_is_too_low_is_said_and_a_higher_one_is_taken() {
    let broker = TestBroker::start().await;
    let to = broker.address(Scheme::Tcp).to_string();
    for (limit, is_said) in [("-n 256", true), ("-S -n 256", false)] {
        let port = free_port();
        let mut command = Command::new("sh");
        let script = format!("ulimit {limit}; exec \"$@\"");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_mq"), "relay"]);
        let listen = format!("mqtt://127.0.0.1:{port}");
        command.args(["--listen", &listen, "--to", &to, "--connections", "100"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        listens(port).await;
        let client = Client::builder(&listen).unwrap();
        client.client_id("any").unwrap().build().await.unwrap();
        let pid = Pid::from_raw(running.0.id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        let mut said = String::new();
        let mut error = running.0.stderr.take().unwrap();
        error.read_to_string(&mut said).unwrap();
        let line = "100 clients take 264 file descriptors";
        assert_eq!(said.contains(line), is_said, "{said:?}");
    }
    broker.shutdown().await;
}

/// Answers a request over HTTP with its status line and its body.
async fn get(port: u16, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    tokio::time::timeout(PATIENCE, reading)
        .await
        .unwrap()
        .unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_read_again_while_clients_stay() {
    let [one, other] = [TestBroker::start().await, TestBroker::start().await];
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("relay.toml");
    let [kept, gone, new, metrics] = [(); 4].map(|()| free_port());
    let to = |broker: &TestBroker| broker.address(Scheme::Tcp);
    let table = |port: u16, broker: &TestBroker| {
        let to = to(broker);
        format!("[[relay]]\nlisten = \"mqtt://127.0.0.1:{port}\"\nto = \"{to}\"\n")
    };
    let write = |tables: &[String]| {
        let text = format!("metrics = \"127.0.0.1:{metrics}\"\n{}", tables.concat());
        std::fs::write(&config, text).unwrap();
    };
    write(&[table(kept, &one), table(gone, &one)]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
    command.args(["relay", "--config"]).arg(&config);
    let running = Running(command.stdin(Stdio::null()).spawn().unwrap());
    for port in [kept, gone] {
        listens(port).await;
    }
    let client = async |port: u16, id: &str| {
        let client = Client::builder(&format!("mqtt://127.0.0.1:{port}")).unwrap();
        client.client_id(id).unwrap().build().await.unwrap()
    };
    let [stays, leaves] = [client(kept, "stays").await, client(gone, "leaves").await];
    let pid = Pid::from_raw(running.0.id().try_into().unwrap());
    let hang_up = || kill(pid, Signal::SIGHUP).unwrap();
    // A mistake changes nothing, and the next one is taken.
    write(&["[[relay]]\nlisten = 1\n".to_owned()]);
    hang_up();
    write(&[table(kept, &other), table(new, &other)]);
    let taken = async {
        loop {
            hang_up();
            tokio::time::sleep(Duration::from_millis(50)).await;
            if TcpStream::connect(("127.0.0.1", new)).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, taken).await.unwrap();
    let _moved = client(kept, "moved").await;
    let _new = client(new, "new").await;
    let names = async |broker: &TestBroker| {
        let clients = broker.broker().clients(&Query::default()).await;
        let names = clients.items.into_iter().map(|client| client.client_id);
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&one).await, ["leaves", "stays"]);
    assert_eq!(names(&other).await, ["moved", "new"]);
    stays.publish("t", "x", QoS::ExactlyOnce).await.unwrap();
    leaves.publish("t", "x", QoS::ExactlyOnce).await.unwrap();
    TcpStream::connect(("127.0.0.1", gone)).await.unwrap_err();
    let (status, text) = get(metrics, "/metrics").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    for line in [
        format!("mq_relay_clients{{relay=\"mqtt://127.0.0.1:{kept}\"}} 2"),
        format!("mq_relay_passed_on_total{{relay=\"mqtt://127.0.0.1:{new}\"}} 1"),
        format!(
            "mq_relay_broker_connections_total{{relay=\"mqtt://127.0.0.1:{kept}\",handshake=\"full\"}} 2"
        ),
    ] {
        assert!(text.lines().any(|has| has == line), "{line}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(get(metrics, "/healthz").await.1, "ok\n");
    assert_eq!(get(metrics, "/").await.0, "HTTP/1.1 404 Not Found");
    one.shutdown().await;
    other.shutdown().await;
}
