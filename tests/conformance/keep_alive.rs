//! Keep-alive (§3.1.2.10) and PINGREQ (§3.12).

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::{
    case::{LIMITED_KEEP_ALIVE, cases},
    lab::Lab,
    packet::{Publish, Will, property},
};

cases! {
    a_ping_is_answered: ALL, ["3.12.4-1"], ["3.12.4-1"];
    a_silent_client_is_dropped_after_one_and_a_half_keep_alives: ALL,
        ["3.1.2-24"], ["3.1.2-22", "3.2.2-22"];
    a_client_that_is_dropped_leaves_its_will: ALL, ["3.1.2-24"], ["3.1.2-22"];
    any_packet_keeps_a_client_alive: ALL, ["3.1.2-24"], ["3.1.2-22"];
    single_bytes_of_a_packet_do_not_keep_a_client_alive: ALL, ["3.1.2-24"], ["3.1.2-22"];
    what_the_server_sends_does_not_keep_a_client_alive: ALL, ["3.1.2-24"], ["3.1.2-22"];
    a_keep_alive_of_0_is_none: ALL, [], [];
    the_servers_keep_alive_replaces_the_clients: ONLY_5, [], ["3.2.2-22"], limited;
}

async fn a_ping_is_answered(lab: Lab) {
    let mut wire = lab.client("c").await;
    for _ in 0..3 {
        wire.alive().await;
    }
}

async fn a_silent_client_is_dropped_after_one_and_a_half_keep_alives(lab: Lab) {
    let (mut wire, ack) = lab.connected(&lab.hello("c").keep_alive(2)).await;
    assert_eq!(ack.properties.get(property::SERVER_KEEP_ALIVE), None);
    wire.alive().await;
    let began = Instant::now();
    wire.refused(&[0x8D]).await;
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(2_900), "{waited:?}");
    // Cases run side by side, so everything takes a while.
    assert!(waited <= Duration::from_secs(8), "{waited:?}");
}

async fn a_client_that_is_dropped_leaves_its_will(lab: Lab) {
    let topic = lab.topic("will");
    let mut watcher = lab.client("watcher").await;
    watcher.subscribe(&topic, 0).await;
    let hello = lab.hello("c").keep_alive(1);
    let (mut wire, _) = lab.connected(&hello.will(Will::new(&topic, "gone"))).await;
    watcher.payload("gone").await;
    wire.refused(&[0x8D]).await;
}

async fn any_packet_keeps_a_client_alive(lab: Lab) {
    let (mut wire, _) = lab.connected(&lab.hello("c").keep_alive(2)).await;
    let publish = Publish::new(lab.version, lab.topic("t"), "x").bytes();
    for _ in 0..8 {
        sleep(Duration::from_millis(500)).await;
        wire.send(&publish).await;
    }
    wire.alive().await;
}

async fn single_bytes_of_a_packet_do_not_keep_a_client_alive(lab: Lab) {
    let (mut wire, _) = lab.connected(&lab.hello("c").keep_alive(2)).await;
    let publish = Publish::new(lab.version, lab.topic("t"), "x".repeat(100)).bytes();
    let began = Instant::now();
    // All of them would take 20 s; once the broker has closed the rest takes no time.
    for byte in publish {
        wire.send([byte]).await;
        wire.drain(Duration::from_millis(200)).await;
    }
    wire.closed().await;
    let waited = began.elapsed();
    assert!(waited <= Duration::from_secs(10), "{waited:?}");
}

async fn what_the_server_sends_does_not_keep_a_client_alive(lab: Lab) {
    let topic = lab.topic("t");
    let (mut wire, _) = lab.connected(&lab.hello("c").keep_alive(1)).await;
    wire.subscribe(&topic, 0).await;
    let mut other = lab.client("other").await;
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < Duration::from_secs(10), "it lives on");
        other.publish(&topic, "x", 0).await;
        // Messages, until the last packet is none.
        match wire.next().await {
            Some(packet) if packet.first == 0x30 => sleep(Duration::from_millis(100)).await,
            Some(packet) => {
                assert_eq!(packet.disconnect().0, 0x8D);
                return wire.closed().await;
            }
            None => return,
        }
    }
}

async fn a_keep_alive_of_0_is_none(lab: Lab) {
    let (mut wire, _) = lab.connected(&lab.hello("c").keep_alive(0)).await;
    sleep(Duration::from_secs(3)).await;
    wire.alive().await;
}

async fn the_servers_keep_alive_replaces_the_clients(lab: Lab) {
    for wanted in [0, 600] {
        let (mut wire, ack) = lab.connected(&lab.hello("c").keep_alive(wanted)).await;
        let told = ack.properties.number(property::SERVER_KEEP_ALIVE);
        assert_eq!(told, Some(LIMITED_KEEP_ALIVE.into()));
        if wanted == 0 {
            wire.refused(&[0x8D]).await;
        }
    }
    // A shorter keep-alive is kept.
    let (_, ack) = lab.connected(&lab.hello("d").keep_alive(1)).await;
    assert_eq!(ack.properties.get(property::SERVER_KEEP_ALIVE), None);
}
