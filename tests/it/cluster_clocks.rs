//! Nodes whose clocks are wrong: sessions and messages of a cluster end in their time all the same.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use mq_broker::cluster::{ClusterSettings, MemoryWorld, WallClock};
use mq_client::QoS;
use mq_testkit::TestBroker;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster_node::{Node, SOON, message, next, send};

const HOUR: Duration = Duration::from_hours(1);
const TEN_SECONDS: Duration = Duration::from_secs(10);

/// The time that a clock shows, by the right one and the time since its node began.
type Shown = fn(SystemTime, Duration) -> SystemTime;

/// Time from the start until the clocks that step do so.
const STEP_AT: Duration = Duration::from_secs(6);

const CLOCKS: [(&str, Shown); 7] = [
    ("an-hour-ahead", |right, _| right + HOUR),
    ("an-hour-behind", |right, _| right - HOUR),
    ("ahead", |right, _| right + TEN_SECONDS),
    ("behind", |right, _| right - TEN_SECONDS),
    (
        "steps",
        |right, since| {
            if since < STEP_AT { right } else { right + HOUR }
        },
    ),
    ("steps-back", |right, since| {
        if since < STEP_AT { right } else { right - HOUR }
    }),
    ("drifts", |right, since| right + since / 2),
];

/// Gives a node that clock.
fn with_clock(world: &Arc<MemoryWorld>, shown: Shown) -> impl Fn(&mut ClusterSettings) + use<> {
    let world = Arc::clone(world);
    let began = Instant::now();
    move |cluster: &mut ClusterSettings| {
        let world = Arc::clone(&world);
        cluster.wall_clock = WallClock::new(move || shown(world.time(), began.elapsed()));
    }
}

/// Makes a session with a subscription, whose client leaves it for so long.
async fn leave(node: &Node, id: &str, expiry_s: u64) {
    let client = node.client(id);
    let client = client.session_expiry(Duration::from_secs(expiry_s));
    let client = client.build().await.unwrap();
    let subscribed = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    client.disconnect().await.unwrap();
    drop(subscribed);
}

/// Returns `true` if a session is there.
async fn is_there(node: &Node, id: &str) -> bool {
    let client = node.client(id).build().await.unwrap();
    client.last_connected().unwrap().session_present
}

/// Runs two nodes, of which one has that clock. One of them dies, and its sessions go on at the other one.
async fn everything_ends_in_its_time(name: &str, shown: Shown, wrong_dies: bool) {
    let cluster = format!("{name}-{wrong_dies}");
    let world = MemoryWorld::new(2, 1);
    let clocks: [Shown; 2] = [shown, |right, _| right];
    let [first, second] = if wrong_dies { [0, 1] } else { [1, 0] };
    let mut dies =
        Node::start_with(&cluster, "dies", &world, with_clock(&world, clocks[first])).await;
    let stays = Node::start_with(
        &cluster,
        "stays",
        &world,
        with_clock(&world, clocks[second]),
    )
    .await;
    let at_dies = dies.client("first publisher").build().await.unwrap();
    let at_stays = stays.client("second publisher").build().await.unwrap();
    let reader = stays.client("reader").build().await.unwrap();
    let mut messages = reader.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let began = Instant::now();
    let after = |seconds| began + Duration::from_secs(seconds);
    // Ten seconds would make a difference for each of them.
    for (id, expiry_s) in [("moves", 20), ("goes on", 36), ("ends", 25)] {
        leave(&dies, id, expiry_s).await;
    }
    for (text, expiry_s) in [("long", 300), ("short", 5)] {
        let message = message("t", text, QoS::AtLeastOnce);
        let message = message.message_expiry(Duration::from_secs(expiry_s));
        send(&at_dies, message).await;
        assert_eq!(next(&mut messages).await, text, "{cluster}");
    }
    sleep_until(after(12)).await;
    let last = message("t", "last", QoS::AtLeastOnce);
    send(&at_stays, last.message_expiry(Duration::from_mins(1))).await;
    let (moves, mut messages) = stays.come_back("moves").await;
    let was_there = moves.last_connected().unwrap().session_present;
    assert!(was_there, "{cluster}: the session has moved");
    for text in ["long", "last"] {
        assert_eq!(next(&mut messages).await, text, "{cluster}");
    }
    at_dies.disconnect().await.unwrap();
    dies.kill();
    sleep_until(after(30)).await;
    assert!(!is_there(&stays, "ends").await, "{cluster}: it is over");
    let (goes_on, mut messages) = stays.come_back("goes on").await;
    let was_there = goes_on.last_connected().unwrap().session_present;
    assert!(was_there, "{cluster}: the session goes on");
    for text in ["long", "last"] {
        assert_eq!(next(&mut messages).await, text, "{cluster}");
    }
    drop((reader, moves));
}

#[tokio::test(start_paused = true)]
async fn sessions_and_messages_end_in_their_time_whatever_the_clocks_of_nodes_show() {
    for (name, shown) in CLOCKS {
        for wrong_dies in [true, false] {
            everything_ends_in_its_time(name, shown, wrong_dies).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_know_the_time_ends_no_session_of_another() {
    let world = MemoryWorld::new(2, 1);
    world.set_server_clocks(&[0, 3_600]);
    let mut a = Node::start("unknown", "a", &world).await;
    let ahead: Shown = |right, _| right + HOUR;
    let b = Node::start_with("unknown", "b", &world, with_clock(&world, ahead)).await;
    for id in ["asked for", "left alone"] {
        leave(&a, id, 20).await;
    }
    leave(&a, "goes on", 600).await;
    // Long enough for their records to say when they end.
    sleep(Duration::from_secs(12)).await;
    a.kill();
    sleep(Duration::from_mins(1)).await;
    assert!(is_there(&b, "asked for").await);
    world.set_server_clocks(&[0, 3_600, 1]);
    // It looks for sessions again.
    sleep(SOON).await;
    assert!(!is_there(&b, "left alone").await);
    assert!(is_there(&b, "goes on").await);
}

/// Returns the status of `/readyz`, and what it says.
async fn readiness(broker: &TestBroker) -> (u16, String) {
    let at = broker.broker().admin_address().unwrap();
    let stream = tokio::net::TcpStream::connect(at).await.unwrap();
    mq_testkit::ask(stream, "GET /readyz", "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_servers_disagree_about_the_time_is_not_ready() {
    let world = MemoryWorld::new(2, 1);
    world.set_server_clocks(&[0, 3_600]);
    let engine = world.engine("one");
    let broker = TestBroker::start_with(|settings| {
        settings.admin.http = Some("127.0.0.1:0".parse().unwrap());
        settings.cluster = Some(ClusterSettings::new("one", engine));
    })
    .await;
    let reason = "the servers' clocks differ: server-0 +0 s, server-1 +3600 s\n";
    assert_eq!(readiness(&broker).await, (503, reason.to_owned()));
    world.set_server_clocks(&[0, 3_600, 0]);
    let began = Instant::now();
    while readiness(&broker).await.0 != 200 {
        assert!(began.elapsed() < TEN_SECONDS, "it is ready again");
        sleep(Duration::from_millis(50)).await;
    }
    broker.shutdown().await;
}
