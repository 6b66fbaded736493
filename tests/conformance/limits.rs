//! Sizes and limits: Maximum Packet Size (§3.1.2.11.4), and a server with limits (§3.2.2.3.4,
//! §3.2.2.3.5).

use crate::{
    case::cases,
    lab::Lab,
    packet::{PUBREC, PUBREL, Publish, V5, Will, ack, property, subscribe, unsubscribe, varint},
};

cases! {
    what_is_too_large_for_a_client_is_not_sent: ONLY_5, [], ["3.1.2-24", "3.1.2-25"];
    what_is_too_large_for_a_client_counts_as_delivered: ONLY_5, [], ["3.1.2-25"];
    what_is_too_large_for_the_server_is_refused: ALL, [], ["3.2.2-15"];
    answers_fit_the_clients_maximum_packet_size: ONLY_5, [],
        ["3.4.2-2", "3.4.2-3", "3.5.2-2", "3.5.2-3", "3.6.2-2", "3.6.2-3", "3.7.2-2", "3.7.2-3",
         "3.9.2-1", "3.9.2-2", "3.11.2-1", "3.11.2-2", "3.14.2-3", "3.14.2-4"];
    a_server_tells_its_maximum_qos: ONLY_5, [], ["3.2.2-9"], limited;
    subscriptions_are_taken_at_every_qos: ALL, [], ["3.2.2-10"], limited;
    a_publish_above_the_maximum_qos_is_refused: ALL, [], ["3.2.2-11"], limited;
    a_will_above_the_maximum_qos_is_refused: ALL, ["3.2.2-6"], ["3.2.2-12"], limited;
    a_retained_message_that_is_not_taken_is_refused: ONLY_5, [], ["3.2.2-14"], limited;
    a_retained_will_that_is_not_taken_is_refused: ONLY_5, [], ["3.2.2-13"], limited;
}

fn maximum(size: u32) -> Vec<u8> {
    property::four(property::MAXIMUM_PACKET_SIZE, size)
}

async fn what_is_too_large_for_a_client_is_not_sent(lab: Lab) {
    let topic = lab.topic("t");
    // PUBLISH: two bytes of header, the topic with its length, an identifier, the length of the
    // properties.
    let overhead = 2 + 2 + topic.len() + 2 + 1;
    let (mut wire, _) = lab.connected(&lab.hello("c").property(maximum(100))).await;
    wire.subscribe(&topic, 2).await;
    let mut other = lab.client("other").await;
    let fits = vec![b'x'; 100 - overhead];
    for qos in [1, 2] {
        other.publish(&topic, vec![b'y'; fits.len() + 1], qos).await;
        other.publish(&topic, &fits, qos).await;
        let message = wire.payload(&fits).await;
        wire.acknowledge(&message).await;
    }
    wire.quiet().await;
}

async fn what_is_too_large_for_a_client_counts_as_delivered(lab: Lab) {
    let topic = lab.topic("t");
    let hello = lab.kept("c").property(maximum(100));
    let (mut wire, _) = lab.connected(&hello).await;
    wire.subscribe(&topic, 1).await;
    let mut other = lab.client("other").await;
    other.publish(&topic, [b'y'; 200], 1).await;
    wire.quiet().await;
    wire.leave().await;
    // It does not wait for a connection with a larger limit.
    let (mut wire, _) = lab.connected(&lab.kept("c")).await;
    wire.quiet().await;
}

async fn what_is_too_large_for_the_server_is_refused(lab: Lab) {
    if !lab.is_own() {
        return;
    }
    let limit = if lab.version == V5 {
        let (_, ack) = lab.connected(&lab.hello("c")).await;
        ack.properties
            .number(property::MAXIMUM_PACKET_SIZE)
            .unwrap()
    } else {
        1 << 20
    };
    // The length alone shows it.
    let mut wire = lab.client("c").await;
    let length = varint(limit);
    wire.send([&[0x30][..], &length].concat()).await;
    wire.refused(&[0x95]).await;
    let mut wire = lab.client("c").await;
    wire.send([0x30, 0xFF, 0xFF, 0xFF, 0x7F]).await;
    wire.refused(&[0x95]).await;
}

/// Checks answers to packets that are as short as possible, since the broker leaves out whatever it can.
async fn answers_fit_the_clients_maximum_packet_size(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.open().await;
    wire.send(lab.hello("c").property(maximum(40)).bytes())
        .await;
    let requests = [
        subscribe(V5, 1, &[(&topic, 2)]),
        Publish::new(V5, lab.topic("u"), "x").qos(1, 2).bytes(),
        Publish::new(V5, lab.topic("u"), "x").qos(2, 3).bytes(),
        ack(PUBREL, 3),
        ack(PUBREC, 9),
        unsubscribe(V5, 4, &[&topic]),
        // A Protocol Error, for a DISCONNECT.
        subscribe(V5, 5, &[]),
    ];
    wire.send(requests.concat()).await;
    let mut firsts = Vec::new();
    while let Some(packet) = wire.next().await {
        assert!(2 + packet.body.len() <= 40, "{packet:?}");
        firsts.push(packet.first >> 4);
    }
    firsts.sort_unstable();
    assert_eq!(firsts, [2, 4, 5, 6, 7, 9, 11, 14]);
}

async fn a_server_tells_its_maximum_qos(lab: Lab) {
    let (_, ack) = lab.connected(&lab.hello("c")).await;
    assert_eq!(ack.properties.number(property::MAXIMUM_QOS), Some(1));
    assert_eq!(ack.properties.number(property::RETAIN_AVAILABLE), Some(0));
}

async fn subscriptions_are_taken_at_every_qos(lab: Lab) {
    let topic = lab.topic("t");
    let mut wire = lab.client("c").await;
    let mut other = lab.client("other").await;
    for qos in 0..3 {
        let granted = wire.subscribe(&topic, qos).await;
        assert!(granted <= qos);
        other.publish(&topic, "x", 1).await;
        let message = wire.payload("x").await;
        assert_eq!(message.qos, qos.min(1));
        wire.acknowledge(&message).await;
    }
}

async fn a_publish_above_the_maximum_qos_is_refused(lab: Lab) {
    let publish = Publish::new(lab.version, lab.topic("t"), "x").qos(2, 1);
    lab.refuses(publish.bytes(), &[0x9B]).await;
}

async fn a_will_above_the_maximum_qos_is_refused(lab: Lab) {
    let mut will = Will::new(&lab.topic("t"), "x");
    will.qos = 2;
    let answer = lab.answer(lab.hello("bad").will(will).bytes()).await;
    if lab.version == V5 {
        assert_eq!(answer.unwrap().code, 0x9B);
    } else {
        // 3.1.1 has no return code for it.
        assert!(answer.is_none(), "{answer:?}");
    }
}

async fn a_retained_message_that_is_not_taken_is_refused(lab: Lab) {
    let publish = Publish::new(lab.version, lab.topic("t"), "x").retain();
    lab.refuses(publish.bytes(), &[0x9A]).await;
}

async fn a_retained_will_that_is_not_taken_is_refused(lab: Lab) {
    let mut will = Will::new(&lab.topic("t"), "x");
    will.retain = true;
    let answer = lab.answer(lab.hello("bad").will(will).bytes()).await;
    assert_eq!(answer.unwrap().code, 0x9A);
}
