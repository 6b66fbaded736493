//! The program with a store that cannot grow any more: it reports that, ends, and has kept every
//! acknowledged message.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use mq_client::{Client, QoS, Reconnect};
use mq_codec::{
    ByteStr, Connect, Decoder, Packet, PacketId, Publish, ReasonCode, TopicName, Version,
};

use mq_testkit::free_port;

/// The largest size of the store's file, in the shell's blocks of 512 bytes: 8 MiB.
const BLOCKS: usize = 16_384;

fn spawn(folder: &std::path::Path, port: u16, blocks: Option<usize>) -> Child {
    let limit = blocks.map_or(String::new(), |blocks| format!("ulimit -f {blocks};"));
    // Without the signal a write beyond the limit is an error, as on a full disk.
    let script = format!("trap '' XFSZ; {limit} exec \"$0\" \"$@\"");
    Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_mqbroker")])
        .args(["--listen", &format!("tcp://127.0.0.1:{port}"), "--announce"])
        .args(["--until-stdin-ends", "--store"])
        .arg(folder.join("store"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("RUST_LOG", "error")
        .spawn()
        .unwrap()
}

/// Starts a broker, and waits until it is ready.
fn start(folder: &std::path::Path, port: u16, blocks: Option<usize>) -> Child {
    let mut child = spawn(folder, port, blocks);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"), "it has ended");
    child
}

/// A client of raw MQTT 5.0 packets.
struct Raw {
    stream: TcpStream,
    buffer: BytesMut,
    decoder: Decoder,
}

impl Raw {
    fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut raw = Self {
            stream,
            buffer: BytesMut::new(),
            decoder: Decoder::new(Some(Version::V5), u32::MAX),
        };
        let connect = Connect::new(Version::V5, ByteStr::new("raw").unwrap());
        raw.write(&Packet::from(connect));
        assert!(matches!(raw.read(), Some(Packet::ConnAck(_))));
        raw
    }

    fn write(&mut self, packet: &Packet) {
        let mut bytes = BytesMut::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        // The broker may have ended by now.
        let _ = self.stream.write_all(&bytes);
    }

    /// Returns the next packet; `None` at the connection's end.
    fn read(&mut self) -> Option<Packet> {
        loop {
            if let Some(packet) = self.decoder.decode(&mut self.buffer).unwrap() {
                return Some(packet);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(count @ 1..) => self.buffer.extend_from_slice(&bytes[..count]),
                Ok(0) | Err(_) => return None,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_disk_is_full_says_so_ends_and_goes_on_with_all_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut child = start(folder.path(), port, Some(BLOCKS));
    let mut raw = Raw::connect(port);
    let mut acknowledged = 0;
    let farewell = loop {
        let topic = format!("t/{acknowledged}");
        raw.write(&Packet::from(Publish {
            topic: TopicName::new(topic.as_str()).unwrap(),
            payload: vec![7; 32_000].into(),
            qos: QoS::AtLeastOnce,
            retain: true,
            packet_id: Some(PacketId::FIRST),
            ..Publish::default()
        }));
        match raw.read() {
            Some(Packet::PubAck(ack)) => {
                assert!(!ack.reason.is_error(), "{ack:?}");
                acknowledged += 1;
                assert!(acknowledged < 1_000, "the disk should be full");
            }
            other => break other,
        }
    };
    println!("{acknowledged} messages were acknowledged");
    assert!(acknowledged > 10);
    let Some(Packet::Disconnect(disconnect)) = farewell else {
        panic!("it should say why it ends: {farewell:?}");
    };
    assert_eq!(disconnect.reason, ReasonCode::ImplementationSpecificError);
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it should end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(status.code(), Some(1));
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(said.contains("mqbroker: the store has failed"), "{said}");

    // The disk has room again.
    let mut child = start(folder.path(), port, None);
    let client = Client::builder(&format!("tcp://127.0.0.1:{port}"))
        .unwrap()
        .reconnect(Reconnect::never())
        .build()
        .await
        .unwrap();
    let mut messages = client.subscribe("t/#", QoS::AtMostOnce).await.unwrap();
    for _ in 0..acknowledged {
        let next = tokio::time::timeout(Duration::from_secs(20), messages.recv());
        assert_eq!(next.await.unwrap().unwrap().payload.len(), 32_000);
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_store_that_could_not_be_made_bars_no_later_start() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let output = spawn(folder.path(), port, Some(8)).wait_with_output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    let mut child = start(folder.path(), port, None);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
