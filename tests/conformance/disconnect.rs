//! DISCONNECT (§3.14).

use crate::{
    case::cases,
    lab::Lab,
    packet::{DISCONNECT, Publish, Will, disconnect, property},
};

cases! {
    a_goodbye_closes_the_connection: ALL, ["3.14.4-1"], [];
    after_its_disconnect_the_server_sends_nothing_and_closes: ONLY_5, [],
        ["3.14.4-1", "3.14.4-2", "3.14.2-1", "3.14.2-2", "4.13.2-1"];
    a_disconnect_without_a_reason_is_a_normal_one: ONLY_5, [], [];
    reasons_that_disconnect_does_not_have_are_refused: ONLY_5, [], ["4.13.1-1"];
    an_expiry_for_a_session_without_one_is_refused: ONLY_5, [], ["4.13.1-1"];
    messages_before_a_goodbye_count: ALL, [], [];
}

async fn a_goodbye_closes_the_connection(lab: Lab) {
    let mut other = lab.client("other").await;
    let mut wire = lab.client("c").await;
    wire.send(DISCONNECT).await;
    wire.closed().await;
    other.alive().await;
}

async fn after_its_disconnect_the_server_sends_nothing_and_closes(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    wire.subscribe(&topic, 0).await;
    let mut other = lab.client("other").await;
    // QoS 3 first, then packets that would be answered; and messages for the client meanwhile.
    let wrong = [0x36, 0x05, 0, 1, b'a', 0, 1];
    wire.send([&wrong[..], &[0xC0, 0]].concat()).await;
    for _ in 0..3 {
        other.publish(&topic, "x", 0).await;
    }
    loop {
        let packet = wire.next().await.expect("a DISCONNECT first");
        if packet.first == 0xE0 {
            let (code, properties) = packet.disconnect();
            assert_eq!(code, 0x81);
            assert_eq!(properties.get(property::SESSION_EXPIRY), None);
            break;
        }
        // A message may have been under way.
        assert_eq!(packet.first & 0xF0, 0x30, "{packet:?}");
    }
    wire.closed().await;
}

async fn a_disconnect_without_a_reason_is_a_normal_one(lab: Lab) {
    let topic = lab.topic("will");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    for goodbye in [&[0xE0, 0][..], &[0xE0, 1, 0], &[0xE0, 2, 0, 0]] {
        let hello = lab.hello("c").will(Will::new(&topic, "gone"));
        let (mut wire, _) = lab.connected(&hello).await;
        wire.send(goodbye).await;
        wire.closed().await;
        watcher.quiet().await;
    }
}

async fn reasons_that_disconnect_does_not_have_are_refused(lab: Lab) {
    for code in [
        0x01, 0x02, 0x03, 0x10, 0x11, 0x18, 0x7F, 0x84, 0x85, 0x91, 0x92, 0xA3, 0xFF,
    ] {
        lab.refuses([0xE0, 1, code], &[0x81, 0x82]).await;
    }
}

async fn an_expiry_for_a_session_without_one_is_refused(lab: Lab) {
    for expiry in [1, 600, u32::MAX] {
        let expiry = property::four(property::SESSION_EXPIRY, expiry);
        lab.refuses(disconnect(0, &expiry), &[0x82]).await;
    }
    // An expiry of 0 in CONNECT is the same as none.
    let zero = property::four(property::SESSION_EXPIRY, 0);
    let (mut wire, _) = lab.connected(&lab.hello("c").property(zero.clone())).await;
    let one = property::four(property::SESSION_EXPIRY, 1);
    wire.send(disconnect(0, &one)).await;
    wire.refused(&[0x82]).await;
    // An expiry of 0 is always allowed.
    let mut wire = lab.client("c").await;
    wire.send(disconnect(0, &zero)).await;
    wire.closed().await;
}

async fn messages_before_a_goodbye_count(lab: Lab) {
    let topic = lab.topic("t");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    let mut wire = lab.client("c").await;
    let publish = Publish::new(lab.version, &topic, "x").bytes();
    wire.send([&publish[..], &publish, &DISCONNECT].concat())
        .await;
    for _ in 0..2 {
        watcher.payload("x").await;
    }
    wire.closed().await;
}
