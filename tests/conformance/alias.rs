//! Topic aliases (§3.3.2.3.4), MQTT 5.0.

use crate::{
    case::cases,
    lab::Lab,
    packet::{Publish, V5, property},
    wire::Wire,
};

cases! {
    an_alias_stands_for_its_topic: ONLY_5, [], ["3.3.2-12"];
    every_alias_up_to_the_maximum_is_taken: ONLY_5, [], ["3.3.2-12"];
    an_alias_can_be_given_to_another_topic: ONLY_5, [], [];
    an_alias_of_0_is_refused: ONLY_5, [], ["3.3.2-8"];
    an_alias_above_the_maximum_is_refused: ONLY_5, [], ["3.2.2-17", "3.3.2-9"];
    an_alias_that_was_not_set_is_refused: ONLY_5, [], [];
    aliases_end_with_their_connection: ONLY_5, [], ["3.3.2-7"];
    an_alias_of_a_publisher_is_not_passed_on: ONLY_5, [], ["3.1.2-27"];
    the_servers_aliases_stay_below_the_clients_maximum: ONLY_5, [], ["3.1.2-26", "3.3.2-11"];
}

fn alias(alias: u16) -> Vec<u8> {
    property::two(property::TOPIC_ALIAS, alias)
}

/// Connects a publisher, and the number of aliases that it may use.
async fn publisher(lab: &Lab) -> (Wire, u16) {
    let (wire, ack) = lab.connected(&lab.hello("c")).await;
    let maximum = ack.properties.number(property::TOPIC_ALIAS_MAXIMUM);
    (wire, u16::try_from(maximum.unwrap_or(0)).unwrap())
}

async fn an_alias_stands_for_its_topic(lab: Lab) {
    let (mut wire, maximum) = publisher(&lab).await;
    if maximum == 0 {
        return;
    }
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    wire.put(Publish::new(V5, &topic, "0").property(alias(1)), 0)
        .await;
    for qos in 0..3 {
        let named_by_alias = Publish::new(V5, "", [b'1' + qos]).property(alias(1));
        wire.put(named_by_alias, qos).await;
    }
    for payload in ["0", "1", "2", "3"] {
        let message = watcher.payload(payload).await;
        assert_eq!(message.topic, topic);
        watcher.acknowledge(&message).await;
    }
}

async fn every_alias_up_to_the_maximum_is_taken(lab: Lab) {
    let (mut wire, maximum) = publisher(&lab).await;
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&lab.topic("+"), 0).await;
    let topics: Vec<_> = (1..=maximum.min(100)).chain([maximum]).collect();
    for at in topics.iter().filter(|at| **at > 0) {
        let topic = lab.topic(&at.to_string());
        wire.send(
            Publish::new(V5, &topic, "name")
                .property(alias(*at))
                .bytes(),
        )
        .await;
        wire.send(Publish::new(V5, "", "alias").property(alias(*at)).bytes())
            .await;
        wire.alive().await;
        for payload in ["name", "alias"] {
            assert_eq!(watcher.payload(payload).await.topic, topic);
        }
    }
}

async fn an_alias_can_be_given_to_another_topic(lab: Lab) {
    let (mut wire, maximum) = publisher(&lab).await;
    if maximum == 0 {
        return;
    }
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&lab.topic("+"), 0).await;
    for name in ["a", "b"] {
        let topic = lab.topic(name);
        for name in [&*topic, ""] {
            wire.send(Publish::new(V5, name, "x").property(alias(1)).bytes())
                .await;
            assert_eq!(watcher.payload("x").await.topic, topic);
        }
    }
}

async fn an_alias_of_0_is_refused(lab: Lab) {
    for name in [&*lab.topic("t"), ""] {
        let publish = Publish::new(V5, name, "x").property(alias(0));
        lab.refuses(publish.bytes(), &[0x94]).await;
    }
}

async fn an_alias_above_the_maximum_is_refused(lab: Lab) {
    let (_, maximum) = publisher(&lab).await;
    for above in [maximum.saturating_add(1), 65_535] {
        if above > maximum {
            for name in [&*lab.topic("t"), ""] {
                let publish = Publish::new(V5, name, "x").property(alias(above));
                lab.refuses(publish.bytes(), &[0x94]).await;
            }
        }
    }
}

/// Checks an alias that was not set, which is a Protocol Error without a reason code of its own.
async fn an_alias_that_was_not_set_is_refused(lab: Lab) {
    let (_, maximum) = publisher(&lab).await;
    if maximum > 0 {
        for qos in 0..3 {
            let publish = Publish::new(V5, "", "x").property(alias(1)).qos(qos, 1);
            lab.refuses(publish.bytes(), &[0x82]).await;
        }
    }
}

async fn aliases_end_with_their_connection(lab: Lab) {
    let (wire, ack) = lab.connected(&lab.kept("k")).await;
    let maximum = ack.properties.number(property::TOPIC_ALIAS_MAXIMUM);
    if maximum.unwrap_or(0) == 0 {
        return;
    }
    let mut first = wire;
    let named = Publish::new(V5, lab.topic("t"), "x").property(alias(1));
    first.put(named, 0).await;
    first.leave().await;
    let (mut second, ack) = lab.connected(&lab.kept("k")).await;
    assert!(ack.session_present);
    let unnamed = Publish::new(V5, "", "x").property(alias(1));
    second.send(unnamed.bytes()).await;
    second.refused(&[0x82]).await;
}

async fn an_alias_of_a_publisher_is_not_passed_on(lab: Lab) {
    let (mut wire, maximum) = publisher(&lab).await;
    if maximum == 0 {
        return;
    }
    let topic = lab.topic("t");
    let none = property::two(property::TOPIC_ALIAS_MAXIMUM, 0);
    let (mut zero, _) = lab.connected(&lab.hello("zero").property(none)).await;
    let mut absent = lab.client("absent").await;
    for watcher in [&mut zero, &mut absent] {
        watcher.subscribe(&topic, 0).await;
    }
    for name in [&*topic, "", ""] {
        wire.put(Publish::new(V5, name, "x").property(alias(1)), 0)
            .await;
        for watcher in [&mut zero, &mut absent] {
            let message = watcher.payload("x").await;
            assert_eq!(message.topic, topic);
            assert_eq!(message.properties.get(property::TOPIC_ALIAS), None);
        }
    }
}

async fn the_servers_aliases_stay_below_the_clients_maximum(lab: Lab) {
    let two = property::two(property::TOPIC_ALIAS_MAXIMUM, 2);
    let (mut watcher, _) = lab.connected(&lab.hello("watcher").property(two)).await;
    watcher.subscribe(&lab.topic("+"), 0).await;
    let mut wire = lab.client("c").await;
    let mut known = std::collections::BTreeMap::new();
    for round in 0..2 {
        for name in ["a", "b", "c", "d"] {
            let topic = lab.topic(name);
            wire.publish(&topic, name, 0).await;
            let message = watcher.payload(name).await;
            let alias = message.properties.number(property::TOPIC_ALIAS);
            if let Some(alias) = alias {
                assert!((1..=2).contains(&alias), "{alias} in round {round}");
                if !message.topic.is_empty() {
                    known.insert(alias, message.topic.clone());
                }
                assert_eq!(known.get(&alias), Some(&topic));
            } else {
                assert_eq!(message.topic, topic);
            }
        }
    }
}
