//! The packets of early data that a server takes.

use std::time::Instant;

use bytes::BytesMut;
use mq_codec::{Ack, ConnAck, Packet, PacketId, Publish, QoS, ReasonCode, TopicName, Version};
use mq_proto::{Connection, EarlyPackets, Event, LaneId, ServerConfig, Session};

use crate::util::connect;

fn publish(qos: QoS) -> Packet {
    let mut publish = Publish::new(TopicName::new("t").unwrap(), "x");
    publish.qos = qos;
    publish.packet_id = PacketId::new(1).filter(|_| qos > QoS::AtMostOnce);
    publish.into()
}

fn ack() -> Ack {
    Ack::new(PacketId::new(1).unwrap(), ReasonCode::Success)
}

/// Makes a server that was told of `early` and has answered CONNECT, with `packets` sent behind CONNECT.
fn server(early: EarlyPackets, packets: &[Packet]) -> (Connection, BytesMut, Instant) {
    let now = Instant::now();
    let mut server = Connection::server(now, ServerConfig::default());
    server.restrict_early(early);
    let mut buffer = BytesMut::new();
    let connect = Packet::from(connect(Version::V5));
    for packet in std::iter::once(&connect).chain(packets) {
        packet.encode(Version::V5, &mut buffer).unwrap();
    }
    server.handle_bytes(now, LaneId::CONTROL, &mut buffer);
    assert!(matches!(server.poll_event(), Some(Event::Connect(_))));
    let ack = ConnAck::new(ReasonCode::Success);
    server.accept(now, Session::new(), ack).unwrap();
    server.handle_bytes(now, LaneId::CONTROL, &mut buffer);
    (server, buffer, now)
}

fn events(server: &mut Connection) -> usize {
    std::iter::from_fn(|| server.poll_event()).count()
}

#[test]
fn what_is_not_safe_to_repeat_waits_for_the_end_of_the_handshake() {
    for (packet, waits) in [
        (publish(QoS::AtMostOnce), false),
        (publish(QoS::AtLeastOnce), false),
        (publish(QoS::ExactlyOnce), true),
        (Packet::PubAck(ack()), true),
        (Packet::PubRec(ack()), true),
        (Packet::PubRel(ack()), true),
        (Packet::PubComp(ack()), true),
        (Packet::PingReq, false),
    ] {
        let packets = [publish(QoS::AtMostOnce), packet];
        let (server, buffer, _) = server(EarlyPackets::Repeatable, &packets);
        assert_eq!(server.is_too_early(&buffer), waits, "{packets:?}");
        assert_eq!(!buffer.is_empty(), waits, "{packets:?}");
    }
}

#[test]
fn what_is_behind_a_packet_that_waits_waits_as_well_and_comes_in_order() {
    let packets = [QoS::AtMostOnce, QoS::ExactlyOnce, QoS::AtMostOnce].map(publish);
    for (early, at_once) in [(EarlyPackets::Repeatable, 1), (EarlyPackets::Connect, 0)] {
        let (mut server, mut buffer, now) = server(early, &packets);
        assert_eq!(events(&mut server), at_once);
        // Asked again, it says the same.
        server.handle_bytes(now, LaneId::CONTROL, &mut buffer);
        assert_eq!(events(&mut server), 0);
        server.handshake_complete();
        assert!(!server.is_too_early(&buffer));
        server.handle_bytes(now, LaneId::CONTROL, &mut buffer);
        assert_eq!(events(&mut server), packets.len() - at_once);
        assert!(buffer.is_empty());
    }
}

#[test]
fn a_message_whose_payload_was_dropped_is_refused_although_what_is_behind_it_waits() {
    let (mut server, _, now) = server(EarlyPackets::Repeatable, &[]);
    let mut whole = BytesMut::new();
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        publish(qos).encode(Version::V5, &mut whole).unwrap();
    }
    let mut buffer = whole.split_to(8);
    server.handle_bytes(now, LaneId::CONTROL, &mut buffer);
    assert!(server.discard_payload(LaneId::CONTROL, &mut buffer));
    buffer.unsplit(whole);
    server.handle_bytes(now, LaneId::CONTROL, &mut buffer);
    assert!(matches!(server.poll_event(), Some(Event::Discarded(_))));
    assert!(server.is_too_early(&buffer));
}

#[test]
fn the_first_byte_of_a_packet_is_enough_to_leave_it() {
    let (mut server, _, now) = server(EarlyPackets::Repeatable, &[]);
    let mut whole = BytesMut::new();
    publish(QoS::ExactlyOnce)
        .encode(Version::V5, &mut whole)
        .unwrap();
    let mut buffer = BytesMut::from(&whole[..1]);
    server.handle_bytes(now, LaneId::CONTROL, &mut buffer);
    assert!(server.is_too_early(&buffer));
}
