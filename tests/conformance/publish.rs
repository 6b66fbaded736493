//! PUBLISH (§3.3): flags, topic names, delivery to subscribers.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    case::cases,
    lab::Lab,
    packet::{PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V5, Will, ack, packet, property, text},
};

cases! {
    qos_3_is_refused: ALL, ["3.3.1-4"], ["3.3.1-4", "4.13.1-1"];
    dup_at_qos_0_is_refused: OASIS, ["3.3.1-2"], ["3.3.1-2"];
    mqtt_3_1_may_set_dup_at_qos_0: ONLY_31, [], [];
    packet_identifier_0_is_refused: ALL, ["2.3.1-1"], ["2.2.1-3"];
    a_topic_name_with_a_wildcard_is_refused: ALL,
        ["3.3.2-2", "4.7.1-1"], ["3.3.2-2", "4.7.0-1"];
    an_empty_topic_name_is_refused: ALL, ["4.7.3-1"], ["4.7.3-1"];
    a_response_topic_with_a_wildcard_is_refused: ONLY_5, [], ["3.3.2-14"];
    a_message_reaches_who_subscribed_under_its_name: ALL, ["3.3.2-3"], ["3.3.2-3"];
    payloads_are_bytes_of_any_kind: ALL, [], [];
    the_publishers_dup_is_not_passed_on: ALL, ["3.3.1-3"], ["3.3.1-3"];
    qos_0_is_sent_without_dup_and_identifier: ALL,
        ["3.3.1-2", "2.3.1-5", "4.3.1-1"], ["3.3.1-2", "2.2.1-2", "4.3.1-1"];
    a_client_gets_what_it_publishes_itself: ALL, [], [];
    an_expired_message_is_not_sent: ONLY_5, [], ["3.3.2-5"];
    what_is_left_of_the_expiry_is_sent: ONLY_5, [], ["3.3.2-6"];
}

async fn qos_3_is_refused(lab: Lab) {
    let topic = text(lab.topic("t"));
    let properties: &[u8] = if lab.version == V5 { &[0] } else { &[] };
    for flags in [0x06, 0x07, 0x0E, 0x0F] {
        let bytes = packet(
            0x30 | flags,
            [&topic, &[0, 1][..], properties, b"x"].concat(),
        );
        lab.refuses(bytes, &[0x81]).await;
    }
}

async fn dup_at_qos_0_is_refused(lab: Lab) {
    let publish = Publish::new(lab.version, lab.topic("t"), "x").dup();
    lab.refuses(publish.bytes(), &[0x81, 0x82]).await;
    lab.refuses(publish.retain().bytes(), &[0x81, 0x82]).await;
}

/// Checks DUP, which MQTT 3.1 defines above `QoS` 0, and does not forbid below.
async fn mqtt_3_1_may_set_dup_at_qos_0(lab: Lab) {
    lab.takes(Publish::new(lab.version, lab.topic("t"), "x").dup().bytes())
        .await;
}

async fn packet_identifier_0_is_refused(lab: Lab) {
    for qos in [1, 2] {
        let publish = Publish::new(lab.version, lab.topic("t"), "x").qos(qos, 0);
        lab.refuses(publish.bytes(), &[0x81, 0x82]).await;
    }
    for first in [0x40, 0x50, 0x62, 0x70] {
        lab.refuses(packet(first, [0, 0]), &[0x81, 0x82]).await;
    }
}

async fn a_topic_name_with_a_wildcard_is_refused(lab: Lab) {
    for name in ["#", "+", "a/#", "a/+", "a/+/b", "a#", "a+b", "$share/g/#"] {
        for qos in [0, 1, 2] {
            let publish = Publish::new(lab.version, name, "x").qos(qos, 1);
            lab.refuses(publish.bytes(), &[0x82, 0x81, 0x90]).await;
        }
        let hello = lab.hello("bad").will(Will::new(name, "x"));
        lab.not_let_in(hello.bytes(), &[0x82, 0x81, 0x90]).await;
    }
}

async fn an_empty_topic_name_is_refused(lab: Lab) {
    for qos in [0, 1, 2] {
        let publish = Publish::new(lab.version, "", "x").qos(qos, 1);
        lab.refuses(publish.bytes(), &[0x82]).await;
    }
    let hello = lab.hello("bad").will(Will::new("", "x"));
    lab.not_let_in(hello.bytes(), &[0x82, 0x81, 0x90]).await;
}

async fn a_response_topic_with_a_wildcard_is_refused(lab: Lab) {
    for name in ["#", "a/+", "a/#"] {
        let response = property::string(property::RESPONSE_TOPIC, name);
        let publish = Publish::new(V5, lab.topic("t"), "x").property(&response);
        lab.refuses(publish.bytes(), &[0x82, 0x81, 0x90]).await;
        let mut will = Will::new("t", "x");
        will.properties = response;
        lab.not_let_in(lab.hello("bad").will(will).bytes(), &[0x82, 0x81, 0x90])
            .await;
    }
}

async fn a_message_reaches_who_subscribed_under_its_name(lab: Lab) {
    let mut plain = lab.client("plain").await;
    let mut wild = lab.client("wild").await;
    let mut none = lab.client("none").await;
    let topic = lab.topic("a/b");
    plain.subscribe(&topic, 0).await;
    wild.subscribe(&lab.topic("+/#"), 0).await;
    none.subscribe(&lab.topic("a/B"), 0).await;
    lab.client("c").await.publish(&topic, "x", 0).await;
    assert_eq!(plain.payload("x").await.topic, topic);
    assert_eq!(wild.payload("x").await.topic, topic);
    none.quiet().await;
}

async fn payloads_are_bytes_of_any_kind(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    wire.subscribe(&topic, 0).await;
    let all: Vec<u8> = (0..=255).collect();
    for payload in [&b""[..], b"\0", &all, b"\xED\xA0\x80"] {
        wire.send(Publish::new(lab.version, &topic, payload).bytes())
            .await;
        wire.payload(payload).await;
    }
}

async fn the_publishers_dup_is_not_passed_on(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    for (qos, id) in [(1, 1), (2, 2)] {
        let publish = Publish::new(lab.version, &topic, "x").qos(qos, id).dup();
        wire.send(publish.bytes()).await;
        if qos == 1 {
            wire.ack(PUBACK).await;
        } else {
            wire.ack(PUBREC).await;
            wire.send(ack(PUBREL, id)).await;
            wire.ack(PUBCOMP).await;
        }
        let message = watcher.payload("x").await;
        assert!(!message.dup);
        watcher.acknowledge(&message).await;
    }
}

async fn qos_0_is_sent_without_dup_and_identifier(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    let mut wire = lab.client("c").await;
    for qos in 0..3 {
        wire.publish(&topic, "x", qos).await;
        // An identifier would be taken for the payload's beginning.
        let message = watcher.payload("x").await;
        assert_eq!(
            (message.qos, message.dup, message.retain),
            (0, false, false)
        );
    }
}

async fn a_client_gets_what_it_publishes_itself(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    wire.subscribe(&topic, 0).await;
    wire.send(Publish::new(lab.version, &topic, "x").bytes())
        .await;
    wire.payload("x").await;
}

async fn an_expired_message_is_not_sent(lab: Lab) {
    let topic = lab.topic("t");
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    wire.subscribe(&topic, 1).await;
    wire.leave().await;
    let mut other = lab.client("other").await;
    let brief = property::four(property::MESSAGE_EXPIRY, 1);
    other
        .put(Publish::new(V5, &topic, "brief").property(brief), 1)
        .await;
    other.publish(&topic, "for ever", 1).await;
    sleep(Duration::from_millis(2_100)).await;
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    let message = wire.payload("for ever").await;
    wire.acknowledge(&message).await;
    wire.quiet().await;
}

async fn what_is_left_of_the_expiry_is_sent(lab: Lab) {
    let topic = lab.topic("t");
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    wire.subscribe(&topic, 1).await;
    let mut other = lab.client("other").await;
    let long = property::four(property::MESSAGE_EXPIRY, 1000);
    let publish = Publish::new(V5, &topic, "x").property(long);
    other.put(publish.clone(), 1).await;
    let message = wire.payload("x").await;
    let left = message.properties.number(property::MESSAGE_EXPIRY).unwrap();
    assert!((990..=1000).contains(&left), "{left}");
    wire.acknowledge(&message).await;
    wire.leave().await;
    other.put(publish, 1).await;
    sleep(Duration::from_secs(2)).await;
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    let message = wire.payload("x").await;
    let left = message.properties.number(property::MESSAGE_EXPIRY).unwrap();
    assert!((980..=999).contains(&left), "{left}");
}
