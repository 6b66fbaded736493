//! Wills (§3.1.2.5 to §3.1.2.7, §3.1.3.2): when they are published, and how.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::{
    case::cases,
    lab::Lab,
    packet::{DISCONNECT, V5, V31, Will, disconnect, property},
    wire::Wire,
};

cases! {
    a_will_is_published_when_the_connection_is_lost: ALL,
        ["3.1.2-8", "3.1.2-10"], ["3.1.2-7", "3.1.2-8", "3.1.2-10"];
    a_will_is_published_after_a_protocol_error: ALL, ["3.1.2-8"], ["3.1.2-8"];
    a_will_is_published_when_the_session_is_taken_over: ALL, ["3.1.2-8"], ["3.1.2-8"];
    a_goodbye_discards_the_will: ALL,
        ["3.1.2-10", "3.14.4-3"], ["3.1.2-8", "3.1.2-10", "3.14.4-3"];
    without_a_will_nothing_is_published: ALL, ["3.1.2-12"], [];
    a_will_is_published_at_its_qos: ALL, ["3.1.2-14"], ["3.1.2-12"];
    a_will_that_is_not_to_be_retained_is_not: ALL, ["3.1.2-16"], ["3.1.2-14"];
    a_will_that_is_to_be_retained_is: ALL, ["3.1.2-17"], ["3.1.2-15"];
    an_empty_will_is_published: ALL, [], [];
    any_other_disconnect_publishes_the_will: ONLY_5, [], ["3.1.2-8"];
    an_invalid_goodbye_publishes_the_will: ALL, [], [];
    a_delayed_will_waits: ONLY_5, [], ["3.1.2-8"];
    a_delayed_will_is_not_published_for_who_comes_back: ONLY_5, [], ["3.1.3-9", "3.1.2-8"];
    a_delayed_will_is_due_when_the_session_ends: ONLY_5, [], ["3.1.2-8"];
    a_clean_start_publishes_a_delayed_will: ONLY_5, [], ["3.1.2-8"];
    a_will_has_its_properties: ONLY_5, [], ["3.1.3-10"];
}

/// Connects a subscriber of the will, and returns it with the will's topic.
async fn watcher(lab: &Lab) -> (String, Wire) {
    let topic = lab.topic("will");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 2).await;
    (topic, watcher)
}

async fn a_will_is_published_when_the_connection_is_lost(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.hello("c").will(Will::new(&topic, "gone"));
    let (wire, _) = lab.connected(&hello).await;
    watcher.quiet().await;
    wire.cut();
    let message = watcher.payload("gone").await;
    assert_eq!(
        (message.qos, message.retain, message.dup),
        (0, false, false)
    );
    // Once.
    watcher.quiet().await;
    // The will belonged to that connection: the next has none.
    lab.client("c").await.cut();
    lab.client("c").await.leave().await;
    watcher.quiet().await;
}

async fn a_will_is_published_after_a_protocol_error(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.hello("c").will(Will::new(&topic, "gone"));
    let (mut wire, _) = lab.connected(&hello).await;
    wire.send(hello.bytes()).await;
    wire.refused(&[0x82]).await;
    watcher.payload("gone").await;
}

async fn a_will_is_published_when_the_session_is_taken_over(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.hello("c").will(Will::new(&topic, "gone"));
    let (mut old, _) = lab.connected(&hello).await;
    let mut new = lab.client("c").await;
    old.refused(&[0x8E]).await;
    watcher.payload("gone").await;
    new.alive().await;
}

async fn a_goodbye_discards_the_will(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.hello("c").will(Will::new(&topic, "gone"));
    let mut goodbyes = vec![DISCONNECT.to_vec()];
    if lab.version == V5 {
        goodbyes.push(vec![0xE0, 1, 0]);
        goodbyes.push(disconnect(0, &[]));
    }
    for goodbye in goodbyes {
        let (mut wire, _) = lab.connected(&hello).await;
        wire.send(goodbye).await;
        wire.closed().await;
        watcher.quiet().await;
    }
}

async fn without_a_will_nothing_is_published(lab: Lab) {
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&lab.topic("#"), 2).await;
    lab.client("c").await.cut();
    // The broker has dealt with it by the time that it accepts the successor.
    lab.client("c").await.leave().await;
    watcher.quiet().await;
}

async fn a_will_is_published_at_its_qos(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    for qos in 0..3 {
        let mut will = Will::new(&topic, "gone");
        will.qos = qos;
        lab.connected(&lab.hello("c").will(will)).await.0.cut();
        let message = watcher.payload("gone").await;
        assert_eq!(message.qos, qos);
        watcher.acknowledge(&message).await;
    }
}

async fn a_will_that_is_not_to_be_retained_is_not(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.hello("c").will(Will::new(&topic, "gone"));
    lab.connected(&hello).await.0.cut();
    assert!(!watcher.payload("gone").await.retain);
    let mut late = lab.client("late").await;
    late.subscribe(&topic, 0).await;
    late.quiet().await;
}

async fn a_will_that_is_to_be_retained_is(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let mut will = Will::new(&topic, "gone");
    will.retain = true;
    will.qos = 1;
    lab.connected(&lab.hello("c").will(will)).await.0.cut();
    let message = watcher.payload("gone").await;
    assert!(
        !message.retain,
        "it is new to a subscription that was there"
    );
    watcher.acknowledge(&message).await;
    let mut late = lab.client("late").await;
    late.subscribe(&topic, 2).await;
    let message = late.payload("gone").await;
    assert_eq!((message.retain, message.qos), (true, 1));
    lab.forget(&topic).await;
}

async fn an_empty_will_is_published(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.hello("c").will(Will::new(&topic, ""));
    lab.connected(&hello).await.0.cut();
    assert_eq!(watcher.payload("").await.topic, topic);
}

/// Checks that only a normal disconnection, 0x00, discards the will (§3.14.4).
async fn any_other_disconnect_publishes_the_will(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.hello("c").will(Will::new(&topic, "gone"));
    for code in [
        0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x95, 0x97, 0x98, 0x99,
    ] {
        let (mut wire, _) = lab.connected(&hello).await;
        wire.send(disconnect(code, &[])).await;
        wire.closed().await;
        watcher.payload("gone").await;
    }
}

/// Checks that a malformed DISCONNECT is no normal disconnection.
async fn an_invalid_goodbye_publishes_the_will(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.hello("c").will(Will::new(&topic, "gone"));
    let flagged: &[u8] = if lab.version > V31 {
        &[0xE1, 0]
    } else {
        &[0xE0, 1, 0]
    };
    let (mut wire, _) = lab.connected(&hello).await;
    wire.send(flagged).await;
    wire.refused(&[0x81]).await;
    watcher.payload("gone").await;
    if lab.version == V5 {
        // A session that was to end with the connection cannot be kept after all (§3.14.2.2.2).
        let (mut wire, _) = lab.connected(&hello).await;
        let expiry = property::four(property::SESSION_EXPIRY, 5);
        wire.send(disconnect(0, &expiry)).await;
        wire.refused(&[0x82]).await;
        watcher.payload("gone").await;
    }
}

async fn a_delayed_will_waits(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.kept("c").will(Will::new(&topic, "gone").delayed(2));
    let (wire, _) = lab.connected(&hello).await;
    let began = Instant::now();
    wire.cut();
    watcher.payload("gone").await;
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(1_900), "{waited:?}");
}

async fn a_delayed_will_is_not_published_for_who_comes_back(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.kept("c").will(Will::new(&topic, "gone").delayed(4));
    lab.connected(&hello).await.0.cut();
    let (wire, ack) = lab.connected(&hello).await;
    assert!(ack.session_present);
    wire.leave().await;
    sleep(Duration::from_secs(5)).await;
    watcher.quiet().await;
}

async fn a_delayed_will_is_due_when_the_session_ends(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    // With the connection, since nothing else was asked for.
    let hello = lab.hello("c").will(Will::new(&topic, "gone").delayed(600));
    lab.connected(&hello).await.0.cut();
    watcher.payload("gone").await;
    // And after a second.
    let hello = hello.property(property::four(property::SESSION_EXPIRY, 1));
    lab.connected(&hello).await.0.cut();
    watcher.payload("gone").await;
}

async fn a_clean_start_publishes_a_delayed_will(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let hello = lab.kept("c").will(Will::new(&topic, "gone").delayed(600));
    lab.connected(&hello).await.0.cut();
    let mut wire = lab.client("c").await;
    watcher.payload("gone").await;
    wire.alive().await;
}

async fn a_will_has_its_properties(lab: Lab) {
    let (topic, mut watcher) = watcher(&lab).await;
    let mut will = Will::new(&topic, "gone");
    let pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", "")];
    will.properties = [
        property::byte(property::PAYLOAD_FORMAT, 1),
        property::four(property::MESSAGE_EXPIRY, 600),
        property::string(property::CONTENT_TYPE, "text/plain"),
        property::string(property::RESPONSE_TOPIC, "answer/here"),
        property::string(property::CORRELATION_DATA, [0, 0xFF]),
        pairs
            .map(|(name, value)| property::pair(name, value))
            .concat(),
    ]
    .concat();
    lab.connected(&lab.hello("c").will(will)).await.0.cut();
    let properties = watcher.payload("gone").await.properties;
    assert_eq!(properties.get(property::PAYLOAD_FORMAT), Some(&[1][..]));
    let left = properties.number(property::MESSAGE_EXPIRY).unwrap();
    assert!((580..=600).contains(&left), "{left}");
    let get = |id| properties.get(id).unwrap();
    assert_eq!(get(property::CONTENT_TYPE), b"text/plain");
    assert_eq!(get(property::RESPONSE_TOPIC), b"answer/here");
    assert_eq!(get(property::CORRELATION_DATA), [0, 0xFF]);
    let expected = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(properties.user(), expected);
}
