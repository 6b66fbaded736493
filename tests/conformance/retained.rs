//! Retained messages (§3.3.1.3) and when a subscription gets them (§3.8.3.1).

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    case::cases,
    lab::Lab,
    packet::{Publish, V5, property},
    wire::Wire,
};

cases! {
    a_retained_message_reaches_later_subscribers: ALL,
        ["3.3.1-5", "3.3.1-6", "3.3.1-8"], ["3.3.1-5", "3.3.1-9"];
    the_last_retained_message_counts: ALL, ["3.3.1-5", "3.3.1-7"], ["3.3.1-5"];
    an_empty_message_removes_the_retained_one: ALL,
        ["3.3.1-10", "3.3.1-11"], ["3.3.1-6", "3.3.1-7"];
    a_message_without_retain_leaves_the_retained_one: ALL, ["3.3.1-12"], ["3.3.1-8"];
    established_subscriptions_get_it_without_retain: ALL, ["3.3.1-9"], ["3.3.1-12"];
    retain_as_published_keeps_the_flag: ONLY_5, [], ["3.3.1-13"];
    a_repeated_subscription_gets_it_again: ALL, ["3.8.4-3"], ["3.3.1-9", "3.8.4-4"];
    retain_handling_1_sends_it_to_new_subscriptions: ONLY_5, [], ["3.3.1-10"];
    retain_handling_2_never_sends_it: ONLY_5, [], ["3.3.1-11"];
    wildcards_find_all_retained_messages: ALL, ["3.3.1-6"], ["3.3.1-9"];
    a_retained_message_is_sent_at_the_lower_qos: ALL, [], ["3.8.4-8"];
    a_retained_message_expires: ONLY_5, [], ["3.3.2-5"];
    a_retained_message_keeps_its_properties: ONLY_5, [], ["3.3.2-17"];
}

/// Connects a publisher, and a client that is to subscribe; also returns a topic for them.
async fn two(lab: &Lab) -> (String, Wire, Wire) {
    let topic = lab.topic("r");
    (topic, lab.client("pub").await, lab.client("sub").await)
}

async fn a_retained_message_reaches_later_subscribers(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    for qos in 0..3 {
        publisher.retain(&topic, "kept", qos).await;
        subscriber.subscribe(&topic, 2).await;
        let message = subscriber.payload("kept").await;
        assert_eq!((message.retain, message.qos), (true, qos));
        subscriber.acknowledge(&message).await;
        subscriber.unsubscribe(&topic).await;
    }
    publisher.retain(&topic, "", 0).await;
}

async fn the_last_retained_message_counts(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    for (payload, qos) in [("one", 1), ("two", 2), ("zero", 0)] {
        publisher.retain(&topic, payload, qos).await;
    }
    subscriber.subscribe(&topic, 2).await;
    // 3.1.1 lets the server decide whether it keeps a message of QoS 0; older ones have to go.
    assert_eq!(subscriber.payload("zero").await.qos, 0);
    subscriber.quiet().await;
    publisher.retain(&topic, "", 0).await;
}

async fn an_empty_message_removes_the_retained_one(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    for qos in 0..3 {
        publisher.retain(&topic, "kept", 1).await;
        watcher.payload("kept").await;
        publisher.retain(&topic, "", qos).await;
        // It is still delivered as a message.
        assert!(!watcher.payload("").await.retain);
        subscriber.subscribe(&topic, 2).await;
        subscriber.quiet().await;
        subscriber.unsubscribe(&topic).await;
    }
}

async fn a_message_without_retain_leaves_the_retained_one(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    publisher.publish(&topic, "passing", 1).await;
    subscriber.subscribe(&topic, 1).await;
    subscriber.quiet().await;
    subscriber.unsubscribe(&topic).await;
    publisher.retain(&topic, "kept", 1).await;
    publisher.publish(&topic, "passing", 1).await;
    publisher.publish(&topic, "", 1).await;
    subscriber.subscribe(&topic, 1).await;
    assert!(subscriber.payload("kept").await.retain);
    publisher.retain(&topic, "", 0).await;
}

async fn established_subscriptions_get_it_without_retain(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    subscriber.subscribe(&topic, 1).await;
    publisher.retain(&topic, "kept", 1).await;
    let message = subscriber.payload("kept").await;
    assert!(!message.retain);
    publisher.retain(&topic, "", 0).await;
}

async fn retain_as_published_keeps_the_flag(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    subscriber.subscribe(&topic, 0x08).await;
    publisher.retain(&topic, "kept", 0).await;
    assert!(subscriber.payload("kept").await.retain);
    publisher.publish(&topic, "passing", 0).await;
    assert!(!subscriber.payload("passing").await.retain);
    publisher.retain(&topic, "", 0).await;
    assert!(subscriber.payload("").await.retain);
}

async fn a_repeated_subscription_gets_it_again(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    publisher.retain(&topic, "kept", 0).await;
    for qos in [0, 1, 1] {
        assert_eq!(subscriber.subscribe(&topic, qos).await, qos);
        assert!(subscriber.payload("kept").await.retain);
    }
    // It counts as one subscription.
    publisher.publish(&topic, "passing", 0).await;
    subscriber.payload("passing").await;
    subscriber.quiet().await;
    publisher.retain(&topic, "", 0).await;
}

async fn retain_handling_1_sends_it_to_new_subscriptions(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    publisher.retain(&topic, "kept", 0).await;
    subscriber.subscribe(&topic, 0x10).await;
    subscriber.payload("kept").await;
    for options in [0x10, 0x11] {
        subscriber.subscribe(&topic, options).await;
        subscriber.quiet().await;
    }
    subscriber.unsubscribe(&topic).await;
    subscriber.subscribe(&topic, 0x10).await;
    subscriber.payload("kept").await;
    publisher.retain(&topic, "", 0).await;
}

async fn retain_handling_2_never_sends_it(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    publisher.retain(&topic, "kept", 0).await;
    for _ in 0..2 {
        subscriber.subscribe(&topic, 0x20).await;
        subscriber.quiet().await;
    }
    publisher.publish(&topic, "passing", 0).await;
    subscriber.payload("passing").await;
    publisher.retain(&topic, "", 0).await;
}

async fn wildcards_find_all_retained_messages(lab: Lab) {
    let (_, mut publisher, mut subscriber) = two(&lab).await;
    let names = ["a", "a/b", "a/b/c", "b/b", "a/"];
    for name in names {
        publisher.retain(&lab.topic(name), name, 0).await;
    }
    for (filter, found) in [
        ("a/#", &["a", "a/b", "a/b/c", "a/"][..]),
        ("+/b", &["a/b", "b/b"]),
        ("a/+", &["a/b", "a/"]),
        ("+", &["a"]),
        ("#", &names),
        ("a/b/c/d", &[]),
    ] {
        subscriber.subscribe(&lab.topic(filter), 0).await;
        let mut payloads = Vec::new();
        for _ in found {
            let message = subscriber.message().await;
            let name = String::from_utf8(message.payload).unwrap();
            assert_eq!(message.topic, lab.topic(&name));
            assert!(message.retain);
            payloads.push(name);
        }
        payloads.sort();
        let mut found = found.to_vec();
        found.sort_unstable();
        assert_eq!(payloads, found, "{filter}");
        subscriber.unsubscribe(&lab.topic(filter)).await;
    }
    for name in names {
        publisher.retain(&lab.topic(name), "", 0).await;
    }
}

async fn a_retained_message_is_sent_at_the_lower_qos(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    for published in 0..3 {
        publisher.retain(&topic, "kept", published).await;
        for wanted in 0..3 {
            subscriber.subscribe(&topic, wanted).await;
            let message = subscriber.payload("kept").await;
            assert_eq!(message.qos, published.min(wanted));
            subscriber.acknowledge(&message).await;
            subscriber.unsubscribe(&topic).await;
        }
    }
    publisher.retain(&topic, "", 0).await;
}

async fn a_retained_message_expires(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    let brief = property::four(property::MESSAGE_EXPIRY, 4);
    let publish = Publish::new(V5, &topic, "brief").property(brief).retain();
    publisher.put(publish, 1).await;
    subscriber.subscribe(&topic, 0).await;
    let message = subscriber.payload("brief").await;
    let left = message.properties.number(property::MESSAGE_EXPIRY).unwrap();
    assert!((1..=4).contains(&left), "{left}");
    subscriber.unsubscribe(&topic).await;
    sleep(Duration::from_millis(5_100)).await;
    subscriber.subscribe(&topic, 0).await;
    subscriber.quiet().await;
}

async fn a_retained_message_keeps_its_properties(lab: Lab) {
    let (topic, mut publisher, mut subscriber) = two(&lab).await;
    let pairs = [("b", "1"), ("a", "2"), ("b", "3")];
    let properties = pairs.map(|(n, v)| property::pair(n, v)).concat();
    let publish = Publish::new(V5, &topic, "kept").property(properties);
    publisher.put(publish.retain(), 1).await;
    subscriber.subscribe(&topic, 0).await;
    let message = subscriber.payload("kept").await;
    let expected = pairs.map(|(n, v)| (n.to_owned(), v.to_owned()));
    assert_eq!(message.properties.user(), expected);
    publisher.retain(&topic, "", 0).await;
}
