//! Any packet of any version survives the wire, however it is cut, and is as long as announced.

use bytes::{Bytes, BytesMut};
use mq_codec::{Decoder, Packet, PacketType, Publish, PublishHead, TopicName, Version};
use proptest::{collection::vec, prelude::*};

use crate::{decode, runner::check, strategies::packet};

const VERSIONS: [Version; 3] = [Version::V3_1, Version::V3_1_1, Version::V5];

/// More than any packet here takes: up to four packets of a few long strings each.
const LIMIT: u32 = 1 << 24;

fn encoded(packets: &[Packet], version: Version) -> BytesMut {
    let mut wire = BytesMut::new();
    for packet in packets {
        packet.encode(version, &mut wire).unwrap();
    }
    wire
}

#[test]
fn every_packet_decodes_to_what_was_encoded() {
    for version in VERSIONS {
        check(1_500, &packet(version), |packet| {
            let mut wire = encoded(std::slice::from_ref(&packet), version);
            let mut decoder = Decoder::new(Some(version), LIMIT);
            assert_eq!(decoder.decode(&mut wire), Ok(Some(packet)));
            assert!(wire.is_empty());
        });
    }
}

#[test]
fn chunks_change_nothing() {
    for version in VERSIONS {
        let strategy = (vec(packet(version), 1..5), 1..60_usize);
        check(500, &strategy, |(packets, chunk)| {
            let wire = encoded(&packets, version);
            let decoded = decode::in_chunks(Some(version), LIMIT, &wire, chunk);
            assert_eq!(decoded, (packets, None));
        });
    }
}

#[test]
fn a_connection_takes_its_version_from_connect() {
    for version in VERSIONS {
        let connect = packet(version).prop_filter("CONNECT", |p| matches!(p, Packet::Connect(_)));
        let second = packet(version).prop_filter("a client's", |p| {
            use PacketType::{ConnAck, PingResp, SubAck, UnsubAck};
            !matches!(p.packet_type(), ConnAck | SubAck | UnsubAck | PingResp)
        });
        check(30, &(connect, second), |(connect, second)| {
            let packets = vec![connect, second];
            let wire = encoded(&packets, version);
            let decoded = decode::in_chunks(None, LIMIT, &wire, 1_000);
            assert_eq!(decoded, (packets, None));
        });
    }
}

fn publish(version: Version) -> impl Strategy<Value = Publish> {
    packet(version).prop_filter_map("PUBLISH", |packet| match packet {
        Packet::Publish(publish) => Some(publish),
        _ => None,
    })
}

#[test]
fn a_publish_is_as_long_as_its_head_announces() {
    for version in VERSIONS {
        check(150, &publish(version), |publish| {
            let wire = encoded(&[publish.clone().into()], version);
            assert_eq!(publish.head().packet_size(version), wire.len());
        });
    }
}

#[test]
fn the_remaining_length_grows_where_the_specification_says() {
    // What comes before the payload: fixed header, topic and, in 5.0, the length of no properties.
    for (version, head) in [(Version::V3_1_1, 3), (Version::V5, 4)] {
        for (remaining, bytes) in [
            (127, 1),
            (128, 2),
            (16_383, 2),
            (16_384, 3),
            (2_097_151, 3),
            (2_097_152, 4),
        ] {
            let payload = Bytes::from(vec![7; remaining - head]);
            let publish = Publish::new(TopicName::new("t").unwrap(), payload);
            let mut wire = encoded(&[publish.clone().into()], version);
            assert_eq!(wire.len(), 1 + bytes + remaining);
            assert_eq!(publish.head().packet_size(version), wire.len());
            let decoded = Decoder::new(Some(version), LIMIT).decode(&mut wire);
            assert_eq!(decoded, Ok(Some(publish.into())));
        }
    }
}

#[test]
fn a_head_with_replaced_fields_is_the_publish_with_these_fields() {
    let strategy = (publish(Version::V5), publish(Version::V5));
    check(100, &strategy, |(publish, other)| {
        let head = PublishHead {
            topic_alias: other.properties.topic_alias,
            message_expiry_interval: other.properties.message_expiry_interval,
            subscription_ids: &other.properties.subscription_ids,
            ..publish.head()
        };
        let mut replaced = publish.clone();
        let properties = &mut *replaced.properties;
        properties.topic_alias = head.topic_alias;
        properties.message_expiry_interval = head.message_expiry_interval;
        properties.subscription_ids = head.subscription_ids.to_vec();
        let (mut by_head, mut by_packet) = (BytesMut::new(), BytesMut::new());
        let result = head.encode(Version::V5, &mut by_head);
        by_head.extend_from_slice(&publish.payload);
        let size = head.packet_size(Version::V5);
        let packet = Packet::from(replaced);
        assert_eq!(result, packet.encode(Version::V5, &mut by_packet));
        // Without a topic and without the alias neither can be encoded.
        if result.is_ok() {
            assert_eq!(by_head, by_packet);
            assert_eq!(size, by_head.len());
            let decoded = Decoder::new(Some(Version::V5), LIMIT).decode(&mut by_head);
            assert_eq!(decoded, Ok(Some(packet)));
        }
    });
}

#[test]
fn arbitrary_bytes_never_panic_and_are_never_buffered_beyond_the_limit() {
    check(5_000, &vec(any::<u8>(), 0..200), |input| {
        decode::run(&input);
    });
}
