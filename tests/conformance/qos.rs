//! Delivery (§4.3, §4.4, §4.6): acknowledgements, repetition after a reconnect, order.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    case::cases,
    lab::Lab,
    packet::{PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V5, ack, ack_with},
    wire::all_different,
};

cases! {
    each_qos_is_answered_as_it_has_to_be: ALL,
        ["3.3.4-1", "2.3.1-6", "4.3.2-2", "4.3.3-2"],
        ["3.3.4-1", "2.2.1-5", "4.3.2-4", "4.3.3-8", "4.3.3-11", "3.4.2-1", "3.5.2-1", "3.7.2-1"];
    a_message_goes_from_each_qos_to_each: ALL, ["3.8.4-6"], ["3.8.4-8"];
    an_acknowledged_identifier_stands_for_a_new_message: ALL,
        ["2.3.1-3", "4.3.2-2"], ["4.3.2-5", "4.3.3-12"];
    a_repetition_at_qos_2_is_answered_and_not_delivered: ALL, ["4.3.3-2"], ["4.3.3-10"];
    an_unknown_release_is_completed: ALL, ["4.3.3-2"], ["3.7.2-1", "4.3.3-11"];
    the_server_sends_new_messages_without_dup_under_free_identifiers: ALL,
        ["2.3.1-4", "4.3.2-1", "4.3.3-1"],
        ["2.2.1-4", "4.3.2-1", "4.3.2-2", "4.3.3-1", "4.3.3-2"];
    the_server_releases_what_was_received: ALL,
        ["2.3.1-6", "4.3.3-1"], ["2.2.1-5", "4.3.3-4", "3.6.2-1"];
    unacknowledged_messages_come_again_after_a_reconnect: ALL,
        ["3.3.1-1", "4.4.0-1", "4.6.0-1", "4.3.2-1"], ["3.3.1-1", "4.4.0-1", "4.3.2-3", "4.3.3-3"];
    a_release_comes_again_after_a_reconnect: ALL,
        ["4.4.0-1", "4.3.3-1"], ["4.4.0-1", "4.3.3-5", "4.3.3-6"];
    nothing_comes_again_on_the_same_connection: ALL, [], ["4.4.0-1"];
    what_was_acknowledged_does_not_come_again: ALL, ["4.3.2-1"], ["4.3.2-3"];
    a_refused_message_does_not_come_again: ONLY_5, [], ["4.4.0-2"];
    messages_keep_their_order: ALL, ["4.6.0-5", "4.6.0-6"], ["4.6.0-5", "4.6.0-6"];
    acknowledgements_keep_the_order_of_the_messages: ALL, ["4.6.0-2", "4.6.0-3"], [];
    releases_keep_the_order_of_the_receipts: ALL, ["4.6.0-4"], [];
    a_sent_message_does_not_expire: ONLY_5, [], ["4.3.3-7", "4.3.3-13"];
    identifiers_of_both_sides_are_apart: ALL, [], [];
}

async fn each_qos_is_answered_as_it_has_to_be(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    let mut wire = lab.client("c").await;
    // Without a subscriber and with one, which may change the reason code.
    for subscribed in [false, true] {
        if subscribed {
            watcher.subscribe(&topic, 0).await;
        }
        let codes: &[u8] = if subscribed { &[0] } else { &[0, 0x10] };
        let publish = Publish::new(lab.version, &topic, "x");
        wire.send(publish.bytes()).await;
        wire.alive().await;
        wire.send(publish.clone().qos(1, 65_535).bytes()).await;
        let puback = wire.ack(PUBACK).await;
        assert_eq!(puback.id, 65_535);
        wire.send(publish.qos(2, 1).bytes()).await;
        let pubrec = wire.ack(PUBREC).await;
        assert_eq!(pubrec.id, 1);
        wire.send(ack(PUBREL, 1)).await;
        let pubcomp = wire.ack(PUBCOMP).await;
        assert_eq!((pubcomp.id, &*pubcomp.codes), (1, &[0][..]));
        for answer in [puback, pubrec] {
            assert!(codes.contains(&answer.codes[0]), "{answer:?}");
        }
    }
    for _ in 0..3 {
        watcher.payload("x").await;
    }
}

async fn a_message_goes_from_each_qos_to_each(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    for wanted in 0..3 {
        let mut watcher = lab.client("watcher").await;
        assert_eq!(watcher.subscribe(&topic, wanted).await, wanted);
        for published in 0..3 {
            wire.publish(&topic, "x", published).await;
            let message = watcher.payload("x").await;
            assert_eq!(message.qos, published.min(wanted));
            watcher.acknowledge(&message).await;
        }
        watcher.leave().await;
    }
}

async fn an_acknowledged_identifier_stands_for_a_new_message(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    let mut wire = lab.client("c").await;
    for (qos, dup) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut publish = Publish::new(lab.version, &topic, "x").qos(qos, 7);
        if dup {
            publish = publish.dup();
        }
        wire.send(publish.bytes()).await;
        if qos == 1 {
            wire.ack(PUBACK).await;
        } else {
            wire.ack(PUBREC).await;
            wire.send(ack(PUBREL, 7)).await;
            wire.ack(PUBCOMP).await;
        }
        watcher.payload("x").await;
    }
}

async fn a_repetition_at_qos_2_is_answered_and_not_delivered(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    let publish = Publish::new(lab.version, &topic, "x").qos(2, 7);
    wire.send(publish.bytes()).await;
    assert_eq!(wire.ack(PUBREC).await.id, 7);
    for _ in 0..3 {
        wire.send(publish.clone().dup().bytes()).await;
        assert_eq!(wire.ack(PUBREC).await.id, 7);
    }
    wire.send(ack(PUBREL, 7)).await;
    assert_eq!(wire.ack(PUBCOMP).await.id, 7);
    let message = watcher.payload("x").await;
    watcher.acknowledge(&message).await;
    watcher.quiet().await;
}

async fn an_unknown_release_is_completed(lab: Lab) {
    let mut wire = lab.client("c").await;
    wire.send(ack(PUBREL, 9)).await;
    let complete = wire.ack(PUBCOMP).await;
    assert_eq!(complete.id, 9);
    if lab.version == V5 {
        assert_eq!(complete.codes, [0x92]);
    }
    // Twice is known once.
    wire.send(
        Publish::new(lab.version, lab.topic("t"), "x")
            .qos(2, 9)
            .bytes(),
    )
    .await;
    wire.ack(PUBREC).await;
    wire.send([ack(PUBREL, 9), ack(PUBREL, 9)].concat()).await;
    assert_eq!(wire.ack(PUBCOMP).await.codes, [0]);
    let again = wire.ack(PUBCOMP).await;
    assert!(lab.version < V5 || again.codes == [0x92]);
}

async fn the_server_sends_new_messages_without_dup_under_free_identifiers(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    let mut ids = Vec::new();
    for qos in [1, 2, 1, 2, 1, 2] {
        wire.publish(&topic, "x", qos).await;
        // None is acknowledged.
        let message = watcher.payload("x").await;
        assert_eq!((message.qos, message.dup), (qos, false));
        ids.push(message.id);
    }
    all_different(&ids);
}

async fn the_server_releases_what_was_received(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    lab.client("c").await.publish(&topic, "x", 2).await;
    let message = watcher.payload("x").await;
    watcher.send(ack(PUBREC, message.id)).await;
    let release = watcher.ack(PUBREL).await;
    assert_eq!((release.id, &*release.codes), (message.id, &[0][..]));
    // A repeated PUBREC gets the same answer.
    watcher.send(ack(PUBREC, message.id)).await;
    assert_eq!(watcher.ack(PUBREL).await.id, message.id);
    watcher.send(ack(PUBCOMP, message.id)).await;
    watcher.quiet().await;
}

async fn unacknowledged_messages_come_again_after_a_reconnect(lab: Lab) {
    let topic = lab.topic("t");
    let (mut watcher, _) = lab.connected(&lab.kept("watcher")).await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    let mut sent = Vec::new();
    for (payload, qos) in [("1", 1), ("2", 2), ("3", 1), ("4", 2)] {
        wire.publish(&topic, payload, qos).await;
        sent.push(watcher.payload(payload).await);
    }
    for _ in 0..2 {
        watcher.cut();
        (watcher, _) = lab.connected(&lab.kept("watcher")).await;
        for first in &sent {
            let again = watcher.message().await;
            assert!(again.dup);
            let payload = (&again.payload, &first.payload);
            assert_eq!(
                (again.id, again.qos, payload.0),
                (first.id, first.qos, payload.1)
            );
        }
    }
    for message in &sent {
        watcher.acknowledge(message).await;
    }
    watcher.quiet().await;
}

async fn a_release_comes_again_after_a_reconnect(lab: Lab) {
    let topic = lab.topic("t");
    let (mut watcher, _) = lab.connected(&lab.kept("watcher")).await;
    watcher.subscribe(&topic, 2).await;
    lab.client("c").await.publish(&topic, "x", 2).await;
    let message = watcher.payload("x").await;
    watcher.send(ack(PUBREC, message.id)).await;
    watcher.ack(PUBREL).await;
    for _ in 0..2 {
        watcher.cut();
        (watcher, _) = lab.connected(&lab.kept("watcher")).await;
        // And not the PUBLISH.
        assert_eq!(watcher.ack(PUBREL).await.id, message.id);
    }
    watcher.send(ack(PUBCOMP, message.id)).await;
    watcher.leave().await;
    let (mut watcher, _) = lab.connected(&lab.kept("watcher")).await;
    watcher.quiet().await;
}

async fn nothing_comes_again_on_the_same_connection(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    wire.publish(&topic, "x", 1).await;
    watcher.payload("x").await;
    sleep(Duration::from_secs(3)).await;
    watcher.quiet().await;
}

async fn what_was_acknowledged_does_not_come_again(lab: Lab) {
    let topic = lab.topic("t");
    let (mut watcher, _) = lab.connected(&lab.kept("watcher")).await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    for qos in [1, 2] {
        wire.publish(&topic, "x", qos).await;
        let message = watcher.payload("x").await;
        watcher.acknowledge(&message).await;
    }
    watcher.alive().await;
    watcher.cut();
    let (mut watcher, _) = lab.connected(&lab.kept("watcher")).await;
    watcher.quiet().await;
}

async fn a_refused_message_does_not_come_again(lab: Lab) {
    let topic = lab.topic("t");
    let (mut watcher, _) = lab.connected(&lab.kept("watcher")).await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    for (qos, first) in [(1, PUBACK), (2, PUBREC)] {
        wire.publish(&topic, "x", qos).await;
        let message = watcher.payload("x").await;
        watcher.send(ack_with(first, message.id, 0x83, &[])).await;
        // No PUBREL.
        watcher.alive().await;
    }
    watcher.cut();
    let (mut watcher, _) = lab.connected(&lab.kept("watcher")).await;
    watcher.quiet().await;
}

async fn messages_keep_their_order(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    for qos in 0..3 {
        let mut watcher = lab.client("watcher").await;
        watcher.subscribe(&topic, qos).await;
        // Ten at a time, which any server takes.
        for first in (0..100).step_by(10) {
            let publish = |number: u8| {
                let publish = Publish::new(lab.version, &topic, [number]);
                publish.qos(qos, u16::from(number) + 1).bytes()
            };
            let numbers = first..first + 10;
            wire.send(numbers.clone().map(publish).collect::<Vec<_>>().concat())
                .await;
            for number in numbers.clone().filter(|_| qos > 0) {
                let first = if qos == 1 { PUBACK } else { PUBREC };
                assert_eq!(wire.ack(first).await.id, u16::from(number) + 1);
            }
            for number in numbers.clone().filter(|_| qos == 2) {
                wire.send(ack(PUBREL, u16::from(number) + 1)).await;
                wire.ack(PUBCOMP).await;
            }
            let mut messages = Vec::new();
            for number in numbers {
                messages.push(watcher.payload([number]).await);
            }
            for message in &messages {
                watcher.acknowledge(message).await;
            }
        }
        watcher.leave().await;
    }
}

async fn acknowledgements_keep_the_order_of_the_messages(lab: Lab) {
    let mut wire = lab.client("c").await;
    let publish = |qos, id| {
        let publish = Publish::new(lab.version, lab.topic("t"), "x");
        publish.qos(qos, id).bytes()
    };
    let ids = [9, 3, 40_000, 1, 7];
    wire.send(ids.map(|id| publish(1, id)).concat()).await;
    for id in ids {
        assert_eq!(wire.ack(PUBACK).await.id, id);
    }
    wire.send(ids.map(|id| publish(2, id)).concat()).await;
    for id in ids {
        assert_eq!(wire.ack(PUBREC).await.id, id);
    }
}

async fn releases_keep_the_order_of_the_receipts(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        wire.publish(&topic, "x", 2).await;
        ids.push(watcher.payload("x").await.id);
    }
    ids.swap(0, 3);
    ids.swap(1, 2);
    let receipts: Vec<_> = ids.iter().map(|id| ack(PUBREC, *id)).collect();
    watcher.send(receipts.concat()).await;
    for id in ids {
        assert_eq!(watcher.ack(PUBREL).await.id, id);
    }
}

/// Checks that the exchange of a message that was sent goes on to the end, whatever the message's expiry says.
async fn a_sent_message_does_not_expire(lab: Lab) {
    use crate::packet::property;

    let topic = lab.topic("t");
    let (mut watcher, _) = lab.connected(&lab.kept("watcher")).await;
    watcher.subscribe(&topic, 2).await;
    let mut wire = lab.client("c").await;
    let brief = property::four(property::MESSAGE_EXPIRY, 1);
    let publish = Publish::new(V5, &topic, "x").property(brief).qos(2, 7);
    wire.send(publish.bytes()).await;
    wire.ack(PUBREC).await;
    if lab.is_own() {
        sleep(Duration::from_millis(2_100)).await;
    }
    // Others may deliver only now, and then not at all if it has expired.
    wire.send(ack(PUBREL, 7)).await;
    assert_eq!(wire.ack(PUBCOMP).await.id, 7);
    let message = watcher.payload("x").await;
    sleep(Duration::from_millis(2_100)).await;
    watcher.send(ack(PUBREC, message.id)).await;
    assert_eq!(watcher.ack(PUBREL).await.id, message.id);
    watcher.send(ack(PUBCOMP, message.id)).await;
    watcher.quiet().await;
}

/// Checks that both sides may use the same identifier at the same time.
async fn identifiers_of_both_sides_are_apart(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    let mut other = lab.client("other").await;
    for qos in [1, 2] {
        other.publish(&topic, "x", qos).await;
        let message = watcher.payload("x").await;
        let own = Publish::new(lab.version, lab.topic("own"), "y");
        watcher.send(own.qos(qos, message.id).bytes()).await;
        if qos == 1 {
            assert_eq!(watcher.ack(PUBACK).await.id, message.id);
        } else {
            assert_eq!(watcher.ack(PUBREC).await.id, message.id);
            watcher.send(ack(PUBREL, message.id)).await;
            assert_eq!(watcher.ack(PUBCOMP).await.id, message.id);
        }
        watcher.acknowledge(&message).await;
    }
    watcher.quiet().await;
}
