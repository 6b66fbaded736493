//! Conversations with changes at random places: at most their own connection ends, and the broker goes
//! on.

use std::time::Duration;

use fastrand::Rng;

use crate::{
    case::cases,
    lab::Lab,
    packet::{
        PINGREQ, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish, V5, Will, ack, auth, disconnect,
        property, subscribe, unsubscribe,
    },
};

cases! {
    changed_packets_close_only_their_connection: ALL, [], [];
}

/// More makes the run longer and finds no more: each run has another seed.
const ROUNDS: usize = 60;

async fn changed_packets_close_only_their_connection(lab: Lab) {
    let mut random = lab.random();
    let mut bystander = lab.client("other").await;
    let topic = lab.topic("bystander");
    bystander.subscribe(&topic, 1).await;
    for _ in 0..ROUNDS {
        let mut wire = lab.open().await;
        let mut packets = conversation(&lab, &mut random);
        let first = if random.bool() {
            // CONNECT stays valid, so that the conversation gets further.
            packets.remove(0)
        } else {
            Vec::new()
        };
        let mut rest = packets.concat();
        for _ in 0..random.usize(1..8) {
            change(&mut rest, &mut random);
        }
        wire.send([first, rest].concat()).await;
        // The broker may be waiting for more bytes.
        wire.drain(Duration::from_millis(20)).await;
        bystander.alive().await;
    }
    lab.client("good").await.publish(&topic, "x", 1).await;
    bystander.payload("x").await;
}

/// Makes a CONNECT, and some of all the packets that a client may send.
fn conversation(lab: &Lab, random: &mut Rng) -> Vec<Vec<u8>> {
    let version = lab.version;
    let topic = lab.topic("random");
    let mut hello = lab.hello("bad").will(Will::new(&topic, "gone"));
    hello.user_name = Some(b"user".to_vec());
    hello.password = Some(b"secret".to_vec());
    let mut publish = Publish::new(version, &topic, "payload");
    let mut others = vec![PINGREQ.to_vec(), vec![0xE0, 0]];
    if version == V5 {
        hello = hello
            .property(property::two(property::RECEIVE_MAXIMUM, 2))
            .property(property::two(property::TOPIC_ALIAS_MAXIMUM, 2))
            .property(property::pair("name", "value"));
        publish = publish
            .property(property::four(property::MESSAGE_EXPIRY, 9))
            .property(property::two(property::TOPIC_ALIAS, 1))
            .property(property::string(property::RESPONSE_TOPIC, "answer"))
            .property(property::pair("name", "value"));
        let expiry = property::four(property::SESSION_EXPIRY, 0);
        others.push(disconnect(0x04, &expiry));
        others.push(auth(
            0x19,
            &property::string(property::AUTHENTICATION_METHOD, "m"),
        ));
    }
    let filter = lab.topic("+");
    let shared = format!("$share/g/{filter}");
    others.extend([
        subscribe(version, 1, &[(&filter, 2), (&shared, 1)]),
        unsubscribe(version, 2, &[&filter, &topic]),
        publish.clone().bytes(),
        publish.clone().qos(1, 3).bytes(),
        publish.clone().qos(2, 4).retain().bytes(),
        publish.qos(2, 4).dup().bytes(),
        ack(PUBREL, 4),
        ack(PUBACK, 1),
        ack(PUBREC, 1),
        ack(PUBCOMP, 1),
    ]);
    random.shuffle(&mut others);
    others.truncate(random.usize(1..others.len()));
    others.insert(0, hello.bytes());
    others
}

/// Flips, sets, removes, repeats or cuts bytes.
fn change(bytes: &mut Vec<u8>, random: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let at = random.usize(..bytes.len());
    match random.usize(..6) {
        0 => bytes[at] ^= 1 << random.u8(..8),
        1 => bytes[at] = random.u8(..),
        2 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][random.usize(..5)],
        3 => {
            bytes.remove(at);
        }
        4 => bytes.insert(at, random.u8(..)),
        _ => {
            let end = (at + random.usize(1..40)).min(bytes.len());
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
    }
}
