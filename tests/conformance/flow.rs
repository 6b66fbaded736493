//! Flow control (§4.9): Receive Maximum, both ways.

use crate::{
    case::cases,
    lab::Lab,
    packet::{PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V5, ack, ack_with, property},
    wire::Wire,
};

cases! {
    the_server_keeps_to_the_clients_receive_maximum: ONLY_5, [],
        ["3.3.4-9", "4.9.0-1", "4.9.0-2"];
    other_packets_pass_a_full_window: ONLY_5, [], ["3.3.4-10", "4.9.0-3"];
    a_refusal_makes_room: ONLY_5, [], ["3.3.4-9"];
    a_window_of_qos_2_opens_with_pubcomp: ONLY_5, [], ["3.3.4-9"];
    repetition_keeps_to_the_receive_maximum: ONLY_5, [], ["3.3.4-9", "4.9.0-2"];
    more_than_the_servers_receive_maximum_is_refused: ONLY_5, [], ["3.3.4-7"];
    as_many_as_the_servers_receive_maximum_are_taken: ONLY_5, [], [];
}

fn receive_maximum(value: u16) -> Vec<u8> {
    property::two(property::RECEIVE_MAXIMUM, value)
}

/// Connects a subscriber that takes `maximum` messages at a time.
async fn subscriber(lab: &Lab, maximum: u16, topic: &str) -> Wire {
    let hello = lab.hello("sub").property(receive_maximum(maximum));
    let (mut wire, _) = lab.connected(&hello).await;
    wire.subscribe(topic, 2).await;
    wire
}

async fn the_server_keeps_to_the_clients_receive_maximum(lab: Lab) {
    let topic = lab.topic("t");
    for maximum in [1, 3] {
        let mut wire = subscriber(&lab, maximum, &topic).await;
        let mut other = lab.client("pub").await;
        for number in 0..10 {
            other.publish(&topic, [number], 1).await;
        }
        let mut held = std::collections::VecDeque::new();
        for number in 0..10 {
            if held.len() == usize::from(maximum) {
                wire.alive().await;
                let message = held.pop_front().unwrap();
                wire.acknowledge(&message).await;
            }
            held.push_back(wire.payload([number]).await);
        }
    }
}

async fn other_packets_pass_a_full_window(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = subscriber(&lab, 1, &topic).await;
    let mut other = lab.client("pub").await;
    for payload in ["1", "2"] {
        other.publish(&topic, payload, 1).await;
    }
    let message = wire.payload("1").await;
    wire.alive().await;
    wire.subscribe(&lab.topic("u"), 0).await;
    wire.unsubscribe(&lab.topic("u")).await;
    wire.send(Publish::new(V5, lab.topic("v"), "x").qos(1, 1).bytes())
        .await;
    assert_eq!(wire.ack(PUBACK).await.id, 1);
    wire.acknowledge(&message).await;
    wire.payload("2").await;
}

async fn a_refusal_makes_room(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = subscriber(&lab, 1, &topic).await;
    let mut other = lab.client("pub").await;
    for (payload, qos) in [("1", 1), ("2", 2), ("3", 1)] {
        other.publish(&topic, payload, qos).await;
    }
    for (payload, first) in [("1", PUBACK), ("2", PUBREC)] {
        let message = wire.payload(payload).await;
        wire.alive().await;
        wire.send(ack_with(first, message.id, 0x80, &[])).await;
    }
    wire.payload("3").await;
}

async fn a_window_of_qos_2_opens_with_pubcomp(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = subscriber(&lab, 1, &topic).await;
    let mut other = lab.client("pub").await;
    for payload in ["1", "2"] {
        other.publish(&topic, payload, 2).await;
    }
    let message = wire.payload("1").await;
    wire.send(ack(PUBREC, message.id)).await;
    wire.ack(PUBREL).await;
    wire.alive().await;
    wire.send(ack(PUBCOMP, message.id)).await;
    wire.payload("2").await;
}

async fn repetition_keeps_to_the_receive_maximum(lab: Lab) {
    let topic = lab.topic("t");
    let hello = |maximum| lab.kept("sub").property(receive_maximum(maximum));
    let (mut wire, _) = lab.connected(&hello(5)).await;
    wire.subscribe(&topic, 1).await;
    let mut other = lab.client("pub").await;
    for number in 0..5 {
        other.publish(&topic, [number], 1).await;
        wire.payload([number]).await;
    }
    wire.cut();
    let (mut wire, _) = lab.connected(&hello(2)).await;
    let mut held = Vec::new();
    for number in 0..5 {
        if held.len() == 2 {
            wire.alive().await;
            wire.acknowledge(&held.remove(0)).await;
        }
        held.push(wire.payload([number]).await);
    }
}

/// Connects a client that may have `maximum` messages unacknowledged, and that number.
async fn publisher(lab: &Lab) -> (Wire, u16) {
    let (wire, ack) = lab.connected(&lab.hello("pub")).await;
    let maximum = ack.properties.number(property::RECEIVE_MAXIMUM);
    (wire, u16::try_from(maximum.unwrap_or(65_535)).unwrap())
}

/// Makes messages at `QoS` 2, where a fast server cannot make room.
fn messages(lab: &Lab, count: u16) -> Vec<u8> {
    let topic = lab.topic("t");
    let publish = |id| Publish::new(V5, &topic, "x").qos(2, id).bytes();
    (1..=count).flat_map(publish).collect()
}

async fn more_than_the_servers_receive_maximum_is_refused(lab: Lab) {
    let (mut wire, maximum) = publisher(&lab).await;
    if maximum == 65_535 {
        // There are no more identifiers.
        return;
    }
    wire.send(messages(&lab, maximum + 1)).await;
    for id in 1..=maximum {
        match wire.next().await {
            Some(packet) if packet.first == PUBREC => {
                assert_eq!(packet.ack(V5).id, id);
            }
            // The broker may refuse before it answers.
            Some(packet) => {
                assert_eq!((packet.first, packet.disconnect().0), (0xE0, 0x93));
                return wire.closed_behind_disconnect().await;
            }
            None => panic!("it should say why"),
        }
    }
    wire.refused(&[0x93]).await;
}

async fn as_many_as_the_servers_receive_maximum_are_taken(lab: Lab) {
    let (mut wire, maximum) = publisher(&lab).await;
    let count = maximum.min(2_000);
    for _ in 0..2 {
        wire.send(messages(&lab, count)).await;
        for id in 1..=count {
            assert_eq!(wire.ack(PUBREC).await.id, id);
        }
        let releases: Vec<u8> = (1..=count).flat_map(|id| ack(PUBREL, id)).collect();
        wire.send(releases).await;
        for id in 1..=count {
            assert_eq!(wire.ack(PUBCOMP).await.id, id);
        }
    }
}
