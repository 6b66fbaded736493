//! Clients that make the broker hold as much as they can: its memory stays within the bound of
//! `limits.memory`.
//!
//! 100 clients and 16 MiB; `MQ_CLIENTS=300 MQ_MEMORY=64` for the numbers of
//! `docs/reference/operation.md`, in a release build.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use mq_client::{Client, Connector};
use mq_codec::{Packet, PacketId, PublishProperties, QoS, TopicName, Will, WillProperties};

use mq_testkit::UdpProxy;

use crate::{
    program::Broker,
    raw::{RawClients, publish, send, subscribe},
};

/// Bytes of a connection that are not counted: `docs/reference/operation.md`, "Memory".
const OF_A_CONNECTION: usize = 64 * 1024;

/// Bytes of a connection over QUIC besides those of any connection.
const OF_QUIC: usize = 32 * 1024;

/// Bytes that the allocator cannot return at once, however small the limit is.
const OF_THE_ALLOCATOR: usize = 8 * MEGABYTE;

const MEGABYTE: usize = 1 << 20;

fn variable(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Runs an attack of many clients on a broker, each by its number, and checks its memory. The
/// values that clients return are held until all are connected.
fn attack(
    what: &str,
    configuration: &str,
    client: impl Fn(&RawClients, usize) -> Option<TcpStream>,
) {
    let clients = variable("MQ_CLIENTS", 100);
    let limit = variable("MQ_MEMORY", 16) * MEGABYTE;
    let configuration = format!(
        "[limits]\nmemory = {limit}\n{configuration}[auth]\nallow_anonymous = true\n[admin]\nsys_interval_s = 0\n"
    );
    let broker = Broker::new("tcp", &configuration);
    let attacker = RawClients::new(&broker.url);
    let (empty, _) = broker.resident();
    let held: Vec<_> = (0..clients)
        .map(|number| client(&attacker, number))
        .collect();
    // The broker has read everything by then.
    std::thread::sleep(Duration::from_millis(500));
    let (left, most) = broker.resident();
    let bound = bound(empty, limit, clients);
    println!(
        "{what}: {} of {clients} clients still there; {} MiB before, {} at most, {} now, bound {}",
        held.iter().flatten().filter(|it| is_open(it)).count(),
        empty / MEGABYTE,
        most / MEGABYTE,
        left / MEGABYTE,
        bound / MEGABYTE
    );
    assert!(left <= bound, "{what}: {left} is more than {bound}");
    // The broker still serves clients.
    assert!(attacker.connect("good", |_| {}).is_some(), "{what}");
}

/// Returns the most resident bytes of a broker with so many clients that had `empty` without any.
fn bound(empty: usize, limit: usize, clients: usize) -> usize {
    empty + limit + limit * 3 / 10 + clients * OF_A_CONNECTION + OF_THE_ALLOCATOR
}

/// Returns `true` if the broker has not closed the connection.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut scratch = [0; 4096];
    loop {
        match stream.read(&mut scratch) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

fn name(of: usize, len: usize) -> String {
    format!("{of:08}{}", "x".repeat(len - 8))
}

#[test]
fn long_topics_of_aliases_count() {
    attack("aliases", "", |attacker, number| {
        let mut stream = attacker.connect(&format!("a{number}"), |_| {})?;
        for alias in 1..=64 {
            let mut packet = publish(name(number * 64 + alias, 60_000), Vec::new());
            packet.properties = PublishProperties {
                topic_alias: Some(u16::try_from(alias).unwrap()),
                ..PublishProperties::default()
            }
            .into();
            if send(&mut stream, &Packet::Publish(packet)).is_err() {
                break;
            }
        }
        Some(stream)
    });
}

#[test]
fn unfinished_packets_before_log_in_have_a_limit_together() {
    attack("unfinished CONNECTs", "", |attacker, _| {
        let mut stream = attacker.stream();
        // A remaining length of 60,000; the client sends a little less.
        let mut bytes = vec![0x10, 0xE0, 0xD4, 0x03];
        bytes.extend([0, 4, b'M', b'Q', b'T', b'T', 5, 0, 0, 0, 0]);
        bytes.resize(59_000, 0);
        let _ = stream.write_all(&bytes);
        Some(stream)
    });
}

#[test]
fn a_connect_that_is_too_large_is_refused_with_a_reason() {
    let broker = Broker::new("tcp", "[auth]\nallow_anonymous = true\n");
    let attacker = RawClients::new(&broker.url);
    let mut stream = attacker.stream();
    // A remaining length of 1,000,000; the client sends no more than the version.
    let head = [
        0x10, 0xC0, 0x84, 0x3D, 0, 4, b'M', b'Q', b'T', b'T', 5, 0, 0,
    ];
    stream.write_all(&head).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x20, 3, 0, 0x95, 0]);
}

#[test]
fn unfinished_packets_count() {
    attack("unfinished PUBLISHes", "", |attacker, number| {
        let mut stream = attacker.connect(&format!("p{number}"), |_| {})?;
        // A remaining length of 1,000,000.
        let mut bytes = vec![0x30, 0xC0, 0x84, 0x3D, 0, 1, b't', 0];
        bytes.resize(999_000, 0);
        let _ = stream.write_all(&bytes);
        Some(stream)
    });
}

#[test]
fn wills_of_sessions_that_are_away_count() {
    attack("wills", "", |attacker, number| {
        for each in 0..10 {
            let stream = attacker.connect(&format!("w{number}-{each}"), |connect| {
                connect.properties.session_expiry_interval = Some(3_600);
                connect.will = Some(Will {
                    topic: TopicName::new("gone").unwrap(),
                    payload: vec![0; 60_000].into(),
                    qos: QoS::AtMostOnce,
                    retain: false,
                    properties: WillProperties {
                        will_delay_interval: Some(3_600),
                        ..WillProperties::default()
                    },
                });
            });
            drop(stream);
        }
        None
    });
}

#[test]
fn filters_count_and_so_do_their_levels() {
    attack("filters", "", |attacker, number| {
        let mut stream = attacker.connect(&format!("f{number}"), |_| {})?;
        for round in 0..8 {
            let flat = (0..100).map(|each| name((number * 8 + round) * 100 + each, 1_000));
            let deep = (0..20).map(|each| {
                let own = (number * 8 + round) * 20 + each;
                format!("d{own}{}", "/a".repeat(190))
            });
            let packet = subscribe(flat.chain(deep), QoS::AtMostOnce);
            send(&mut stream, &packet).ok()?;
        }
        // All of them were answered, refused or not.
        let mut scratch = [0; 4096];
        let began = Instant::now();
        let mut left = 8 * 120;
        while left > 0 && began.elapsed() < Duration::from_secs(20) {
            let count = stream.read(&mut scratch).ok().filter(|count| *count > 0)?;
            left -= count.min(left);
        }
        Some(stream)
    });
}

#[test]
fn retained_messages_of_a_reader_that_does_not_read_are_not_queued() {
    let prepared = std::sync::OnceLock::new();
    attack("retained messages", "", |attacker, number| {
        prepared.get_or_init(|| {
            let mut stream = attacker.connect("writer", |_| {}).unwrap();
            for each in 0..20_000 {
                let mut packet = publish(format!("r/{each}"), vec![0; 20]);
                packet.retain = true;
                send(&mut stream, &Packet::Publish(packet)).unwrap();
            }
        });
        let mut stream = attacker.connect(&format!("s{number}"), |_| {})?;
        for _ in 0..5 {
            let filters = ["#", "r/#", "r/+", "+/#"].map(str::to_owned);
            let packet = subscribe(filters.into_iter(), QoS::AtLeastOnce);
            send(&mut stream, &packet).ok()?;
        }
        Some(stream)
    });
}

#[test]
fn messages_that_are_not_acknowledged_count() {
    attack("messages in flight", "", |attacker, number| {
        let mut reader = attacker.connect(&format!("i{number}"), |_| {})?;
        let topic = format!("t/{number}");
        send(
            &mut reader,
            &subscribe(std::iter::once(topic.clone()), QoS::AtLeastOnce),
        )
        .ok()?;
        let mut writer = attacker.connect("writer", |_| {})?;
        let mut scratch = vec![0; 1 << 20];
        for id in 1..=10 {
            let mut packet = publish(topic.clone(), vec![0; 400_000]);
            packet.qos = QoS::AtLeastOnce;
            packet.packet_id = PacketId::new(id);
            send(&mut writer, &Packet::Publish(packet)).ok()?;
            // The client reads, and never acknowledges.
            reader.set_nonblocking(true).unwrap();
            while reader.read(&mut scratch).is_ok_and(|count| count > 0) {}
        }
        // Waits until the broker has handled them.
        let mut acks = [0; 10 * 4];
        let _ = writer.read_exact(&mut acks);
        while reader.read(&mut scratch).is_ok_and(|count| count > 0) {}
        Some(reader)
    });
}

/// Clients over QUIC that receive nothing any more, as with a cable pulled out: data sent to them
/// stays in the broker until they acknowledge it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sent_messages_that_quic_readers_do_not_acknowledge_are_bounded() {
    let clients = variable("MQ_CLIENTS", 100);
    let limit = variable("MQ_MEMORY", 16) * MEGABYTE;
    let configuration = format!(
        "[limits]\nmemory = {limit}\n[auth]\nallow_anonymous = true\n[admin]\nsys_interval_s = 0\n"
    );
    let broker = Broker::new("quic", &configuration);
    let (empty, _) = broker.resident();
    let at = broker.url.trim_start_matches("quic://").parse().unwrap();
    let cable = UdpProxy::start(at, Duration::ZERO).await.unwrap();
    let mut readers = Vec::new();
    for number in 0..clients {
        let url = format!("quic://{}", cable.address());
        let reader = Client::builder(&url).unwrap();
        let reader = reader
            .client_id(format!("reader-{number}").as_str())
            .unwrap();
        let connector = Connector::new(broker.connect_options()).unwrap();
        let reader = reader.connector(connector).build().await.unwrap();
        let messages = reader.subscribe("t", QoS::AtMostOnce).await.unwrap();
        readers.push((reader, messages));
    }
    cable.hold();
    let writer = broker.client("writer").build().await.unwrap();
    // Each reader has its own copy of short payloads in the data sent.
    for _ in 0..3_000 {
        let payload = vec![0; 1_000];
        // The message is refused once no reader has room for it.
        let _ = writer.publish("t", payload, QoS::AtLeastOnce).await;
    }
    let (_, most) = broker.resident();
    let bound = bound(empty, limit, clients) + clients * OF_QUIC;
    println!(
        "{clients} readers: {} MiB at most, bound {}",
        most / MEGABYTE,
        bound / MEGABYTE
    );
    assert!(most <= bound, "{most} is more than {bound}");
}
