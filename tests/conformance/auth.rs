//! AUTH (§3.15) and enhanced authentication (§4.12); the method here is [`guard`](crate::guard)'s.

use crate::{
    case::cases,
    guard::{FORBIDDEN, METHOD},
    lab::Lab,
    packet::{
        Connect, DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V5, ack, auth,
        packet, property, reason_packet, subscribe,
    },
    reply::ConnAck,
    wire::Wire,
};

const CONTINUE: u8 = 0x18;
const AGAIN: u8 = 0x19;

cases! {
    an_authentication_method_that_is_unknown_is_refused: ONLY_5, [],
        ["4.12.0-1", "3.1.4-2", "4.13.2-1"];
    auth_without_a_method_in_connect_is_refused: ONLY_5, [], ["4.12.0-7"];
    the_server_sends_no_auth_that_was_not_asked_for: ONLY_5, [], ["4.12.0-6"];
    auth_with_reserved_flags_is_refused: ONLY_5, [], ["3.15.1-1"];
    malformed_auth_is_refused: ONLY_5, [], ["4.13.1-1"];
    each_step_continues_and_names_the_method: ONLY_5, [],
        ["3.15.2-1", "4.12.0-2", "4.12.0-5"], guarded;
    nothing_but_auth_and_disconnect_comes_before_connack: ONLY_5, [], ["3.1.2-30"], guarded;
    a_client_continues_by_the_same_method: ONLY_5, [], ["4.12.0-3", "4.12.0-5"], guarded;
    who_is_rejected_is_closed: ONLY_5, [], ["4.12.0-4"], guarded;
    auth_is_no_larger_than_the_client_takes: ONLY_5, [], ["3.15.2-2", "3.15.2-3"], guarded;
    a_client_authenticates_again_while_messages_flow: ONLY_5, [],
        ["4.12.1-1", "4.12.0-2", "4.12.0-5"], guarded;
    auth_out_of_turn_is_refused: ONLY_5, [], ["4.12.0-3", "4.12.1-1"], guarded;
    a_client_that_fails_to_authenticate_again_is_closed: ONLY_5, [], ["4.12.1-2"], guarded;
    a_publish_that_is_not_authorised_is_acknowledged: ALL, ["3.3.5-2"],
        ["3.4.2-1", "3.5.2-1"], guarded;
}

/// Makes the properties of an AUTH, or of a CONNECT, of the method.
fn count(data: &str) -> Vec<u8> {
    let method = property::string(property::AUTHENTICATION_METHOD, METHOD);
    if data.is_empty() {
        return method;
    }
    [
        method,
        property::string(property::AUTHENTICATION_DATA, data),
    ]
    .concat()
}

fn hello(lab: &Lab, data: &str) -> Connect {
    lab.hello("c").property(count(data))
}

/// Expects an AUTH with this reason, the method, this data and nothing else.
async fn auth_comes(wire: &mut Wire, code: u8, data: &str) {
    let packet = wire.next().await.expect("AUTH should come");
    assert_eq!(packet.first, 0xF0, "AUTH should come, not {packet:?}");
    let (reason, properties) = packet.disconnect();
    assert_eq!(reason, code);
    let get = |id| properties.get(id).map(String::from_utf8_lossy);
    let method = get(property::AUTHENTICATION_METHOD);
    assert_eq!(method.as_deref(), Some(METHOD));
    let said = get(property::AUTHENTICATION_DATA);
    assert_eq!(said.as_deref(), Some(data));
    assert_eq!(properties.get(property::REASON_STRING), None);
    assert!(properties.user().is_empty());
}

/// Connects up to the AUTH that asks for more.
async fn asked(lab: &Lab) -> Wire {
    let mut wire = lab.open().await;
    wire.send(hello(lab, "").bytes()).await;
    auth_comes(&mut wire, CONTINUE, "1").await;
    wire
}

/// Expects the broker to refuse a client that is not accepted yet.
async fn refused(mut wire: Wire, code: u8) {
    let ack: ConnAck = wire.connack().await;
    assert_eq!(ack.code, code);
    wire.closed().await;
}

/// Connects a client that was let in by the method.
async fn counted(lab: &Lab) -> Wire {
    let (mut wire, ack) = lab.connected(&hello(lab, "4")).await;
    let data = ack.properties.get(property::AUTHENTICATION_DATA);
    assert_eq!(data, Some(&b"5"[..]));
    wire.alive().await;
    wire
}

async fn each_step_continues_and_names_the_method(lab: Lab) {
    let mut wire = asked(&lab).await;
    wire.send(auth(CONTINUE, &count("2"))).await;
    auth_comes(&mut wire, CONTINUE, "3").await;
    wire.send(auth(CONTINUE, &count("4"))).await;
    let ack = wire.connack().await;
    assert_eq!(ack.code, 0);
    let get = |id| ack.properties.get(id).map(<[u8]>::to_vec);
    assert_eq!(get(property::AUTHENTICATION_METHOD), Some(METHOD.into()));
    assert_eq!(get(property::AUTHENTICATION_DATA), Some(b"5".to_vec()));
    wire.alive().await;
}

async fn nothing_but_auth_and_disconnect_comes_before_connack(lab: Lab) {
    let topic = lab.topic("t");
    let others = [
        PINGREQ.to_vec(),
        Publish::new(V5, &topic, "x").bytes(),
        subscribe(V5, 1, &[(&topic, 0)]),
        hello(&lab, "").bytes(),
    ];
    for other in others {
        let mut wire = asked(&lab).await;
        wire.send(&other).await;
        refused(wire, 0x82).await;
        // The same right behind CONNECT.
        let mut wire = lab.open().await;
        wire.send([hello(&lab, "").bytes(), other].concat()).await;
        auth_comes(&mut wire, CONTINUE, "1").await;
        refused(wire, 0x82).await;
    }
    let mut wire = asked(&lab).await;
    wire.send(DISCONNECT).await;
    wire.closed().await;
}

async fn a_client_continues_by_the_same_method(lab: Lab) {
    for wrong in [
        auth(0x00, &count("2")),
        auth(AGAIN, &count("2")),
        auth(CONTINUE, &method()),
        packet(0xF0, []),
    ] {
        let mut wire = asked(&lab).await;
        wire.send(wrong).await;
        refused(wire, 0x82).await;
    }
}

async fn who_is_rejected_is_closed(lab: Lab) {
    let mut wire = lab.open().await;
    wire.send(hello(&lab, "7").bytes()).await;
    refused(wire, 0x87).await;
    let mut wire = asked(&lab).await;
    wire.send(auth(CONTINUE, &count("7"))).await;
    refused(wire, 0x87).await;
    let mut wire = asked(&lab).await;
    wire.send(auth(CONTINUE, &count(""))).await;
    auth_comes(&mut wire, CONTINUE, "1").await;
}

async fn auth_is_no_larger_than_the_client_takes(lab: Lab) {
    // Type and length, reason, length of properties, method and data.
    let size = 2 + 1 + 1 + (3 + METHOD.len()) + (3 + 1);
    let taking = |size: usize| {
        let size = u32::try_from(size).unwrap();
        let limit = property::four(property::MAXIMUM_PACKET_SIZE, size);
        hello(&lab, "").property(limit).bytes()
    };
    let mut wire = lab.open().await;
    wire.send(taking(size)).await;
    auth_comes(&mut wire, CONTINUE, "1").await;
    let mut wire = lab.open().await;
    wire.send(taking(size - 1)).await;
    wire.closed().await;
}

async fn a_client_authenticates_again_while_messages_flow(lab: Lab) {
    let mut wire = counted(&lab).await;
    let topic = lab.topic("t");
    assert_eq!(wire.subscribe(&topic, 0).await, 0);
    for data in ["", "2"] {
        wire.send(auth(AGAIN, &count(data))).await;
        let asked = if data.is_empty() { "1" } else { "3" };
        auth_comes(&mut wire, CONTINUE, asked).await;
        wire.send(Publish::new(V5, &topic, "meanwhile").bytes())
            .await;
        wire.payload("meanwhile").await;
        wire.alive().await;
        wire.send(auth(CONTINUE, &count("4"))).await;
        auth_comes(&mut wire, 0x00, "5").await;
        wire.alive().await;
    }
}

async fn auth_out_of_turn_is_refused(lab: Lab) {
    for wrong in [
        auth(CONTINUE, &count("4")),
        auth(0x00, &count("4")),
        auth(AGAIN, &method()),
    ] {
        let mut wire = counted(&lab).await;
        wire.send(wrong).await;
        wire.refused(&[0x82]).await;
    }
    let mut wire = counted(&lab).await;
    wire.send(auth(AGAIN, &count(""))).await;
    auth_comes(&mut wire, CONTINUE, "1").await;
    wire.send(auth(AGAIN, &count(""))).await;
    wire.refused(&[0x82]).await;
}

async fn a_client_that_fails_to_authenticate_again_is_closed(lab: Lab) {
    let mut wire = counted(&lab).await;
    wire.send(auth(AGAIN, &count("7"))).await;
    wire.refused(&[0x87]).await;
    let mut wire = counted(&lab).await;
    wire.send(auth(AGAIN, &count(""))).await;
    auth_comes(&mut wire, CONTINUE, "1").await;
    wire.send(auth(CONTINUE, &count("7"))).await;
    wire.refused(&[0x87]).await;
}

async fn a_publish_that_is_not_authorised_is_acknowledged(lab: Lab) {
    let forbidden = lab.topic(FORBIDDEN);
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&forbidden, 0).await;
    let mut wire = lab.client("c").await;
    let code = if lab.version == V5 { 0x87 } else { 0 };
    let publish = |qos, id| {
        let publish = Publish::new(lab.version, &forbidden, "x").qos(qos, id);
        publish.bytes()
    };
    wire.send(publish(0, 0)).await;
    wire.alive().await;
    wire.send(publish(1, 1)).await;
    let answer = wire.ack(PUBACK).await;
    assert_eq!((answer.id, answer.codes), (1, vec![code]));
    wire.send(publish(2, 2)).await;
    let answer = wire.ack(PUBREC).await;
    assert_eq!((answer.id, answer.codes), (2, vec![code]));
    if code == 0 {
        wire.send(ack(PUBREL, 2)).await;
        assert_eq!(wire.ack(PUBCOMP).await.id, 2);
    }
    wire.alive().await;
    watcher.quiet().await;
}

fn method() -> Vec<u8> {
    property::string(property::AUTHENTICATION_METHOD, "no such method")
}

async fn an_authentication_method_that_is_unknown_is_refused(lab: Lab) {
    let data = property::string(property::AUTHENTICATION_DATA, "data");
    for properties in [method(), [method(), data].concat()] {
        let hello = lab.hello("bad").property(properties);
        lab.not_let_in(hello.bytes(), &[0x8C, 0x87]).await;
    }
}

async fn auth_without_a_method_in_connect_is_refused(lab: Lab) {
    for bytes in [
        packet(0xF0, []),
        packet(0xF0, [0]),
        auth(0x00, &method()),
        auth(0x18, &method()),
        auth(0x19, &method()),
    ] {
        lab.refuses(bytes, &[0x82]).await;
    }
}

async fn the_server_sends_no_auth_that_was_not_asked_for(lab: Lab) {
    let (mut wire, ack) = lab.connected(&lab.hello("c")).await;
    for id in [
        property::AUTHENTICATION_METHOD,
        property::AUTHENTICATION_DATA,
    ] {
        assert_eq!(ack.properties.get(id), None);
    }
    // Any packet but PINGRESP would fail here.
    wire.alive().await;
}

async fn auth_with_reserved_flags_is_refused(lab: Lab) {
    for flags in 1..16 {
        lab.refuses(reason_packet(0xF0 | flags, 0x18, &method()), &[0x81])
            .await;
    }
}

async fn malformed_auth_is_refused(lab: Lab) {
    for bytes in [
        // A reason code that it does not have; no method; properties cut short, twice, misplaced.
        auth(0x01, &method()),
        auth(0x80, &method()),
        auth(0x18, &[]),
        packet(0xF0, [0x18]),
        packet(0xF0, [0x18, 5, 0x15]),
        auth(0x18, &method().repeat(2)),
        auth(
            0x18,
            &[method(), property::four(property::SESSION_EXPIRY, 1)].concat(),
        ),
        packet(0xF0, [0, 0, 0]),
    ] {
        lab.refuses(bytes, &[0x81, 0x82]).await;
    }
}
