//! Brokers of a cluster whose servers' storage is full, in virtual time.

use std::time::Duration;

use mq_broker::cluster::MemoryWorld;
use mq_client::{Client, Error, QoS, Reconnect, Version, Will};
use mq_codec::ReasonCode;
use tokio::time::{sleep, timeout};

use crate::cluster::{Node, message, next, send};

/// In virtual time.
const SOON: Duration = Duration::from_secs(15);

/// Publishes a message, and returns the reason for which it is refused.
async fn refused(client: &Client, topic: &str, qos: QoS) -> ReasonCode {
    let mut receipt = client.send(message(topic, "refused", qos)).await.unwrap();
    match timeout(SOON, receipt.acknowledged()).await {
        Ok(Err(Error::PublishRefused { reason })) => reason,
        other => panic!("{topic} at {qos:?}: {other:?}"),
    }
}

/// Publishes a message again and again until it is acknowledged.
async fn until_taken(client: &Client, text: &str) {
    let taken = async {
        loop {
            let sent = message("t/1", text, QoS::AtLeastOnce);
            let mut receipt = client.send(sent).await.unwrap();
            match receipt.acknowledged().await {
                Ok(_) => return,
                Err(Error::PublishRefused { .. }) => sleep(Duration::from_millis(500)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    timeout(SOON, taken).await.expect("there is room again");
}

/// The nodes learn of it by the answer to a message, whose publisher waits already.
#[tokio::test(start_paused = true)]
async fn a_publisher_is_told_that_the_storage_is_full_and_nodes_come_back_by_themselves() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("full", "a", &world).await;
    let b = Node::start("full", "b", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let reader = b.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    send(&publisher, message("t/1", "before", QoS::ExactlyOnce)).await;
    assert_eq!(next(&mut messages).await, "before");
    world.set_fill_percent(Some(100));
    for n in 0..4 {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let reason = refused(&publisher, &format!("t/{n}"), qos).await;
            assert_eq!(reason, ReasonCode::QuotaExceeded);
        }
        sleep(Duration::from_secs(30)).await;
        let live = message("t/1", format!("live {n}"), QoS::AtMostOnce);
        publisher.send(live).await.unwrap();
        assert_eq!(next(&mut messages).await, format!("live {n}"));
    }
    // A session moves, and a new client comes.
    reader.disconnect().await.unwrap();
    drop(messages);
    let (reader, mut messages) = a.come_back("reader").await;
    assert!(reader.last_connected().unwrap().session_present);
    a.client("newcomer").build().await.unwrap();
    world.set_fill_percent(None);
    until_taken(&publisher, "after").await;
    assert_eq!(next(&mut messages).await, "after");
    assert_stays(&[&a, &b]).await;
}

/// The last part of the storage is for the records of sessions.
#[tokio::test(start_paused = true)]
async fn messages_are_refused_before_the_storage_has_no_room_for_records() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("nearly", "a", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    world.set_fill_percent(Some(96));
    sleep(Duration::from_secs(11)).await;
    let reason = refused(&publisher, "t/1", QoS::ExactlyOnce).await;
    assert_eq!(reason, ReasonCode::QuotaExceeded);
    world.set_fill_percent(Some(94));
    until_taken(&publisher, "after").await;
}

#[tokio::test(start_paused = true)]
async fn a_publisher_before_mqtt_5_gets_no_acknowledgement_of_what_the_full_cluster_has_not() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("old", "a", &world).await;
    let publisher = a.client("publisher").version(Version::V3_1_1);
    let publisher = publisher.reconnect(Reconnect::never());
    let publisher = publisher.build().await.unwrap();
    send(&publisher, message("t/1", "before", QoS::AtLeastOnce)).await;
    world.set_fill_percent(Some(100));
    let sent = message("t/1", "lost", QoS::AtLeastOnce);
    let mut receipt = publisher.send(sent).await.unwrap();
    let answer = timeout(SOON, receipt.acknowledged()).await;
    assert!(matches!(answer, Ok(Err(_))), "{answer:?}");
}

/// No publisher waits for it that could be told of a refusal.
#[tokio::test(start_paused = true)]
async fn a_will_waits_for_room_while_others_are_refused() {
    let world = MemoryWorld::new(1, 1);
    let a = Node::start("will", "a", &world).await;
    let b = Node::start("will", "b", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let reader = b.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("w", QoS::AtLeastOnce).await.unwrap();
    let will = Will::to("w", "will").unwrap();
    let mortal = a.client("mortal").will(will.qos(QoS::AtLeastOnce));
    let mortal = mortal.reconnect(Reconnect::never()).build().await.unwrap();
    world.set_fill_percent(Some(100));
    a.broker.as_ref().unwrap().kick("mortal").unwrap();
    drop(mortal);
    for _ in 0..3 {
        let reason = refused(&publisher, "t/1", QoS::AtLeastOnce).await;
        assert_eq!(reason, ReasonCode::QuotaExceeded);
        sleep(Duration::from_secs(2)).await;
    }
    world.set_fill_percent(None);
    assert_eq!(next(&mut messages).await, "will");
}

/// Fails if a node has left the cluster.
async fn assert_stays(nodes: &[&Node]) {
    for node in nodes {
        let failed = node.broker.as_ref().unwrap().store_failed();
        let has_failed = timeout(Duration::ZERO, failed).await.is_ok();
        assert!(!has_failed, "{} has left the cluster", node.url());
    }
}
