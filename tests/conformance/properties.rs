//! Properties of MQTT 5.0 (§2.2.2): the packets, number and values of each, and the properties that a
//! message keeps on its way.

use crate::{
    case::cases,
    lab::Lab,
    packet::{
        PUBACK, PUBREL, Publish, Will, ack_with, disconnect, packet, property, subscribe_with,
        text, unsubscribe_with, varint,
    },
    reply::Properties,
};

cases! {
    properties_of_other_packets_are_refused: ONLY_5, [], ["4.13.1-1"];
    unknown_properties_are_refused: ONLY_5, [], ["4.13.1-1"];
    properties_that_come_twice_are_refused: ONLY_5, [], ["4.13.1-1"];
    values_out_of_range_are_refused: ONLY_5, [], ["4.13.1-1"];
    a_property_length_that_is_wrong_is_refused: ONLY_5, [], ["4.13.1-1"];
    user_properties_may_come_anywhere_and_often: ONLY_5, [], [];
    a_message_keeps_its_properties: ONLY_5, [],
        ["3.3.2-4", "3.3.2-15", "3.3.2-16", "3.3.2-17", "3.3.2-18", "3.3.2-20"];
    a_message_without_properties_has_none: ONLY_5, [], ["2.2.2-1"];
    no_reason_strings_for_who_does_not_want_them: ONLY_5, [], ["3.1.2-29"];
    values_at_the_ends_of_their_ranges_are_taken: ONLY_5, [], [];
}

/// A client's packets that have properties.
const PACKETS: [&str; 8] = [
    "CONNECT",
    "will",
    "PUBLISH",
    "PUBACK",
    "PUBREL",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "DISCONNECT",
];

/// Lists every property with a good value, and the packets of a client that may have it.
fn all_properties() -> Vec<(Vec<u8>, &'static [&'static str])> {
    const MESSAGE: &[&str] = &["will", "PUBLISH"];
    const ACK: &[&str] = &["PUBACK", "PUBREL", "DISCONNECT"];
    vec![
        (property::byte(0x01, 1), MESSAGE),
        (property::four(0x02, 9), MESSAGE),
        (property::string(0x03, "text"), MESSAGE),
        (property::string(0x08, "answer"), MESSAGE),
        (property::string(0x09, "data"), MESSAGE),
        // Only a server may have it in PUBLISH.
        (property::varint(0x0B, 9), &["SUBSCRIBE"]),
        (property::four(0x11, 0), &["CONNECT", "DISCONNECT"]),
        (property::string(0x12, "id"), &[]),
        (property::two(0x13, 9), &[]),
        // In CONNECT, but this broker knows no method.
        (property::string(0x15, "method"), &["CONNECT"]),
        (property::string(0x16, "data"), &["CONNECT"]),
        (property::byte(0x17, 1), &["CONNECT"]),
        (property::four(0x18, 0), &["will"]),
        (property::byte(0x19, 1), &["CONNECT"]),
        (property::string(0x1A, "information"), &[]),
        (property::string(0x1C, "server"), &["DISCONNECT"]),
        (property::string(0x1F, "reason"), ACK),
        (property::two(0x21, 9), &["CONNECT"]),
        (property::two(0x22, 9), &["CONNECT"]),
        (property::two(0x23, 1), &["PUBLISH"]),
        (property::byte(0x24, 1), &[]),
        (property::byte(0x25, 1), &[]),
        (property::pair("name", "value"), &PACKETS),
        (property::four(0x27, 9_999), &["CONNECT"]),
        (property::byte(0x28, 1), &[]),
        (property::byte(0x29, 1), &[]),
        (property::byte(0x2A, 1), &[]),
    ]
}

/// Expects the broker to refuse a packet of that kind with these properties, with one of these codes.
async fn refused_in(lab: &Lab, kind: &str, properties: &[u8], codes: &[u8]) {
    let topic = lab.topic("t");
    match kind {
        "CONNECT" => {
            let hello = lab.hello("bad").property(properties.to_vec());
            lab.not_let_in(hello.bytes(), codes).await;
        }
        "will" => {
            let mut will = Will::new(&topic, "x");
            will.properties = properties.to_vec();
            lab.not_let_in(lab.hello("bad").will(will).bytes(), codes)
                .await;
        }
        _ => {
            let bytes = match kind {
                "PUBLISH" => Publish::new(lab.version, &topic, "x")
                    .property(properties)
                    .bytes(),
                "PUBACK" => ack_with(PUBACK, 9, 0, properties),
                "PUBREL" => ack_with(PUBREL, 9, 0, properties),
                "SUBSCRIBE" => subscribe_with(lab.version, 1, properties, &[(&topic, 0)]),
                "UNSUBSCRIBE" => unsubscribe_with(lab.version, 1, properties, &[&topic]),
                "DISCONNECT" => disconnect(0, properties),
                other => panic!("{other}"),
            };
            lab.refuses(bytes, codes).await;
        }
    }
}

async fn properties_of_other_packets_are_refused(lab: Lab) {
    for (property, allowed) in all_properties() {
        for kind in PACKETS.iter().filter(|kind| !allowed.contains(kind)) {
            let of_server = (*kind, property[0]) == ("PUBLISH", 0x0B);
            // A property that a server may send here is out of place and not malformed.
            let codes: &[u8] = if of_server { &[0x82] } else { &[0x81, 0x82] };
            refused_in(&lab, kind, &property, codes).await;
        }
    }
}

async fn unknown_properties_are_refused(lab: Lab) {
    for id in [0x00, 0x04, 0x0A, 0x10, 0x14, 0x1B, 0x20, 0x2B, 0x7F] {
        for kind in PACKETS {
            refused_in(&lab, kind, &[id, 0], &[0x81]).await;
        }
    }
    // The identifier is a variable byte integer.
    let large = [&varint(0x81)[..], &[0]].concat();
    refused_in(&lab, "PUBLISH", &large, &[0x81]).await;
}

async fn properties_that_come_twice_are_refused(lab: Lab) {
    for (property, allowed) in all_properties() {
        for kind in allowed {
            if property[0] == property::USER {
                continue;
            }
            let data = property[0] == property::AUTHENTICATION_DATA;
            // With the method that it needs, which the broker refuses as well, but later.
            let method = if data {
                property::string(property::AUTHENTICATION_METHOD, "method")
            } else {
                Vec::new()
            };
            let twice = [&method[..], &property, &property].concat();
            refused_in(&lab, kind, &twice, &[0x82]).await;
        }
    }
}

async fn values_out_of_range_are_refused(lab: Lab) {
    for (kind, property) in [
        ("CONNECT", property::two(property::RECEIVE_MAXIMUM, 0)),
        ("CONNECT", property::four(property::MAXIMUM_PACKET_SIZE, 0)),
        (
            "CONNECT",
            property::byte(property::REQUEST_PROBLEM_INFORMATION, 2),
        ),
        (
            "CONNECT",
            property::byte(property::REQUEST_PROBLEM_INFORMATION, 0xFF),
        ),
        (
            "CONNECT",
            property::byte(property::REQUEST_RESPONSE_INFORMATION, 2),
        ),
        (
            "CONNECT",
            property::string(property::AUTHENTICATION_DATA, "alone"),
        ),
        ("will", property::byte(property::PAYLOAD_FORMAT, 2)),
        ("PUBLISH", property::byte(property::PAYLOAD_FORMAT, 2)),
        ("PUBLISH", property::byte(property::PAYLOAD_FORMAT, 0xFF)),
        ("SUBSCRIBE", property::varint(property::SUBSCRIPTION_ID, 0)),
    ] {
        refused_in(&lab, kind, &property, &[0x82, 0x81]).await;
    }
    // A subscription identifier of five bytes is not even a number.
    let long = [property::SUBSCRIPTION_ID, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
    refused_in(&lab, "SUBSCRIBE", &long, &[0x81]).await;
}

async fn a_property_length_that_is_wrong_is_refused(lab: Lab) {
    let topic = text(lab.topic("t"));
    let user = property::pair("a", "b");
    let length = u8::try_from(user.len()).unwrap();
    for wrong in [length - 1, length + 1, 0x7F] {
        let body = [&topic[..], &[wrong], &user].concat();
        lab.refuses(packet(0x30, body), &[0x81, 0x82]).await;
    }
    // Longer than four bytes; more than the packet has.
    for wrong in [
        &[0x80, 0x80, 0x80, 0x80, 0x01][..],
        &[0xFF, 0xFF, 0xFF, 0x7F],
    ] {
        lab.refuses(packet(0x30, [&topic, wrong].concat()), &[0x81])
            .await;
    }
    // None, where there has to be one.
    lab.refuses(packet(0x82, [0, 1]), &[0x81, 0x82]).await;
}

async fn user_properties_may_come_anywhere_and_often(lab: Lab) {
    let user = property::pair("same", "x").repeat(20);
    let topic = lab.topic("t");
    let mut will = Will::new(&topic, "x");
    will.properties.clone_from(&user);
    let hello = lab.hello("c").property(user.clone()).will(will);
    let (mut wire, _) = lab.connected(&hello).await;
    wire.send(subscribe_with(lab.version, 1, &user, &[(&topic, 0)]))
        .await;
    assert_eq!(wire.suback().await.codes, [0]);
    wire.send(unsubscribe_with(lab.version, 2, &user, &[&topic]))
        .await;
    assert_eq!(wire.unsuback().await.codes, [0]);
    wire.send(ack_with(PUBREL, 9, 0x92, &user)).await;
    wire.ack(0x70).await;
    wire.send(disconnect(0, &user)).await;
    wire.closed().await;
}

async fn a_message_keeps_its_properties(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    let user = [("b", "1"), ("a", "2"), ("b", "1"), ("ü", ""), ("", "0")];
    let properties = [
        property::pair("b", "1"),
        property::byte(property::PAYLOAD_FORMAT, 1),
        property::string(property::CONTENT_TYPE, "text/plain"),
        property::string(property::RESPONSE_TOPIC, "answer/here"),
        property::string(property::CORRELATION_DATA, [0, 0xFF, 0]),
        user[1..]
            .iter()
            .flat_map(|(n, v)| property::pair(n, v))
            .collect(),
    ]
    .concat();
    for qos in 0..3 {
        let publish = Publish::new(lab.version, &topic, "x").property(&properties);
        wire.put(publish, qos).await;
        let message = watcher.payload("x").await;
        let got = &message.properties;
        assert_eq!(got.get(property::PAYLOAD_FORMAT), Some(&[1][..]));
        assert_eq!(got.get(property::CONTENT_TYPE), Some(&b"text/plain"[..]));
        assert_eq!(got.get(property::RESPONSE_TOPIC), Some(&b"answer/here"[..]));
        assert_eq!(got.get(property::CORRELATION_DATA), Some(&[0, 0xFF, 0][..]));
        let expected = user.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(got.user(), expected);
        watcher.acknowledge(&message).await;
    }
}

async fn a_message_without_properties_has_none(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    lab.client("c").await.publish(&topic, "x", 0).await;
    // That the length is there, and 0, is part of finding the payload.
    assert_eq!(watcher.payload("x").await.properties, Properties::default());
}

async fn no_reason_strings_for_who_does_not_want_them(lab: Lab) {
    let none = property::byte(property::REQUEST_PROBLEM_INFORMATION, 0);
    let (mut wire, _) = lab.connected(&lab.hello("c").property(none)).await;
    let topic = lab.topic("t");
    let version = lab.version;
    wire.send(subscribe_with(version, 1, &[], &[(&topic, 1)]))
        .await;
    let suback = wire.suback().await;
    wire.send(unsubscribe_with(version, 2, &[], &[&topic, "none"]))
        .await;
    let unsuback = wire.unsuback().await;
    wire.send(Publish::new(version, &topic, "x").qos(1, 3).bytes())
        .await;
    let puback = wire.ack(PUBACK).await;
    wire.send(ack_with(PUBREL, 9, 0, &[])).await;
    let pubcomp = wire.ack(0x70).await;
    for answer in [suback, unsuback, puback, pubcomp] {
        assert_eq!(answer.properties.get(property::REASON_STRING), None);
        assert_eq!(answer.properties.get(property::USER), None);
    }
}

async fn values_at_the_ends_of_their_ranges_are_taken(lab: Lab) {
    for properties in [
        property::two(property::RECEIVE_MAXIMUM, 1),
        property::two(property::RECEIVE_MAXIMUM, 65_535),
        property::two(property::TOPIC_ALIAS_MAXIMUM, 0),
        property::two(property::TOPIC_ALIAS_MAXIMUM, 65_535),
        property::four(property::MAXIMUM_PACKET_SIZE, u32::MAX),
        property::byte(property::REQUEST_PROBLEM_INFORMATION, 0),
        property::byte(property::REQUEST_PROBLEM_INFORMATION, 1),
        property::byte(property::REQUEST_RESPONSE_INFORMATION, 1),
        property::four(property::SESSION_EXPIRY, 0),
    ] {
        let hello = lab.hello("c").property(properties);
        lab.connected(&hello).await.0.alive().await;
    }
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    for id in [1, 127, 128, 268_435_455] {
        let id = property::varint(property::SUBSCRIPTION_ID, id);
        wire.send(subscribe_with(lab.version, 1, &id, &[(&topic, 0)]))
            .await;
        assert_eq!(wire.suback().await.codes, [0]);
        wire.send(Publish::new(lab.version, &topic, "x").bytes())
            .await;
        let message = wire.payload("x").await;
        assert_eq!(
            message.properties.all(property::SUBSCRIPTION_ID),
            [&id[1..]]
        );
    }
    for expiry in [1, u32::MAX] {
        let expiry = property::four(property::MESSAGE_EXPIRY, expiry);
        wire.send(
            Publish::new(lab.version, &topic, "x")
                .property(expiry)
                .bytes(),
        )
        .await;
        wire.payload("x").await;
    }
}
