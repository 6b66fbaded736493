//! Sessions (§3.1.2.4, §4.1): their content, their life and their owner.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::{
    case::cases,
    lab::Lab,
    packet::{Connect, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V311, ack, disconnect, property},
};

cases! {
    a_kept_session_goes_on: ALL,
        ["3.1.2-4", "3.1.3-2", "4.1.0-1", "4.5.0-1", "3.1.4-3"],
        ["3.1.2-5", "3.1.3-2", "3.1.2-23", "4.5.0-1", "3.1.4-4"];
    a_session_that_is_not_there_is_made: ALL, ["3.1.2-5"], ["3.1.2-6"];
    a_clean_start_forgets_the_session: ALL, ["3.1.2-6"], ["3.1.2-4", "3.1.4-4"];
    a_clean_session_ends_with_its_connection: ALL, ["3.1.2-6"], ["4.1.0-2"];
    retained_messages_outlive_sessions: ALL, ["3.1.2-7"], [];
    the_same_client_identifier_takes_the_session_over: ALL,
        ["3.1.4-2"], ["3.1.4-3", "3.14.2-1"];
    a_session_lasts_as_long_as_its_connection: ALL, ["4.1.0-2"], ["4.1.0-1"];
    a_session_ends_when_its_expiry_has_passed: ONLY_5, [], ["4.1.0-2"];
    a_session_can_be_ended_by_disconnect: ONLY_5, [], ["4.1.0-2"];
    a_session_can_be_made_to_last_by_disconnect: ONLY_5, [], ["3.1.2-23"];
    an_unfinished_exchange_of_qos_2_goes_on: ALL, ["3.1.2-4", "4.1.0-1"], ["3.1.2-5", "3.1.2-23"];
    subscriptions_belong_to_their_client_identifier: ALL, ["3.1.3-2"], ["3.1.3-2"];
}

async fn a_kept_session_goes_on(lab: Lab) {
    let topic = lab.topic("t");
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    wire.subscribe(&topic, 2).await;
    wire.leave().await;
    let mut other = lab.client("other").await;
    for qos in [1, 2] {
        other.publish(&topic, [b'0' + qos], qos).await;
    }
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    for qos in [1, 2] {
        let message = wire.payload([b'0' + qos]).await;
        assert_eq!((message.qos, message.dup), (qos, false));
        wire.acknowledge(&message).await;
    }
    // The subscription is still there.
    other.publish(&topic, "now", 0).await;
    wire.payload("now").await;
}

async fn a_session_that_is_not_there_is_made(lab: Lab) {
    let topic = lab.topic("t");
    let (mut wire, ack) = lab.connected(&lab.kept("new")).await;
    assert!(!ack.session_present);
    wire.subscribe(&topic, 1).await;
    wire.leave().await;
    lab.client("other").await.publish(&topic, "x", 1).await;
    let (mut wire, _) = lab.connected(&lab.kept("new")).await;
    wire.payload("x").await;
}

async fn a_clean_start_forgets_the_session(lab: Lab) {
    let topic = lab.topic("t");
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    wire.subscribe(&topic, 2).await;
    wire.leave().await;
    let mut other = lab.client("other").await;
    other.publish(&topic, "missed", 1).await;
    let mut wire = lab.client("c").await;
    wire.quiet().await;
    other.publish(&topic, "not subscribed to", 1).await;
    wire.quiet().await;
    wire.leave().await;
    // Nor does a client without a clean start find anything of it.
    let (mut wire, ack) = lab.connected(&lab.kept("c")).await;
    assert!(!ack.session_present);
    other.publish(&topic, "not subscribed to", 1).await;
    wire.quiet().await;
}

async fn a_clean_session_ends_with_its_connection(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    wire.subscribe(&topic, 1).await;
    wire.leave().await;
    let mut other = lab.client("other").await;
    other.publish(&topic, "missed", 1).await;
    let (mut wire, ack) = lab.connected(&lab.kept("c")).await;
    assert!(!ack.session_present);
    other.publish(&topic, "not subscribed to", 1).await;
    wire.quiet().await;
}

async fn retained_messages_outlive_sessions(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    wire.retain(&topic, "kept", 1).await;
    wire.leave().await;
    lab.client("c").await.leave().await;
    let mut other = lab.client("other").await;
    other.subscribe(&topic, 0).await;
    assert!(other.payload("kept").await.retain);
    lab.forget(&topic).await;
}

async fn the_same_client_identifier_takes_the_session_over(lab: Lab) {
    let mut old = lab.client("c").await;
    let mut bystander = lab.client("other").await;
    let mut new = lab.client("c").await;
    old.refused(&[0x8E]).await;
    new.alive().await;
    bystander.alive().await;
    // A kept session moves on with its messages in flight.
    let topic = lab.topic("t");
    let (mut old, _) = lab.connected(&lab.kept("k")).await;
    old.subscribe(&topic, 1).await;
    bystander.publish(&topic, "x", 1).await;
    let first = old.payload("x").await;
    let (mut new, ack) = lab.connected(&lab.kept("k")).await;
    old.refused(&[0x8E]).await;
    if lab.version >= V311 {
        assert!(ack.session_present);
    }
    let again = new.payload("x").await;
    assert_eq!((again.id, again.dup), (first.id, true));
}

async fn a_session_lasts_as_long_as_its_connection(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    wire.subscribe(&topic, 1).await;
    let mut other = lab.client("other").await;
    let began = Instant::now();
    // An expiry of 0 counts from the end of the connection, not from its beginning.
    while began.elapsed() < Duration::from_millis(1_500) {
        other.publish(&topic, "x", 1).await;
        let message = wire.payload("x").await;
        wire.acknowledge(&message).await;
        sleep(Duration::from_millis(100)).await;
    }
}

async fn a_session_ends_when_its_expiry_has_passed(lab: Lab) {
    let topic = lab.topic("t");
    let short = || {
        let expiry = property::four(property::SESSION_EXPIRY, 4);
        Connect {
            clean: false,
            ..lab.hello("c").property(expiry)
        }
    };
    let (mut wire, _) = lab.connected(&short()).await;
    wire.subscribe(&topic, 1).await;
    wire.leave().await;
    // Well before.
    let (mut wire, ack) = lab.connected(&short()).await;
    assert!(ack.session_present);
    wire.alive().await;
    wire.leave().await;
    sleep(Duration::from_secs(6)).await;
    let (mut wire, ack) = lab.connected(&short()).await;
    assert!(!ack.session_present);
    lab.client("other").await.publish(&topic, "x", 1).await;
    wire.quiet().await;
}

async fn a_session_can_be_ended_by_disconnect(lab: Lab) {
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    wire.send(disconnect(0, &property::four(property::SESSION_EXPIRY, 0)))
        .await;
    wire.closed().await;
    let (_, ack) = lab.connected(&lab.kept("c")).await;
    assert!(!ack.session_present);
}

async fn a_session_can_be_made_to_last_by_disconnect(lab: Lab) {
    let expiry = property::four(property::SESSION_EXPIRY, 1);
    let brief = Connect {
        clean: false,
        ..lab.hello("c").property(expiry)
    };
    let (mut wire, _) = lab.connected(&brief).await;
    let longer = property::four(property::SESSION_EXPIRY, 600);
    wire.send(disconnect(0, &longer)).await;
    wire.closed().await;
    sleep(Duration::from_secs(3)).await;
    let (_, ack) = lab.connected(&brief).await;
    assert!(ack.session_present);
}

/// Checks unfinished exchanges in both directions.
async fn an_unfinished_exchange_of_qos_2_goes_on(lab: Lab) {
    let topic = lab.topic("t");
    let mut other = lab.client("other").await;
    other.subscribe(&topic, 2).await;
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    let publish = Publish::new(lab.version, &topic, "x").qos(2, 7);
    wire.send(publish.bytes()).await;
    assert_eq!(wire.ack(PUBREC).await.id, 7);
    wire.cut();
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    // The message is known already, so it is answered and not delivered again.
    wire.send(publish.dup().bytes()).await;
    assert_eq!(wire.ack(PUBREC).await.id, 7);
    wire.send(ack(PUBREL, 7)).await;
    wire.ack(PUBCOMP).await;
    let delivered = other.payload("x").await;
    other.acknowledge(&delivered).await;
    other.quiet().await;
    // The other way round: PUBREC has come, PUBCOMP has not.
    wire.subscribe(&topic, 2).await;
    other.unsubscribe(&topic).await;
    other.publish(&topic, "y", 2).await;
    let message = wire.payload("y").await;
    wire.send(ack(PUBREC, message.id)).await;
    assert_eq!(wire.ack(PUBREL).await.id, message.id);
    wire.cut();
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    assert_eq!(wire.ack(PUBREL).await.id, message.id);
    wire.send(ack(PUBCOMP, message.id)).await;
    wire.quiet().await;
}

async fn subscriptions_belong_to_their_client_identifier(lab: Lab) {
    let topic = lab.topic("t");
    let (mut one, _) = lab.connected(&lab.kept("one")).await;
    one.subscribe(&topic, 1).await;
    one.leave().await;
    let (mut two, _) = lab.connected(&lab.kept("two")).await;
    let mut other = lab.client("other").await;
    other.publish(&topic, "x", 1).await;
    two.quiet().await;
    let (mut one, _) = lab.connected(&lab.kept("one")).await;
    let message = one.payload("x").await;
    one.send(ack(PUBACK, message.id)).await;
    one.quiet().await;
}
