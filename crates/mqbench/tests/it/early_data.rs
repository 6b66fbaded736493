//! Stream data of resumed connections, decrypted by tshark: early data is not sent again in 1-RTT packets.
//!
//! W20's figure 6 is such a trace, in which the data of a 0-RTT packet comes once more in a packet with a short header.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use serde_json::Value;

/// Stream data that a client with early data sent in one connection.
#[derive(Debug)]
struct Sent {
    /// The UDP port of the client.
    client: String,
    /// STREAM frames of 0-RTT packets.
    early: Vec<Frame>,
    /// STREAM frames of 1-RTT packets.
    one_rtt: Vec<Frame>,
}

/// A STREAM frame (RFC 9000 §19.8).
#[derive(Debug)]
struct Frame {
    stream: u64,
    offset: usize,
    data: Vec<u8>,
}

impl Frame {
    /// Lists the bytes by stream and offset.
    fn bytes(&self) -> impl Iterator<Item = (u64, usize)> {
        let (stream, offset) = (self.stream, self.offset);
        (offset..offset + self.data.len()).map(move |at| (stream, at))
    }
}

impl Sent {
    /// Returns the number of bytes of early data that 1-RTT packets have again.
    fn repeated(&self) -> usize {
        let early: BTreeSet<_> = self.early.iter().flat_map(Frame::bytes).collect();
        let later = self.one_rtt.iter().flat_map(Frame::bytes);
        later.filter(|byte| early.contains(byte)).count()
    }

    /// Returns the types of the MQTT packets in the early data of the control stream.
    fn early_packets(&self) -> Vec<u8> {
        let mut bytes = BTreeMap::new();
        for frame in self.early.iter().filter(|frame| frame.stream == 0) {
            bytes.extend((frame.offset..).zip(frame.data.iter().copied()));
        }
        let bytes: Vec<u8> = bytes.into_values().collect();
        let (mut rest, mut types) = (&bytes[..], Vec::new());
        while let [first, length, behind @ ..] = rest {
            assert!(*length < 128, "a short packet: {rest:?}");
            types.push(first >> 4);
            rest = behind.get(usize::from(*length)..).unwrap_or_default();
        }
        types
    }
}

/// Captures that are made until one has early data and tshark can decrypt all of it.
#[cfg(target_os = "linux")]
const MOST_CAPTURES: usize = 5;

/// Decrypts a capture by the client's secrets; returns the connections with early data, by tshark's numbers.
///
/// # Errors
/// A packet with data of a client that tshark does not decrypt: if the last packet of a connection comes behind the first one of the next
/// between the same addresses, it sometimes loses track of both.
fn early_connections(
    tshark: &Path,
    capture: &Path,
    secrets: &Path,
) -> Result<BTreeMap<String, Sent>, String> {
    let output = Command::new(tshark)
        .arg("-2")
        .arg("-r")
        .arg(capture)
        .arg("-o")
        .arg(format!("tls.keylog_file:{}", secrets.display()))
        .args(["-Y", "quic", "-J", "udp quic", "-T", "json"])
        .arg("--no-duplicate-keys")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let datagrams: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mut connections: BTreeMap<String, Sent> = BTreeMap::new();
    for datagram in &datagrams {
        let layers = &datagram["_source"]["layers"];
        let from = text(&layers["udp"]["udp.srcport"]);
        let packets = list(&layers["quic"]);
        // The first packet of a datagram names its connection.
        let number = &packets[0]["QUIC Connection information"]["quic.connection.number"];
        let number = number.as_str().ok_or_else(|| datagram.to_string())?;
        for packet in packets {
            let is_early = packet["quic.long.packet_type"] == "1";
            if is_early {
                connections
                    .entry(number.to_owned())
                    .or_insert_with(|| Sent {
                        client: from.clone(),
                        early: Vec::new(),
                        one_rtt: Vec::new(),
                    });
            }
            let Some(sent) = connections.get_mut(number) else {
                continue;
            };
            let frames = list(&packet["quic.frame"]);
            // The kept secrets are not those of handshakes.
            let counts = is_early || packet.get("quic.short").is_some();
            if counts && sent.client == from && frames.is_empty() {
                return Err(packet.to_string());
            }
            let frames = frames.into_iter();
            let frames = frames.filter(|frame| frame.get("quic.stream_data").is_some());
            let frames = frames.map(stream_frame);
            if is_early {
                sent.early.extend(frames);
            } else if sent.client == from {
                sent.one_rtt.extend(frames);
            }
        }
    }
    Ok(connections)
}

/// Returns the values of a field that tshark writes as a list if there are several.
fn list(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(all) => all.iter().collect(),
        Value::Null => Vec::new(),
        one => vec![one],
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn stream_frame(frame: &Value) -> Frame {
    let number = |name: &str| {
        frame
            .get(name)
            .map_or(0, |value| text(value).parse().unwrap())
    };
    let data = text(&frame["quic.stream_data"]);
    let bytes = data.split(':').filter(|byte| !byte.is_empty());
    Frame {
        stream: number("quic.stream.stream_id"),
        offset: usize::try_from(number("quic.stream.offset")).unwrap(),
        data: bytes
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect(),
    }
}

/// A connection of `mqbench reconnect` on loopback, kept with its secrets.
#[test]
fn the_kept_resumed_connection_has_connect_and_publish_in_0_rtt_packets_once() {
    const CONNECT: u8 = 1;
    const PUBLISH: u8 = 3;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let file = |name: &str| data.join(name);
    let Some(tshark) = mq_testkit::program(&["tshark"]) else {
        return;
    };
    let (capture, secrets) = (file("resumed-0rtt.pcap"), file("resumed-0rtt.keys"));
    let connections = early_connections(&tshark, &capture, &secrets).unwrap();
    assert_eq!(connections.len(), 1, "{connections:?}");
    for sent in connections.values() {
        assert_eq!(sent.early_packets(), [CONNECT, PUBLISH], "{sent:?}");
        // PUBLISH of QoS 1, after CONNACK, and DISCONNECT.
        assert!(!sent.one_rtt.is_empty(), "{sent:?}");
        assert_eq!(sent.repeated(), 0, "{sent:?}");
    }
}

/// Captures connections of this program over an emulated link without loss, and decrypts the capture. `None` where the system
/// has no networks for it.
#[cfg(target_os = "linux")]
fn captured(tshark: &Path) -> Option<Result<BTreeMap<String, Sent>, String>> {
    let folder = tempfile::tempdir().unwrap();
    let secrets = folder.path().join("secrets");
    let captures = folder.path().join("captures");
    let work =
        "compare --quick --count 60 --rounds 1 --connections 3 --transports quic --repeat off";
    let output = crate::program::command(&work.split(' ').collect::<Vec<_>>())
        .args(["--link", "w20/wifi", "--keylog", "--pcap"])
        .arg(&captures)
        .env("SSLKEYLOGFILE", &secrets)
        .output()
        .unwrap();
    if crate::program::skipped(&output.stderr) {
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let capture = captures.join("publisher.pcap");
    Some(early_connections(tshark, &capture, &secrets))
}

#[cfg(target_os = "linux")]
#[test]
fn early_data_of_a_resumed_connection_is_not_in_1_rtt_packets() {
    const CONNECT: u8 = 1;
    let Some(tshark) = mq_testkit::program(&["tshark"]) else {
        return;
    };
    for _ in 0..MOST_CAPTURES {
        let connections = match captured(&tshark) {
            Some(Ok(connections)) if connections.is_empty() => {
                println!("no client had a ticket in time");
                continue;
            }
            Some(Ok(connections)) => connections,
            Some(Err(packet)) => {
                println!("not decrypted: {packet}");
                continue;
            }
            None => return,
        };
        for sent in connections.values() {
            assert_eq!(sent.early_packets().first(), Some(&CONNECT), "{sent:?}");
            assert_eq!(sent.repeated(), 0, "{sent:?}");
        }
        return;
    }
    panic!("no capture of {MOST_CAPTURES} has early data and is decrypted");
}

#[test]
fn bytes_that_both_kinds_of_packets_have_are_counted() {
    let frame = |stream, offset, length| Frame {
        stream,
        offset,
        data: vec![0; length],
    };
    let sent = Sent {
        client: String::new(),
        early: vec![frame(0, 0, 10), frame(4, 0, 10)],
        one_rtt: vec![frame(0, 8, 4), frame(8, 0, 10)],
    };
    assert_eq!(sent.repeated(), 2, "{sent:?}");
}
