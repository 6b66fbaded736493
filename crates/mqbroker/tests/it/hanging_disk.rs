//! A disk that hangs or is slow: memory and Receive Maximum hold, operators see it, and nothing acknowledged is lost.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    path::PathBuf,
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use mq_codec::{
    ByteStr, Connect, Decoder, Packet, PacketId, Publish, QoS, ReasonCode, TopicName, Version,
};
use mq_testkit::free_port;

use crate::{
    program::{Broker, get, preloaded},
    raw,
};

/// In front of fsync(2) and fdatasync(2): each takes as many milliseconds as the file says that `SLOW_DISK` names.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void wait_for_disk(void) {
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (;;) {
        long wanted = 0;
        FILE *file = fopen(getenv("SLOW_DISK"), "r");
        if (file) {
            if (fscanf(file, "%ld", &wanted) != 1)
                wanted = 0;
            fclose(file);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000 >= wanted)
            return;
        usleep(10000);
    }
}

int fsync(int fd) { wait_for_disk(); return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { wait_for_disk(); return syscall(SYS_fdatasync, fd); }
"#;

/// The disk of a broker.
pub(crate) struct Disk {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Disk {
    /// Makes a disk as fast as the machine's; reports a skipped test if there is no C compiler.
    pub(crate) fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let library = preloaded(folder.path(), LIBRARY)?;
        let disk = Self { folder, library };
        disk.takes(Duration::ZERO);
        Some(disk)
    }

    /// Sets the time that each commit takes from now on, also one that is under way.
    pub(crate) fn takes(&self, time: Duration) {
        let (file, new) = (self.file(), self.folder.path().join("new"));
        fs::write(&new, time.as_millis().to_string()).unwrap();
        fs::rename(new, file).unwrap();
    }

    fn hangs(&self) {
        self.takes(Duration::from_hours(1));
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("milliseconds")
    }

    /// Starts a broker with this disk, a limit of 64 MiB, and its port for operators.
    fn broker(&self) -> (Broker, u16) {
        self.broker_with("", "")
    }

    /// Starts a broker with this disk that syncs it when it ends.
    fn broker_that_syncs_at_its_end(&self) -> Broker {
        self.broker_with("durability = \"off\"\n", "").0
    }

    /// Starts a broker with this disk and with a socket for operators as well, its file `socket`.
    pub(crate) fn broker_with_socket(&self) -> (Broker, u16) {
        self.broker_with("", "socket = \"FOLDER/socket\"\n")
    }

    /// Starts a broker with further keys of `[store]` and of `[admin]`.
    fn broker_with(&self, store: &str, more: &str) -> (Broker, u16) {
        let admin = free_port();
        let configuration = format!(
            "[limits]\nmemory = 67108864\n[store]\npath = \"FOLDER/store\"\nnot_ready_after_s = 1\n\
             unhealthy_after_s = 3\n{store}[admin]\nhttp = \"127.0.0.1:{admin}\"\n{more}"
        );
        let broker = Broker::with_environment("tcp", &configuration, &self.environment());
        (broker, admin)
    }

    /// Returns the variables of a broker with this disk.
    pub(crate) fn environment(&self) -> [(String, String); 2] {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        [
            ("SLOW_DISK".to_owned(), text(self.file())),
            ("LD_PRELOAD".to_owned(), text(self.library.clone())),
        ]
    }
}

/// A client by hand, of MQTT 3.1.1 or 5.0.
struct ByHand {
    stream: TcpStream,
    version: Version,
    decoder: Decoder,
    buffer: BytesMut,
}

impl ByHand {
    /// Connects a client, with a session that outlives its connection.
    fn connect(broker: &Broker, version: Version, client_id: &str) -> Self {
        let stream = connect(broker.url.trim_start_matches("tcp://"));
        stream
            .set_write_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let mut client = Self {
            stream,
            version,
            decoder: Decoder::new(Some(version), u32::MAX),
            buffer: BytesMut::new(),
        };
        let mut connect = Connect::new(version, ByteStr::new(client_id).unwrap());
        connect.keep_alive = 0;
        connect.clean_start = false;
        if version >= Version::V5 {
            connect.properties.session_expiry_interval = Some(3_600);
        }
        assert!(client.send(&Packet::from(connect)));
        let answer = client.read(Duration::from_secs(20));
        assert!(matches!(answer, Some(Packet::ConnAck(_))), "{answer:?}");
        client
    }

    /// Sends a packet; `false` once the broker reads no more, or has gone.
    fn send(&mut self, packet: &Packet) -> bool {
        let mut bytes = BytesMut::new();
        packet.encode(self.version, &mut bytes).unwrap();
        self.stream.write_all(&bytes).is_ok()
    }

    fn publish(&mut self, topic: &str, payload: Vec<u8>, id: u16) -> bool {
        self.send(&Packet::from(Publish {
            topic: TopicName::new(topic.to_owned()).unwrap(),
            qos: QoS::AtLeastOnce,
            packet_id: PacketId::new(id),
            payload: payload.into(),
            ..Publish::default()
        }))
    }

    /// Reads the next packet, if one comes within that time.
    fn read(&mut self, within: Duration) -> Option<Packet> {
        let until = Instant::now() + within;
        loop {
            if let Some(packet) = self.decoder.decode(&mut self.buffer).unwrap() {
                return Some(packet);
            }
            let left = until.checked_duration_since(Instant::now())?;
            self.stream
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .unwrap();
            let mut bytes = [0; 16_384];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
            }
        }
    }
}

/// Connects to a broker, which may have been started a moment ago.
fn connect(address: &str) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Subscribes a client at QoS 1 to everything under `t/`; its session stays.
fn subscriber(broker: &Broker) {
    let mut client = ByHand::connect(broker, Version::V5, "away");
    assert!(client.send(&raw::subscribe(
        ["t/#".to_owned()].into_iter(),
        QoS::AtLeastOnce
    )));
    let answer = client.read(Duration::from_secs(20));
    assert!(matches!(answer, Some(Packet::SubAck(_))), "{answer:?}");
}

/// Receives the messages that wait for the absent subscriber, up to `count`, and returns the first eight bytes of each.
fn received(broker: &Broker, count: usize) -> Vec<u64> {
    let mut client = ByHand::connect(broker, Version::V5, "away");
    let mut numbers = Vec::new();
    while numbers.len() < count
        && let Some(packet) = client.read(Duration::from_secs(20))
    {
        if let Packet::Publish(publish) = packet {
            numbers.push(u64::from_be_bytes(publish.payload[..8].try_into().unwrap()));
            let ack = mq_codec::Ack::new(publish.packet_id.unwrap(), ReasonCode::Success);
            client.send(&Packet::PubAck(ack));
        }
    }
    numbers
}

/// Waits until an operator's GET is answered with that status, and returns the body.
fn answered(port: u16, path: &str, status: u16) -> String {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let (found, body) = get(port, path);
        if found == status {
            return body;
        }
        assert!(Instant::now() < until, "{path}: {found} {body}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Bytes that the broker may need besides what it counts.
const UNCOUNTED: usize = 32 << 20;

const LIMIT: usize = 64 << 20;

/// Publishers whose disk hangs once they are connected, and which send as fast as they are read: `each` messages, if the
/// broker takes them. They never wait for an acknowledgement. Returns the bytes they got rid of.
fn flood(broker: &Broker, disk: &Disk, size: usize, each: usize) -> u64 {
    let sent = AtomicU64::new(0);
    let connected = Barrier::new(PUBLISHERS + 1);
    let (sent_by_one, connected_one) = (&sent, &connected);
    thread::scope(|scope| {
        for number in 0..PUBLISHERS {
            scope.spawn(move || {
                let name = format!("flood-{number}");
                let mut client = ByHand::connect(broker, Version::V3_1_1, &name);
                connected_one.wait();
                connected_one.wait();
                for message in 0..each {
                    let id = u16::try_from(message % 60_000).unwrap() + 1;
                    if !client.publish(&format!("t/{number}"), vec![0; size], id) {
                        break;
                    }
                    sent_by_one.fetch_add(size as u64, Ordering::Relaxed);
                }
                // The connection stays while others write.
                thread::sleep(Duration::from_millis(500));
            });
        }
        connected.wait();
        disk.hangs();
        connected.wait();
    });
    sent.into_inner()
}

const PUBLISHERS: usize = 8;

#[test]
fn a_hanging_disk_keeps_memory_within_its_limit() {
    let Some(disk) = Disk::new() else { return };
    for size in [64, 20_000, 200_000] {
        let (broker, _) = disk.broker();
        subscriber(&broker);
        let (before, _) = broker.resident();
        let sent = flood(&broker, &disk, size, (400 << 20) / PUBLISHERS / size);
        let (_, most) = broker.resident();
        println!("{size}: sent {} MB, resident {} MB", sent >> 20, most >> 20);
        assert!(sent > 4 << 20, "the broker read {sent} bytes");
        let bound = before + LIMIT + UNCOUNTED;
        assert!(most < bound, "{size}: {} MB", most >> 20);
        disk.takes(Duration::ZERO);
    }
}

/// Publishers that go on for as long as the disk is slow, while the subscriber is away: 8 s with commits of 500 ms, nightly
/// ten minutes with commits of 2 s.
#[test]
fn a_slow_disk_keeps_memory_within_its_limit() {
    let Some(disk) = Disk::new() else { return };
    let (time, commit) = mq_testkit::nightly(
        (Duration::from_secs(8), Duration::from_millis(500)),
        (Duration::from_mins(10), Duration::from_secs(2)),
    );
    let (broker, _) = disk.broker();
    subscriber(&broker);
    let (before, _) = broker.resident();
    disk.takes(commit);
    let until = Instant::now() + time;
    let sent = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..PUBLISHERS {
            let (broker, sent) = (&broker, &sent);
            scope.spawn(move || {
                let name = format!("steady-{number}");
                let mut client = ByHand::connect(broker, Version::V3_1_1, &name);
                client.stream.set_write_timeout(Some(time)).unwrap();
                let mut acknowledgements = client.stream.try_clone().unwrap();
                acknowledgements.set_read_timeout(None).unwrap();
                let reader =
                    thread::spawn(move || io::copy(&mut acknowledgements, &mut io::sink()));
                let mut ids = (1..=60_000).cycle();
                while Instant::now() < until {
                    let id = ids.next().unwrap();
                    assert!(client.publish(&format!("t/{number}"), vec![0; 20_000], id));
                    sent.fetch_add(20_000, Ordering::Relaxed);
                }
                client.stream.shutdown(Shutdown::Both).unwrap();
                let _ = reader.join().unwrap();
            });
        }
    });
    let (_, most) = broker.resident();
    let sent = sent.into_inner() >> 20;
    println!("sent {sent} MB, resident {} MB", most >> 20);
    assert!(sent > 0);
    assert!(most < before + LIMIT + UNCOUNTED, "{} MB", most >> 20);
}

#[test]
fn receive_maximum_holds_while_messages_wait_for_the_disk() {
    let Some(disk) = Disk::new() else { return };
    let (broker, _) = disk.broker();
    subscriber(&broker);
    let mut client = ByHand::connect(&broker, Version::V5, "beyond");
    disk.hangs();
    let mut disconnected = None;
    for id in 1..=u16::MAX {
        if !client.publish("t/x", vec![0; 8], id) {
            break;
        }
    }
    while let Some(packet) = client.read(Duration::from_secs(10)) {
        if let Packet::Disconnect(disconnect) = &packet {
            disconnected = Some(disconnect.reason);
        }
        assert!(!matches!(packet, Packet::PubAck(_)), "nothing is stored");
    }
    assert_eq!(disconnected, Some(ReasonCode::ReceiveMaximumExceeded));
}

#[test]
fn operators_see_a_disk_that_hangs_and_that_it_is_over() {
    let Some(disk) = Disk::new() else { return };
    let (broker, admin) = disk.broker();
    subscriber(&broker);
    let mut client = ByHand::connect(&broker, Version::V5, "publisher");
    disk.hangs();
    for number in 0..100_u64 {
        let id = u16::try_from(number).unwrap() + 1;
        assert!(client.publish("t/x", number.to_be_bytes().to_vec(), id));
    }
    let reason = answered(admin, "/readyz", 503);
    assert!(
        reason.starts_with("the store has not written for "),
        "{reason}"
    );
    assert_eq!(get(admin, "/healthz").0, 200);
    let (_, metrics) = get(admin, "/metrics");
    let age = metrics
        .lines()
        .find(|line| line.starts_with("mqbroker_store_oldest_unsettled_seconds "));
    assert!(
        age.unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse::<f64>()
            .unwrap()
            >= 1.0,
        "{metrics}"
    );
    answered(admin, "/healthz", 503);
    assert!(
        client.read(Duration::from_millis(1)).is_none(),
        "nothing is stored"
    );
    disk.takes(Duration::ZERO);
    answered(admin, "/readyz", 200);
    for id in 1..=100 {
        let Some(Packet::PubAck(ack)) = client.read(Duration::from_secs(20)) else {
            panic!("no acknowledgement of {id}");
        };
        assert_eq!(ack.packet_id.get(), id);
    }
    assert_eq!(received(&broker, 100), (0..100).collect::<Vec<_>>());
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let log = fs::read_to_string(broker.file("log")).unwrap();
        let count = |line| log.matches(line).count();
        if count("store: disk writes again") == 1 {
            assert_eq!(count("store: changes wait for the disk"), 1, "{log}");
            break;
        }
        assert!(Instant::now() < until, "{log}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_broker_whose_disk_hangs_ends_in_time_and_says_what_is_not_stored() {
    let Some(disk) = Disk::new() else { return };
    let (mut broker, _) = disk.broker();
    subscriber(&broker);
    let mut client = ByHand::connect(&broker, Version::V5, "publisher");
    assert!(client.publish("t/x", 7_u64.to_be_bytes().to_vec(), 1));
    assert!(matches!(
        client.read(Duration::from_secs(20)),
        Some(Packet::PubAck(_))
    ));
    disk.hangs();
    for id in 2..=11 {
        assert!(client.publish("t/x", vec![0; 8], id));
    }
    // They have been read by the time at which a ping is answered on another connection.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(broker.end_within(Duration::from_secs(25)), Some(74));
    let log = fs::read_to_string(broker.file("log")).unwrap();
    assert!(
        log.contains("the disk did not write 10 messages in time"),
        "{log}"
    );
    while let Some(packet) = client.read(Duration::from_secs(5)) {
        assert!(!matches!(packet, Packet::PubAck(_)), "it was not stored");
    }
    disk.takes(Duration::ZERO);
    broker.start();
    assert_eq!(received(&broker, 1), [7], "what was acknowledged is there");
}

#[test]
fn a_broker_whose_disk_hangs_at_the_last_sync_does_not_end_as_if_nothing_were_lost() {
    let Some(disk) = Disk::new() else { return };
    let mut broker = disk.broker_that_syncs_at_its_end();
    subscriber(&broker);
    let mut client = ByHand::connect(&broker, Version::V5, "publisher");
    assert!(client.publish("t/x", 7_u64.to_be_bytes().to_vec(), 1));
    assert!(matches!(
        client.read(Duration::from_secs(20)),
        Some(Packet::PubAck(_))
    ));
    disk.hangs();
    assert_eq!(broker.end_within(Duration::from_secs(25)), Some(74));
    let log = fs::read_to_string(broker.file("log")).unwrap();
    for part in [
        "store: not closed in order; last changes may be lost",
        "what was acknowledged since the last sync may be lost",
    ] {
        assert!(log.contains(part), "{part} in {log}");
    }
}
