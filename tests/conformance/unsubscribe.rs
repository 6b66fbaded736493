//! UNSUBSCRIBE and UNSUBACK (§3.10, §3.11).

use crate::{
    case::cases,
    lab::Lab,
    packet::{PUBREC, PUBREL, V5, ack, packet, unsubscribe},
};

cases! {
    unsuback_has_the_identifier: ALL,
        ["2.3.1-7", "3.10.4-4"], ["2.2.1-6", "3.10.4-4", "3.10.4-5"];
    unsuback_comes_where_nothing_was_subscribed: ALL, ["3.10.4-5"], ["3.10.4-5"];
    unsuback_has_a_code_for_each_filter: ONLY_5, [],
        ["3.10.4-6", "3.11.3-1", "3.11.3-2"];
    several_filters_get_one_answer: ALL, ["3.10.4-6"], ["3.10.4-6"];
    an_unsubscribe_without_filters_is_refused: ALL, ["3.10.3-2"], ["3.10.3-2"];
    no_message_comes_after_unsubscribe: ALL, ["3.10.4-2"], ["3.10.4-2"];
    filters_are_compared_letter_by_letter: ALL, ["3.10.4-1"], ["3.10.4-1"];
    what_was_sent_already_is_completed: ALL, ["3.10.4-3"], ["3.10.4-3"];
    an_invalid_filter_to_unsubscribe_is_refused: ALL, ["4.7.1-2", "4.7.1-3"], ["4.7.1-1", "4.7.1-2"];
}

async fn unsuback_has_the_identifier(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    for id in [1, 256, 65_535] {
        wire.subscribe(&topic, 0).await;
        wire.send(unsubscribe(lab.version, id, &[&topic])).await;
        let answer = wire.unsuback().await;
        let codes: &[u8] = if lab.version == V5 { &[0] } else { &[] };
        assert_eq!((answer.id, &*answer.codes), (id, codes));
    }
}

async fn unsuback_comes_where_nothing_was_subscribed(lab: Lab) {
    let mut wire = lab.client("c").await;
    let filters = [&*lab.topic("a"), "$share/g/none"];
    wire.send(unsubscribe(lab.version, 7, &filters)).await;
    let answer = wire.unsuback().await;
    assert_eq!(answer.id, 7);
    if lab.version == V5 {
        assert_eq!(answer.codes, [0x11, 0x11]);
    }
}

async fn unsuback_has_a_code_for_each_filter(lab: Lab) {
    let (a, b, c) = (lab.topic("a"), lab.topic("b/#"), lab.topic("c"));
    let mut wire = lab.client("c").await;
    wire.subscribe(&a, 0).await;
    wire.subscribe(&b, 0).await;
    wire.send(unsubscribe(V5, 7, &[&a, &c, &b, &a])).await;
    assert_eq!(wire.unsuback().await.codes, [0, 0x11, 0, 0x11]);
}

async fn several_filters_get_one_answer(lab: Lab) {
    let (a, b) = (lab.topic("a"), lab.topic("b"));
    let mut wire = lab.client("c").await;
    wire.subscribe(&a, 0).await;
    wire.subscribe(&b, 0).await;
    wire.send(unsubscribe(lab.version, 7, &[&a, &b])).await;
    assert_eq!(wire.unsuback().await.id, 7);
    let mut other = lab.client("other").await;
    other.publish(&a, "x", 0).await;
    other.publish(&b, "x", 0).await;
    wire.quiet().await;
}

async fn an_unsubscribe_without_filters_is_refused(lab: Lab) {
    lab.refuses(unsubscribe(lab.version, 1, &[]), &[0x82, 0x81])
        .await;
    lab.refuses(packet(0xA2, []), &[0x81, 0x82]).await;
}

async fn no_message_comes_after_unsubscribe(lab: Lab) {
    let topic = lab.topic("t");
    let mut other = lab.client("other").await;
    for qos in 0..3 {
        let mut wire = lab.client("c").await;
        wire.subscribe(&topic, qos).await;
        wire.unsubscribe(&topic).await;
        other.publish(&topic, "x", qos).await;
        wire.quiet().await;
        wire.leave().await;
    }
}

async fn filters_are_compared_letter_by_letter(lab: Lab) {
    let mut wire = lab.client("c").await;
    wire.subscribe(&lab.topic("a/+"), 0).await;
    let mut other = lab.client("other").await;
    // Each matches, or is matched by, the filter that is subscribed to.
    for filter in ["a/b", "a/#", "+/+", "A/+", "a/+/", "#"] {
        wire.unsubscribe(&lab.topic(filter)).await;
        other.publish(&lab.topic("a/b"), "x", 0).await;
        wire.payload("x").await;
    }
    wire.unsubscribe(&lab.topic("a/+")).await;
    other.publish(&lab.topic("a/b"), "x", 0).await;
    wire.quiet().await;
}

async fn what_was_sent_already_is_completed(lab: Lab) {
    let topic = lab.topic("t");
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    wire.subscribe(&topic, 2).await;
    let mut other = lab.client("other").await;
    for qos in [1, 2] {
        other.publish(&topic, [qos], qos).await;
    }
    let at_1 = wire.payload([1]).await;
    let at_2 = wire.payload([2]).await;
    wire.unsubscribe(&topic).await;
    wire.send(ack(PUBREC, at_2.id)).await;
    assert_eq!(wire.ack(PUBREL).await.id, at_2.id);
    wire.cut();
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    let again = wire.payload([1]).await;
    assert_eq!((again.id, again.dup), (at_1.id, true));
    assert_eq!(wire.ack(PUBREL).await.id, at_2.id);
}

async fn an_invalid_filter_to_unsubscribe_is_refused(lab: Lab) {
    for filter in ["", "a#", "#/a", "a/#/b", "a+", "+a", "a/b+/c", "##", "++"] {
        lab.refuses(unsubscribe(lab.version, 1, &[filter]), &[0x82, 0x81, 0x8F])
            .await;
    }
}
