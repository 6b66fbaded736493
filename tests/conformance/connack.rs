//! CONNACK (§3.2): the first packet of the server, and its Session Present flag.

use crate::{
    case::cases,
    lab::Lab,
    packet::{Connect, Publish, V5, property},
};

cases! {
    connack_comes_first: ALL, ["3.2.0-1"], ["3.2.0-1"];
    a_clean_start_finds_no_session: OASIS, ["3.2.2-1"], ["3.2.2-2"];
    a_kept_session_is_present: OASIS, ["3.2.2-2", "3.2.2-3"], ["3.2.2-3"];
    a_refusal_finds_no_session: ONLY_5, [], ["3.2.2-6", "3.2.2-7", "3.2.2-8", "4.13.2-1"];
    the_bits_of_connack_that_are_reserved_are_0: ALL, [], ["3.2.2-1"];
    connack_fits_the_clients_maximum_packet_size: ONLY_5, [], ["3.2.2-19", "3.2.2-20"];
    no_response_information_that_was_not_asked_for: ONLY_5, [], ["3.1.2-28"];
}

/// Checks that CONNACK comes first, also if messages have waited for the client.
async fn connack_comes_first(lab: Lab) {
    let topic = lab.topic("t");
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    wire.subscribe(&topic, 1).await;
    wire.leave().await;
    let mut other = lab.client("other").await;
    for payload in ["1", "2", "3"] {
        other.publish(&topic, payload, 1).await;
    }
    // `connected` looks at the first packet.
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    for payload in ["1", "2", "3"] {
        let message = wire.payload(payload).await;
        wire.acknowledge(&message).await;
    }
}

async fn a_clean_start_finds_no_session(lab: Lab) {
    let (wire, ack) = lab.connected(&lab.kept("c")).await;
    assert!(!ack.session_present);
    wire.leave().await;
    for _ in 0..2 {
        let (wire, ack) = lab.connected(&lab.hello("c")).await;
        assert!(!ack.session_present);
        wire.leave().await;
    }
    let (_, ack) = lab.connected(&lab.kept("c")).await;
    assert!(!ack.session_present);
}

async fn a_kept_session_is_present(lab: Lab) {
    let (wire, ack) = lab.connected(&lab.kept("c")).await;
    assert!(!ack.session_present);
    wire.leave().await;
    let (wire, ack) = lab.connected(&lab.kept("c")).await;
    assert!(ack.session_present);
    wire.cut();
    let (_, ack) = lab.connected(&lab.kept("c")).await;
    assert!(ack.session_present);
}

async fn a_refusal_finds_no_session(lab: Lab) {
    lab.connected(&lab.kept("c")).await.0.leave().await;
    let method = property::string(property::AUTHENTICATION_METHOD, "no such method");
    let refused = lab.kept("c").property(method);
    // Reading the answer also checks that the connection is closed.
    let ack = lab.answer(refused.bytes()).await.expect("a CONNACK");
    assert!([0x8C, 0x87].contains(&ack.code), "{ack:?}");
    assert!(!ack.session_present);
    // The session was not touched.
    let (_, ack) = lab.connected(&lab.kept("c")).await;
    assert!(ack.session_present);
}

/// Checks reserved bits once more by themselves; they are checked wherever a CONNACK is read.
async fn the_bits_of_connack_that_are_reserved_are_0(lab: Lab) {
    let mut wire = lab.open().await;
    wire.send(lab.hello("c").bytes()).await;
    let packet = wire.next().await.unwrap();
    assert_eq!((packet.first, packet.body[0] & 0xFE), (0x20, 0));
}

/// Checks CONNACK for a small maximum packet size; the broker may decide whether to serve such a client at all.
async fn connack_fits_the_clients_maximum_packet_size(lab: Lab) {
    for limit in [1, 2, 4, 8, 12, 16, 24] {
        let limited =
            Connect::new(V5, "").property(property::four(property::MAXIMUM_PACKET_SIZE, limit));
        let mut wire = lab.open().await;
        wire.send(limited.bytes()).await;
        if let Some(packet) = wire.next().await {
            let size = 2 + packet.body.len();
            assert!(
                size <= limit as usize,
                "{size} bytes where {limit} are allowed"
            );
        }
    }
}

async fn no_response_information_that_was_not_asked_for(lab: Lab) {
    for request in [None, Some(0)] {
        let mut hello = lab.hello("c");
        if let Some(value) = request {
            let request = property::byte(property::REQUEST_RESPONSE_INFORMATION, value);
            hello = hello.property(request);
        }
        let (mut wire, ack) = lab.connected(&hello).await;
        assert_eq!(ack.properties.get(property::RESPONSE_INFORMATION), None);
        wire.send(Publish::new(V5, lab.topic("t"), "x").bytes())
            .await;
        wire.alive().await;
    }
}
