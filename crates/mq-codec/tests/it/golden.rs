//! Packets of each type and version, written by hand as the specifications lay them out: each is
//! decoded to its type and encoded to the same bytes.

use std::collections::BTreeSet;

use bytes::BytesMut;
use mq_codec::{Decoder, Version};

use crate::corpus;

const V3_1: &[(&str, &[u8])] = &[
    ("CONNECT", b"\x10\x0F\0\x06MQIsdp\x03\x02\0\x3C\0\x01c"),
    ("CONNACK", b"\x20\x02\0\x05"),
];

const BEFORE_5: &[(&str, &[u8])] = &[
    ("PUBLISH", b"\x33\x09\0\x03a/b\0\x0Ahi"),
    ("PUBACK", b"\x40\x02\0\x0A"),
    ("PUBREC", b"\x50\x02\0\x0A"),
    ("PUBREL", b"\x62\x02\0\x0A"),
    ("PUBCOMP", b"\x70\x02\0\x0A"),
    ("SUBSCRIBE", b"\x82\x0E\0\x0A\0\x03a/b\x01\0\x03c/#\x02"),
    ("SUBACK", b"\x90\x05\0\x0A\0\x02\x80"),
    ("UNSUBSCRIBE", b"\xA2\x07\0\x0A\0\x03a/b"),
    ("UNSUBACK", b"\xB0\x02\0\x0A"),
    ("PINGREQ", b"\xC0\0"),
    ("PINGRESP", b"\xD0\0"),
    ("DISCONNECT", b"\xE0\0"),
];

const V3_1_1: &[(&str, &[u8])] = &[
    (
        "CONNECT",
        b"\x10\x1A\0\x04MQTT\x04\xEE\0\x3C\0\x01c\0\x01w\0\x02hi\0\x01u\0\x01p",
    ),
    ("CONNACK", b"\x20\x02\x01\0"),
];

const V5: &[(&str, &[u8])] = &[
    (
        "CONNECT",
        b"\x10\x13\0\x04MQTT\x05\x02\0\x3C\x05\x11\0\0\0\x0A\0\x01c",
    ),
    ("CONNACK", b"\x20\x06\0\0\x03\x21\0\x14"),
    ("PUBLISH", b"\x34\x0D\0\x03a/b\0\x0A\x03\x23\0\x01hi"),
    ("PUBACK", b"\x40\x03\0\x0A\x10"),
    ("PUBREC", b"\x50\x03\0\x0A\x97"),
    ("PUBREL", b"\x62\x03\0\x0A\x92"),
    ("PUBCOMP", b"\x70\x08\0\x0A\x92\x04\x1F\0\x01n"),
    ("SUBSCRIBE", b"\x82\x0B\0\x0A\x02\x0B\x07\0\x03a/b\x2E"),
    ("SUBACK", b"\x90\x05\0\x0A\0\x02\x8F"),
    ("UNSUBSCRIBE", b"\xA2\x08\0\x0A\0\0\x03a/b"),
    ("UNSUBACK", b"\xB0\x04\0\x0A\0\x11"),
    ("PINGREQ", b"\xC0\0"),
    ("PINGRESP", b"\xD0\0"),
    ("DISCONNECT", b"\xE0\x01\x04"),
    ("AUTH", b"\xF0\x06\x18\x04\x15\0\x01m"),
];

/// With every property of the packet, in the order in which the tables of the specification have
/// them, but for PUBLISH, which begins with those that differ from subscriber to subscriber.
const V5_PROPERTIES: &[(&str, &[u8])] = &[
    (
        "CONNECT-properties",
        b"\x10\x5E\0\x04MQTT\x05\xF6\0\x3C\x23\x11\0\0\0\x0A\x21\0\x14\x27\0\0\x10\0\x22\0\x05\
          \x19\x01\x17\0\x26\0\x01k\0\x01v\x15\0\x01m\x16\0\x01d\0\x01c\x1F\x18\0\0\0\x05\x01\
          \x01\x02\0\0\0\x0A\x03\0\x01t\x08\0\x01r\x09\0\x01d\x26\0\x01k\0\x01v\0\x01w\0\x02hi\
          \0\x01u\0\x01p",
    ),
    (
        "CONNACK-properties",
        b"\x20\x3F\x01\0\x3C\x11\0\0\0\x0A\x21\0\x14\x24\x01\x25\0\x27\0\0\x10\0\x12\0\x01c\
          \x22\0\x05\x1F\0\x01n\x26\0\x01k\0\x01v\x28\0\x29\x01\x2A\0\x13\0\x1E\x1A\0\x01i\x1C\
          \0\x01s\x15\0\x01m\x16\0\x01d",
    ),
    (
        "PUBLISH-properties",
        b"\x3D\x2C\0\x03a/b\0\x0A\x22\x02\0\0\0\x0A\x23\0\x01\x0B\x07\x0B\x80\x01\x01\x01\x08\
          \0\x01r\x09\0\x01d\x26\0\x01k\0\x01v\x03\0\x01thi",
    ),
    (
        "SUBSCRIBE-properties",
        b"\x82\x1C\0\x0A\x0C\x0B\xFF\xFF\xFF\x7F\x26\0\x01k\0\x01v\0\x0A\x24share/g/\x2B\x19",
    ),
    (
        "DISCONNECT-properties",
        b"\xE0\x16\x9C\x14\x11\0\0\0\x0A\x1F\0\x01n\x26\0\x01k\0\x01v\x1C\0\x01s",
    ),
    (
        "AUTH-properties",
        b"\xF0\x15\x18\x13\x15\0\x01m\x16\0\x01d\x1F\0\x01n\x26\0\x01k\0\x01v",
    ),
];

fn check(version: Version, packets: &[(&str, &[u8])]) {
    for (name, wire) in packets {
        let mut buffer = BytesMut::from(*wire);
        let packet = Decoder::new(Some(version), 1000).decode(&mut buffer);
        let packet = packet.unwrap().unwrap();
        assert!(buffer.is_empty(), "{name}");
        let packet_type = packet.packet_type().to_string();
        assert!(name.starts_with(&packet_type), "{name} {packet_type}");
        let mut again = BytesMut::new();
        packet.encode(version, &mut again).unwrap();
        assert_eq!(again, *wire, "{name} {version}");
    }
}

#[test]
fn packets_are_laid_out_as_mqtt_3_1_says() {
    check(Version::V3_1, V3_1);
    check(Version::V3_1, BEFORE_5);
}

#[test]
fn packets_are_laid_out_as_mqtt_3_1_1_says() {
    check(Version::V3_1_1, V3_1_1);
    check(Version::V3_1_1, BEFORE_5);
}

#[test]
fn packets_are_laid_out_as_mqtt_5_says() {
    check(Version::V5, V5);
    check(Version::V5, V5_PROPERTIES);
}

/// The fuzzer starts from these packets, each behind the two bytes that the target `decode` begins with; with
/// the version unknown, from all packets of a version in a row. A failure says which its corpus lacks.
#[test]
fn the_corpus_of_the_fuzzer_has_these_packets() {
    let corpus: BTreeSet<_> = corpus::inputs("decode").into_iter().collect();
    for (how, version, packets) in [
        (1, Version::V3_1, [V3_1, BEFORE_5]),
        (2, Version::V3_1_1, [V3_1_1, BEFORE_5]),
        (3, Version::V5, [V5, V5_PROPERTIES]),
    ] {
        let packets = packets.concat();
        let all: Vec<u8> = packets
            .iter()
            .flat_map(|(_, wire)| *wire)
            .copied()
            .collect();
        let each = packets
            .iter()
            .map(|(name, wire)| (*name, [&[how, 0], *wire].concat()));
        for (name, bytes) in each.chain([("all", [&[0, 0], &all[..]].concat())]) {
            assert!(corpus.contains(&bytes), "{version} {name}: {bytes:02x?}");
        }
    }
}
