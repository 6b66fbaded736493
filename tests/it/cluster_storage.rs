//! Brokers of a cluster whose servers' storage is full, or was set back to a copy, in virtual time.

use std::{collections::BTreeSet, time::Duration};

use mq_broker::cluster::{Faults, MemoryWorld};
use mq_client::{Client, Error, QoS, Reconnect, Subscription, Version, Will};
use mq_codec::ReasonCode;
use tokio::time::{sleep, timeout};

use crate::cluster_node::{Node, message, next, send};

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

/// Each state of a member waits in memory until its log has room.
#[tokio::test(start_paused = true)]
async fn no_client_joins_a_shared_subscription_while_the_storage_is_full() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("members", "a", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let reader = a.client("reader").build().await.unwrap();
    let joined = "$share/g/t/#";
    let mut messages = reader.subscribe(joined, QoS::AtLeastOnce).await.unwrap();
    world.set_fill_percent(Some(100));
    let reason = refused(&publisher, "t/1", QoS::AtLeastOnce).await;
    assert_eq!(reason, ReasonCode::QuotaExceeded);
    for _ in 0..3 {
        let refused = reader.subscribe("$share/h/t/#", QoS::AtLeastOnce).await;
        let Err(Error::SubscribeRefused { reason, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(reason, ReasonCode::QuotaExceeded);
    }
    let other = reader.subscribe("other/#", QoS::AtLeastOnce).await.unwrap();
    world.set_fill_percent(None);
    until_taken(&publisher, "after").await;
    assert_eq!(next(&mut messages).await, "after");
    reader
        .subscribe("$share/h/t/#", QoS::AtLeastOnce)
        .await
        .unwrap();
    drop(other);
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

/// Nobody knows whether the log has a message whose append was not answered before the servers became full.
#[tokio::test(start_paused = true)]
async fn a_message_that_the_full_servers_may_have_is_neither_refused_nor_in_the_way_of_refusals() {
    let world = MemoryWorld::new(1, 1);
    let a = Node::start("unsure", "a", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let other = a.client("other").build().await.unwrap();
    let reader = a.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    let set_failing = |errors_per_thousand| {
        world.set_faults(Faults {
            max_delay: Duration::ZERO,
            errors_per_thousand,
        });
    };
    set_failing(1_000);
    let unsure = message("t/1", "unsure", QoS::ExactlyOnce);
    let mut unsure = publisher.send(unsure).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    let behind = message("t/1", "behind", QoS::ExactlyOnce);
    let mut behind = other.send(behind).await.unwrap();
    sleep(Duration::from_millis(10)).await;
    world.set_fill_percent(Some(100));
    set_failing(0);
    let answer = timeout(SOON, behind.acknowledged()).await;
    let is_refused = matches!(answer, Ok(Err(Error::PublishRefused { .. })));
    assert!(is_refused, "{answer:?}");
    let reason = refused(&other, "t/1", QoS::AtLeastOnce).await;
    assert_eq!(reason, ReasonCode::QuotaExceeded);
    let live = message("t/1", "live", QoS::AtMostOnce);
    publisher.send(live).await.unwrap();
    assert_eq!(next(&mut messages).await, "live");
    let early = timeout(5 * SOON, unsure.acknowledged()).await;
    assert!(early.is_err(), "{early:?}");
    world.set_fill_percent(None);
    let answer = timeout(SOON, unsure.acknowledged()).await;
    answer.expect("there is room again").unwrap();
    until_taken(&publisher, "after").await;
    assert_eq!(next(&mut messages).await, "unsure");
    assert_eq!(next(&mut messages).await, "after");
    assert_stays(&[&a]).await;
}

/// Publishes so many messages to eight topics, which are acknowledged.
async fn send_some(client: &Client, name: &str, count: usize) -> BTreeSet<String> {
    let texts: Vec<_> = (0..count).map(|n| format!("{name} {n}")).collect();
    for (n, text) in texts.iter().enumerate() {
        let topic = format!("t/{}", n % 8);
        let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][n / 8 % 2];
        send(client, message(&topic, text.as_str(), qos)).await;
    }
    texts.into_iter().collect()
}

/// Receives messages until all of these have come, each once. Others may come as well.
async fn receive_all(messages: &mut Subscription, mut missing: BTreeSet<String>) {
    let mut came = BTreeSet::new();
    while !missing.is_empty() {
        let Ok(Some(one)) = timeout(SOON, messages.recv()).await else {
            panic!("{missing:?} are missing, and {came:?} came");
        };
        let text = one.text().unwrap().to_owned();
        missing.remove(&text);
        assert!(came.insert(text.clone()), "{text} came twice");
    }
}

/// Fails if a node has left the cluster.
async fn assert_stays(nodes: &[&Node]) {
    for node in nodes {
        let failed = node.broker.as_ref().unwrap().store_failed();
        let has_failed = timeout(Duration::ZERO, failed).await.is_ok();
        assert!(!has_failed, "{} has left the cluster", node.url());
    }
}

/// Long enough for all records of sessions to be written.
const RECORDS_WRITTEN: Duration = Duration::from_secs(40);

#[tokio::test(start_paused = true)]
async fn what_is_acknowledged_after_the_servers_were_set_back_reaches_every_session() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("set-back", "a", &world).await;
    let b = Node::start("set-back", "b", &world).await;
    let c = Node::start("set-back", "c", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    for id in ["away", "absent"] {
        a.make_away(id, "t/#", QoS::ExactlyOnce).await;
    }
    let reader = b.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    let before = send_some(&publisher, "before", 16).await;
    sleep(RECORDS_WRITTEN).await;
    let copy = world.copy();
    let lost = send_some(&publisher, "lost", 80).await;
    sleep(RECORDS_WRITTEN).await;
    world.set_back(&copy);
    let after = send_some(&publisher, "after", 32).await;
    receive_all(&mut messages, before.union(&lost).cloned().collect()).await;
    receive_all(&mut messages, after.clone()).await;
    let kept: BTreeSet<_> = before.union(&after).cloned().collect();
    let (away, mut messages) = c.come_back("away").await;
    receive_all(&mut messages, kept.clone()).await;
    sleep(RECORDS_WRITTEN).await;
    let newest = send_some(&publisher, "newest", 16).await;
    let (absent, mut absents) = b.come_back("absent").await;
    receive_all(&mut absents, kept.union(&newest).cloned().collect()).await;
    receive_all(&mut messages, newest).await;
    assert_stays(&[&a, &b, &c]).await;
    drop((reader, away, absent));
}

/// A back-up that was taken while the cluster ran may have such logs.
#[tokio::test(start_paused = true)]
async fn nodes_that_begin_with_records_newer_than_the_logs_skip_nothing_that_they_acknowledge() {
    let world = MemoryWorld::new(2, 1);
    let mut a = Node::start("older-logs", "a", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    a.make_away("away", "t/#", QoS::ExactlyOnce).await;
    send_some(&publisher, "before", 16).await;
    let copy = world.copy();
    send_some(&publisher, "lost", 80).await;
    sleep(RECORDS_WRITTEN).await;
    publisher.disconnect().await.unwrap();
    a.end().await;
    world.set_logs_back(&copy);
    let b = Node::start("older-logs", "b", &world).await;
    let publisher = b.client("publisher").build().await.unwrap();
    let after = send_some(&publisher, "after", 32).await;
    let (away, mut messages) = b.come_back("away").await;
    receive_all(&mut messages, after).await;
    drop(away);
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_with_its_node_if_the_record_is_set_back_to_an_earlier_owner() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("earlier", "a", &world).await;
    let mut b = Node::start("earlier", "b", &world).await;
    let c = Node::start("earlier", "c", &world).await;
    let publisher = c.client("publisher").build().await.unwrap();
    a.make_away("reader", "t/#", QoS::ExactlyOnce).await;
    sleep(RECORDS_WRITTEN).await;
    let copy = world.copy();
    let (reader, mut messages) = b.come_back("reader").await;
    let lost = send_some(&publisher, "lost", 16).await;
    receive_all(&mut messages, lost).await;
    sleep(RECORDS_WRITTEN).await;
    world.set_back(&copy);
    let after = send_some(&publisher, "after", 16).await;
    receive_all(&mut messages, after).await;
    sleep(RECORDS_WRITTEN).await;
    assert_stays(&[&a, &b, &c]).await;
    b.kill();
    drop((reader, messages));
    let newest = send_some(&publisher, "newest", 16).await;
    let (reader, mut messages) = a.come_back("reader").await;
    assert!(reader.last_connected().unwrap().session_present);
    receive_all(&mut messages, newest).await;
    assert_stays(&[&a, &c]).await;
}

/// Disks of servers were damaged, and no server has the entries.
#[tokio::test(start_paused = true)]
async fn nodes_go_on_over_entries_that_the_servers_have_lost() {
    let world = MemoryWorld::new(1, 1);
    let a = Node::start("lost", "a", &world).await;
    let b = Node::start("lost", "b", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    b.make_away("away", "t/#", QoS::ExactlyOnce).await;
    let before = send_some(&publisher, "before", 16).await;
    let copy = world.copy();
    send_some(&publisher, "lost", 8).await;
    world.lose_entries_since(&copy);
    let c = Node::start("lost", "c", &world).await;
    let after = send_some(&publisher, "after", 16).await;
    let kept: BTreeSet<_> = before.union(&after).cloned().collect();
    let (away, mut messages) = c.come_back("away").await;
    receive_all(&mut messages, kept).await;
    sleep(RECORDS_WRITTEN).await;
    let newest = send_some(&publisher, "newest", 16).await;
    receive_all(&mut messages, newest).await;
    assert_stays(&[&a, &b, &c]).await;
    drop(away);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_the_servers_lose_before_its_node_reads_it_is_appended_again() {
    let world = MemoryWorld::new(1, 1);
    let a = Node::start("unread", "a", &world).await;
    let b = Node::start("unread", "b", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let reader = b.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    let set_lagging = |is_lagging| {
        for node in ["a", "b"] {
            world.set_lagging(node, 0, is_lagging);
        }
    };
    set_lagging(true);
    let (copy, count) = (world.copy(), world.entry_count());
    let sent = message("t/1", "sent", QoS::ExactlyOnce);
    let mut receipt = publisher.send(sent).await.unwrap();
    let appended = async {
        while world.entry_count() == count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, appended).await.unwrap();
    world.lose_entries_since(&copy);
    set_lagging(false);
    let acknowledged = timeout(SOON, receipt.acknowledged()).await;
    acknowledged.expect("it is acknowledged").unwrap();
    assert_eq!(next(&mut messages).await, "sent");
    send(&publisher, message("t/1", "next", QoS::ExactlyOnce)).await;
    assert_eq!(next(&mut messages).await, "next");
    assert_stays(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_a_log_count_as_memory() {
    const COUNT: usize = 20;
    const SIZE: usize = 100_000;
    let world = MemoryWorld::new(1, 1);
    let a = Node::start("counted", "a", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let memory_used = || a.broker.as_ref().unwrap().memory_used();
    send(&publisher, message("t", "before", QoS::AtLeastOnce)).await;
    let before = memory_used();
    world.set_log_stalled(0, true);
    let mut receipts = Vec::new();
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce].repeat(COUNT / 2) {
        let sent = message("t", "x".repeat(SIZE), qos);
        receipts.push(publisher.send(sent).await.unwrap());
    }
    sleep(Duration::from_secs(5)).await;
    assert!(memory_used() > before + COUNT * SIZE, "{}", memory_used());
    world.set_log_stalled(0, false);
    for receipt in &mut receipts {
        let acknowledged = timeout(SOON, receipt.acknowledged()).await;
        acknowledged.unwrap().unwrap();
    }
    send(&publisher, message("t", "after", QoS::AtLeastOnce)).await;
    assert!(memory_used() < before + SIZE, "{}", memory_used());
}
