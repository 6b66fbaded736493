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

/// A relay with a file that a test writes anew.
struct Reloading {
    config: std::path::PathBuf,
    metrics: u16,
    to: String,
    pid: Pid,
    _running: Running,
    _folder: tempfile::TempDir,
}

impl Reloading {
    /// Starts relays that each listen at these ports.
    async fn start(broker: &TestBroker, relays: &[&[u16]]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("relay.toml");
        let to = broker.address(Scheme::Tcp).to_string();
        let metrics = free_port();
        std::fs::write(&config, file(metrics, &to, relays)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mq"));
        command.args(["relay", "--config"]).arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let running = Running(command.spawn().unwrap());
        for port in relays.iter().copied().flatten() {
            listens(*port).await;
        }
        let pid = Pid::from_raw(running.0.id().try_into().unwrap());
        Self {
            config,
            metrics,
            to,
            pid,
            _running: running,
            _folder: folder,
        }
    }

    /// Has other relays in their place, and waits until those of `new` ports listen and those of `gone` do not.
    async fn reload(&self, relays: &[&[u16]], new: &[u16], gone: &[u16]) {
        std::fs::write(&self.config, file(self.metrics, &self.to, relays)).unwrap();
        kill(self.pid, Signal::SIGHUP).unwrap();
        for port in new {
            listens(*port).await;
        }
        for port in gone {
            let is_refused = async || TcpStream::connect(("127.0.0.1", *port)).await.is_err();
            until(is_refused).await;
        }
    }

    /// Returns the value of a metric without a label but that of the relay at this port, if it is shown.
    async fn value(&self, name: &str, port: u16) -> Option<u64> {
        let (_, text) = get(self.metrics, "/metrics").await;
        let start = format!("{name}{{relay=\"mqtt://127.0.0.1:{port}\"}} ");
        let mut values = text.lines().filter_map(|line| line.strip_prefix(&start));
        let value = values.next().map(|value| value.parse().unwrap());
        assert_eq!(values.next(), None, "shown twice: {text}");
        value
    }

    /// Returns the number of lines of all relays' metrics, and of the process's file descriptors.
    async fn size(&self) -> (usize, usize) {
        let (_, text) = get(self.metrics, "/metrics").await;
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).unwrap();
        (text.lines().count(), descriptors.count())
    }
}

fn file(metrics: u16, to: &str, relays: &[&[u16]]) -> String {
    let tables = relays.iter().map(|ports| {
        let listen = ports
            .iter()
            .map(|port| format!("\"mqtt://127.0.0.1:{port}\""));
        let listen = listen.collect::<Vec<_>>().join(", ");
        format!("[[relay]]\nlisten = [{listen}]\nto = \"{to}\"\n")
    });
    let tables = tables.collect::<Vec<_>>().concat();
    format!("metrics = \"127.0.0.1:{metrics}\"\n{tables}")
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap();
}

async fn client_at(port: u16, id: &str) -> Client {
    let client = Client::builder(&format!("mqtt://127.0.0.1:{port}")).unwrap();
    client.client_id(id).unwrap().build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_leaves_is_shown_until_its_last_client_has_left() {
    let broker = TestBroker::start().await;
    let [kept, gone] = [(); 2].map(|()| free_port());
    let relay = Reloading::start(&broker, &[&[kept], &[gone]]).await;
    let [one, two] = [client_at(gone, "one").await, client_at(gone, "two").await];
    relay.reload(&[&[kept]], &[], &[gone]).await;
    assert_eq!(relay.value("mq_relay_clients", gone).await, Some(2));
    one.disconnect().await.unwrap();
    until(async || relay.value("mq_relay_clients", gone).await == Some(1)).await;
    let passed_on = relay.value("mq_relay_passed_on_total", gone).await;
    assert_eq!(passed_on, Some(2));
    two.disconnect().await.unwrap();
    until(async || relay.value("mq_relay_clients", gone).await.is_none()).await;
    assert_eq!(relay.value("mq_relay_passed_on_total", gone).await, None);
    assert_eq!(relay.value("mq_relay_clients", kept).await, Some(0));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_an_address_go_on_where_another_relay_takes_it() {
    let broker = TestBroker::start().await;
    let [port, more] = [(); 2].map(|()| free_port());
    let relay = Reloading::start(&broker, &[&[port]]).await;
    let before = client_at(port, "before").await;
    relay.reload(&[&[port, more]], &[more], &[]).await;
    let after = client_at(port, "after").await;
    assert_eq!(relay.value("mq_relay_clients", port).await, Some(2));
    before.disconnect().await.unwrap();
    until(async || relay.value("mq_relay_clients", port).await == Some(1)).await;
    let passed_on = relay.value("mq_relay_passed_on_total", port).await;
    assert_eq!(passed_on, Some(2));
    after.disconnect().await.unwrap();
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_relays_that_have_left_stays_after_many_reloads() {
    let broker = TestBroker::start().await;
    let [kept, first, second] = [(); 3].map(|()| free_port());
    let relay = Reloading::start(&broker, &[&[kept], &[first]]).await;
    let mut sizes = Vec::new();
    for number in 0..40 {
        let (old, new) = if number % 2 == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let client = client_at(old, "changing").await;
        relay.reload(&[&[kept], &[new]], &[new], &[old]).await;
        assert_eq!(relay.value("mq_relay_clients", old).await, Some(1));
        client.disconnect().await.unwrap();
        until(async || relay.value("mq_relay_clients", old).await.is_none()).await;
        sizes.push(relay.size().await);
    }
    let (lines, descriptors) = sizes[39];
    assert_eq!(lines, sizes[0].0, "{sizes:?}");
    // The test's own last request may still be open.
    assert!(descriptors <= sizes[0].1 + 2, "{sizes:?}");
    broker.shutdown().await;
}
