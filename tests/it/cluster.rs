//! Several brokers are one: clients come to any node, and nothing that was acknowledged is lost with one of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mq_broker::cluster::{
    ClusterSettings, Engine as _, Expiry, Faults, Key, KeyKind, MemoryWorld, Value,
};
use mq_client::{Client, QoS, Reconnect, Subscription, TopicFilter, Version, Will};
use mq_testkit::{FaultyRelay, Scheme, TestBroker, over_each_transport};
use mq_transport::Link;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    cluster_node::{Node, SOON, connect_and_send, message, next, send},
    seeds::over_seeds,
};

#[tokio::test(start_paused = true)]
async fn a_message_reaches_the_subscribers_of_all_nodes() {
    let world = MemoryWorld::new(4, 1);
    let a = Node::start("all", "a", &world).await;
    let b = Node::start("all", "b", &world).await;
    let (at_a, at_b) = (
        a.client("one").build().await.unwrap(),
        b.client("two").build().await.unwrap(),
    );
    let mut here = at_a.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    let mut there = at_b.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for n in 0..5 {
            let text = format!("{qos:?} {n}");
            send(&at_a, message("t/1", text.as_str(), qos)).await;
            assert_eq!(next(&mut here).await, text);
            assert_eq!(next(&mut there).await, text);
        }
    }
}

/// A million retained messages take that long.
#[tokio::test(start_paused = true)]
async fn a_node_that_reads_for_long_when_it_starts_is_not_taken_for_dead() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("long", "a", &world).await;
    let mut b = Node::start("long", "b", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let retained = message("t/1", "kept", QoS::AtLeastOnce).retain(true);
    send(&publisher, retained).await;
    sleep(Duration::from_secs(30)).await;
    b.end().await;
    world.set_values_stalled("b", true);
    let goes_on = Arc::clone(&world);
    let later = tokio::spawn(async move {
        sleep(Duration::from_mins(2)).await;
        goes_on.set_values_stalled("b", false);
    });
    let has_begun = b.revive_within(&world, Duration::from_mins(5)).await;
    assert_eq!(has_begun, Some(true));
    later.await.unwrap();
    let reader = b.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t/#", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(next(&mut messages).await, "kept");
    send(&publisher, message("t/2", "live", QoS::AtLeastOnce)).await;
    assert_eq!(next(&mut messages).await, "live");
}

/// A filter within `$share/g/` may begin with `$share/` itself, and before 5.0 `$share` has no meaning.
#[tokio::test(start_paused = true)]
async fn sessions_move_whatever_their_filters_are() {
    let world = MemoryWorld::new(2, 1);
    let mut a = Node::start("filters", "a", &world).await;
    let b = Node::start("filters", "b", &world).await;
    let publisher = b.client("publisher").build().await.unwrap();
    for (id, version, filter) in [
        ("plain", Version::V5, "plain"),
        ("nested", Version::V5, "$share/g/$share/x"),
        ("old", Version::V3_1_1, "$share/x"),
        ("older", Version::V3_1_1, "$share/+/#"),
    ] {
        let client = a.client(id).version(version).build().await.unwrap();
        let mut subscribed = Vec::new();
        for filter in [filter, "t/#"] {
            let filter = TopicFilter::in_version(filter, version).unwrap();
            let one = client.subscribe(filter, QoS::AtLeastOnce).await;
            subscribed.push(one.unwrap());
        }
        client.disconnect().await.unwrap();
        drop(subscribed);
    }
    send(&publisher, message("t/1", "away", QoS::AtLeastOnce)).await;
    a.kill();
    for (id, version) in [
        ("old", Version::V3_1_1),
        ("nested", Version::V5),
        ("older", Version::V3_1_1),
        ("plain", Version::V5),
    ] {
        let client = b.client(id).version(version);
        let mut messages = client.messages();
        let client = client.build().await.unwrap();
        assert!(client.last_connected().unwrap().session_present, "{id}");
        assert_eq!(next(&mut messages).await, "away", "{id}");
        client.disconnect().await.unwrap();
    }
}

/// Something of its connection is not settled at any time until it pauses.
#[tokio::test(start_paused = true)]
async fn a_client_that_publishes_all_the_time_is_answered_and_receives_messages() {
    let world = MemoryWorld::new(4, 1);
    let a = Node::start("busy", "a", &world).await;
    world.set_faults(Faults {
        max_delay: Duration::from_millis(20),
        errors_per_thousand: 0,
    });
    for version in [Version::V3_1_1, Version::V5] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let client = a.client("busy").version(version).clean_start(true);
            let client = client.build().await.unwrap();
            let mut messages = client.subscribe("t/#", qos).await.unwrap();
            let (mut waiting, mut acknowledged) = (JoinSet::new(), 0);
            for n in 0..60 {
                let sent = message("t/1", n.to_string(), qos);
                let mut receipt = client.send(sent).await.unwrap();
                waiting.spawn(async move { receipt.acknowledged().await.map(drop) });
                sleep(Duration::from_millis(5)).await;
                while let Some(ended) = waiting.try_join_next() {
                    ended.unwrap().unwrap();
                    acknowledged += 1;
                }
            }
            let mut received = 0;
            while let Ok(one) = timeout(Duration::ZERO, messages.recv()).await {
                assert_eq!(one.unwrap().text().unwrap(), received.to_string());
                received += 1;
            }
            assert!(
                acknowledged > 10 && received > 10,
                "{version:?}, {qos:?}: {acknowledged} acknowledged, {received} received"
            );
            while let Some(ended) = waiting.join_next().await {
                ended.unwrap().unwrap();
            }
            for n in received..60 {
                assert_eq!(next(&mut messages).await, n.to_string());
            }
            client.disconnect().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_on_at_another_node() {
    let world = MemoryWorld::new(4, 1);
    let a = Node::start("moves", "a", &world).await;
    let b = Node::start("moves", "b", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    a.make_away("reader", "t/#", QoS::ExactlyOnce).await;
    for n in 0..10 {
        let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][n % 2];
        send(&publisher, message("t/1", n.to_string(), qos)).await;
    }
    let (reader, mut messages) = b.come_back("reader").await;
    for n in 0..10 {
        assert_eq!(next(&mut messages).await, n.to_string());
    }
    send(&publisher, message("t/1", "more", QoS::AtLeastOnce)).await;
    assert_eq!(next(&mut messages).await, "more");
    drop(reader);
}

/// Until all that its client has published is in the logs, a node keeps a session that another one wants, and may write
/// its record. What comes meanwhile is for the next owner.
#[tokio::test(start_paused = true)]
async fn what_comes_while_a_node_lets_a_session_go_is_not_lost_with_it() {
    let world = MemoryWorld::new(2, 1);
    let mut a = Node::start("lets-go", "a", &world).await;
    let b = Node::start("lets-go", "b", &world).await;
    let [at_a, at_b] = [&a, &b].map(|node| node.client(&format!("publisher-{}", node.name)));
    let (at_a, at_b) = (at_a.build().await.unwrap(), at_b.build().await.unwrap());
    a.make_away("reader", "#", QoS::AtLeastOnce).await;
    let topics: Vec<_> = (0..8).map(|n| format!("t/{n}")).collect();
    for topic in &topics {
        send(&at_a, message(topic, "before", QoS::AtLeastOnce)).await;
    }
    world.set_log_stalled(0, true);
    let publish = async |client: &Client, text: &str| {
        let mut receipts = Vec::new();
        for topic in &topics {
            let message = message(topic, text, QoS::ExactlyOnce);
            receipts.push(client.send(message).await.unwrap());
        }
        receipts
    };
    // Some of them are for the log that takes nothing.
    let mut receipts = publish(&at_a, "at a").await;
    let reader = b.client("reader");
    let mut messages = reader.messages();
    let reader = reader.start().unwrap();
    sleep(Duration::from_secs(1)).await;
    receipts.extend(publish(&at_b, "at b").await);
    // Records are written meanwhile.
    sleep(Duration::from_secs(20)).await;
    a.kill();
    world.set_log_stalled(0, false);
    at_a.disconnect().await.unwrap_err();
    let mut came = BTreeMap::new();
    while let Ok(Some(one)) = timeout(Duration::from_secs(30), messages.recv()).await {
        let text = one.text().unwrap().to_owned();
        *came.entry((one.topic.to_string(), text)).or_insert(0) += 1;
    }
    for topic in &topics {
        let times = |text: &str| came.get(&(topic.clone(), text.to_owned()));
        assert_eq!(
            (times("before"), times("at b")),
            (Some(&1), Some(&1)),
            "{topic}: {came:?}"
        );
    }
    drop((reader, receipts));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_much_before_it_has_its_session_is_served() {
    let world = MemoryWorld::new(1, 1);
    let a = Node::start("eager", "a", &world).await;
    let reader = a.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let long: &'static str = "x".repeat(600_000).leak();
    let sent = [(long, QoS::AtLeastOnce)];
    let link = a.connect_and_stay("eager", &sent).await;
    assert_eq!(next(&mut messages).await.len(), long.len());
    drop(link);
}

#[tokio::test(start_paused = true)]
async fn sessions_that_move_do_not_have_the_logs_read_again() {
    let world = MemoryWorld::new(4, 1);
    let a = Node::start("storm", "a", &world).await;
    let b = Node::start("storm", "b", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let id = |n: usize| format!("reader-{n}");
    for n in 0..20 {
        a.make_away(&id(n), "#", QoS::AtLeastOnce).await;
    }
    let topics: Vec<_> = (0..8).map(|n| format!("t/{n}")).collect();
    for topic in &topics {
        send(&publisher, message(topic, "before", QoS::AtLeastOnce)).await;
    }
    let before = world.log_reads();
    for n in 0..20 {
        let (reader, mut messages) = b.come_back(&id(n)).await;
        for _ in &topics {
            assert_eq!(next(&mut messages).await, "before");
        }
        drop(reader);
    }
    assert_eq!(world.log_reads(), before);
}

/// The next owner of a publisher's session is behind with the log that has its message. Else it would take the message,
/// when it reads it at last, for one that was not released yet, and a later one with its identifier for a repetition.
#[tokio::test(start_paused = true)]
async fn a_packet_identifier_of_qos_2_is_free_again_at_the_next_node() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("free", "a", &world).await;
    let b = Node::start("free", "b", &world).await;
    let c = Node::start("free", "c", &world).await;
    let reader = c.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("#", QoS::ExactlyOnce).await.unwrap();
    let publisher = Roaming::new("free", "publisher", &a, 1).await;
    world.set_log_stalled(1, true);
    let first = message("t/1", "first", QoS::ExactlyOnce);
    let mut receipt = publisher.client.send(first).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    publisher.relay.turn_to(b.url().parse().unwrap());
    sleep(Duration::from_secs(1)).await;
    world.set_lagging("b", 1, true);
    world.set_log_stalled(1, false);
    sleep(Duration::from_secs(5)).await;
    world.set_lagging("b", 1, false);
    let acknowledged = timeout(SOON, receipt.acknowledged());
    acknowledged.await.unwrap().unwrap();
    publisher.client.disconnect().await.unwrap();
    drop(publisher);
    // Another client, which begins with the first identifier again.
    let publisher = c.client("publisher").build().await.unwrap();
    assert!(publisher.last_connected().unwrap().session_present);
    send(&publisher, message("t/1", "second", QoS::ExactlyOnce)).await;
    assert_eq!(next(&mut messages).await, "first");
    assert_eq!(next(&mut messages).await, "second");
}

/// A link to the node is stuck while the session comes there.
#[tokio::test(start_paused = true)]
async fn a_message_of_qos_0_does_not_come_again_to_a_session_that_moves() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("once", "a", &world).await;
    let b = Node::start("once", "b", &world).await;
    let c = Node::start("once", "c", &world).await;
    let publisher = c.client("publisher").build().await.unwrap();
    let reader = a.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtMostOnce).await.unwrap();
    let publish = async |text: &str| {
        let sent = publisher.send(message("t", text, QoS::AtMostOnce)).await;
        sent.unwrap();
        sleep(Duration::from_millis(10)).await;
    };
    publish("before").await;
    assert_eq!(next(&mut messages).await, "before");
    world.set_link_stalled("b", true);
    publish("held up").await;
    assert_eq!(next(&mut messages).await, "held up");
    reader.disconnect().await.unwrap();
    drop(messages);
    let (reader, mut messages) = b.come_back("reader").await;
    world.set_link_stalled("b", false);
    publish("after").await;
    assert_eq!(next(&mut messages).await, "after");
    // A session that has been nowhere else gets what comes late.
    let other = b.client("other").build().await.unwrap();
    let mut others = other.subscribe("t", QoS::AtMostOnce).await.unwrap();
    world.set_link_stalled("b", true);
    publish("late").await;
    world.set_link_stalled("b", false);
    assert_eq!(next(&mut others).await, "late");
    assert_eq!(next(&mut messages).await, "late");
    drop((reader, other));
}

/// The message of QoS 0 was held up on its way, and the sessions of the node have moved to other nodes meanwhile.
#[tokio::test(start_paused = true)]
async fn what_a_dead_node_has_told_does_not_come_again_to_its_sessions() {
    let world = MemoryWorld::new(2, 1);
    let mut a = Node::start("told", "a", &world).await;
    let b = Node::start("told", "b", &world).await;
    let at_a = a.client("at a").build().await.unwrap();
    let at_b = b.client("at b").build().await.unwrap();
    let reader = a.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtMostOnce).await.unwrap();
    world.set_link_stalled("b", true);
    let once = message("t", "once", QoS::AtMostOnce);
    at_a.send(once).await.unwrap();
    assert_eq!(next(&mut messages).await, "once");
    a.kill();
    drop((messages, reader));
    let (reader, mut messages) = b.come_back("reader").await;
    // Long enough for the node to forget how the session came.
    sleep(Duration::from_secs(20)).await;
    world.set_link_stalled("b", false);
    sleep(Duration::from_secs(1)).await;
    let after = message("t", "after", QoS::AtMostOnce);
    at_b.send(after).await.unwrap();
    assert_eq!(next(&mut messages).await, "after");
    drop((at_a, reader));
}

/// A client gives a node up that was stopped for a while, and comes to another one. Its CONNECT is read late.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_gone_before_its_connect_is_read_takes_no_session_over() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("gone", "a", &world).await;
    let b = Node::start("gone", "b", &world).await;
    let publisher = b.client("publisher").build().await.unwrap();
    let reader = a.client("reader").reconnect(Reconnect::never());
    let reader = reader.build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    for sent in [&[][..], &[("stale", QoS::AtLeastOnce)]] {
        b.connect_and_go("reader", sent).await;
        sleep(Duration::from_secs(1)).await;
        send(&publisher, message("t", "for the reader", QoS::ExactlyOnce)).await;
        assert_eq!(next(&mut messages).await, "for the reader");
    }
}

/// Has a publisher give node `b` up, which takes long, and complete its message at node `a`. A cut link keeps the end of the first
/// connection from its node. Returns both connections.
async fn give_up(world: &MemoryWorld, b: &Node, a: &Node, after: Duration) -> (Link, Client) {
    world.set_puts_stalled("b", true);
    let stale = [("one", QoS::ExactlyOnce)];
    let link = b.connect_and_stay("publisher", &stale).await;
    sleep(after).await;
    let publisher = a.client("publisher").reconnect(Reconnect::never());
    let publisher = publisher.build().await.unwrap();
    send(&publisher, message("t", "one", QoS::ExactlyOnce)).await;
    (link, publisher)
}

/// Has the node go on at which a connection waits.
async fn go_on(world: &MemoryWorld) {
    world.set_puts_stalled("b", false);
    sleep(Duration::from_secs(2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_has_waited_takes_no_session_from_a_later_one() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("later", "a", &world).await;
    let b = Node::start("later", "b", &world).await;
    let reader = a.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    let (link, publisher) = give_up(&world, &b, &a, Duration::from_secs(1)).await;
    go_on(&world).await;
    send(&publisher, message("t", "two", QoS::ExactlyOnce)).await;
    assert_eq!(next(&mut messages).await, "one");
    assert_eq!(next(&mut messages).await, "two");
    drop(link);
}

/// The later connection has ended when the waiting one goes on, and its node may have, too.
#[tokio::test(start_paused = true)]
async fn a_connection_that_has_waited_takes_no_session_from_a_later_one_that_has_ended() {
    for (ends, name) in [(false, "stays"), (true, "ends")] {
        let world = MemoryWorld::new(2, 1);
        let mut a = Node::start(name, "a", &world).await;
        let b = Node::start(name, "b", &world).await;
        let c = Node::start(name, "c", &world).await;
        let reader = c.client("reader").build().await.unwrap();
        let mut messages = reader.subscribe("t", QoS::ExactlyOnce).await.unwrap();
        let (link, publisher) = give_up(&world, &b, &a, Duration::from_secs(2)).await;
        publisher.disconnect().await.unwrap();
        if ends {
            a.end().await;
        }
        go_on(&world).await;
        // It begins with the first packet identifier again, which the waiting connection has used.
        let publisher = c.client("publisher").build().await.unwrap();
        send(&publisher, message("t", "two", QoS::ExactlyOnce)).await;
        assert_eq!(next(&mut messages).await, "one", "{name}");
        assert_eq!(next(&mut messages).await, "two", "{name}");
        drop(link);
    }
}

over_each_transport!(a_client_may_send_and_close_without_waiting);

async fn a_client_may_send_and_close_without_waiting(scheme: Scheme) {
    let world = MemoryWorld::new(2, 1);
    let engine = world.engine("one");
    let broker = TestBroker::start_with(|settings| {
        settings.cluster = Some(ClusterSettings::new("one", engine));
    })
    .await;
    let reader = broker.client(Scheme::Tcp, "reader").build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtMostOnce).await.unwrap();
    // Its session takes a while to come.
    world.set_faults(Faults {
        max_delay: Duration::from_millis(200),
        errors_per_thousand: 0,
    });
    let connecting = broker.connector(false);
    let link = connecting.connect(&broker.address(scheme)).await.unwrap();
    let link = connect_and_send(link, "sensor", &[("one", QoS::AtMostOnce)]).await;
    link.close(Duration::from_secs(5)).await;
    assert_eq!(next(&mut messages).await, "one");
    drop(reader);
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_may_send_and_go_without_waiting() {
    let world = MemoryWorld::new(2, 1);
    let a = Node::start("sends", "a", &world).await;
    let b = Node::start("sends", "b", &world).await;
    let reader = a.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        b.connect_and_go("sensor", &[("one", qos), ("two", qos)])
            .await;
        for expected in ["one", "two"] {
            assert_eq!(next(&mut messages).await, expected, "{qos:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_of_a_node_that_has_died_goes_on_within_five_seconds() {
    let world = MemoryWorld::new(4, 1);
    let mut a = Node::start("dies", "a", &world).await;
    let b = Node::start("dies", "b", &world).await;
    let publisher = b.client("publisher").build().await.unwrap();
    let reader = a.client("reader").build().await.unwrap();
    let subscribed = reader.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    a.kill();
    drop(subscribed);
    drop(reader);
    for n in 0..10 {
        let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][n % 2];
        send(&publisher, message("t/1", n.to_string(), qos)).await;
    }
    let reader = b.client("reader");
    let mut messages = reader.messages();
    let began = Instant::now();
    let reader = reader.build().await.unwrap();
    for n in 0..10 {
        assert_eq!(next(&mut messages).await, n.to_string());
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn sessions_of_a_node_that_ends_in_order_go_on_at_once_and_nothing_comes_again() {
    let world = MemoryWorld::new(4, 1);
    let mut a = Node::start("leaves", "a", &world).await;
    let b = Node::start("leaves", "b", &world).await;
    let publisher = b.client("publisher").build().await.unwrap();
    let mut wills = publisher
        .subscribe("will/#", QoS::AtLeastOnce)
        .await
        .unwrap();
    let will = |id: &str, delay| {
        let will = Will::to(format!("will/{id}"), id.to_owned()).unwrap();
        will.qos(QoS::AtLeastOnce).delay(Duration::from_secs(delay))
    };
    let reader = a.client("reader").will(will("now", 0));
    let reader = reader.build().await.unwrap();
    // By its name it would be the part of `a`, if `a` lived.
    let absent = a.client("absent").will(will("later", 60));
    let absent = absent.build().await.unwrap();
    let mut messages = reader.subscribe("t/#", QoS::AtLeastOnce).await.unwrap();
    for n in 0..10 {
        send(&publisher, message("t/1", n.to_string(), QoS::AtLeastOnce)).await;
        assert_eq!(next(&mut messages).await, n.to_string());
    }
    // The acknowledgements arrive. It is too soon for them to be in a record.
    sleep(Duration::from_millis(100)).await;
    a.end().await;
    drop((reader, messages, absent));
    let ended = Instant::now();
    let (reader, mut messages) = b.come_back("reader").await;
    let took = ended.elapsed();
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert!(reader.last_connected().unwrap().session_present);
    send(&publisher, message("t/1", "more", QoS::AtLeastOnce)).await;
    assert_eq!(next(&mut messages).await, "more");
    assert_eq!(next(&mut wills).await, "now");
    // No client comes for that session: it goes on here all the same.
    assert_eq!(next(&mut wills).await, "later");
    let later = ended.elapsed();
    assert!((59..63).contains(&later.as_secs()), "{later:?}");
    a.revive(&world).await;
    let absent = a.client("absent").build().await.unwrap();
    assert!(absent.last_connected().unwrap().session_present);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_begins_takes_none_for_dead_before_a_lease_is_over() {
    let world = MemoryWorld::new(4, 1);
    let a = Node::start("patient", "a", &world).await;
    // Its signs of life come once a second. One comes right after the links are well.
    sleep(Duration::from_millis(10_700)).await;
    world.set_partitioned("a", true);
    let _b = Node::start("patient", "b", &world).await;
    sleep(Duration::from_millis(2_200)).await;
    world.set_partitioned("a", false);
    sleep(Duration::from_secs(10)).await;
    let failed = timeout(Duration::ZERO, a.broker.as_ref().unwrap().store_failed()).await;
    assert!(failed.is_err(), "the other node has ended its life");
}

/// Thousands of sessions that move at once let the engine be slow, and heartbeats late.
#[tokio::test(start_paused = true)]
async fn a_node_whose_heartbeats_are_late_lives_on_if_it_answers() {
    let world = MemoryWorld::new(2, 1);
    let mut a = Node::start("late", "a", &world).await;
    let b = Node::start("late", "b", &world).await;
    let at_b = b.client("publisher").build().await.unwrap();
    b.make_away("reader", "t/#", QoS::AtLeastOnce).await;
    let (_at_a, mut at_a_gets) = a.come_back("reader").await;
    world.set_puts_stalled("b", true);
    for n in 0..20 {
        sleep(Duration::from_secs(1)).await;
        send(&at_b, message("t/1", n.to_string(), QoS::AtLeastOnce)).await;
        assert_eq!(next(&mut at_a_gets).await, n.to_string());
    }
    world.set_puts_stalled("b", false);
    // One that does not answer either is over after its lease.
    let gone = b.broker.as_ref().unwrap().store_failed();
    world.set_partitioned("b", true);
    sleep(Duration::from_secs(10)).await;
    world.set_partitioned("b", false);
    timeout(SOON, gone).await.unwrap();
    a.end().await;
}

/// A node that answers and writes nothing has no use.
#[tokio::test(start_paused = true)]
async fn a_node_that_answers_and_sends_no_heartbeat_for_ten_leases_is_over() {
    let world = MemoryWorld::new(2, 1);
    let _a = Node::start("late-for-good", "a", &world).await;
    let b = Node::start("late-for-good", "b", &world).await;
    sleep(Duration::from_secs(5)).await;
    world.set_puts_stalled("b", true);
    let gone = b.broker.as_ref().unwrap().store_failed();
    timeout(SOON, gone).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_begins_later_knows_what_was_retained() {
    let world = MemoryWorld::new(4, 1);
    let a = Node::start("retained", "a", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let retained = |topic, payload: &str| message(topic, payload, QoS::AtLeastOnce).retain(true);
    for (topic, payload) in [("r/1", "old"), ("r/2", "gone"), ("r/1", "new")] {
        send(&publisher, retained(topic, payload)).await;
    }
    // Long enough for all of it to be kept apart from the logs.
    sleep(Duration::from_mins(1)).await;
    for (topic, payload) in [("r/2", ""), ("r/3", "last")] {
        send(&publisher, retained(topic, payload)).await;
    }
    for (name, pause) in [("b", 0), ("c", 60)] {
        sleep(Duration::from_secs(pause)).await;
        let late = Node::start("retained", name, &world).await;
        let reader = late.client(name).build().await.unwrap();
        let mut messages = reader.subscribe("r/#", QoS::AtLeastOnce).await.unwrap();
        let mut came = [next(&mut messages).await, next(&mut messages).await];
        came.sort();
        assert_eq!(came, ["last", "new"], "at {name}");
        send(&reader, message("r/4", "none more", QoS::AtLeastOnce)).await;
        assert_eq!(next(&mut messages).await, "none more", "at {name}");
    }
}

#[tokio::test(start_paused = true)]
async fn wills_and_sessions_of_a_node_that_has_died_end_in_their_time() {
    let world = MemoryWorld::new(4, 1);
    let mut a = Node::start("wills", "a", &world).await;
    let b = Node::start("wills", "b", &world).await;
    let watcher = b.client("watcher").build().await.unwrap();
    let mut wills = watcher.subscribe("will/#", QoS::AtLeastOnce).await.unwrap();
    let will = |id: &str, delay| {
        let will = Will::to(format!("will/{id}"), id.to_owned()).unwrap();
        let builder = a.client(id).session_expiry(Duration::from_mins(5));
        builder.will(will.qos(QoS::AtLeastOnce).delay(Duration::from_secs(delay)))
    };
    let at_once = will("at once", 0).build().await.unwrap();
    let later = will("later", 60).build().await.unwrap();
    let goes = will("goes", 0).build().await.unwrap();
    let ends = a
        .client("ends")
        .clean_start(true)
        .session_expiry(Duration::ZERO);
    let ends = ends.will(Will::to("will/ends", "ends").unwrap().qos(QoS::AtLeastOnce));
    let ends = ends.build().await.unwrap();
    let old = at_once.subscribe("t/#", QoS::AtLeastOnce).await.unwrap();
    goes.disconnect().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    a.kill();
    drop((at_once, later, goes, ends, old));
    let died = Instant::now();
    let mut first = [next(&mut wills).await, next(&mut wills).await];
    first.sort();
    assert_eq!(first, ["at once", "ends"]);
    assert!(died.elapsed() < Duration::from_secs(10));
    assert_eq!(next(&mut wills).await, "later");
    let later = died.elapsed();
    assert!((60..70).contains(&later.as_secs()), "{later:?}");
    // The session is still there, and then it is not.
    for (wait, is_there) in [(60, true), (301, false)] {
        sleep(Duration::from_secs(wait)).await;
        let again = b.client("at once").session_expiry(Duration::from_mins(5));
        let again = again.build().await.unwrap();
        let connected = again.last_connected().unwrap();
        assert_eq!(connected.session_present, is_there, "after {wait} s");
        again.disconnect().await.unwrap();
    }
    drop(watcher);
}

#[tokio::test(start_paused = true)]
async fn a_will_that_no_log_has_taken_is_not_lost_with_its_node() {
    let world = MemoryWorld::new(1, 1);
    let a = Node::start("no-log", "a", &world).await;
    let mut b = Node::start("no-log", "b", &world).await;
    let watcher = a.client("watcher").build().await.unwrap();
    let mut wills = watcher.subscribe("will", QoS::AtLeastOnce).await.unwrap();
    let will = Will::to("will", "gone").unwrap();
    let sensor = b.client("sensor").clean_start(true);
    let sensor = sensor
        .session_expiry(Duration::ZERO)
        .reconnect(Reconnect::never());
    let sensor = sensor.will(will.qos(QoS::AtLeastOnce));
    let sensor = sensor.build().await.unwrap();
    world.set_log_stalled(0, true);
    b.broker.as_ref().unwrap().kick("sensor").unwrap();
    sleep(Duration::from_secs(5)).await;
    b.kill();
    drop(sensor);
    world.set_log_stalled(0, false);
    assert_eq!(next(&mut wills).await, "gone");
}

/// Another node may have claimed it, and have given it back when it could not read what the session has to get.
#[tokio::test(start_paused = true)]
async fn a_session_whose_record_changes_while_it_is_adopted_is_looked_at_again() {
    let world = MemoryWorld::new(1, 1);
    let mut a = Node::start("adopted", "a", &world).await;
    let b = Node::start("adopted", "b", &world).await;
    let watcher = b.client("watcher").build().await.unwrap();
    let mut wills = watcher.subscribe("will/#", QoS::AtLeastOnce).await.unwrap();
    let will = Will::to("will/gone", "gone").unwrap();
    let gone = a.client("gone").will(will.qos(QoS::AtLeastOnce));
    let gone = gone.build().await.unwrap();
    a.kill();
    drop(gone);
    // Between a look at the record and a change of it there is time for another change.
    world.set_faults(Faults {
        max_delay: Duration::from_millis(200),
        errors_per_thousand: 0,
    });
    let changes = (0..64).map(|n| {
        let engine = world.engine(&format!("other-{n}"));
        tokio::spawn(async move {
            let key = || Key {
                kind: KeyKind::Session,
                name: "gone".to_owned(),
            };
            let mut first = None;
            loop {
                let Value { version, bytes } = engine.get(key()).await.unwrap().unwrap();
                // One that has been taken is its owner's.
                if *first.get_or_insert_with(|| bytes.clone()) != bytes {
                    return;
                }
                let put = engine.put(key(), version, bytes, Expiry::Never);
                let _ = put.await.unwrap();
            }
        })
    });
    let changes: Vec<_> = changes.collect();
    assert!(
        timeout(Duration::from_secs(20), wills.recv())
            .await
            .is_err()
    );
    for change in changes {
        change.abort();
    }
    assert_eq!(next(&mut wills).await, "gone");
}

#[tokio::test(start_paused = true)]
async fn what_would_come_only_behind_another_entry_comes_soon() {
    let world = MemoryWorld::new(1, 1);
    let mut a = Node::start("pushed", "a", &world).await;
    let b = Node::start("pushed", "b", &world).await;
    let will = Will::to("will", "gone").unwrap();
    let publisher = a.client("publisher").will(will.qos(QoS::AtLeastOnce));
    let publisher = publisher.build().await.unwrap();
    let reader = b.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("#", QoS::AtLeastOnce).await.unwrap();
    world.delay_next_entry(0);
    let began = Instant::now();
    send(&publisher, message("t", "one", QoS::AtLeastOnce)).await;
    assert_eq!(next(&mut messages).await, "one");
    // Its node is dead once its life's end has come.
    world.delay_next_entry(0);
    a.kill();
    drop(publisher);
    assert_eq!(next(&mut messages).await, "gone");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn logs_are_trimmed_up_to_what_a_session_or_a_new_node_may_need() {
    let world = MemoryWorld::new(1, 1);
    let a = Node::start("trims", "a", &world).await;
    let b = Node::start("trims", "b", &world).await;
    let publisher = a.client("publisher").build().await.unwrap();
    let reader = b.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    b.make_away("away", "rare", QoS::AtLeastOnce).await;
    let old = message("old", "retained", QoS::AtLeastOnce).retain(true);
    send(&publisher, old).await;
    let publish = async |messages: &mut Subscription| {
        for n in 0..3_000 {
            send(&publisher, message("t", n.to_string(), QoS::AtLeastOnce)).await;
            assert_eq!(next(messages).await, n.to_string());
        }
        // In two minutes it is copied, in the next one trimmed.
        sleep(Duration::from_mins(4)).await;
    };
    publish(&mut messages).await;
    let trimmed = world.entry_count();
    assert!(trimmed < 1_000, "{trimmed} of 3,000 entries are kept");
    // One that waits for long is copied, but for a large one.
    send(&publisher, message("rare", "needed", QoS::AtLeastOnce)).await;
    publish(&mut messages).await;
    let trimmed = world.entry_count();
    assert!(trimmed < 1_000, "{trimmed} of 6,000 entries are kept");
    let large = "large".repeat(20_000);
    send(&publisher, message("rare", large.clone(), QoS::AtLeastOnce)).await;
    publish(&mut messages).await;
    let kept = world.entry_count();
    assert!((3_000..4_500).contains(&kept), "{kept} entries are kept");
    let (away, mut rare) = a.come_back("away").await;
    assert_eq!(next(&mut rare).await, "needed");
    assert_eq!(next(&mut rare).await, large);
    publish(&mut messages).await;
    let trimmed = world.entry_count();
    assert!(trimmed < 1_000, "{trimmed} of 12,000 entries are kept");
    let late = Node::start("trims", "late", &world).await;
    let reader = late.client("late").build().await.unwrap();
    let mut retained = reader.subscribe("old", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(next(&mut retained).await, "retained");
    drop(away);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_too_large_loses_the_oldest_messages_of_sessions_that_are_away() {
    const MESSAGES: usize = 3_000;
    let world = MemoryWorld::new(1, 1);
    let small = |cluster: &mut ClusterSettings| cluster.log_max_bytes = 1_000_000;
    let a = Node::start_with("room", "a", &world, small).await;
    let b = Node::start_with("room", "b", &world, small).await;
    let publisher = a.client("publisher").build().await.unwrap();
    a.make_away("away", "t", QoS::AtLeastOnce).await;
    for n in 0..MESSAGES {
        let padded = format!("{n:<1000}");
        send(&publisher, message("t", padded, QoS::AtLeastOnce)).await;
    }
    sleep(Duration::from_mins(4)).await;
    let kept = world.entry_count();
    assert!((500..1_200).contains(&kept), "{kept} entries are kept");
    // Others go on meanwhile.
    send(&publisher, message("other", "goes on", QoS::AtLeastOnce)).await;
    let (away, mut messages) = b.come_back("away").await;
    let mut came: Vec<usize> = Vec::new();
    while came.last().is_none_or(|last| last + 1 < MESSAGES) {
        came.push(next(&mut messages).await.trim_end().parse().unwrap());
    }
    assert!(came.is_sorted(), "{came:?}");
    let at_b = b.broker.as_ref().unwrap().metrics();
    assert_eq!(came.len() + at_b.dropped.get(), MESSAGES);
    assert!(came.len() > 500, "{}", came.len());
    drop(away);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_no_value_has_room_for_ends_and_its_node_goes_on() {
    let world = MemoryWorld::new(2, 1);
    world.set_max_value_bytes(300_000);
    let a = Node::start("large", "a", &world).await;
    let b = Node::start("large", "b", &world).await;
    let other = a.client("other").build().await.unwrap();
    let mut messages = other.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let hostile = a.client("hostile").reconnect(Reconnect::never());
    let hostile = hostile.build().await.unwrap();
    let mut subscriptions = Vec::new();
    for n in 0..20 {
        let filter = format!("{n}/{}", "long".repeat(5_000));
        let subscribed = timeout(SOON, hostile.subscribe(filter, QoS::AtLeastOnce)).await;
        subscriptions.push(subscribed.unwrap());
    }
    let why = timeout(SOON, hostile.closed()).await.unwrap();
    assert!(why.to_string().contains("quota exceeded"), "{why}");
    sleep(SOON).await;
    send(&other, message("t", "goes on", QoS::AtLeastOnce)).await;
    assert_eq!(next(&mut messages).await, "goes on");
    let again = b.client("hostile").build().await.unwrap();
    assert!(!again.last_connected().unwrap().session_present);
    for node in [&a, &b] {
        let failed = node.broker.as_ref().unwrap().store_failed();
        assert!(timeout(Duration::ZERO, failed).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn logs_are_trimmed_past_a_node_that_was_removed() {
    let world = MemoryWorld::new(1, 1);
    // It is the one that trims as long as it is there.
    let mut a = Node::start("removes", "a", &world).await;
    let b = Node::start("removes", "b", &world).await;
    a.make_away("away", "rare", QoS::AtLeastOnce).await;
    let publisher = b.client("publisher").build().await.unwrap();
    send(&publisher, message("rare", "kept", QoS::AtLeastOnce)).await;
    a.end().await;
    for n in 0..3_000 {
        send(&publisher, message("t", n.to_string(), QoS::AtLeastOnce)).await;
    }
    sleep(Duration::from_mins(5)).await;
    let kept = world.entry_count();
    assert!(kept < 1_000, "{kept} of 3,000 entries are kept");
    let (away, mut rare) = b.come_back("away").await;
    assert_eq!(next(&mut rare).await, "kept");
    drop(away);
}

#[tokio::test(start_paused = true)]
async fn a_shared_subscription_is_one_group_over_all_nodes() {
    let world = MemoryWorld::new(4, 1);
    let mut a = Node::start("shares", "a", &world).await;
    let b = Node::start("shares", "b", &world).await;
    let publisher = b.client("publisher").build().await.unwrap();
    let (one, two) = (
        a.client("one").build().await.unwrap(),
        b.client("two").build().await.unwrap(),
    );
    let share = "$share/g/t/#";
    let mut at_a = one.subscribe(share, QoS::ExactlyOnce).await.unwrap();
    let mut at_b = two.subscribe(share, QoS::ExactlyOnce).await.unwrap();
    let all = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
    for qos in all {
        for n in 0..10 {
            let text = format!("{qos:?} {n}");
            send(&publisher, message("t/1", text, qos)).await;
        }
    }
    let mut came = Vec::new();
    for messages in [&mut at_a, &mut at_b] {
        for _ in 0..15 {
            came.push(next(messages).await);
        }
        assert!(timeout(SOON, messages.recv()).await.is_err());
    }
    came.sort();
    came.dedup();
    assert_eq!(came.len(), 30, "each message came to one of them");
    // One goes: the other has them all. It comes back: what was for it in between is not lost.
    one.disconnect().await.unwrap();
    for n in 0..5 {
        send(&publisher, message("t/1", n.to_string(), QoS::AtLeastOnce)).await;
        assert_eq!(next(&mut at_b).await, n.to_string());
    }
    two.disconnect().await.unwrap();
    drop((at_a, at_b));
    for n in 5..11 {
        send(&publisher, message("t/1", n.to_string(), QoS::AtLeastOnce)).await;
    }
    sleep(Duration::from_secs(1)).await;
    a.kill();
    for n in 11..21 {
        send(&publisher, message("t/1", n.to_string(), QoS::AtLeastOnce)).await;
    }
    let mut came = Vec::new();
    let mut members = Vec::new();
    for id in ["one", "two"] {
        let member = b.client(id);
        let mut messages = member.messages();
        members.push(member.build().await.unwrap());
        for _ in 0..8 {
            came.push(next(&mut messages).await.parse::<usize>().unwrap());
        }
        assert!(timeout(SOON, messages.recv()).await.is_err());
    }
    came.sort_unstable();
    assert_eq!(came, (5..21).collect::<Vec<_>>());
}

/// Nodes are killed, ended in order, cut off and begun again, and clients go from one to another, while what the nodes
/// share is slow and does not always answer. `MQ_SEED=n` runs one seed.
#[test]
fn nodes_that_are_killed_ended_or_cut_off_lose_nothing_and_repeat_no_qos2() {
    let each = over_seeds(0..100, killed_and_cut_off);
    let sum = each.into_iter().fold(Harm::default(), |sum, harm| Harm {
        kills: sum.kills + harm.kills,
        ends: sum.ends + harm.ends,
        cuts: sum.cuts + harm.cuts,
        moves: sum.moves + harm.moves,
    });
    println!("{sum:?}");
}

#[derive(Clone, Copy, Debug, Default)]
struct Harm {
    kills: usize,
    ends: usize,
    cuts: usize,
    moves: usize,
}

/// A client that may go from node to node.
struct Roaming {
    client: Client,
    relay: FaultyRelay,
    messages: Subscription,
}

impl Roaming {
    async fn new(cluster: &str, id: &str, node: &Node, seed: u64) -> Self {
        let url = format!("mem://{cluster}-at-{id}");
        let target = node.url().parse().unwrap();
        let relay = FaultyRelay::start(url.parse().unwrap(), target, seed);
        let relay = relay.await.unwrap();
        let client = mq_testkit::kept(&url, id).keep_alive(Duration::from_secs(5));
        let messages = client.messages();
        let client = client.build().await.unwrap();
        Self {
            client,
            relay,
            messages,
        }
    }
}

#[expect(clippy::too_many_lines, reason = "one story")]
async fn killed_and_cut_off(seed: u64) -> Harm {
    const MESSAGES: usize = 40;
    let mut random = fastrand::Rng::with_seed(seed);
    let world = MemoryWorld::new(2, seed);
    let cluster = format!("chaos-{seed}");
    let mut nodes = Vec::new();
    // What sessions have to get is read from the logs, or from memory.
    let change: [fn(&mut ClusterSettings); 2] = [
        |cluster: &mut ClusterSettings| cluster.recent_bytes = 0,
        |_| {},
    ];
    let change = change[usize::from(seed.is_multiple_of(2))];
    for name in ["a", "b", "c"] {
        nodes.push(Node::start_with(&cluster, name, &world, change).await);
    }
    let mut publishers = Vec::new();
    let mut readers = Vec::new();
    let mut subscribed = Vec::new();
    let mut members = Vec::new();
    let mut shares = Vec::new();
    for n in 0..2 {
        let node = &nodes[random.usize(..3)];
        let member = Roaming::new(&cluster, &format!("member-{n}"), node, seed).await;
        let share = member.client.subscribe("$share/g/t/#", QoS::ExactlyOnce);
        shares.push(share.await.unwrap());
        members.push(member);
    }
    for n in 0..2 {
        let node = random.usize(..3);
        let id = format!("publisher-{n}");
        publishers.push(Roaming::new(&cluster, &id, &nodes[node], seed).await);
        let node = random.usize(..3);
        let reader = Roaming::new(&cluster, &format!("reader-{n}"), &nodes[node], seed).await;
        let qos = [QoS::ExactlyOnce, QoS::AtLeastOnce][n];
        let subscription = reader.client.subscribe("t/#", qos).await.unwrap();
        subscribed.push(subscription);
        readers.push(reader);
    }
    world.set_faults(Faults {
        max_delay: Duration::from_millis(random.u64(1..20)),
        errors_per_thousand: random.u64(..50),
    });
    for publisher in &publishers {
        publisher.relay.set_harmful(true);
    }
    for reader in readers.iter().chain(&members) {
        reader.relay.set_harmful(true);
    }
    let mut harm = Harm::default();
    let mut receipts = Vec::new();
    let mut sent = 0;
    while sent < MESSAGES {
        if random.u8(..4) == 0 {
            match random.u8(..6) {
                0 => {
                    let node = &mut nodes[random.usize(..3)];
                    if random.bool() {
                        node.kill();
                        harm.kills += 1;
                    } else {
                        node.end().await;
                        harm.ends += 1;
                    }
                }
                1 => {
                    let k = random.usize(..3);
                    world.set_partitioned(&nodes[k].name, true);
                    harm.cuts += 1;
                }
                2 => {
                    let node = &mut nodes[random.usize(..3)];

                    world.set_partitioned(&node.name, false);
                    node.revive(&world).await;
                }
                _ => {
                    let clients = [&publishers, &readers, &members][random.usize(..3)];
                    let node = &nodes[random.usize(..3)];
                    clients[random.usize(..2)]
                        .relay
                        .turn_to(node.url().parse().unwrap());
                    harm.moves += 1;
                }
            }
        }
        for (n, publisher) in publishers.iter().enumerate() {
            let topic = format!("t/{n}/{}", sent % 2);
            let message = message(&topic, sent.to_string(), qos(sent));
            receipts.push(publisher.client.send(message).await.unwrap());
        }
        sent += 1;
        sleep(Duration::from_millis(random.u64(..1_000))).await;
    }

    // All is well again.
    world.set_faults(Faults::default());
    for node in &mut nodes {
        world.set_partitioned(&node.name, false);
    }
    // A node may learn late that its life has ended.
    for _ in 0..20 {
        for node in &mut nodes {
            node.revive(&world).await;
        }
        sleep(Duration::from_millis(500)).await;
    }
    for client in publishers.iter().chain(&readers).chain(&members) {
        client.relay.set_harmful(false);
        client.relay.turn_to(nodes[0].url().parse().unwrap());
    }
    for (n, mut receipt) in receipts.into_iter().enumerate() {
        let acknowledged = timeout(SOON, receipt.acknowledged()).await;
        assert!(
            matches!(acknowledged, Ok(Ok(_))),
            "seed {seed}, {n}: {acknowledged:?}"
        );
    }
    for (n, (mut own, mut reader)) in subscribed.into_iter().zip(readers).enumerate() {
        let mut came: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        loop {
            let one = tokio::select! {
                one = own.recv() => one,
                one = reader.messages.recv() => one,
                () = sleep(SOON) => break,
            };
            let one = one.unwrap();
            let number = one.text().unwrap().parse().unwrap();

            came.entry(one.topic.to_string()).or_default().push(number);
        }
        for publisher in 0..2 {
            for half in 0..2 {
                let topic = format!("t/{publisher}/{half}");
                let came = came.remove(&topic).unwrap_or_default();
                let mut firsts = Vec::new();
                for number in &came {
                    if firsts.contains(number) {
                        let once = qos(*number) == QoS::ExactlyOnce && n == 0;
                        assert!(!once, "seed {seed}: {number} twice in {topic}: {came:?}");
                    } else {
                        firsts.push(*number);
                    }
                }
                let all: Vec<_> = (0..MESSAGES).filter(|number| number % 2 == half).collect();
                assert_eq!(firsts, all, "seed {seed}, reader {n}, {topic}: {came:?}");
            }
        }
    }
    let mut came: BTreeMap<(String, usize), usize> = BTreeMap::new();
    for (mut own, mut member) in shares.into_iter().zip(members) {
        loop {
            let one = tokio::select! {
                one = own.recv() => one,
                one = member.messages.recv() => one,
                () = sleep(SOON) => break,
            };
            let one = one.unwrap();
            let number = one.text().unwrap().parse().unwrap();
            *came.entry((one.topic.to_string(), number)).or_default() += 1;
        }
    }
    for publisher in 0..2 {
        for number in 0..MESSAGES {
            let topic = format!("t/{publisher}/{}", number % 2);
            let times = came.remove(&(topic.clone(), number)).unwrap_or_default();
            let may = if qos(number) == QoS::ExactlyOnce {
                1..2
            } else {
                1..MESSAGES
            };
            assert!(
                may.contains(&times),
                "seed {seed}: {number} in {topic} came {times} times to the group"
            );
        }
    }
    harm
}

/// Returns the QoS of a message: of two topics, both QoS on either.
fn qos(number: usize) -> QoS {
    [QoS::AtLeastOnce, QoS::ExactlyOnce][number / 2 % 2]
}
