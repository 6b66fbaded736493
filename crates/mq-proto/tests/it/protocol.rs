//! Rules of MQTT for a connection, clause by clause, between two ends with virtual time.

use core::num::{NonZeroU16, NonZeroU32};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mq_codec::{
    Ack, Auth, AuthProperties, ByteStr, ConnAck, Decoder, Disconnect, Packet, PacketId, PacketType,
    Publish, QoS, ReasonCode, SubscribeProperties, Subscription, TopicFilter, TopicName, Version,
};
use mq_proto::{
    ClientConfig, CloseReason, CommandError, Connection, Event, LaneId, ProtocolError,
    ServerConfig, Session,
};

use crate::util::{Pair, Rng, connect, delivery};

const SECOND: Duration = Duration::from_secs(1);

fn client(version: Version) -> ClientConfig {
    ClientConfig::new(connect(version))
}

fn success() -> ConnAck {
    ConnAck::new(ReasonCode::Success)
}

/// Returns the packets that wait in the outbox.
fn sent(connection: &mut Connection) -> Vec<Packet> {
    let mut decoder = Decoder::new(Some(connection.version()), u32::MAX);
    let mut buffer = BytesMut::new();
    while let Some(chunk) = connection.outbox().take(LaneId::CONTROL) {
        buffer.extend_from_slice(&chunk.bytes);
    }
    std::iter::from_fn(|| decoder.decode(&mut buffer).unwrap()).collect()
}

/// Gives the server bytes that a client would never send.
fn inject(pair: &mut Pair, packet: &Packet) {
    packet.encode(Version::V5, &mut pair.server.inbox).unwrap();
    pair.server.take(pair.now);
}

fn raw_publish(id: u16, qos: QoS) -> Packet {
    let mut publish = Publish::new(TopicName::new("t").unwrap(), "x");
    publish.qos = qos;
    publish.packet_id = PacketId::new(id);
    publish.into()
}

fn publish(pair: &mut Pair, payload: &str, qos: QoS) -> Result<Option<PacketId>, CommandError> {
    let sent = pair
        .client
        .connection
        .publish(pair.now, delivery(payload, qos));
    sent.map_err(|(error, _)| error)
}

#[test]
fn puback_waits_for_its_ticket_and_leaves_in_order() {
    let mut pair = Pair::open(Version::V5);
    for payload in ["a", "b", "c"] {
        publish(&mut pair, payload, QoS::AtLeastOnce).unwrap();
    }
    pair.exchange();
    assert!(pair.client.acked.is_empty());
    for index in [2, 1] {
        let ticket = pair.server.tickets.remove(index);
        pair.server
            .connection
            .ack(pair.now, ticket, ReasonCode::Success);
    }
    pair.exchange();
    assert!(pair.client.acked.is_empty());
    pair.server.ack_all(pair.now);
    pair.exchange();
    let ids: Vec<_> = pair.client.acked.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn a_full_window_opens_with_an_acknowledgement() {
    let server = ServerConfig {
        receive_maximum: NonZeroU16::new(2).unwrap(),
        ..ServerConfig::default()
    };
    let mut pair = Pair::open_with(client(Version::V5), server, success());
    publish(&mut pair, "a", QoS::AtLeastOnce).unwrap();
    publish(&mut pair, "b", QoS::ExactlyOnce).unwrap();
    let full = publish(&mut pair, "c", QoS::AtLeastOnce);
    assert_eq!(full, Err(CommandError::WindowFull));
    assert_eq!(publish(&mut pair, "d", QoS::AtMostOnce), Ok(None));
    pair.exchange();
    pair.server.ack_all(pair.now);
    pair.exchange();
    assert_eq!(pair.client.connection.window(), 2);
}

#[test]
fn the_receive_maximum_is_enforced_at_every_qos() {
    use QoS::{AtLeastOnce as ONE, ExactlyOnce as TWO};
    for qos in [
        [ONE, ONE, ONE],
        [TWO, TWO, TWO],
        [TWO, ONE, ONE],
        [ONE, TWO, ONE],
    ] {
        let server = ServerConfig {
            receive_maximum: NonZeroU16::new(2).unwrap(),
            ..ServerConfig::default()
        };
        let mut pair = Pair::open_with(client(Version::V5), server, success());
        inject(&mut pair, &raw_publish(1, qos[0]));
        inject(&mut pair, &raw_publish(2, qos[1]));
        assert_eq!(pair.server.closed, None, "{qos:?}");
        if qos[0] == TWO && qos[1] == ONE {
            // PUBREC alone does not make room: PUBREL has to come.
            let ticket = pair.server.tickets.remove(0);
            pair.server
                .connection
                .ack(pair.now, ticket, ReasonCode::Success);
        }
        inject(&mut pair, &raw_publish(3, qos[2]));
        let exceeded = CloseReason::Protocol(ProtocolError::ReceiveMaximum(2));
        assert_eq!(pair.server.closed, Some(exceeded), "{qos:?}");
        let last = sent(&mut pair.server.connection).pop();
        let goodbye = Disconnect::new(ReasonCode::ReceiveMaximumExceeded);
        assert_eq!(last, Some(Packet::Disconnect(Box::new(goodbye))));
    }
}

#[test]
fn a_topic_alias_shortens_the_second_publish_in_both_directions() {
    let mut pair = Pair::open(Version::V5);
    for end in [&mut pair.client, &mut pair.server] {
        let mut lengths = Vec::new();
        for _ in 0..2 {
            let before = end.connection.outbox().len();
            let sent = end
                .connection
                .publish(pair.now, delivery("x", QoS::AtMostOnce));
            assert!(sent.is_ok());
            lengths.push(end.connection.outbox().len() - before);
        }
        assert_eq!(lengths[0] - lengths[1], "t/1".len());
    }
    pair.exchange();
    for end in [&pair.client, &pair.server] {
        assert!(
            end.received
                .iter()
                .all(|r| r.message.topic.as_str() == "t/1")
        );
        assert_eq!(end.received.len(), 2);
    }
}

#[test]
fn without_a_topic_alias_maximum_no_alias_is_sent() {
    let server = ServerConfig {
        topic_alias_maximum: 0,
        ..ServerConfig::default()
    };
    let mut config = client(Version::V5);
    config.topic_alias_maximum = 0;
    let mut pair = Pair::open_with(config, server, success());
    for end in [&mut pair.client, &mut pair.server] {
        for _ in 0..2 {
            let message = delivery("x", QoS::AtMostOnce);
            assert!(end.connection.publish(pair.now, message).is_ok());
        }
        for packet in sent(&mut end.connection) {
            let Packet::Publish(publish) = packet else {
                panic!("{packet:?}");
            };
            assert_eq!(publish.properties.topic_alias, None);
            assert_eq!(publish.topic.as_str(), "t/1");
        }
    }
}

#[test]
fn a_client_sends_no_alias_above_the_servers_maximum() {
    let server = ServerConfig {
        topic_alias_maximum: 1,
        ..ServerConfig::default()
    };
    let mut pair = Pair::open_with(client(Version::V5), server, success());
    for topic in ["a", "b", "a", "b"] {
        let message = mq_proto::Message::new(TopicName::new(topic).unwrap(), "x");
        let delivery = mq_proto::Delivery::new(message, QoS::AtMostOnce);
        let sent = pair.client.connection.publish(pair.now, delivery);
        assert!(sent.is_ok());
    }
    let packets = sent(&mut pair.client.connection);
    let aliases: Vec<_> = packets
        .iter()
        .map(|packet| match packet {
            Packet::Publish(publish) => publish.properties.topic_alias,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(aliases, [Some(1), None, Some(1), None]);
}

#[test]
fn a_client_goes_by_the_servers_keep_alive() {
    let server = ServerConfig {
        max_keep_alive: Some(10),
        ..ServerConfig::default()
    };
    let mut pair = Pair::open_with(client(Version::V5), server, success());
    pair.advance(9 * SECOND);
    assert!(pair.client.connection.outbox().is_empty());
    pair.advance(SECOND);
    assert_eq!(sent(&mut pair.client.connection), [Packet::PingReq]);
}

#[test]
fn a_full_window_holds_back_publish_alone() {
    let server = ServerConfig {
        receive_maximum: NonZeroU16::MIN,
        ..ServerConfig::default()
    };
    let mut pair = Pair::open_with(client(Version::V5), server, success());
    publish(&mut pair, "a", QoS::AtLeastOnce).unwrap();
    let full = publish(&mut pair, "b", QoS::AtLeastOnce);
    assert_eq!(full, Err(CommandError::WindowFull));
    let filter = TopicFilter::new("t/#").unwrap();
    let options = QoS::AtLeastOnce.into();
    let subscription = Subscription { filter, options };
    let none = SubscribeProperties::default();
    let asked = pair
        .client
        .connection
        .subscribe(pair.now, vec![subscription], none);
    assert!(asked.is_ok());
    pair.advance(60 * SECOND);
    let types: Vec<_> = sent(&mut pair.client.connection)
        .iter()
        .map(Packet::packet_type)
        .collect();
    let expected = [
        PacketType::Publish,
        PacketType::Subscribe,
        PacketType::PingReq,
    ];
    assert_eq!(types, expected);
}

#[test]
fn an_invalid_topic_alias_closes_the_connection() {
    let invalid = |alias| ProtocolError::TopicAlias { alias, maximum: 64 };
    assert_eq!(
        invalid(65).to_string(),
        "topic alias 65 is not from 1 to the announced maximum of 64"
    );
    for (alias, error, code) in [
        (0, invalid(0), 0x94),
        (1, ProtocolError::UnknownTopicAlias(1), 0x82),
        (64, ProtocolError::UnknownTopicAlias(64), 0x82),
        (65, invalid(65), 0x94),
        (65_535, invalid(65_535), 0x94),
    ] {
        let mut pair = Pair::open(Version::V5);
        let mut publish = Publish::new(TopicName::empty(), "x");
        publish.properties.topic_alias = Some(alias);
        inject(&mut pair, &publish.into());
        assert_eq!(pair.server.closed, Some(CloseReason::Protocol(error)));
        pair.exchange();
        let Some(CloseReason::ByPeer(disconnect)) = &pair.client.closed else {
            panic!("{:?}", pair.client.closed);
        };
        assert_eq!(disconnect.reason as u8, code);
    }
}

#[test]
fn the_maximum_packet_size_is_respected_both_ways() {
    let mut config = client(Version::V5);
    config.max_packet_size = NonZeroU32::new(100).unwrap();
    let server = ServerConfig {
        max_packet_size: NonZeroU32::new(100).unwrap(),
        ..ServerConfig::default()
    };
    let mut pair = Pair::open_with(config, server, success());
    let large = delivery(&"x".repeat(100), QoS::AtLeastOnce);
    for end in [&mut pair.client, &mut pair.server] {
        let (error, _) = end.connection.publish(pair.now, large.clone()).unwrap_err();
        assert!(matches!(error, CommandError::TooLarge { limit: 100, .. }));
        assert!(end.connection.outbox().is_empty());
    }
    let packet = Publish::new(TopicName::new("t").unwrap(), "x".repeat(100));
    inject(&mut pair, &packet.into());
    assert!(matches!(pair.server.closed, Some(CloseReason::Protocol(_))));
}

#[test]
fn a_client_pings_and_a_server_times_out() {
    let mut pair = Pair::open(Version::V3_1_1);
    pair.advance(60 * SECOND);
    assert_eq!(sent(&mut pair.client.connection), [Packet::PingReq]);
    pair.advance(29 * SECOND);
    assert_eq!(pair.server.closed, None);
    pair.advance(SECOND);
    assert_eq!(pair.server.closed, Some(CloseReason::KeepAliveTimeout));
    assert_eq!(pair.client.closed, Some(CloseReason::KeepAliveTimeout));
}

/// Gives the server the packet in pieces, one a second; returns the number of pieces that it took while it was
/// open.
fn trickle(pair: &mut Pair, packet: &Packet, piece: usize) -> usize {
    let mut bytes = BytesMut::new();
    packet.encode(Version::V5, &mut bytes).unwrap();
    let mut buffer = BytesMut::new();
    let mut taken = 0;
    for piece in bytes.chunks(piece) {
        buffer.extend_from_slice(piece);
        let server = &mut pair.server.connection;
        server.handle_bytes(pair.now, LaneId::CONTROL, &mut buffer);
        taken += 1;
        pair.now += SECOND;
        let server = &mut pair.server.connection;
        server.handle_timeout(pair.now);
        if server.is_closed() {
            break;
        }
    }
    taken
}

#[test]
fn bytes_of_a_packet_keep_a_client_alive_only_if_they_make_progress() {
    let open = || {
        let mut wish = connect(Version::V5);
        wish.keep_alive = 2;
        Pair::open_with(ClientConfig::new(wish), ServerConfig::default(), success())
    };
    let packet = Publish::new(TopicName::new("t").unwrap(), "x".repeat(20_000)).into();
    // One and a half keep-alives after CONNECT.
    let mut pair = open();
    assert_eq!(trickle(&mut pair, &packet, 1), 3);
    assert!(pair.server.connection.is_closed());
    // Less than 1 KiB in that time, and more: a slow link.
    let mut pair = open();
    assert_eq!(trickle(&mut pair, &packet, 340), 3);
    let mut pair = open();
    assert_eq!(trickle(&mut pair, &packet, 600), 34);
    assert!(pair.server.connection.is_open());
}

#[test]
fn without_a_keep_alive_no_timer_runs_on_either_side() {
    for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
        let mut wish = connect(version);
        wish.keep_alive = 0;
        let mut pair = Pair::open_with(
            ClientConfig::new(wish),
            ServerConfig::default(),
            ConnAck::new(ReasonCode::Success),
        );
        assert_eq!(pair.client.connection.poll_timeout(), None);
        assert_eq!(pair.server.connection.poll_timeout(), None);
        pair.advance(Duration::from_hours(24));
        assert!(pair.client.connection.outbox().is_empty());
        assert!(pair.server.connection.outbox().is_empty());
        assert!(pair.client.connection.is_open());
        assert!(pair.server.connection.is_open());
    }
}

#[test]
fn pings_and_data_keep_a_connection_alive() {
    let mut pair = Pair::open(Version::V5);
    for second in 0..400 {
        pair.advance(SECOND);
        if (100..300).contains(&second) {
            publish(&mut pair, "x", QoS::AtMostOnce).unwrap();
        }
        pair.exchange();
    }
    assert_eq!((pair.client.closed, pair.server.closed), (None, None));
}

#[test]
fn a_handshake_that_takes_too_long_is_given_up() {
    let mut pair = Pair::new(
        Instant::now(),
        client(Version::V5),
        ServerConfig::default(),
        Session::new(),
    );
    pair.client.connection.connect(pair.now).unwrap();
    pair.advance(10 * SECOND);
    assert_eq!(pair.server.closed, Some(CloseReason::ConnectTimeout));
    assert_eq!(pair.client.closed, None);
    pair.advance(10 * SECOND);
    assert_eq!(pair.client.closed, Some(CloseReason::ConnectTimeout));
}

#[test]
fn a_refusal_reaches_the_client() {
    let (now, server) = (Instant::now(), ServerConfig::default());
    let mut pair = Pair::new(now, client(Version::V3_1_1), server, Session::new());
    pair.client.connection.connect(now).unwrap();
    pair.exchange();
    pair.server
        .connection
        .refuse(ConnAck::new(ReasonCode::NotAuthorized));
    pair.exchange();
    for end in [&pair.client, &pair.server] {
        let refused = CloseReason::Refused(Box::new(ConnAck::new(ReasonCode::NotAuthorized)));
        assert_eq!(end.closed, Some(refused));
    }
}

fn auth(reason: ReasonCode, method: &str) -> Auth {
    let properties = AuthProperties {
        authentication_method: Some(ByteStr::new(method).unwrap()),
        ..AuthProperties::default()
    };
    Auth { reason, properties }
}

/// Makes a client that names the authentication method M, and a server that has asked for more.
fn asked() -> Pair {
    let mut config = client(Version::V5);
    config.connect.properties.authentication_method = Some(ByteStr::new("M").unwrap());
    let now = Instant::now();
    let mut pair = Pair::new(now, config, ServerConfig::default(), Session::new());
    pair.client.connection.connect(now).unwrap();
    pair.exchange();
    let more = auth(ReasonCode::ContinueAuthentication, "whatever");
    pair.server.connection.auth(now, more).unwrap();
    pair
}

#[test]
fn a_client_with_a_method_says_nothing_else_before_connack() {
    let mut pair = asked();
    let now = pair.now;
    assert_eq!(pair.client.connection.window(), 0);
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let refused = publish(&mut pair, "x", qos).unwrap_err();
        assert_eq!(refused, CommandError::NotConnected);
    }
    let filter = vec![Subscription {
        filter: TopicFilter::new("t").unwrap(),
        options: QoS::AtMostOnce.into(),
    }];
    let properties = SubscribeProperties::default();
    let subscribed = pair.client.connection.subscribe(now, filter, properties);
    assert_eq!(subscribed.unwrap_err(), CommandError::NotConnected);
    // It is not its turn yet, and then with 0x18 alone.
    let answer = || auth(ReasonCode::ContinueAuthentication, "M");
    assert!(pair.client.connection.auth(now, answer()).is_err());
    pair.exchange();
    for wrong in [ReasonCode::Success, ReasonCode::ReAuthenticate] {
        let sent = pair.client.connection.auth(now, auth(wrong, "M"));
        assert_eq!(sent, Err(CommandError::NotConnected));
    }
    pair.client.connection.auth(now, answer()).unwrap();
    assert!(pair.client.connection.auth(now, answer()).is_err());
    pair.exchange();
    let Some(Event::Auth(said)) = pair.server.events.last() else {
        panic!("{:?}", pair.server.events);
    };
    assert_eq!(*said, answer());
    pair.accept(Session::new(), success());
    pair.exchange();
    assert!(pair.client.connection.is_open() && pair.server.connection.is_open());
    let Some(Event::Connected(ack)) = pair.client.events.last() else {
        panic!("{:?}", pair.client.events);
    };
    let method = ack.properties.authentication_method.as_deref();
    assert_eq!(method, Some("M"));
    publish(&mut pair, "x", QoS::AtLeastOnce).unwrap();
}

#[test]
fn auth_by_another_method_is_refused() {
    for (from_client, is_open) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut pair = asked();
        pair.exchange();
        if is_open {
            let answer = auth(ReasonCode::ContinueAuthentication, "M");
            pair.client.connection.auth(pair.now, answer).unwrap();
            pair.exchange();
            pair.accept(Session::new(), success());
            pair.exchange();
            let again = auth(ReasonCode::ReAuthenticate, "M");
            if !from_client {
                pair.client.connection.auth(pair.now, again).unwrap();
                pair.exchange();
            }
        } else if !from_client {
            let answer = auth(ReasonCode::ContinueAuthentication, "M");
            pair.client.connection.auth(pair.now, answer).unwrap();
            pair.exchange();
        }
        let reason = if is_open && from_client {
            ReasonCode::ReAuthenticate
        } else {
            ReasonCode::ContinueAuthentication
        };
        let other = Packet::Auth(Box::new(auth(reason, "N")));
        let end = if from_client {
            inject(&mut pair, &other);
            &pair.server
        } else {
            other.encode(Version::V5, &mut pair.client.inbox).unwrap();
            pair.client.take(pair.now);
            &pair.client
        };
        let wrong = CloseReason::Protocol(ProtocolError::AuthenticationMethod);
        assert_eq!(end.closed, Some(wrong), "{from_client} {is_open}");
    }
}

#[test]
fn one_packet_is_taken_for_each_step_and_the_clients_time_runs_on() {
    let mut pair = asked();
    pair.exchange();
    let server = &mut pair.server;
    // Half of its ten seconds were the server's to think.
    pair.now += 5 * SECOND;
    server.connection.handle_timeout(pair.now);
    let answer = Packet::Auth(Box::new(auth(ReasonCode::ContinueAuthentication, "M")));
    answer.encode(Version::V5, &mut server.inbox).unwrap();
    Packet::PingReq
        .encode(Version::V5, &mut server.inbox)
        .unwrap();
    server.take(pair.now);
    assert_eq!(server.inbox.len(), 2, "the PINGREQ is not decoded");
    assert_eq!(
        server.connection.poll_timeout(),
        None,
        "it is not the client's time"
    );
    let more = auth(ReasonCode::ContinueAuthentication, "M");
    server.connection.auth(pair.now, more).unwrap();
    assert_eq!(
        server.connection.poll_timeout(),
        Some(pair.now + 5 * SECOND)
    );
    server.take(pair.now);
    let wrong = CloseReason::Protocol(ProtocolError::Unexpected(PacketType::PingReq));
    assert_eq!(server.closed, Some(wrong));
    let packets = sent(&mut server.connection);
    assert!(
        matches!(&packets[..], [Packet::Auth(_), Packet::ConnAck(ack)]
            if ack.reason == ReasonCode::ProtocolError),
        "{packets:?}"
    );

    let mut pair = asked();
    pair.advance(10 * SECOND);
    assert_eq!(pair.server.closed, Some(CloseReason::ConnectTimeout));
}

#[test]
fn a_second_connect_is_a_protocol_error() {
    let mut pair = Pair::open(Version::V5);
    inject(&mut pair, &connect(Version::V5).into());
    let error = ProtocolError::Unexpected(mq_codec::PacketType::Connect);
    assert_eq!(error.reason_code(), ReasonCode::ProtocolError);
    assert_eq!(pair.server.closed, Some(CloseReason::Protocol(error)));
}

#[test]
fn what_follows_connect_waits_for_the_server_to_accept() {
    let (now, server) = (Instant::now(), ServerConfig::default());
    let mut pair = Pair::new(now, client(Version::V5), server, Session::new());
    pair.client.connection.connect(now).unwrap();
    let filter = TopicFilter::new("t/#").unwrap();
    let options = QoS::AtLeastOnce.into();
    let subscription = Subscription { filter, options };
    let asked =
        pair.client
            .connection
            .subscribe(now, vec![subscription], SubscribeProperties::default());
    assert!(asked.is_ok());
    for _ in 0..10 {
        publish(&mut pair, "x", QoS::AtLeastOnce).unwrap();
    }
    assert_eq!(
        publish(&mut pair, "x", QoS::AtLeastOnce),
        Err(CommandError::WindowFull)
    );
    pair.exchange();
    assert!(matches!(pair.server.events[..], [Event::Connect(_)]));
    assert!(!pair.server.inbox.is_empty() && pair.server.received.is_empty());
    pair.accept(Session::new(), success());
    assert!(matches!(
        pair.server.events[..],
        [Event::Connect(_), Event::Subscribe { .. }]
    ));
    assert_eq!(pair.server.received.len(), 10);
}

/// Returns the session of a client whose three messages were sent and not acknowledged.
fn interrupted(qos: QoS) -> Session {
    let mut pair = Pair::open(Version::V5);
    for payload in ["a", "b", "c"] {
        publish(&mut pair, payload, qos).unwrap();
    }
    pair.exchange();
    pair.client.connection.handle_link_lost();
    pair.client.connection.into_session()
}

fn resume(session: Session, server: ServerConfig, present: bool) -> Pair {
    let mut pair = Pair::new(Instant::now(), client(Version::V5), server, session);
    pair.client.connection.connect(pair.now).unwrap();
    pair.exchange();
    let mut ack = success();
    ack.session_present = present;
    pair.accept(Session::new(), ack);
    pair.exchange();
    pair
}

fn payloads(pair: &Pair) -> Vec<&[u8]> {
    pair.server
        .received
        .iter()
        .map(|r| &r.message.payload[..])
        .collect()
}

#[test]
fn a_resumed_session_is_sent_again_in_order_with_dup() {
    let pair = resume(interrupted(QoS::AtLeastOnce), ServerConfig::default(), true);
    assert_eq!(payloads(&pair), [b"a", b"b", b"c"]);
    assert!(pair.server.received.iter().all(|received| received.dup));
}

#[test]
fn a_lost_session_is_reported_and_its_messages_sent_again() {
    let pair = resume(
        interrupted(QoS::ExactlyOnce),
        ServerConfig::default(),
        false,
    );
    assert_eq!(payloads(&pair), [b"a", b"b", b"c"]);
    let lost = |event: &Event| matches!(event, Event::SessionLost { resent: 3 });
    assert!(pair.client.events.iter().any(lost));
}

#[test]
fn sending_again_respects_a_smaller_receive_maximum() {
    let server = ServerConfig {
        receive_maximum: NonZeroU16::MIN,
        ..ServerConfig::default()
    };
    let mut pair = resume(interrupted(QoS::AtLeastOnce), server, true);
    for count in 1..=3 {
        assert_eq!(pair.server.received.len(), count);
        pair.server.ack_all(pair.now);
        pair.exchange();
    }
    assert_eq!(payloads(&pair), [b"a", b"b", b"c"]);
    assert_eq!(pair.client.acked.len(), 3);
}

#[test]
fn a_session_that_is_present_after_clean_start_is_refused() {
    for version in [Version::V3_1_1, Version::V5] {
        for clean_start in [true, false] {
            let mut config = client(version);
            config.connect.clean_start = clean_start;
            let (now, server) = (Instant::now(), ServerConfig::default());
            let mut pair = Pair::new(now, config, server, Session::new());
            pair.client.connection.connect(now).unwrap();
            pair.exchange();
            let mut ack = success();
            ack.session_present = true;
            pair.accept(Session::new(), ack);
            pair.exchange();
            let error = ProtocolError::SessionPresent;
            assert_eq!(error.reason_code(), ReasonCode::ProtocolError);
            let refused = clean_start.then_some(CloseReason::Protocol(error));
            assert_eq!(pair.client.closed, refused, "{version:?}");
            // Before 5.0 a client has no DISCONNECT with a reason.
            let goodbye = Disconnect::new(ReasonCode::ProtocolError);
            let told = (clean_start && version >= Version::V5)
                .then_some(CloseReason::ByPeer(Box::new(goodbye)));
            assert_eq!(pair.server.closed, told, "{version:?}");
        }
    }
}

#[test]
fn a_server_that_takes_no_acknowledgement_is_refused() {
    for (size, is_refused) in [(1, true), (4, true), (5, false)] {
        let (now, server) = (Instant::now(), ServerConfig::default());
        let mut pair = Pair::new(now, client(Version::V5), server, Session::new());
        pair.client.connection.connect(now).unwrap();
        pair.exchange();
        let mut ack = success();
        ack.properties.maximum_packet_size = NonZeroU32::new(size);
        // The answer to the second has a reason code.
        let release = Ack::new(PacketId::FIRST, ReasonCode::Success);
        for packet in [Packet::from(ack), Packet::PubRel(release)] {
            let inbox = &mut pair.client.inbox;
            packet.encode(Version::V5, inbox).unwrap();
        }
        pair.client.take(now);
        let refused = CloseReason::Protocol(ProtocolError::MaximumPacketSize(size));
        assert_eq!(pair.client.closed, is_refused.then_some(refused));
        for packet in sent(&mut pair.client.connection) {
            let mut bytes = BytesMut::new();
            packet.encode(Version::V5, &mut bytes).unwrap();
            assert!(bytes.len() <= size as usize, "{packet:?}");
        }
    }
}

#[test]
fn a_message_that_the_next_server_does_not_take_is_refused_and_not_sent_again() {
    let server = ServerConfig {
        maximum_qos: QoS::AtLeastOnce,
        ..ServerConfig::default()
    };
    let pair = resume(interrupted(QoS::ExactlyOnce), server, true);
    assert!(pair.server.received.is_empty());
    let refused = (1..=3).map(|id| (id, ReasonCode::QosNotSupported));
    assert_eq!(pair.client.acked, refused.collect::<Vec<_>>());
    assert!(pair.client.connection.is_open());
}

#[test]
fn a_qos_2_message_that_is_refused_is_complete() {
    let mut pair = Pair::open(Version::V5);
    publish(&mut pair, "x", QoS::ExactlyOnce).unwrap();
    pair.exchange();
    let ticket = pair.server.tickets.remove(0);
    pair.server
        .connection
        .ack(pair.now, ticket, ReasonCode::QuotaExceeded);
    pair.exchange();
    assert_eq!(pair.client.acked, [(1, ReasonCode::QuotaExceeded)]);
    assert!(pair.client.connection.into_session().is_empty());
    assert!(pair.server.connection.into_session().is_empty());
}

#[test]
fn an_answer_of_the_wrong_kind_is_a_protocol_error() {
    for (qos, packet) in [
        (QoS::AtLeastOnce, PacketType::PubRec),
        (QoS::AtLeastOnce, PacketType::PubComp),
        (QoS::ExactlyOnce, PacketType::PubAck),
        (QoS::ExactlyOnce, PacketType::PubComp),
    ] {
        let mut pair = Pair::open(Version::V5);
        let sent = pair
            .server
            .connection
            .publish(pair.now, delivery("x", qos))
            .map_err(|(error, _)| error);
        let id = sent.unwrap().unwrap();
        let ack = Ack::new(id, ReasonCode::Success);
        let answer = match packet {
            PacketType::PubAck => Packet::PubAck(ack),
            PacketType::PubRec => Packet::PubRec(ack),
            _ => Packet::PubComp(ack),
        };
        inject(&mut pair, &answer);
        let error = ProtocolError::WrongAnswer { packet, id };
        assert_eq!(error.reason_code(), ReasonCode::ProtocolError);
        assert_eq!(pair.server.closed, Some(CloseReason::Protocol(error)));
    }
    // An answer to nothing may be late.
    let mut pair = Pair::open(Version::V5);
    let ack = Ack::new(PacketId::new(9).unwrap(), ReasonCode::Success);
    for answer in [Packet::PubAck(ack.clone()), Packet::PubComp(ack)] {
        inject(&mut pair, &answer);
    }
    assert_eq!(pair.server.closed, None);
}

#[test]
fn a_session_that_ends_with_its_connection_cannot_be_kept_after_all() {
    for (connect_expiry, disconnect_expiry, valid) in [
        (None, Some(1), false),
        (Some(0), Some(1), false),
        (Some(0), Some(0), true),
        (None, None, true),
        (Some(1), Some(9), true),
        (Some(1), Some(0), true),
    ] {
        let mut config = client(Version::V5);
        config.connect.properties.session_expiry_interval = connect_expiry;
        let mut pair = Pair::open_with(config, ServerConfig::default(), success());
        let mut goodbye = Disconnect::new(ReasonCode::Success);
        goodbye.properties.session_expiry_interval = disconnect_expiry;
        inject(&mut pair, &Packet::Disconnect(Box::new(goodbye.clone())));
        let expected = if valid {
            CloseReason::ByPeer(Box::new(goodbye))
        } else {
            CloseReason::Protocol(ProtocolError::SessionExpiry)
        };
        assert_eq!(pair.server.closed, Some(expected));
    }
}

#[test]
fn a_goodbye_that_is_too_large_goes_without_its_texts() {
    let mut config = client(Version::V5);
    config.max_packet_size = NonZeroU32::new(100).unwrap();
    let mut pair = Pair::open_with(config, ServerConfig::default(), success());
    let mut goodbye = Disconnect::new(ReasonCode::ServerBusy);
    goodbye.properties.reason_string = Some("x".repeat(200).try_into().unwrap());
    pair.server.connection.disconnect(goodbye);
    pair.exchange();
    let short = Disconnect::new(ReasonCode::ServerBusy);
    let expected = CloseReason::ByPeer(Box::new(short));
    assert_eq!(pair.client.closed, Some(expected));
}

#[test]
fn a_malformed_connect_of_5_0_is_told_why_and_no_other() {
    for (bytes, answer) in [
        // Receive Maximum of 0; the reserved flag; a client identifier that is cut short.
        (
            &b"\x10\x11\0\x04MQTT\x05\x02\0\x3C\x03\x21\0\0\0\x01a"[..],
            Some(0x82),
        ),
        (b"\x10\x0E\0\x04MQTT\x05\x03\0\x3C\0\0\x01a", Some(0x81)),
        (b"\x10\x0D\0\x04MQTT\x05\x02\0\x3C\0\0\x01", Some(0x81)),
        (b"\x10\x0D\0\x04MQTT\x04\x03\0\x3C\0\x01a", None),
        (b"\x10\x0F\0\x06MQIsdp\x03\x1E\0\x3C\0\x01a", None),
        (b"\xC0\0", None),
    ] {
        let now = Instant::now();
        let mut server = Connection::server(now, ServerConfig::default());
        let mut buffer = BytesMut::from(bytes);
        server.handle_bytes(now, LaneId::CONTROL, &mut buffer);
        let closed = std::iter::from_fn(|| server.poll_event()).last();
        assert!(matches!(
            closed,
            Some(Event::Closed(CloseReason::Protocol(_)))
        ));
        let mut written = Vec::new();
        while let Some(chunk) = server.outbox().take(LaneId::CONTROL) {
            written.extend_from_slice(&chunk.bytes);
        }
        let expected = answer.map(|code| vec![0x20, 3, 0, code, 0]);
        assert_eq!(written, expected.unwrap_or_default(), "{bytes:02X?}");
    }
}

#[test]
fn what_came_before_an_error_is_answered_before_the_goodbye() {
    let mut pair = Pair::open(Version::V5);
    let inbox = &mut pair.server.inbox;
    raw_publish(1, QoS::AtLeastOnce)
        .encode(Version::V5, inbox)
        .unwrap();
    raw_publish(2, QoS::ExactlyOnce)
        .encode(Version::V5, inbox)
        .unwrap();
    Packet::from(connect(Version::V5))
        .encode(Version::V5, inbox)
        .unwrap();
    raw_publish(3, QoS::AtLeastOnce)
        .encode(Version::V5, inbox)
        .unwrap();
    let server = &mut pair.server.connection;
    server.handle_bytes(pair.now, LaneId::CONTROL, &mut pair.server.inbox);
    for _ in 0..2 {
        assert!(server.is_open());
        let Some(Event::Publish(received)) = server.poll_event() else {
            panic!("two messages");
        };
        server.ack(pair.now, received.ticket.unwrap(), ReasonCode::Success);
    }
    assert!(server.has_events());
    assert!(matches!(
        server.poll_event(),
        Some(Event::Closed(CloseReason::Protocol(_)))
    ));
    assert!(server.poll_event().is_none() && server.is_closed());
    let types: Vec<_> = sent(server).iter().map(Packet::packet_type).collect();
    assert_eq!(
        types,
        [
            PacketType::PubAck,
            PacketType::PubRec,
            PacketType::Disconnect
        ]
    );
}

#[test]
fn a_payload_without_room_is_dropped_as_it_comes_and_its_message_stays_in_order() {
    const CHUNK: usize = 10_000;
    for (lane, qos) in [
        (LaneId::CONTROL, QoS::AtMostOnce),
        (LaneId::CONTROL, QoS::AtLeastOnce),
        (LaneId(4), QoS::ExactlyOnce),
    ] {
        let mut pair = Pair::open(Version::V5);
        let mut bytes = BytesMut::new();
        let mut large = Publish::new(TopicName::new("large").unwrap(), vec![7; 100_000]);
        large.qos = qos;
        large.packet_id = (qos > QoS::AtMostOnce).then_some(PacketId::new(2).unwrap());
        large.properties.topic_alias = Some(1);
        let mut by_alias = Publish::new(TopicName::empty(), "x");
        by_alias.properties.topic_alias = Some(1);
        for packet in [
            raw_publish(1, QoS::AtLeastOnce),
            large.into(),
            by_alias.into(),
        ] {
            packet.encode(Version::V5, &mut bytes).unwrap();
        }
        let server = &mut pair.server.connection;
        let mut inbox = BytesMut::new();
        let mut discarded = 0;
        for chunk in bytes.chunks(CHUNK) {
            inbox.extend_from_slice(chunk);
            server.handle_bytes(pair.now, lane, &mut inbox);
            discarded += usize::from(server.discard_payload(lane, &mut inbox));
            assert!(inbox.is_empty());
            assert!(server.held_bytes() < CHUNK);
        }
        assert_eq!(discarded, 1);
        let events: Vec<_> = std::iter::from_fn(|| server.poll_event()).collect();
        let [
            Event::Publish(first),
            Event::Discarded(second),
            Event::Publish(third),
        ] = &events[..]
        else {
            panic!("{lane} {qos:?}: {events:?}");
        };
        assert_eq!(first.message.payload, "x");
        assert_eq!((&*second.message.topic, second.qos), ("large", qos));
        assert!(second.message.payload.is_empty());
        assert_eq!(second.ticket.is_some(), qos > QoS::AtMostOnce);
        assert_eq!(
            (&*third.message.topic, &third.message.payload[..]),
            ("large", &b"x"[..])
        );
        assert!(server.is_open());
    }
}

#[test]
fn the_head_of_a_message_whose_payload_is_dropped_counts_with_all_its_properties() {
    const PROPERTIES: usize = 500;
    let mut pair = Pair::open(Version::V5);
    let server = &mut pair.server.connection;
    let mut large = Publish::new(TopicName::new("t").unwrap(), vec![7; 100_000]);
    let empty = (ByteStr::empty(), ByteStr::empty());
    large.properties.user_properties = vec![empty; PROPERTIES];
    let (packet, mut bytes) = (Packet::from(large), BytesMut::new());
    packet.encode(Version::V5, &mut bytes).unwrap();
    bytes.truncate(10_000);
    assert!(server.discard_payload(LaneId::CONTROL, &mut bytes));
    let held = PROPERTIES * size_of::<(ByteStr, ByteStr)>();
    assert!(server.held_bytes() > held, "{}", server.held_bytes());
}

#[test]
fn nothing_but_the_payload_of_an_incomplete_publish_is_dropped() {
    let mut pair = Pair::open(Version::V5);
    let server = &mut pair.server.connection;
    let mut long_head = Publish::new(TopicName::new("t".repeat(5_000)).unwrap(), vec![7; 9_000]);
    long_head.packet_id = None;
    let mut whole = BytesMut::new();
    raw_publish(1, QoS::AtLeastOnce)
        .encode(Version::V5, &mut whole)
        .unwrap();
    let mut head = BytesMut::new();
    Packet::from(long_head)
        .encode(Version::V5, &mut head)
        .unwrap();
    for bytes in [
        &b""[..],
        &[0x30],
        &[0x30, 0xFF],
        &[0x82, 0x20, 0, 1, 0],
        &[0x32, 0x20, 0, 1, b't', 0],
        &whole,
        &head[..6_000],
    ] {
        let mut inbox = BytesMut::from(bytes);
        assert!(!server.discard_payload(LaneId::CONTROL, &mut inbox));
        assert_eq!(inbox, bytes);
    }
}

#[test]
fn a_message_that_was_taken_while_the_connection_ended_is_known_afterwards() {
    let mut pair = Pair::open(Version::V5);
    let publish = raw_publish(7, QoS::ExactlyOnce);
    inject(&mut pair, &publish);
    let goodbye = Disconnect::new(ReasonCode::Success);
    inject(&mut pair, &Packet::Disconnect(Box::new(goodbye)));
    assert!(pair.server.connection.is_closed());
    pair.server.ack_all(pair.now);
    assert!(sent(&mut pair.server.connection).is_empty());
    let session = pair.server.connection.into_session();
    let mut pair = Pair::new(
        pair.now,
        client(Version::V5),
        ServerConfig::default(),
        Session::new(),
    );
    pair.client.connection.connect(pair.now).unwrap();
    pair.exchange();
    pair.accept(session, success());
    pair.exchange();
    inject(&mut pair, &publish);
    assert!(pair.server.received.is_empty());
    let id = PacketId::new(7).unwrap();
    let again = Packet::PubRec(Ack::new(id, ReasonCode::Success));
    assert_eq!(sent(&mut pair.server.connection), [again]);
}

#[test]
fn an_unknown_pubrel_is_answered_with_not_found() {
    let mut pair = Pair::open(Version::V5);
    let id = PacketId::new(9).unwrap();
    inject(
        &mut pair,
        &Packet::PubRel(Ack::new(id, ReasonCode::Success)),
    );
    let answer = Packet::PubComp(Ack::new(id, ReasonCode::PacketIdentifierNotFound));
    assert_eq!(sent(&mut pair.server.connection), [answer]);
}

#[test]
fn an_unknown_pubrec_is_released_unless_it_is_a_refusal() {
    let mut pair = Pair::open(Version::V5);
    let id = PacketId::new(9).unwrap();
    let refusal = Ack::new(id, ReasonCode::UnspecifiedError);
    inject(&mut pair, &Packet::PubRec(refusal));
    assert!(sent(&mut pair.server.connection).is_empty());
    inject(
        &mut pair,
        &Packet::PubRec(Ack::new(id, ReasonCode::Success)),
    );
    let answer = Packet::PubRel(Ack::new(id, ReasonCode::PacketIdentifierNotFound));
    assert_eq!(sent(&mut pair.server.connection), [answer]);
}

#[test]
fn control_characters_come_in_where_they_are_allowed() {
    for allowed in [false, true] {
        let config = ServerConfig {
            allow_control_characters: allowed,
            ..ServerConfig::default()
        };
        let ack = ConnAck::new(ReasonCode::Success);
        let mut pair = Pair::open_with(client(Version::V5), config, ack);
        let publish = Publish::new(TopicName::new("a\tb").unwrap(), "x");
        inject(&mut pair, &publish.into());
        assert_eq!(pair.server.connection.is_open(), allowed);
        assert_eq!(pair.server.received.len(), usize::from(allowed));
    }
}

#[test]
fn the_message_expiry_interval_counts_down() {
    let mut pair = Pair::open(Version::V5);
    let mut message = delivery("x", QoS::AtMostOnce);
    message.expires_at = Some(pair.now + 30 * SECOND);
    pair.advance(10 * SECOND + SECOND / 2);
    pair.client.connection.publish(pair.now, message).unwrap();
    pair.exchange();
    let properties = &pair.server.received[0].message.properties;
    assert_eq!(properties.message_expiry_interval, Some(20));
}

#[test]
fn both_sides_can_say_goodbye() {
    let goodbye = Disconnect::new(ReasonCode::UnspecifiedError);
    let local = Some(CloseReason::Local(goodbye.reason));
    let by_peer = Some(CloseReason::ByPeer(Box::new(goodbye.clone())));
    let mut pair = Pair::open(Version::V5);
    pair.client.connection.disconnect(goodbye.clone());
    pair.exchange();
    assert_eq!(
        (pair.client.closed, pair.server.closed),
        (local.clone(), by_peer.clone())
    );
    let mut pair = Pair::open(Version::V5);
    pair.server.connection.disconnect(goodbye);
    pair.exchange();
    assert_eq!((pair.server.closed, pair.client.closed), (local, by_peer));
}

#[test]
fn garbage_never_panics() {
    let seed = 5;
    println!("seed {seed}");
    let mut rng = Rng(seed);
    for _ in 0..3_000 {
        let old = rng.chance(50);
        let mut pair = Pair::open(if old { Version::V3_1_1 } else { Version::V5 });
        for _ in 0..20 {
            // Plausible first bytes and lengths, so that it is not all refused at once.
            let mut bytes = vec![
                rng.next().to_le_bytes()[0],
                2 + rng.next().to_le_bytes()[0] % 8,
            ];
            bytes.extend((0..bytes[1]).map(|_| rng.next().to_le_bytes()[0] % 5));
            for end in [&mut pair.client, &mut pair.server] {
                let mut buffer = BytesMut::from(&bytes[..]);
                end.connection
                    .handle_bytes(pair.now, LaneId::CONTROL, &mut buffer);
                end.take(pair.now);
            }
        }
    }
}
