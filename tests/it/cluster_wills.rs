//! Wills in a cluster: each is published once, whenever its node dies.

use std::{collections::BTreeMap, time::Duration};

use mq_broker::cluster::{Faults, MemoryWorld};
use mq_client::{QoS, Reconnect, Will};
use tokio::time::{sleep, timeout};

use crate::{
    cluster_node::{Node, SOON, next},
    seeds::over_seeds,
};

/// Wills by their topics, with their QoS and RETAIN flag.
const WILLS: [(&str, QoS, bool); 4] = [
    ("will/1", QoS::AtLeastOnce, false),
    ("will/2", QoS::ExactlyOnce, false),
    ("will/3", QoS::ExactlyOnce, true),
    ("will/4", QoS::AtMostOnce, true),
];

/// `MQ_SEED=n` runs one seed.
#[test]
fn a_will_that_its_node_has_published_does_not_come_again_when_the_node_dies() {
    over_seeds(0..200, published_and_killed);
}

async fn published_and_killed(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let world = MemoryWorld::new(2, seed);
    let cluster = format!("published-{seed}");
    let mut a = Node::start(&cluster, "a", &world).await;
    let b = Node::start(&cluster, "b", &world).await;
    let watcher = b.client("watcher").build().await.unwrap();
    let mut wills = watcher.subscribe("will/#", QoS::ExactlyOnce).await.unwrap();
    let mut clients = Vec::new();
    for (topic, qos, retain) in WILLS {
        let will = Will::to(topic, topic).unwrap().qos(qos).retain(retain);
        let client = a.client(topic).will(will).reconnect(Reconnect::never());
        let client = if random.bool() {
            client
        } else {
            client.clean_start(true).session_expiry(Duration::ZERO)
        };
        clients.push(client.build().await.unwrap());
    }
    world.set_faults(Faults {
        max_delay: Duration::from_millis(random.u64(1..50)),
        errors_per_thousand: random.u64(..50),
    });
    for (topic, ..) in WILLS {
        a.broker.as_ref().unwrap().kick(topic).unwrap();
    }
    let longest = [100, 12_000][random.usize(..2)];
    sleep(Duration::from_millis(random.u64(..longest))).await;
    a.kill();
    world.set_faults(Faults::default());
    let mut came = BTreeMap::new();
    while let Ok(Some(will)) = timeout(SOON, wills.recv()).await {
        *came.entry(will.topic.to_string()).or_insert(0) += 1;
    }
    let once = WILLS.map(|(topic, ..)| (topic.to_owned(), 1));
    assert_eq!(came, once.into(), "seed {seed}");
    drop((watcher, clients));
}

/// No log has it. The record says at once that it was published.
#[tokio::test(start_paused = true)]
async fn a_will_of_qos_0_does_not_come_again_when_its_node_dies() {
    let world = MemoryWorld::new(2, 1);
    let mut a = Node::start("qos-0-will", "a", &world).await;
    let b = Node::start("qos-0-will", "b", &world).await;
    let watcher = b.client("watcher").build().await.unwrap();
    let mut wills = watcher.subscribe("will", QoS::AtMostOnce).await.unwrap();
    let gone = a.client("gone").reconnect(Reconnect::never());
    let gone = gone.will(Will::to("will", "gone").unwrap());
    let gone = gone.build().await.unwrap();
    a.broker.as_ref().unwrap().kick("gone").unwrap();
    assert_eq!(next(&mut wills).await, "gone");
    sleep(Duration::from_millis(100)).await;
    a.kill();
    assert!(timeout(SOON, wills.recv()).await.is_err(), "it came again");
    drop((watcher, gone));
}
