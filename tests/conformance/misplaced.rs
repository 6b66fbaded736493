//! Packets at the wrong time, or from the wrong side.

use crate::{
    case::cases,
    lab::Lab,
    packet::{
        ALL, Connect, DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V5, ack,
        ack_with, auth, packet, subscribe, unsubscribe,
    },
};

cases! {
    whatever_comes_before_connect_is_refused: ALL, ["3.1.0-1"], ["3.1.0-1", "3.14.0-1"];
    a_second_connect_is_refused: ALL,
        ["3.1.0-2", "4.8.0-1"], ["3.1.0-2", "3.2.0-2", "4.13.1-1"];
    packets_that_only_servers_send_are_refused: ALL, ["4.8.0-1"], ["4.13.1-1"];
    nothing_is_acted_on_after_disconnect: ALL, ["3.14.4-2"], [];
    what_is_wrong_closes_that_connection_only: ALL, ["4.8.0-1"], ["4.13.1-1"];
    answers_to_what_was_not_sent_are_put_up_with: ALL, [], [];
    answers_of_the_wrong_kind_are_refused: ALL, ["4.8.0-1"], ["4.13.1-1"];
}

async fn whatever_comes_before_connect_is_refused(lab: Lab) {
    let version = lab.version;
    let topic = lab.topic("t");
    let mut packets = vec![
        packet(0x20, [0, 0]),
        Publish::new(version, &topic, "x").retain().bytes(),
        Publish::new(version, &topic, "x")
            .retain()
            .qos(1, 1)
            .bytes(),
        ack(PUBACK, 1),
        ack(PUBREC, 1),
        ack(PUBREL, 1),
        ack(PUBCOMP, 1),
        subscribe(version, 1, &[(&topic, 0)]),
        packet(0x90, [0, 1, 0]),
        unsubscribe(version, 1, &[&topic]),
        packet(0xB0, [0, 1]),
        PINGREQ.to_vec(),
        packet(0xD0, []),
        DISCONNECT.to_vec(),
        packet(0xF0, []),
    ];
    if version == V5 {
        packets.push(auth(0x18, &[]));
    }
    for bytes in packets {
        let mut wire = lab.open().await;
        // A CONNECT does not make up for it.
        wire.send([bytes, lab.hello("bad").bytes()].concat()).await;
        wire.closed().await;
    }
    let mut late = lab.client("late").await;
    late.subscribe(&topic, 0).await;
    late.quiet().await;
}

async fn a_second_connect_is_refused(lab: Lab) {
    let hello = lab.hello("bad").bytes();
    lab.refuses(&hello, &[0x82]).await;
    // Nor is a CONNECT of another client, or of another version, allowed.
    let other = lab.hello("other").bytes();
    lab.refuses(&other, &[0x82]).await;
    for version in ALL {
        let hello = Connect::new(*version, &lab.id("third"));
        lab.refuses(hello.bytes(), &[0x81, 0x82]).await;
    }
}

async fn packets_that_only_servers_send_are_refused(lab: Lab) {
    let version = lab.version;
    let packets = if version == V5 {
        vec![
            packet(0x20, [0, 0, 0]),
            packet(0x90, [0, 1, 0, 0]),
            packet(0xB0, [0, 1, 0, 0]),
            packet(0xD0, []),
        ]
    } else {
        vec![
            packet(0x20, [0, 0]),
            packet(0x90, [0, 1, 0]),
            packet(0xB0, [0, 1]),
            packet(0xD0, []),
        ]
    };
    for bytes in packets {
        lab.refuses(bytes, &[0x82]).await;
    }
    for first in [0x20, 0x90, 0xB0, 0xD0] {
        lab.refuses(packet(first, [0xFF]), &[0x81, 0x82]).await;
        if lab.is_own() {
            // The first byte alone is refused.
            lab.refuses([first], &[0x82]).await;
        }
    }
}

async fn nothing_is_acted_on_after_disconnect(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    let mut wire = lab.client("c").await;
    let publish = Publish::new(lab.version, &topic, "x").qos(1, 1).bytes();
    wire.send([&DISCONNECT[..], &publish, &PINGREQ].concat())
        .await;
    wire.closed().await;
    watcher.quiet().await;
}

async fn what_is_wrong_closes_that_connection_only(lab: Lab) {
    let mut good = lab.client("good").await;
    let topic = lab.topic("t");
    good.subscribe(&topic, 1).await;
    let mut bad = lab.client("bad").await;
    // Packets before the error count, packets after it do not.
    let publish = |payload| Publish::new(lab.version, &topic, payload).qos(1, 1).bytes();
    bad.send(
        [
            publish("before"),
            packet(0x36, [0, 1, b'a', 0, 1]),
            publish("after"),
        ]
        .concat(),
    )
    .await;
    assert_eq!(bad.ack(PUBACK).await.id, 1);
    bad.refused(&[0x81]).await;
    let message = good.payload("before").await;
    good.acknowledge(&message).await;
    good.quiet().await;
}

/// Checks that PUBACK, PUBREC and PUBCOMP for an identifier that is not in use are no error: they may be late.
async fn answers_to_what_was_not_sent_are_put_up_with(lab: Lab) {
    let mut wire = lab.client("c").await;
    wire.send(ack(PUBACK, 9)).await;
    wire.send(ack(PUBCOMP, 9)).await;
    wire.alive().await;
    wire.send(ack(PUBREC, 9)).await;
    let answer = wire.ack(PUBREL).await;
    assert_eq!(answer.id, 9);
    wire.send(ack(PUBREL, 9)).await;
    let complete = wire.ack(PUBCOMP).await;
    assert_eq!(complete.id, 9);
    if lab.version == V5 {
        assert_eq!(
            (&*answer.codes, &*complete.codes),
            (&[0x92][..], &[0x92][..])
        );
        wire.send(ack_with(PUBACK, 9, 0x80, &[])).await;
        wire.send(ack_with(PUBCOMP, 9, 0x92, &[])).await;
        // A refusal is not released (§4.3.3).
        wire.send(ack_with(PUBREC, 9, 0x80, &[])).await;
    }
    wire.alive().await;
}

/// Checks that an answer to a message in flight has to be the next packet of its `QoS`.
async fn answers_of_the_wrong_kind_are_refused(lab: Lab) {
    let topic = lab.topic("t");
    let mut other = lab.client("other").await;
    for (qos, wrong) in [(1, PUBREC), (1, PUBCOMP), (2, PUBACK), (2, PUBCOMP)] {
        let mut wire = lab.client("bad").await;
        wire.subscribe(&topic, 2).await;
        other.publish(&topic, "x", qos).await;
        let message = wire.payload("x").await;
        assert_eq!(message.qos, qos);
        wire.send(ack(wrong, message.id)).await;
        wire.refused(&[0x82]).await;
    }
    let mut wire = lab.client("bad").await;
    wire.subscribe(&topic, 2).await;
    other.publish(&topic, "x", 2).await;
    let message = wire.payload("x").await;
    wire.send(ack(PUBREC, message.id)).await;
    wire.ack(PUBREL).await;
    wire.send(ack(PUBACK, message.id)).await;
    wire.refused(&[0x82]).await;
}
