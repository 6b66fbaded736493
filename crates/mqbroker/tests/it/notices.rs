//! Refusals of clients as an operator reads them: in the log, and in the metrics.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use mq_client::{Connector, QoS, Reconnect};
use mq_codec::{Disconnect, Packet, ReasonCode};
use mq_testkit::{ManualClient, free_port};

use crate::{
    program::{Broker, get},
    raw::{self, RawClients},
};

/// A password file in which `ann`'s password is `pencil`; made by `mosquitto_passwd`.
const PASSWORDS: &str = "ann:$7$101$FZZ0UNgSFP8t2lxC$HnZt7dEpxtgrXAUGYtFCa+ZgSH3DaGu9eqP+6sRF1GFeIOcND243Nblmv4oxdSdxNUG+InsvCCeZY658jWztvw==\n";

/// Starts a broker whose user `ann` may do everything below `ann/`; returns the port of its metrics
/// as well.
fn guarded() -> (Broker, u16) {
    let admin = free_port();
    let configuration = format!(
        "[auth]\npassword_file = \"FOLDER/passwords\"\nacl_file = \"FOLDER/acl\"\n\
         failures_per_minute = 0\n[admin]\nhttp = \"127.0.0.1:{admin}\"\n"
    );
    let files = [("passwords", PASSWORDS), ("acl", "user ann\ntopic ann/#\n")];
    (Broker::with_log("tcp", &configuration, &files), admin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refusal_is_a_line_with_client_user_topic_and_reason_and_a_labelled_count() {
    let (broker, admin) = guarded();
    let wrong = broker.client("door").credentials("ann", "guess").unwrap();
    assert!(wrong.reconnect(Reconnect::never()).build().await.is_err());
    let right = broker
        .client("sensor")
        .credentials("ann", "pencil")
        .unwrap();
    let client = right.build().await.unwrap();
    let refused = client.publish("bob/x", "1", QoS::AtLeastOnce).await;
    assert!(refused.is_err());
    assert!(client.subscribe("bob/#", QoS::AtMostOnce).await.is_err());
    for parts in [
        [
            "refused a log-in",
            "client=door",
            "user=ann",
            "bad user name or password",
        ]
        .as_slice(),
        &[
            "refused a publish",
            "client=sensor",
            "user=ann",
            "topic=bob/x",
            "not authorized",
        ],
        &[
            "refused a subscription",
            "client=sensor",
            "user=ann",
            "topic=bob/#",
            "not authorized",
        ],
    ] {
        broker.log_with(parts);
    }
    let (_, metrics) = get(admin, "/metrics");
    for line in [
        "mqbroker_log_ins_refused_total{reason=\"bad user name or password\"} 1",
        "mqbroker_publishes_refused_total{reason=\"not authorized\"} 1",
        "mqbroker_subscriptions_refused_total{reason=\"not authorized\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_refused_all_the_time_gets_ten_lines_a_second_and_its_count() {
    const TIMES: usize = 500;

    let (broker, _) = guarded();
    let right = broker
        .client("sensor")
        .credentials("ann", "pencil")
        .unwrap();
    let client = right.build().await.unwrap();
    let began = Instant::now();
    for _ in 0..TIMES {
        assert!(
            client
                .publish("bob/x", "1", QoS::AtLeastOnce)
                .await
                .is_err()
        );
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    // No further refusal follows: the summary is logged by itself.
    let log = broker.log_with(&["refused a publish; further lines left out"]);
    let lines = log.matches("refused a publish ").count();
    let left_out: usize = log
        .lines()
        .filter(|line| line.contains("refused a publish"))
        .filter_map(|line| line.split("left_out=").nth(1))
        .map(|rest| rest.split(' ').next().unwrap().parse::<usize>().unwrap())
        .sum();
    assert!(lines <= 10 * (seconds + 2), "{lines} in {seconds} s");
    assert_eq!(lines + left_out, TIMES, "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_peers_choose_stay_within_their_place_in_the_log() {
    let (broker, _) = guarded();
    let turned = format!("\u{202e}{}", "x".repeat(300));
    let client = broker.client(&turned).credentials("ann", "pencil").unwrap();
    let client = client.build().await.unwrap();
    client.disconnect().await.unwrap();
    let forged = broker
        .client("a\" user=root")
        .credentials("eve", "x")
        .unwrap();
    assert!(forged.reconnect(Reconnect::never()).build().await.is_err());
    let cut = format!("client=\"\\u{{202e}}{}\"… (303 bytes)", "x".repeat(127));
    broker.log_with(&[" connected ", &cut]);
    broker.log_with(&[" disconnected ", &cut]);
    let log = broker.log_with(&["refused a log-in", r#"client="a\" user=root""#]);
    assert!(!log.contains('\u{202e}'));
}

#[test]
fn what_comes_before_a_log_in_and_is_not_mqtt_is_a_line_with_its_peer_and_a_count() {
    let (broker, admin) = guarded();
    let cases: &[(&[u8], &str)] = &[
        (b"\x16\x03\x01\x02\x00\x01", "TLS at a port without TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP at a port of MQTT"),
        (
            b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
            "a PROXY header at a listener without proxy_protocol",
        ),
        (b"\x10\x0c\0\x04MQTX\x04\x02\0\x0a\0\0", "no valid CONNECT"),
        (b"\xc0\0", "no valid CONNECT"),
    ];
    for (bytes, reason) in cases {
        let mut stream = TcpStream::connect(broker.url.trim_start_matches("tcp://")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let peer = stream.local_addr().unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        let line = [
            "WARN",
            "refused a connection",
            reason,
            &format!("peer={peer}"),
            "transport=tcp",
        ];
        broker.log_with(&line);
        let count = format!("connections_refused_total{{reason=\"{reason}\"}} ");
        assert!(get(admin, "/metrics").1.contains(&count), "{count}");
    }
}

#[test]
fn a_handshake_that_fails_is_a_line_with_its_peer_and_the_error() {
    let broker = Broker::with_log("tls", "", &[]);
    let mut stream = TcpStream::connect(broker.url.trim_start_matches("tls://")).unwrap();
    let peer = stream.local_addr().unwrap();
    stream
        .write_all(b"\x10\x0c\0\x04MQTT\x04\x02\0\x0a\0\0")
        .unwrap();
    let line = [
        "refused a connection",
        "handshake failed",
        "error=",
        &format!("peer={peer}"),
    ];
    broker.log_with(&line);
}

#[test]
fn a_client_that_breaks_the_protocol_again_and_again_is_let_in_ever_later() {
    const TIMES: usize = 14;

    let broker = Broker::with_log("tcp", "", &[]);
    let clients = RawClients::new(&broker.url);
    let began = Instant::now();
    for _ in 0..TIMES {
        let mut client = clients.connect("bad", |_| {}).expect("it is let in");
        client.write_all(&[0, 0]).unwrap();
        let _ = client.read_to_end(&mut Vec::new());
    }
    // 100 ms more for each error beyond the fifth, except those forgiven meanwhile: 3 s.
    assert!(began.elapsed() > Duration::from_secs(2));
    let log = broker.log_with(&[
        "disconnected",
        "packet type 0 is reserved",
        "peer=127.0.0.1",
    ]);
    assert!(log.matches(" disconnected ").count() <= TIMES, "{log}");
}

#[test]
fn clients_that_come_and_go_get_a_hundred_lines_a_second_and_a_count() {
    const TIMES: usize = 500;

    let broker = Broker::with_log("tcp", "", &[]);
    let clients = RawClients::new(&broker.url);
    let began = Instant::now();
    for _ in 0..TIMES {
        let mut client = clients.connect("again", |_| {}).expect("it is let in");
        let bye = Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)));
        raw::send(&mut client, &bye).unwrap();
        let _ = client.read_to_end(&mut Vec::new());
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    for event in [" connected", " disconnected"] {
        let until = Instant::now() + Duration::from_secs(20);
        let (lines, left_out) = loop {
            let log = std::fs::read_to_string(broker.file("log")).unwrap();
            let lines = log.lines().filter(|line| line.contains(event));
            let (told, lines): (Vec<_>, Vec<_>) =
                lines.partition(|line| line.contains("further lines left out"));
            let told = told.iter().chain(&lines);
            let left_out = told.filter_map(|line| line.split("left_out=").nth(1));
            let left_out: usize = left_out
                .map(|rest| rest.split(' ').next().unwrap().parse::<usize>().unwrap())
                .sum();
            if lines.len() + left_out == TIMES {
                break (lines.len(), left_out);
            }
            assert!(Instant::now() < until, "{} and {left_out}", lines.len());
            std::thread::sleep(Duration::from_millis(20));
        };
        println!("{event}: {lines} lines, {left_out} left out, {seconds} s");
        assert!(lines <= 100 * (seconds + 2), "{lines} in {seconds} s");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_protocol_error_on_a_data_stream_is_a_line_with_client_peer_and_reason() {
    let broker = Broker::with_log("quic", "", &[]);
    let connector = Connector::new(broker.connect_options()).unwrap();
    let address = broker.url.parse().unwrap();
    let mut client = ManualClient::connect_by(&connector, &address, "sensor", |_| {}).await;
    let second_connect = [0x10, 0];
    let lane = client.write_to_new_lane(&second_connect).await;
    broker.log_with(&[
        "INFO",
        "data stream ended",
        "client=sensor",
        "peer=127.0.0.1:",
        "transport=quic",
        &format!("stream={}", lane.0),
        "reason=the peer broke the protocol: ",
    ]);
}
