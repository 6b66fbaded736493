//! Shared subscriptions (§4.8.2), MQTT 5.0.

use crate::{
    case::cases,
    lab::Lab,
    packet::{PUBACK, PUBCOMP, PUBREC, PUBREL, V5, ack, ack_with, subscribe, unsubscribe},
    wire::Wire,
};

cases! {
    each_message_goes_to_one_of_a_group: ONLY_5, [], ["4.8.2-1"];
    each_group_and_each_other_subscriber_gets_a_copy: ONLY_5, [], [];
    the_granted_qos_of_each_member_counts: ONLY_5, [], ["4.8.2-3"];
    filters_of_shared_subscriptions_have_a_name_and_a_filter: ONLY_5, [],
        ["4.8.2-1", "4.8.2-2"];
    mqtt_3_knows_no_shared_subscriptions: OLD, [], [];
    no_local_on_a_shared_subscription_is_refused: ONLY_5, [], ["3.8.3-4"];
    a_shared_subscription_gets_no_retained_messages: ONLY_5, [], [];
    a_shared_subscription_can_be_ended: ONLY_5, [], ["3.10.4-1"];
    a_shared_delivery_at_qos_2_waits_for_its_client: ONLY_5, [], ["4.8.2-4"];
    a_shared_delivery_at_qos_2_ends_with_its_session: ONLY_5, [], ["4.8.2-5"];
    a_refused_shared_message_goes_to_nobody_else: ONLY_5, [], ["4.8.2-6"];
    a_leading_wildcard_in_a_group_does_not_match_dollar: ONLY_5, [], ["4.7.2-1"];
}

async fn member(lab: &Lab, who: &str, filter: &str, qos: u8) -> Wire {
    let mut wire = lab.client(who).await;
    assert_eq!(wire.subscribe(filter, qos).await, qos);
    wire
}

async fn each_message_goes_to_one_of_a_group(lab: Lab) {
    let topic = lab.topic("t");
    let filter = format!("$share/g/{}", lab.topic("+"));
    let mut one = member(&lab, "one", &filter, 1).await;
    let mut two = member(&lab, "two", &filter, 1).await;
    let mut publisher = lab.client("pub").await;
    let end = lab.topic("end/here");
    for wire in [&mut one, &mut two] {
        wire.subscribe(&end, 1).await;
    }
    for number in 0..20 {
        publisher.publish(&topic, [number], 1).await;
    }
    publisher.publish(&end, "", 1).await;
    let mut numbers: Vec<u8> = Vec::new();
    for wire in [&mut one, &mut two] {
        wire.until(&end, |message| numbers.extend(&message.payload))
            .await;
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..20));
}

async fn each_group_and_each_other_subscriber_gets_a_copy(lab: Lab) {
    let topic = lab.topic("t");
    let mut members = vec![
        member(&lab, "g", &format!("$share/g/{topic}"), 0).await,
        member(&lab, "h", &format!("$share/h/{topic}"), 0).await,
        member(&lab, "wild", &format!("$share/g/{}", lab.topic("+")), 0).await,
        member(&lab, "plain", &topic, 0).await,
    ];
    lab.client("pub").await.publish(&topic, "x", 0).await;
    for member in &mut members {
        member.payload("x").await;
        member.quiet().await;
    }
}

async fn the_granted_qos_of_each_member_counts(lab: Lab) {
    let topic = lab.topic("t");
    let mut publisher = lab.client("pub").await;
    for qos in 0..3 {
        let filter = format!("$share/g{qos}/{topic}");
        let mut wire = member(&lab, "c", &filter, qos).await;
        publisher.publish(&topic, "x", 2).await;
        let message = wire.payload("x").await;
        assert_eq!((message.qos, message.topic), (qos, topic.clone()));
        wire.unsubscribe(&filter).await;
    }
}

async fn filters_of_shared_subscriptions_have_a_name_and_a_filter(lab: Lab) {
    for filter in [
        "$share/",
        "$share/g",
        "$share/g/",
        "$share//",
        "$share//t",
        "$share/+/t",
        "$share/#/t",
        "$share/g+/t",
        "$share/g#/t",
        "$share/#",
        "$share/g/t#",
        "$share/g/#/t",
        "$share/g/+t",
    ] {
        lab.refuses(subscribe(V5, 1, &[(filter, 0)]), &[0x82, 0x81, 0x8F])
            .await;
        lab.refuses(unsubscribe(V5, 1, &[filter]), &[0x82, 0x81, 0x8F])
            .await;
    }
    let mut wire = lab.client("c").await;
    // The first does not begin with `$share/`, and is a filter like any other.
    for filter in [
        "$share",
        "$share/g/$x/#",
        "$share/g h/$x/+",
        "$share/ü/$x//",
        "$share/$/$x",
    ] {
        assert_eq!(wire.subscribe(filter, 0).await, 0, "{filter}");
        wire.unsubscribe(filter).await;
    }
}

/// Checks that a filter that begins with `$share/` is just a filter before 5.0, and no reason to close.
async fn mqtt_3_knows_no_shared_subscriptions(lab: Lab) {
    let mut wire = lab.client("c").await;
    for filter in [
        "$share",
        "$share/",
        "$share/g",
        "$share//t",
        "$share/g/",
        "$share/+/t",
    ] {
        assert_eq!(wire.subscribe(filter, 0).await, 0, "{filter}");
        wire.unsubscribe(filter).await;
    }
    wire.alive().await;
    // It still has to be a valid filter.
    for filter in ["$share/#/t", "$share/g+/t", "$share/g/t#"] {
        lab.refuses(subscribe(lab.version, 1, &[(filter, 0)]), &[])
            .await;
    }
}

async fn no_local_on_a_shared_subscription_is_refused(lab: Lab) {
    let filter = format!("$share/g/{}", lab.topic("t"));
    for options in [0x04, 0x05, 0x2E] {
        lab.refuses(subscribe(V5, 1, &[(&filter, options)]), &[0x82])
            .await;
    }
}

async fn a_shared_subscription_gets_no_retained_messages(lab: Lab) {
    let topic = lab.topic("t");
    let mut publisher = lab.client("pub").await;
    publisher.retain(&topic, "kept", 1).await;
    let mut wire = member(&lab, "c", &format!("$share/g/{topic}"), 1).await;
    wire.quiet().await;
    publisher.retain(&topic, "", 1).await;
}

async fn a_shared_subscription_can_be_ended(lab: Lab) {
    let topic = lab.topic("t");
    let filter = format!("$share/g/{topic}");
    let mut one = member(&lab, "one", &filter, 0).await;
    let mut two = member(&lab, "two", &filter, 0).await;
    // The filter without its share, or with another share, is another subscription.
    one.unsubscribe(&topic).await;
    one.unsubscribe(&format!("$share/h/{topic}")).await;
    one.unsubscribe(&filter).await;
    let mut publisher = lab.client("pub").await;
    for number in 0..4 {
        publisher.publish(&topic, [number], 0).await;
        two.payload([number]).await;
    }
    one.quiet().await;
}

async fn a_shared_delivery_at_qos_2_waits_for_its_client(lab: Lab) {
    let topic = lab.topic("t");
    let filter = format!("$share/g/{topic}");
    let (mut one, _) = lab.connected(&lab.kept("one")).await;
    one.subscribe(&filter, 2).await;
    lab.client("pub").await.publish(&topic, "x", 2).await;
    let message = one.payload("x").await;
    let mut two = member(&lab, "two", &filter, 2).await;
    one.cut();
    let (mut one, _) = lab.connected(&lab.kept("one")).await;
    let again = one.payload("x").await;
    assert_eq!((again.id, again.dup), (message.id, true));
    one.send(ack(PUBREC, message.id)).await;
    one.ack(PUBREL).await;
    one.send(ack(PUBCOMP, message.id)).await;
    two.quiet().await;
}

async fn a_shared_delivery_at_qos_2_ends_with_its_session(lab: Lab) {
    let topic = lab.topic("t");
    let filter = format!("$share/g/{topic}");
    let (mut one, _) = lab.connected(&lab.kept("one")).await;
    one.subscribe(&filter, 2).await;
    lab.client("pub").await.publish(&topic, "x", 2).await;
    one.payload("x").await;
    let mut two = member(&lab, "two", &filter, 2).await;
    one.cut();
    // A clean start ends the session.
    let mut one = lab.client("one").await;
    one.quiet().await;
    two.quiet().await;
}

async fn a_refused_shared_message_goes_to_nobody_else(lab: Lab) {
    let topic = lab.topic("t");
    let filter = format!("$share/g/{topic}");
    for (qos, first) in [(1, PUBACK), (2, PUBREC)] {
        let mut one = member(&lab, "one", &filter, qos).await;
        lab.client("pub").await.publish(&topic, "x", qos).await;
        let message = one.payload("x").await;
        let mut two = member(&lab, "two", &filter, qos).await;
        one.send(ack_with(first, message.id, 0x83, &[])).await;
        one.alive().await;
        two.quiet().await;
        one.quiet().await;
        one.leave().await;
        two.leave().await;
    }
}

async fn a_leading_wildcard_in_a_group_does_not_match_dollar(lab: Lab) {
    let name = lab.topic(&lab.id("x"));
    let (_, rest) = name.split_once('/').unwrap();
    let group = lab.id("g");
    let mut wire = member(&lab, "c", &format!("$share/{group}/+/{rest}"), 0).await;
    let mut publisher = lab.client("pub").await;
    publisher.publish(&format!("${name}"), "dollar", 0).await;
    publisher.publish(&name, "fence", 0).await;
    wire.until(&name, |message| assert!(!message.topic.starts_with('$')))
        .await;
}
