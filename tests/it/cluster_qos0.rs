//! Messages of QoS 0 go to the nodes of a cluster that may have a subscriber, and to no other.

use std::{sync::Arc, time::Duration};

use mq_broker::cluster::MemoryWorld;
use mq_client::{Client, QoS, Subscription};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster_node::{Node, SOON, message, next, send};

/// Longer than a summary of filters is used that some have left.
const REBUILT: Duration = Duration::from_secs(25);

async fn three(cluster: &str) -> (Arc<MemoryWorld>, [Node; 3]) {
    let world = MemoryWorld::new(2, 1);
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(Node::start(cluster, name, &world).await);
    }
    // Each has seen the others' first heartbeats.
    sleep(Duration::from_secs(3)).await;
    (world, nodes.try_into().ok().unwrap())
}

async fn subscriber(node: &Node, id: &str, filter: &str) -> (Client, Subscription) {
    let client = node.client(id).build().await.unwrap();
    let messages = client.subscribe(filter, QoS::AtMostOnce).await.unwrap();
    (client, messages)
}

/// Publishes a message of QoS 0 that each of these receives, and returns how many messages went to each node for it.
async fn publish(
    world: &MemoryWorld,
    client: &Client,
    topic: &str,
    receivers: &mut [&mut Subscription],
) -> [usize; 3] {
    let sent = || ["a", "b", "c"].map(|node| world.sent_to(node));
    let before = sent();
    send(client, message(topic, topic, QoS::AtMostOnce)).await;
    for receiver in receivers {
        assert_eq!(next(receiver).await, topic);
    }
    // What goes to nobody is under way no longer.
    sleep(Duration::from_millis(10)).await;
    let after = sent();
    [0, 1, 2].map(|node| after[node] - before[node])
}

#[tokio::test(start_paused = true)]
async fn a_message_goes_to_the_nodes_with_a_subscriber_alone() {
    let (world, [a, b, c]) = three("interest").await;
    let publisher = a.client("publisher").build().await.unwrap();
    let (at_b, mut b_gets) = subscriber(&b, "at-b", "plant/+/heat").await;
    let (_at_c, mut c_gets) = subscriber(&c, "at-c", "$share/g/plant/2/#").await;
    let both = &mut [&mut b_gets, &mut c_gets];
    let sent = publish(&world, &publisher, "plant/2/heat", both).await;
    assert_eq!(sent, [0, 1, 1]);
    let sent = publish(&world, &publisher, "plant/1/heat", &mut [&mut b_gets]).await;
    assert_eq!(sent, [0, 1, 0]);
    let sent = publish(&world, &publisher, "office/heat", &mut []).await;
    assert_eq!(sent, [0, 0, 0]);
    at_b.unsubscribe("plant/+/heat").await.unwrap();
    sleep(REBUILT).await;
    let sent = publish(&world, &publisher, "plant/1/heat", &mut []).await;
    assert_eq!(sent, [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_begins_again_knows_and_is_known() {
    let (world, [a, mut b, c]) = three("interest-again").await;
    let publisher = a.client("publisher").build().await.unwrap();
    let (_at_c, mut c_gets) = subscriber(&c, "at-c", "t/c").await;
    let (_at_b, mut b_gets) = subscriber(&b, "at-b", "t/b").await;
    publish(&world, &publisher, "t/b", &mut [&mut b_gets]).await;
    b.kill();
    sleep(Duration::from_secs(10)).await;
    b = Node::start("interest-again", "b", &world).await;
    sleep(Duration::from_secs(3)).await;
    let at_b = b.client("publisher-b").build().await.unwrap();
    assert_eq!(
        publish(&world, &at_b, "t/c", &mut [&mut c_gets]).await,
        [0, 0, 1],
        "it knows the filters of the others"
    );
    let (_again, mut b_gets) = subscriber(&b, "new-at-b", "t/new").await;
    let sent = publish(&world, &publisher, "t/new", &mut [&mut b_gets]).await;
    assert_eq!(sent, [0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_moves_takes_its_filters_along() {
    let (world, [a, b, c]) = three("interest-moves").await;
    let publisher = a.client("publisher").build().await.unwrap();
    b.make_away("reader", "t/1", QoS::AtMostOnce).await;
    let (_reader, mut messages) = c.come_back("reader").await;
    sleep(Duration::from_secs(1)).await;
    let sent = publish(&world, &publisher, "t/1", &mut [&mut messages]).await;
    assert_eq!(sent[2], 1);
    sleep(REBUILT).await;
    let sent = publish(&world, &publisher, "t/1", &mut [&mut messages]).await;
    assert_eq!(sent, [0, 0, 1]);
}

/// A node that does not answer holds a SUBSCRIBE up for a quarter of a second, and learns of it when it is back.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_cut_off_holds_no_subscriber_up_and_learns_its_filter_later() {
    let (world, [a, b, _c]) = three("interest-cut").await;
    let publisher = a.client("publisher").build().await.unwrap();
    let client = b.client("reader").build().await.unwrap();
    world.set_partitioned("a", true);
    let began = Instant::now();
    let subscribing = client.subscribe("t/1", QoS::AtMostOnce);
    let mut messages = timeout(SOON, subscribing).await.unwrap().unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    world.set_partitioned("a", false);
    sleep(Duration::from_secs(2)).await;
    let sent = publish(&world, &publisher, "t/1", &mut [&mut messages]).await;
    assert_eq!(sent, [0, 1, 0]);
}
