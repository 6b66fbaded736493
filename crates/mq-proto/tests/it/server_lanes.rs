//! Lanes that a server opens towards a client: who asks for them, what a client may do with them, and how a server
//! learns that its client has read the control lane.

use std::time::Instant;

use bytes::BytesMut;
use mq_codec::{Ack, ByteStr, ConnAck, Packet, PacketId, QoS, ReasonCode, TopicName, Version};
use mq_proto::{
    ClientConfig, Connection, Delivery, Event, LaneEnd, LaneId, Message, ServerConfig, Session,
    Spread,
};

use crate::util::connect;

/// The first lane that a server opens.
const LANE: LaneId = LaneId(1);

fn pass(now: Instant, from: &mut Connection, to: &mut Connection) {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = from.outbox().take(LaneId::CONTROL) {
        bytes.extend_from_slice(&chunk.bytes);
    }
    to.handle_bytes(now, LaneId::CONTROL, &mut bytes);
}

/// Makes a client and a server that have connected, and returns the user properties of CONNECT that the server's
/// application sees.
fn open(config: ClientConfig) -> (Instant, Connection, Connection, Vec<(ByteStr, ByteStr)>) {
    let now = Instant::now();
    let mut client = Connection::client(now, config, Session::new());
    let mut server = Connection::server(now, ServerConfig::default());
    client.connect(now).unwrap();
    pass(now, &mut client, &mut server);
    let Some(Event::Connect(connect)) = server.poll_event() else {
        panic!("no CONNECT")
    };
    let ack = ConnAck::new(ReasonCode::Success);
    server.accept(now, Session::new(), ack).unwrap();
    pass(now, &mut server, &mut client);
    while client.poll_event().is_some() {}
    (now, client, server, connect.properties.user_properties)
}

fn plain() -> ClientConfig {
    ClientConfig::new(connect(Version::V5))
}

/// Makes a server that has sent a message on a lane of its own, whose client has not answered.
fn with_message(qos: QoS) -> (Instant, Connection, PacketId) {
    let (now, _, mut server, _) = open(plain());
    server.begin_lane(LANE);
    let id = send(now, &mut server, qos).expect("QoS 1 or 2 has one");
    while server.outbox().take(LANE).is_some() {}
    (now, server, id)
}

fn send(now: Instant, server: &mut Connection, qos: QoS) -> Option<PacketId> {
    let message = Message::new(TopicName::new("t").unwrap(), "x");
    let sent = server.publish_on(now, LANE, Delivery::new(message, qos));
    sent.unwrap()
}

fn say(now: Instant, server: &mut Connection, lane: LaneId, packet: impl Into<Packet>) {
    let mut bytes = BytesMut::new();
    packet.into().encode(Version::V5, &mut bytes).unwrap();
    server.handle_bytes(now, lane, &mut bytes);
}

fn is_acked(server: &mut Connection) -> bool {
    let mut events = std::iter::from_fn(|| server.poll_event());
    events.any(|event| matches!(event, Event::Acked { reason, .. } if !reason.is_error()))
}

#[test]
fn a_client_asks_for_deliveries_by_a_user_property_that_the_application_does_not_see() {
    for spread in [
        "control",
        "per-topic",
        "per-topic:7",
        "per-publish",
        "auto:3",
    ] {
        let spread: Spread = spread.parse().unwrap();
        let mut config = plain();
        config.deliveries = Some(spread);
        let (_, _, server, properties) = open(config);
        assert_eq!(server.deliveries(), Some(spread));
        assert_eq!(properties, []);
    }
}

#[test]
fn a_malformed_wish_for_deliveries_is_a_user_property_like_any_other() {
    for value in [
        "",
        "per-topic:0",
        "by-priority",
        "per-topic:70000",
        "PER-TOPIC",
    ] {
        let mut config = plain();
        let property = ["mq-deliveries", value].map(|text| ByteStr::new(text).unwrap());
        let [name, value] = property;
        let properties = vec![(name, value)];
        config
            .connect
            .properties
            .user_properties
            .clone_from(&properties);
        let (_, _, server, seen) = open(config);
        assert_eq!(server.deliveries(), None);
        assert_eq!(seen, properties);
    }
}

#[test]
fn a_client_answers_on_the_lane_of_the_message_or_on_the_control_lane() {
    for lane in [LANE, LaneId::CONTROL] {
        let (now, mut server, id) = with_message(QoS::AtLeastOnce);
        say(
            now,
            &mut server,
            lane,
            Packet::PubAck(Ack::new(id, ReasonCode::Success)),
        );
        assert!(is_acked(&mut server));
        let (now, mut server, id) = with_message(QoS::ExactlyOnce);
        say(
            now,
            &mut server,
            lane,
            Packet::PubRec(Ack::new(id, ReasonCode::Success)),
        );
        assert!(server.outbox().take(lane).is_some(), "PUBREL answers there");
        say(
            now,
            &mut server,
            lane,
            Packet::PubComp(Ack::new(id, ReasonCode::Success)),
        );
        assert!(is_acked(&mut server));
        assert!(server.is_lane_open(LANE));
    }
}

#[test]
fn a_client_that_finishes_its_side_of_a_lane_still_reads_it() {
    let (now, mut server, id) = with_message(QoS::AtLeastOnce);
    server.handle_lane_closed(now, LANE, LaneEnd::Finish);
    server.handle_bytes(now, LANE, &mut BytesMut::new());
    assert!(server.is_lane_open(LANE) && server.outbox().is_empty());
    send(now, &mut server, QoS::AtMostOnce);
    assert!(server.outbox().take(LANE).is_some());
    server.finish_lane(LANE);
    assert!(server.outbox().is_empty(), "a message is not acknowledged");
    say(
        now,
        &mut server,
        LaneId::CONTROL,
        Packet::PubAck(Ack::new(id, ReasonCode::Success)),
    );
    assert!(is_acked(&mut server));
    assert_eq!(server.outbox().take_end(LANE), Some(LaneEnd::Finish));
    assert!(!server.is_lane_open(LANE));
}

#[test]
fn an_exchange_of_a_lane_that_the_client_breaks_goes_on_on_the_control_lane() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (now, mut server, _) = with_message(qos);
        server.handle_lane_closed(now, LANE, LaneEnd::Abort(0));
        assert!(!server.is_lane_open(LANE) && !is_acked(&mut server));
        let again = server.outbox().take(LaneId::CONTROL).unwrap();
        assert_eq!(again.bytes[0], 0x38 | (qos as u8) << 1, "PUBLISH with DUP");
    }
}

#[test]
fn a_message_at_qos_0_needs_no_answer_for_its_lane_to_end() {
    let (now, mut client, mut server, _) = open(plain());
    server.begin_lane(LANE);
    send(now, &mut server, QoS::AtMostOnce);
    server.finish_lane(LANE);
    let mut bytes = BytesMut::from(&server.outbox().take(LANE).unwrap().bytes[..]);
    assert_eq!(server.outbox().take_end(LANE), Some(LaneEnd::Finish));
    client.handle_bytes(now, LANE, &mut bytes);
    assert!(matches!(client.poll_event(), Some(Event::Publish(_))));
    client.handle_lane_closed(now, LANE, LaneEnd::Finish);
    client.handle_bytes(now, LANE, &mut bytes);
    assert_eq!(client.outbox().take_end(LANE), Some(LaneEnd::Finish));
}

#[test]
fn a_client_of_any_version_answers_a_server_that_asks_what_it_has_read() {
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        let (now, mut client, mut server, _) = open(ClientConfig::new(connect(version)));
        let message = Message::new(TopicName::new("t").unwrap(), "x");
        let delivery = Delivery::new(message, QoS::AtMostOnce);
        server.publish(now, delivery.clone()).unwrap();
        assert!(server.ping(now) && !server.ping(now), "one at a time");
        // Its identifier is in use, and others are not held up by it.
        let delivery = Delivery {
            qos: QoS::ExactlyOnce,
            ..delivery
        };
        server.publish(now, delivery).unwrap();
        pass(now, &mut server, &mut client);
        let events: Vec<_> = std::iter::from_fn(|| client.poll_event()).collect();
        assert!(
            matches!(events[..], [Event::Publish(_), Event::Publish(_)]),
            "{events:?}"
        );
        assert!(!server.has_events());
        pass(now, &mut client, &mut server);
        assert!(matches!(server.poll_event(), Some(Event::PingResp)));
        assert!(!server.has_events() && server.in_flight() == 1);
        assert!(server.ping(now));
    }
}
