//! SUBSCRIBE and SUBACK (§3.8, §3.9).

use crate::{
    case::cases,
    lab::Lab,
    packet::{
        PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V5, ack, packet, property, subscribe,
        subscribe_with, unsubscribe,
    },
};

cases! {
    suback_has_the_identifier_and_a_code_for_each_filter: ALL,
        ["2.3.1-7", "3.8.4-1", "3.8.4-2", "3.8.4-4", "3.8.4-5", "3.8.4-6", "3.9.3-1", "3.9.3-2"],
        ["2.2.1-6", "3.8.4-1", "3.8.4-2", "3.8.4-5", "3.8.4-6", "3.8.4-7", "3.9.3-1", "3.9.3-2"];
    a_subscribe_without_filters_is_refused: ALL, ["3.8.3-3"], ["3.8.3-2"];
    a_subscribe_with_identifier_0_is_refused: ALL, ["2.3.1-1"], ["2.2.1-3"];
    reserved_bits_of_the_options_are_refused: OASIS, ["3.8.3-4"], ["3.8.3-5"];
    a_requested_qos_of_3_is_refused: ALL, ["3.8.3-4"], ["4.13.1-1"];
    a_retain_handling_of_3_is_refused: ONLY_5, [], ["4.13.1-1"];
    a_repeated_subscription_replaces_the_first: ALL, ["3.8.4-3"], ["3.8.4-3"];
    replacing_a_subscription_loses_nothing: ALL, ["3.8.4-3"], ["3.8.4-4"];
    overlapping_subscriptions_deliver_at_the_highest_qos: ALL, ["3.3.5-1"], ["3.3.4-2"];
    no_local_keeps_a_clients_own_messages_away: ONLY_5, [], ["3.8.3-3"];
    subscription_identifiers_come_with_the_messages: ONLY_5, [],
        ["3.3.4-3", "3.3.4-4", "3.3.4-5"];
    a_new_identifier_replaces_the_old_one: ONLY_5, [], ["3.8.4-3"];
    a_client_may_not_publish_a_subscription_identifier: ONLY_5, [], ["3.3.4-6"];
    an_identifier_of_a_request_may_be_used_again: ALL, ["2.3.1-3"], [];
    filters_in_one_packet_count_one_by_one: ALL, ["3.8.4-4"], ["3.8.4-5"];
}

async fn suback_has_the_identifier_and_a_code_for_each_filter(lab: Lab) {
    let mut wire = lab.client("c").await;
    for id in [1, 2, 256, 65_535] {
        let (a, b, c) = (lab.topic("a"), lab.topic("+/b"), lab.topic("#"));
        let filters = [(&*a, 2), (&*b, 0), (&*c, 1)];
        wire.send(subscribe(lab.version, id, &filters)).await;
        let answer = wire.suback().await;
        assert_eq!((answer.id, &*answer.codes), (id, &[2, 0, 1][..]));
    }
    wire.alive().await;
}

async fn a_subscribe_without_filters_is_refused(lab: Lab) {
    lab.refuses(subscribe(lab.version, 1, &[]), &[0x82, 0x81])
        .await;
    lab.refuses(packet(0x82, []), &[0x81, 0x82]).await;
}

async fn a_subscribe_with_identifier_0_is_refused(lab: Lab) {
    let topic = lab.topic("t");
    lab.refuses(subscribe(lab.version, 0, &[(&topic, 0)]), &[0x82, 0x81])
        .await;
    lab.refuses(unsubscribe(lab.version, 0, &[&topic]), &[0x82, 0x81])
        .await;
}

async fn reserved_bits_of_the_options_are_refused(lab: Lab) {
    let topic = lab.topic("t");
    let reserved: &[u8] = if lab.version == V5 {
        &[0x40, 0x80, 0xC0]
    } else {
        &[0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFC]
    };
    for bits in reserved {
        for qos in 0..3 {
            let request = subscribe(lab.version, 1, &[(&topic, bits | qos)]);
            lab.refuses(request, &[0x81]).await;
        }
        // Also behind a valid filter, which then does not count either.
        let request = subscribe(lab.version, 1, &[(&topic, 0), (&topic, *bits)]);
        lab.refuses(request, &[0x81]).await;
    }
}

async fn a_requested_qos_of_3_is_refused(lab: Lab) {
    let topic = lab.topic("t");
    lab.refuses(subscribe(lab.version, 1, &[(&topic, 3)]), &[0x82, 0x81])
        .await;
}

async fn a_retain_handling_of_3_is_refused(lab: Lab) {
    let topic = lab.topic("t");
    for options in [0x30, 0x31, 0x3E] {
        lab.refuses(subscribe(V5, 1, &[(&topic, options)]), &[0x82])
            .await;
    }
}

async fn a_repeated_subscription_replaces_the_first(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    let mut other = lab.client("other").await;
    for qos in [2, 0, 1] {
        assert_eq!(wire.subscribe(&topic, qos).await, qos);
        other.publish(&topic, "x", 2).await;
        let message = wire.payload("x").await;
        assert_eq!(message.qos, qos);
        wire.acknowledge(&message).await;
        wire.quiet().await;
    }
    wire.unsubscribe(&topic).await;
    other.publish(&topic, "x", 1).await;
    wire.quiet().await;
}

async fn replacing_a_subscription_loses_nothing(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    wire.subscribe(&topic, 1).await;
    let mut other = lab.client("other").await;
    for first in (0..100).step_by(10) {
        let publish = |number: u8| {
            let publish = Publish::new(lab.version, &topic, [number]);
            publish.qos(1, u16::from(number) + 1).bytes()
        };
        let numbers = first..first + 10;
        let messages: Vec<u8> = numbers.clone().flat_map(publish).collect();
        let requests: Vec<u8> = (1..=5)
            .flat_map(|id| subscribe(lab.version, id, &[(&topic, 1)]))
            .collect();
        // At the same time.
        tokio::join!(other.send(messages), wire.send(requests));
        let mut left = numbers.clone();
        let mut answers = 0;
        while !left.is_empty() || answers < 5 {
            let packet = wire.next().await.expect("the broker closed");
            if packet.first == 0x90 {
                answers += 1;
                continue;
            }
            let message = packet.message(lab.version);
            assert_eq!(message.payload, [left.next().unwrap()]);
            wire.acknowledge(&message).await;
        }
        for number in numbers {
            assert_eq!(other.ack(PUBACK).await.id, u16::from(number) + 1);
        }
    }
}

async fn overlapping_subscriptions_deliver_at_the_highest_qos(lab: Lab) {
    let mut wire = lab.client("c").await;
    for (filter, qos) in [("a/+", 0), ("a/#", 2), ("a/b", 1)] {
        wire.subscribe(&lab.topic(filter), qos).await;
    }
    let mut other = lab.client("other").await;
    other.publish(&lab.topic("a/b"), "x", 2).await;
    // One copy, or one for each subscription: then the highest is among them.
    let mut highest = 0;
    let mut copies = 0;
    other.publish(&lab.topic("a"), "end", 0).await;
    loop {
        let packet = wire.next().await.expect("the broker closed");
        if packet.first == PUBREL {
            let id = packet.ack(lab.version).id;
            wire.send(ack(PUBCOMP, id)).await;
            continue;
        }
        let message = packet.message(lab.version);
        match message.qos {
            1 => wire.send(ack(PUBACK, message.id)).await,
            2 => wire.send(ack(PUBREC, message.id)).await,
            _ => {}
        }
        if message.payload == b"end" {
            break;
        }
        copies += 1;
        highest = highest.max(message.qos);
    }
    assert_eq!(highest, 2);
    assert!(copies == 1 || !lab.is_own(), "{copies} copies");
}

async fn no_local_keeps_a_clients_own_messages_away(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    assert_eq!(wire.subscribe(&topic, 0x04).await, 0);
    wire.publish(&topic, "own", 0).await;
    wire.quiet().await;
    lab.client("other")
        .await
        .publish(&topic, "other's", 0)
        .await;
    wire.payload("other's").await;
}

async fn subscription_identifiers_come_with_the_messages(lab: Lab) {
    let id = |id| property::varint(property::SUBSCRIPTION_ID, id);
    let mut wire = lab.client("c").await;
    for (number, filter, properties) in [
        (1, "a/+", id(7)),
        (2, "a/#", id(300)),
        (3, "a/b", Vec::new()),
        (4, "b", Vec::new()),
    ] {
        let filters = [(&*lab.topic(filter), 0)];
        wire.send(subscribe_with(V5, number, &properties, &filters))
            .await;
        wire.suback().await;
    }
    let mut other = lab.client("other").await;
    other.publish(&lab.topic("a/b"), "x", 0).await;
    // In one copy, or in several.
    let mut found = Vec::new();
    other.publish(&lab.topic("b"), "none", 0).await;
    loop {
        let message = wire.message().await;
        let ids = message.properties.all(property::SUBSCRIPTION_ID);
        if message.payload == b"none" {
            assert!(ids.is_empty());
            break;
        }
        found.extend(ids.iter().map(|id| id.to_vec()));
    }
    found.sort();
    assert_eq!(found, [vec![7], vec![0xAC, 0x02]]);
    // Retained messages have them as well.
    other.retain(&lab.topic("r"), "kept", 0).await;
    wire.send(subscribe_with(V5, 9, &id(9), &[(&lab.topic("r"), 0)]))
        .await;
    wire.suback().await;
    let message = wire.payload("kept").await;
    assert_eq!(message.properties.all(property::SUBSCRIPTION_ID), [[9]]);
    other.retain(&lab.topic("r"), "", 0).await;
}

async fn a_new_identifier_replaces_the_old_one(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    for (request, id) in [(1, Some(5)), (2, Some(6)), (3, None)] {
        let properties = id.map(|id| property::varint(property::SUBSCRIPTION_ID, id));
        let properties = properties.unwrap_or_default();
        wire.send(subscribe_with(V5, request, &properties, &[(&topic, 0)]))
            .await;
        wire.suback().await;
        wire.send(Publish::new(V5, &topic, "x").bytes()).await;
        let message = wire.payload("x").await;
        let ids = message.properties.all(property::SUBSCRIPTION_ID);
        let expected: Vec<Vec<u8>> = id
            .map(|id| vec![u8::try_from(id).unwrap()])
            .into_iter()
            .collect();
        assert_eq!(ids, expected);
    }
}

async fn a_client_may_not_publish_a_subscription_identifier(lab: Lab) {
    let id = property::varint(property::SUBSCRIPTION_ID, 1);
    for qos in 0..3 {
        let publish = Publish::new(V5, lab.topic("t"), "x").property(&id);
        lab.refuses(publish.qos(qos, 1).bytes(), &[0x82]).await;
    }
}

async fn an_identifier_of_a_request_may_be_used_again(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    for _ in 0..3 {
        wire.send(subscribe(lab.version, 7, &[(&topic, 1)])).await;
        assert_eq!(wire.suback().await.id, 7);
        wire.send(unsubscribe(lab.version, 7, &[&topic])).await;
        assert_eq!(wire.unsuback().await.id, 7);
        wire.send(Publish::new(lab.version, &topic, "x").qos(1, 7).bytes())
            .await;
        assert_eq!(wire.ack(PUBACK).await.id, 7);
    }
}

async fn filters_in_one_packet_count_one_by_one(lab: Lab) {
    let (topic, other_topic) = (lab.topic("t"), lab.topic("u"));
    let mut wire = lab.client("c").await;
    // The second for the same topic replaces the first.
    let filters = [(&*topic, 2), (&*other_topic, 0), (&*topic, 1)];
    wire.send(subscribe(lab.version, 1, &filters)).await;
    assert_eq!(wire.suback().await.codes, [2, 0, 1]);
    let mut other = lab.client("other").await;
    for name in [&topic, &other_topic] {
        other.publish(name, "x", 2).await;
    }
    let message = wire.payload("x").await;
    assert_eq!((&message.topic, message.qos), (&topic, 1));
    wire.acknowledge(&message).await;
    assert_eq!(wire.payload("x").await.topic, other_topic);
    wire.quiet().await;
}
