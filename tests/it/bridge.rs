//! A bridge carries messages between two brokers: under other names, either way, over whatever ends meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
    sync::Arc,
    time::{Duration, SystemTime},
};

use mq_broker::{
    BridgeNotifications, BridgeQueue, BridgeSettings, BridgeStart, BridgeTopic, Broker, Direction,
    DiskStore, Durability, Error, MemoryStore, Overflow, Settings, Store,
    store::{Change, SessionChange},
    view::Query,
};
use mq_client::{
    Client, ClientBuilder, Outgoing, QoS, Reconnect, Subscription, TopicName, Version, Will,
};
use mq_codec::ByteStr;
use mq_testkit::{FaultyRelay, SlowStore};
use tokio::time::{sleep, timeout};

use crate::{faults::settle_for_ever, seeds::over_seeds};

const HOUR: Duration = Duration::from_hours(1);

/// In virtual time; a bridge waits for 30 s at most before it connects again.
const SOON: Duration = Duration::from_mins(2);

fn url(name: &str) -> String {
    format!("mem://bridge-{name}")
}

async fn start(name: &str, store: Option<&Arc<impl Store>>, bridges: &[BridgeSettings]) -> Broker {
    let mut settings = Settings::new(vec![url(name).parse().unwrap()]);
    settings.store = store.map(|store| Arc::clone(store).into());
    settings.bridges = bridges.to_vec();
    Broker::start(settings).await.unwrap()
}

/// Starts a broker that keeps nothing.
async fn plain(name: &str, bridges: &[BridgeSettings]) -> Broker {
    start(name, None::<&Arc<MemoryStore>>, bridges).await
}

fn bridge_to(name: &str, topics: &[BridgeTopic]) -> BridgeSettings {
    BridgeSettings::new("cloud", vec![url(name).parse().unwrap()], topics.to_vec())
}

fn topic(direction: Direction, pattern: &str, local: &str, remote: &str) -> BridgeTopic {
    BridgeTopic {
        direction,
        qos: QoS::ExactlyOnce,
        local_prefix: local.to_owned(),
        remote_prefix: remote.to_owned(),
        ..BridgeTopic::new(pattern)
    }
}

/// Builds a client whose session outlives it and the broker.
fn kept(name: &str, id: &str) -> ClientBuilder {
    mq_testkit::kept(&url(name), id)
}

async fn client(name: &str) -> Client {
    kept(name, "client").build().await.unwrap()
}

fn message(topic: &str, payload: impl Into<String>, qos: QoS) -> Outgoing {
    Outgoing::to(topic, payload.into()).unwrap().qos(qos)
}

async fn send(client: &Client, message: Outgoing) {
    let mut receipt = client.send(message).await.unwrap();
    receipt.acknowledged().await.unwrap();
}

/// Waits for the next message, and returns its topic and payload.
async fn next(messages: &mut Subscription) -> (String, String) {
    let incoming = timeout(SOON, messages.recv()).await.unwrap().unwrap();
    let text = incoming.text().unwrap().to_owned();
    (incoming.topic.to_string(), text)
}

fn pair(topic: &str, payload: &str) -> (String, String) {
    (topic.to_owned(), payload.to_owned())
}

async fn nothing_more(messages: &mut Subscription) {
    let more = timeout(SOON, messages.recv()).await;
    assert!(more.is_err(), "{more:?}");
}

/// Waits for the only client that is connected to that broker, and returns its identifier.
async fn only_client(broker: &Broker) -> String {
    connected(broker).await;
    let mut clients = broker.clients(&Query::default()).await.items;
    assert_eq!(clients.len(), 1, "{clients:?}");
    clients.remove(0).client_id
}

/// Waits until a bridge is connected to that broker.
async fn connected(broker: &Broker) {
    let connected = async {
        while broker.clients(&Query::default()).await.items.is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, connected).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn messages_go_both_ways_under_the_names_of_either_side() {
    let cloud = plain("names-cloud", &[]).await;
    let topics = [
        topic(Direction::Out, "up/#", "", "edge/"),
        topic(Direction::In, "down/#", "here/", "edge/"),
    ];
    let edge = plain("names-edge", &[bridge_to("names-cloud", &topics)]).await;
    connected(&cloud).await;
    let (there, here) = (client("names-cloud").await, client("names-edge").await);
    let mut at_cloud = there.subscribe("#", QoS::ExactlyOnce).await.unwrap();
    let mut at_edge = here.subscribe("#", QoS::ExactlyOnce).await.unwrap();
    for (n, qos) in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]
        .into_iter()
        .enumerate()
    {
        let text = n.to_string();
        send(&here, message("up/1", text.as_str(), qos)).await;
        assert_eq!(next(&mut at_edge).await, pair("up/1", &text));
        assert_eq!(next(&mut at_cloud).await, pair("edge/up/1", &text));
        send(&there, message("edge/down/1", text.as_str(), qos)).await;
        assert_eq!(next(&mut at_cloud).await, pair("edge/down/1", &text));
        assert_eq!(next(&mut at_edge).await, pair("here/down/1", &text));
    }
    // Neither goes the other way.
    send(&here, message("here/down/1", "x", QoS::AtLeastOnce)).await;
    assert_eq!(next(&mut at_edge).await, pair("here/down/1", "x"));
    nothing_more(&mut at_cloud).await;
    edge.shutdown().await;
    cloud.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_retained_here_is_retained_there_also_by_a_broker_that_has_lost_it() {
    let topics = [topic(Direction::Out, "state/#", "", "edge/")];
    let bridges = [bridge_to("retained-cloud", &topics)];
    let edge = plain("retained-edge", &bridges).await;
    let here = client("retained-edge").await;
    send(
        &here,
        message("state/1", "on", QoS::AtLeastOnce).retain(true),
    )
    .await;
    for _ in 0..2 {
        let cloud = plain("retained-cloud", &[]).await;
        connected(&cloud).await;
        let there = client("retained-cloud").await;
        let found = async {
            loop {
                let mut found = there.subscribe("edge/#", QoS::AtLeastOnce).await.unwrap();
                if let Ok(Some(found)) = timeout(Duration::from_secs(1), found.recv()).await
                    && found.retain
                {
                    break found.text().unwrap().to_owned();
                }
            }
        };
        assert_eq!(timeout(SOON, found).await.unwrap(), "on");
        cloud.shutdown().await;
        sleep(Duration::from_secs(1)).await;
    }
    edge.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn messages_wait_for_the_other_broker_over_restarts_of_this_one() {
    const MESSAGES: usize = 300;
    let topics = [topic(Direction::Out, "up/#", "", "edge/")];
    let bridges = [bridge_to("wait-cloud", &topics)];
    let store = Arc::new(MemoryStore::new());
    for half in 0..2 {
        let edge = start("wait-edge", Some(&store), &bridges).await;
        let here = client("wait-edge").await;
        for n in 0..MESSAGES / 2 {
            let n = half * MESSAGES / 2 + n;
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][n % 2];
            send(&here, message("up/1", n.to_string(), qos)).await;
        }
        edge.shutdown().await;
    }
    let cloud = plain("wait-cloud", &[]).await;
    let there = client("wait-cloud").await;
    let mut at_cloud = there.subscribe("edge/#", QoS::ExactlyOnce).await.unwrap();
    let edge = start("wait-edge", Some(&store), &bridges).await;
    for n in 0..MESSAGES {
        assert_eq!(next(&mut at_cloud).await, pair("edge/up/1", &n.to_string()));
    }
    nothing_more(&mut at_cloud).await;
    edge.shutdown().await;
    cloud.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_two_brokers_bridge_to_each_other_does_not_go_round() {
    let all = [topic(Direction::Both, "#", "", "")];
    let one = plain("mutual-one", &[bridge_to("mutual-two", &all)]).await;
    let two = plain("mutual-two", &[bridge_to("mutual-one", &all)]).await;
    // Each is a client of the other.
    connected(&one).await;
    connected(&two).await;
    sleep(Duration::from_secs(10)).await;
    let (at_one, at_two) = (client("mutual-one").await, client("mutual-two").await);
    let mut here = at_one.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    let mut there = at_two.subscribe("t", QoS::ExactlyOnce).await.unwrap();
    send(&at_one, message("t", "x", QoS::ExactlyOnce)).await;
    // The two bridges are two ways to the other broker. Neither is one back.
    assert_eq!(copies(&mut there).await, 2);
    assert_eq!(copies(&mut here).await, 1);
    two.shutdown().await;
    one.shutdown().await;
}

/// Counts the messages that come until there are no more, or there is a storm of them.
async fn copies(messages: &mut Subscription) -> usize {
    let mut copies = 0;
    while copies < STORM
        && let Ok(Some(_)) = timeout(SOON, messages.recv()).await
    {
        copies += 1;
    }
    copies
}

/// Copies of one message that no bound explains.
const STORM: usize = 1_000;

#[tokio::test(start_paused = true)]
async fn what_goes_round_a_ring_of_brokers_ends() {
    for (version, most) in [(Version::V5, 1), (Version::V3_1_1, 25)] {
        let names = ["ring-one", "ring-two", "ring-three"];
        let mut brokers = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let all = [topic(Direction::Out, "#", "", "")];
            let mut bridge = bridge_to(names[(n + 1) % names.len()], &all);
            bridge.version = version;
            brokers.push(plain(name, &[bridge]).await);
        }
        for broker in &brokers {
            connected(broker).await;
        }
        sleep(Duration::from_secs(10)).await;
        let (first, last) = (client(names[0]).await, client(names[2]).await);
        let mut here = first.subscribe("t", QoS::AtLeastOnce).await.unwrap();
        let mut there = last.subscribe("t", QoS::AtLeastOnce).await.unwrap();
        send(&first, message("t", "x", QoS::AtLeastOnce)).await;
        let came = [copies(&mut here).await, copies(&mut there).await];
        println!("MQTT {version}: {came:?} copies");
        assert!(
            came.iter().all(|copies| (1..=most).contains(copies)),
            "{version}: {came:?}"
        );
        // Other messages pass, and so does this one after a while.
        for text in ["y", "x"] {
            send(&first, message("t", text, QoS::AtLeastOnce)).await;
            assert_eq!(next(&mut there).await, pair("t", text));
            copies(&mut there).await;
        }
        for broker in brokers {
            broker.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn before_5_0_a_bridge_carries_what_cannot_go_round() {
    let cloud = plain("old-cloud", &[]).await;
    let topics = [
        topic(Direction::Out, "up/#", "", "edge/"),
        topic(Direction::In, "down/#", "", "edge/"),
    ];
    let mut bridge = bridge_to("old-cloud", &topics);
    bridge.version = Version::V3_1_1;
    let edge = plain("old-edge", &[bridge.clone()]).await;
    connected(&cloud).await;
    let (there, here) = (client("old-cloud").await, client("old-edge").await);
    let mut at_cloud = there
        .subscribe("edge/up/#", QoS::ExactlyOnce)
        .await
        .unwrap();
    let mut at_edge = here.subscribe("down/#", QoS::ExactlyOnce).await.unwrap();
    send(&here, message("up/1", "x", QoS::ExactlyOnce)).await;
    assert_eq!(next(&mut at_cloud).await, pair("edge/up/1", "x"));
    send(&there, message("edge/down/1", "y", QoS::ExactlyOnce)).await;
    assert_eq!(next(&mut at_edge).await, pair("down/1", "y"));
    bridge.topics = vec![topic(Direction::Both, "t/#", "", "")];
    let mut settings = Settings::new(vec![url("old-other").parse().unwrap()]);
    settings.bridges = vec![bridge];
    let error = Broker::start(settings).await.unwrap_err();
    assert!(matches!(&error, Error::Bridge { .. }), "{error}");
    assert!(error.to_string().contains("for ever"), "{error}");
    edge.shutdown().await;
    cloud.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_takes_less_gets_what_it_takes() {
    for most in [QoS::AtLeastOnce, QoS::AtMostOnce] {
        let mut settings = Settings::new(vec![url("less-cloud").parse().unwrap()]);
        settings.protocol.maximum_qos = most;
        settings.protocol.retain_available = false;
        let cloud = Broker::start(settings).await.unwrap();
        let topics = [topic(Direction::Out, "up/#", "", "")];
        let store = Arc::new(SlowStore::default());
        let bridges = [bridge_to("less-cloud", &topics)];
        let settling = async {
            loop {
                sleep(Duration::from_millis(1)).await;
                store.settle(usize::MAX);
            }
        };
        let sending = async {
            let edge = start("less-edge", Some(&store), &bridges).await;
            let (there, here) = (client("less-cloud").await, client("less-edge").await);
            connected(&cloud).await;
            let mut at_cloud = there.subscribe("up/#", most).await.unwrap();
            for n in 0..3 {
                let text = n.to_string();
                let retained = message("up/1", text.as_str(), QoS::ExactlyOnce).retain(true);
                send(&here, retained).await;
                assert_eq!(next(&mut at_cloud).await, pair("up/1", &text), "{most:?}");
            }
            sleep(Duration::from_secs(1)).await;
            edge.shutdown().await;
        };
        tokio::select! {
            () = settling => unreachable!("it does not end"),
            () = sending => {}
        }
        store.settle(usize::MAX);
        store.assert_nothing_is_under_way();
        cloud.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_client_gets_the_session_of_a_bridge() {
    let topics = [topic(Direction::Out, "#", "", "")];
    let edge = plain("thief", &[bridge_to("nobody", &topics)]).await;
    let thief = kept("thief", "$bridge/cloud").reconnect(Reconnect::never());
    let error = thief.build().await.unwrap_err();
    assert!(error.to_string().contains("lient"), "{error}");
    edge.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_lazy_bridge_is_connected_while_something_waits() {
    let cloud = plain("lazy-cloud", &[]).await;
    let mut bridge = bridge_to("lazy-cloud", &[topic(Direction::Out, "up/#", "", "")]);
    bridge.start = BridgeStart::Lazy(Duration::from_secs(10));
    let edge = plain("lazy-edge", &[bridge]).await;
    let (there, here) = (client("lazy-cloud").await, client("lazy-edge").await);
    let mut at_cloud = there.subscribe("up/#", QoS::ExactlyOnce).await.unwrap();
    let connections = || cloud.metrics().connections.get();
    for n in 0..3 {
        sleep(Duration::from_mins(1)).await;
        assert_eq!(connections(), 1, "the client alone");
        let text = n.to_string();
        send(&here, message("up/1", text.as_str(), QoS::AtLeastOnce)).await;
        assert_eq!(next(&mut at_cloud).await, pair("up/1", &text));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(connections(), 2);
    }
    edge.shutdown().await;
    cloud.shutdown().await;
}

/// Waits for the next payload, whatever else is retained.
async fn state(messages: &mut Subscription) -> String {
    next(messages).await.1
}

#[tokio::test(start_paused = true)]
async fn either_broker_says_whether_the_bridge_is_connected() {
    const STATE: &str = "$SYS/broker/connection/edge-7/state";
    for version in [Version::V5, Version::V3_1_1] {
        let topics = [topic(Direction::Out, "up/#", "", "")];
        let mut bridge = bridge_to("state-cloud", &topics);
        bridge.client_id = Some("edge-7".to_owned());
        bridge.notifications = BridgeNotifications::Both;
        bridge.version = version;
        bridge.longest_wait = Duration::from_secs(1);
        let edge = plain("state-edge", &[bridge]).await;
        let here = client("state-edge").await;
        let mut at_edge = here.subscribe(STATE, QoS::AtLeastOnce).await.unwrap();
        assert_eq!(state(&mut at_edge).await, "0", "nobody is there yet");
        let mut settings = Settings::new(vec![url("state-cloud").parse().unwrap()]);
        settings.sys_interval = Some(HOUR);
        let cloud = Broker::start(settings).await.unwrap();
        assert_eq!(state(&mut at_edge).await, "1");
        let there = client("state-cloud").await;
        let mut at_cloud = there.subscribe(STATE, QoS::AtLeastOnce).await.unwrap();
        assert_eq!(state(&mut at_cloud).await, "1", "{version:?}");
        // The link breaks off and comes again, and each of them says so.
        for _ in 0..3 {
            cloud.kick("edge-7").unwrap();
            for messages in [&mut at_edge, &mut at_cloud] {
                assert_eq!(state(messages).await, "0", "{version:?}");
                assert_eq!(state(messages).await, "1", "{version:?}");
            }
        }
        // It says goodbye, which makes the other broker forget its will.
        edge.shutdown().await;
        assert_eq!(state(&mut at_cloud).await, "0", "{version:?}");
        nothing_more(&mut at_cloud).await;
        let mut later = there.subscribe(STATE, QoS::AtLeastOnce).await.unwrap();
        assert_eq!(state(&mut later).await, "0", "it is retained");
        cloud.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lazy_bridge_that_has_nothing_to_do_is_not_connected() {
    for version in [Version::V5, Version::V3_1_1] {
        let cloud = plain("lazy-state-cloud", &[]).await;
        let topics = [topic(Direction::Out, "up/#", "", "")];
        let mut bridge = bridge_to("lazy-state-cloud", &topics);
        bridge.start = BridgeStart::Lazy(Duration::from_secs(10));
        bridge.notifications = BridgeNotifications::Both;
        bridge.notification_topic = Some("edge/state".to_owned());
        bridge.version = version;
        let edge = plain("lazy-state-edge", &[bridge]).await;
        // It looks once for what is retained here.
        sleep(Duration::from_mins(1)).await;
        let here = client("lazy-state-edge").await;
        let there = client("lazy-state-cloud").await;
        let mut at_edge = here
            .subscribe("edge/state", QoS::AtLeastOnce)
            .await
            .unwrap();
        let mut at_cloud = there
            .subscribe("edge/state", QoS::AtLeastOnce)
            .await
            .unwrap();
        for messages in [&mut at_edge, &mut at_cloud] {
            assert_eq!(state(messages).await, "0");
        }
        for _ in 0..2 {
            send(&here, message("up/1", "x", QoS::AtLeastOnce)).await;
            for messages in [&mut at_edge, &mut at_cloud] {
                assert_eq!(state(messages).await, "1", "{version:?}");
                assert_eq!(state(messages).await, "0", "{version:?}");
            }
        }
        // What it says of itself is nothing to connect for.
        nothing_more(&mut at_edge).await;
        edge.shutdown().await;
        cloud.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn brokers_with_the_same_configuration_are_different_clients_of_the_other_one() {
    let cloud = plain("same-cloud", &[]).await;
    let bridges = [bridge_to(
        "same-cloud",
        &[topic(Direction::Out, "up/#", "", "")],
    )];
    let stores = [(); 2].map(|()| Arc::new(MemoryStore::new()));
    let mut edges = Vec::new();
    for (n, store) in stores.iter().enumerate() {
        edges.push(start(&format!("same-edge-{n}"), Some(store), &bridges).await);
    }
    let both = async {
        while cloud.clients(&Query::default()).await.items.len() < 2 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, both).await.unwrap();
    // For as long as it would take them to throw each other out.
    sleep(SOON).await;
    let clients = cloud.clients(&Query::default()).await.items;
    let clients: BTreeSet<_> = clients.into_iter().map(|one| one.client_id).collect();
    assert_eq!(clients.len(), 2, "{clients:?}");
    for client in &clients {
        let digits = client.strip_prefix("bridge-cloud-").unwrap();
        assert_eq!(digits.len(), 12, "{client}");
        assert!(digits.chars().all(|c| c.is_ascii_hexdigit()), "{client}");
    }
    assert_eq!(cloud.metrics().sessions.get(), 2);
    for edge in edges {
        edge.shutdown().await;
    }
    cloud.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_bridge_without_room_for_its_session_begins_once_there_is_room() {
    let cloud = plain("room-cloud", &[]).await;
    let store = Arc::new(MemoryStore::new());
    let before = start("room-edge", Some(&store), &[]).await;
    client("room-edge").await.disconnect().await.unwrap();
    before.shutdown().await;
    let topics = [topic(Direction::Out, "up/#", "", "")];
    let mut settings = Settings::new(vec![url("room-edge").parse().unwrap()]);
    settings.store = Some(Arc::clone(&store).into());
    settings.bridges = vec![bridge_to("room-cloud", &topics)];
    settings.quotas.sessions = 1;
    let edge = Broker::start(settings).await.unwrap();
    sleep(SOON).await;
    assert!(cloud.clients(&Query::default()).await.items.is_empty());
    // The session of an earlier client ends.
    let last = kept("room-edge", "client").session_expiry(Duration::ZERO);
    last.build().await.unwrap().disconnect().await.unwrap();
    assert!(only_client(&cloud).await.starts_with("bridge-cloud-"));
    edge.shutdown().await;
    cloud.shutdown().await;
}

/// In real time, as a disk is.
#[tokio::test]
async fn a_broker_is_the_same_client_of_the_other_one_as_long_as_its_store_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let [path, copy] = ["store", "copy"].map(|name| folder.path().join(name));
    let cloud = plain("known-cloud", &[]).await;
    let bridges = [bridge_to(
        "known-cloud",
        &[topic(Direction::Out, "up/#", "", "")],
    )];
    let mut seen = BTreeSet::new();
    for (path, backup) in [(&path, None), (&path, Some(&copy)), (&copy, None)] {
        let store = Arc::new(DiskStore::open(path, Durability::Always).unwrap());
        let edge = start("known-edge", Some(&store), &bridges).await;
        seen.insert(only_client(&cloud).await);
        if let Some(copy) = backup {
            store.back_up(copy).unwrap();
        }
        edge.shutdown().await;
        let gone = async {
            while !cloud.clients(&Query::default()).await.items.is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, gone).await.unwrap();
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    cloud.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn no_other_broker_hears_of_an_identifier_that_may_be_lost() {
    let cloud = plain("early-cloud", &[]).await;
    let topics = [topic(Direction::Out, "up/#", "", "")];
    let store = Arc::new(SlowStore::default());
    let bridges = [bridge_to("early-cloud", &topics)];
    let starting = start("early-edge", Some(&store), &bridges);
    tokio::pin!(starting);
    let early = timeout(SOON, &mut starting).await;
    assert!(early.is_err(), "{early:?}");
    assert!(cloud.clients(&Query::default()).await.items.is_empty());
    // The identifier, and nothing else.
    store.settle(1);
    let edge = timeout(SOON, &mut starting).await.unwrap();
    let first = settled_meanwhile(&store, only_client(&cloud)).await;
    drop(edge);
    // Its tasks are gone, and its address is free, when they have had a turn.
    sleep(Duration::from_millis(1)).await;
    let store = Arc::new(store.cut_off());
    let again = async {
        let edge = start("early-edge", Some(&store), &bridges).await;
        assert_eq!(only_client(&cloud).await, first);
        assert_eq!(cloud.metrics().sessions.get(), 1);
        edge.shutdown().await;
    };
    settled_meanwhile(&store, timeout(SOON, Box::pin(again)))
        .await
        .unwrap();
    cloud.shutdown().await;
}

/// Waits for something while the store settles all that comes.
async fn settled_meanwhile<T>(store: &SlowStore, what: impl Future<Output = T>) -> T {
    tokio::select! {
        () = settle_for_ever(store) => unreachable!("it does not end"),
        done = what => done,
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_tells_no_state_but_its_own() {
    let own = "$SYS/broker/connection/edge-7/state";
    let topics = [topic(Direction::Out, "up/#", "", "")];
    let mut settings = Settings::new(vec![url("lies").parse().unwrap()]);
    settings.sys_interval = Some(HOUR);
    let mut bridge = bridge_to("nobody", &topics);
    bridge.client_id = Some("edge-7".to_owned());
    settings.bridges = vec![bridge];
    let broker = Broker::start(settings).await.unwrap();
    let here = client("lies").await;
    let mut states = here
        .subscribe("$SYS/broker/connection/#", QoS::AtLeastOnce)
        .await
        .unwrap();
    assert_eq!(next(&mut states).await, pair(own, "0"));
    let mine = "$SYS/broker/connection/client/state";
    send(&here, message(mine, "1", QoS::AtLeastOnce)).await;
    assert_eq!(next(&mut states).await, pair(mine, "1"));
    for lie in [
        own,
        "$SYS/broker/connection/other/state",
        "$SYS/broker/uptime",
    ] {
        let mut receipt = here
            .send(message(lie, "1", QoS::AtLeastOnce))
            .await
            .unwrap();
        let error = receipt.acknowledged().await.unwrap_err();
        assert!(error.to_string().contains("not authorized"), "{error}");
        // Nor by its will.
        let liar = kept("lies", "edge-7").reconnect(Reconnect::never());
        let will = Will::new(TopicName::new(lie).unwrap(), "1");
        let _liar = liar.will(will).build().await.unwrap();
        broker.kick("edge-7").unwrap();
    }
    nothing_more(&mut states).await;
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_published_after_an_outage_does_not_wait_for_what_the_outage_left() {
    const OLD: usize = 2_000;
    const LIVE: usize = 40;
    // In flight, taken by the bridge, and on their way in the other broker: far fewer than wait.
    const AHEAD: usize = 200;
    let store = Arc::new(MemoryStore::new());
    let mut settings = Settings::new(vec![url("live-edge").parse().unwrap()]);
    settings.store = Some(store.into());
    settings.quotas.mailbox.messages = 50;
    settings.bridges = vec![bridge_to(
        "live-cloud",
        &[topic(Direction::Out, "up/#", "", "")],
    )];
    let edge = Broker::start(settings).await.unwrap();
    let here = client("live-edge").await;
    for n in 0..OLD {
        let topic = format!("up/old/{}", n % 4);
        send(&here, message(&topic, n.to_string(), QoS::ExactlyOnce)).await;
    }
    // A cloud that takes its time over QoS 2, and passes each message on at once.
    let slow = Arc::new(SlowStore::default());
    let settling = async {
        loop {
            sleep(Duration::from_millis(1)).await;
            slow.settle(1);
        }
    };
    let reading = async {
        let mut settings = Settings::new(vec![url("live-cloud").parse().unwrap()]);
        settings.store = Some(Arc::clone(&slow).into());
        settings.protocol.receive_maximum = NonZeroU16::new(4).unwrap();
        let cloud = Broker::start(settings).await.unwrap();
        let there = client("live-cloud").await;
        let mut at_cloud = there.subscribe("up/#", QoS::AtMostOnce).await.unwrap();
        let mut came = Vec::new();
        let (mut sent, mut sent_at) = (0, Vec::new());
        while came.len() < OLD + LIVE {
            let (topic, text) = next(&mut at_cloud).await;
            came.push((topic, text.parse::<usize>().unwrap()));
            if came.len() >= 100 + 20 * sent && sent < LIVE {
                let topic = format!("up/live/{}", sent % 2);
                send(&here, message(&topic, sent.to_string(), QoS::ExactlyOnce)).await;
                sent_at.push(came.len());
                sent += 1;
            }
        }
        nothing_more(&mut at_cloud).await;
        for (n, sent_at) in sent_at.iter().enumerate() {
            let is_it =
                |(topic, number): &(String, usize)| topic.starts_with("up/live") && *number == n;
            let came_at = came.iter().position(is_it).unwrap();
            let before = came_at.saturating_sub(*sent_at);
            assert!(before < AHEAD, "{before} messages came before live {n}");
        }
        let mut last = BTreeMap::new();
        for (topic, number) in came {
            let before = last.insert(topic.clone(), number);
            assert!(before < Some(number), "{topic}: {before:?}, {number}");
        }
        cloud.shutdown().await;
    };
    tokio::select! {
        () = settling => unreachable!("it does not end"),
        () = reading => {}
    }
    edge.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_bridge_has_a_queue_of_its_own_and_drops_what_is_too_old() {
    let mut bridge = bridge_to("queue-cloud", &[topic(Direction::Out, "up/#", "", "")]);
    bridge.queue = BridgeQueue {
        messages: Some(3),
        overflow: Some(Overflow::DropOldest),
        age: Some(HOUR),
        ..BridgeQueue::default()
    };
    let edge = plain("queue-edge", &[bridge]).await;
    let here = client("queue-edge").await;
    for n in 0..5 {
        send(&here, message("up/1", n.to_string(), QoS::AtLeastOnce)).await;
    }
    // 2 to 4 are left, and two of them make room for 5 and 6.
    sleep(HOUR / 2).await;
    for n in 5..7 {
        send(&here, message("up/1", n.to_string(), QoS::AtLeastOnce)).await;
    }
    let dropped = || edge.metrics().dropped.get();
    assert_eq!(dropped(), 4, "the oldest");
    sleep(HOUR / 2).await;
    let cloud = plain("queue-cloud", &[]).await;
    let there = client("queue-cloud").await;
    let mut at_cloud = there.subscribe("up/#", QoS::AtLeastOnce).await.unwrap();
    for n in 5..7 {
        let incoming = timeout(SOON, at_cloud.recv()).await.unwrap().unwrap();
        assert_eq!(incoming.text().unwrap(), n.to_string());
        let expiry = incoming.properties.message_expiry_interval;
        assert_eq!(expiry, None, "its age is no matter of the other broker's");
    }
    assert_eq!(dropped(), 5, "the one that was too old");
    nothing_more(&mut at_cloud).await;
    edge.shutdown().await;
    cloud.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_too_old_at_a_restart_is_counted() {
    let mut bridge = bridge_to("old-queue-cloud", &[topic(Direction::Out, "up/#", "", "")]);
    bridge.queue.age = Some(HOUR);
    let store = Arc::new(MemoryStore::new());
    let edge = start("old-queue-edge", Some(&store), &[bridge.clone()]).await;
    let here = client("old-queue-edge").await;
    for n in 0..3 {
        send(&here, message("up/1", n.to_string(), QoS::AtLeastOnce)).await;
    }
    edge.shutdown().await;
    // The wall clock does not follow virtual time: the messages are as old as the store says.
    let sessions = store.load().unwrap().sessions;
    let is_bridge = |id: &&ByteStr| id.starts_with("$bridge/");
    let id = sessions.keys().find(is_bridge).unwrap();
    for (number, mut message) in sessions[id].queued.clone() {
        assert!(message.expires_at.is_some());
        message.expires_at = Some(SystemTime::UNIX_EPOCH);
        let aged = SessionChange::Queued { number, message };
        store.record(vec![Change::Session(id.clone(), aged)]);
    }
    let edge = start("old-queue-edge", Some(&store), &[bridge]).await;
    let here = client("old-queue-edge").await;
    send(&here, message("up/1", "new", QoS::AtLeastOnce)).await;
    let cloud = plain("old-queue-cloud", &[]).await;
    let there = client("old-queue-cloud").await;
    let mut at_cloud = there.subscribe("up/#", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(next(&mut at_cloud).await, pair("up/1", "new"));
    assert_eq!(edge.metrics().dropped.get(), 3);
    edge.shutdown().await;
    cloud.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_is_not_configured_any_more_leaves_nothing() {
    let topics = [topic(Direction::Out, "up/#", "", "")];
    let of_name = |name: &str| BridgeSettings {
        name: name.to_owned(),
        ..bridge_to("gone-cloud", &topics)
    };
    let store = Arc::new(MemoryStore::new());
    let sessions = || -> BTreeMap<_, _> {
        let sessions = store.load().unwrap().sessions.into_iter();
        sessions
            .filter(|(client_id, _)| client_id.starts_with("$bridge/"))
            .map(|(client_id, session)| (client_id.to_string(), session.queued.len()))
            .collect()
    };
    let bridges = [of_name("kept"), of_name("gone")];
    let edge = start("gone-edge", Some(&store), &bridges).await;
    let here = client("gone-edge").await;
    for n in 0..10 {
        send(&here, message("up/1", n.to_string(), QoS::ExactlyOnce)).await;
    }
    edge.shutdown().await;
    let waits = |name: &str| (format!("$bridge/{name}"), 10);
    assert_eq!(sessions(), [waits("gone"), waits("kept")].into());
    let edge = start("gone-edge", Some(&store), &bridges[..1]).await;
    assert_eq!(sessions(), [waits("kept")].into());
    edge.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn bridges_share_a_subscription_at_the_other_broker() {
    const MESSAGES: usize = 20;
    let cloud = plain("shared-cloud", &[]).await;
    let topics = [topic(Direction::In, "$share/edges/job/#", "here/", "all/")];
    let mut edges = Vec::new();
    for name in ["shared-one", "shared-two"] {
        let mut bridge = bridge_to("shared-cloud", &topics);
        bridge.client_id = Some(name.to_owned());
        edges.push(plain(name, &[bridge]).await);
    }
    let connected = async {
        while cloud.metrics().subscriptions.get() < 2 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, connected).await.unwrap();
    let there = client("shared-cloud").await;
    let (one, two) = (client("shared-one").await, client("shared-two").await);
    let mut at_one = one.subscribe("here/#", QoS::ExactlyOnce).await.unwrap();
    let mut at_two = two.subscribe("here/#", QoS::ExactlyOnce).await.unwrap();
    for n in 0..MESSAGES {
        send(
            &there,
            message("all/job/1", n.to_string(), QoS::ExactlyOnce),
        )
        .await;
    }
    let mut came = [BTreeSet::new(), BTreeSet::new()];
    for (came, messages) in came.iter_mut().zip([&mut at_one, &mut at_two]) {
        while let Ok(Some(incoming)) = timeout(SOON, messages.recv()).await {
            assert_eq!(incoming.topic.to_string(), "here/job/1");
            let n: usize = incoming.text().unwrap().parse().unwrap();
            assert!(came.insert(n), "{n} came twice");
        }
        assert!(!came.is_empty(), "each has its part");
    }
    assert!(came[0].is_disjoint(&came[1]), "{came:?}");
    assert_eq!(came[0].len() + came[1].len(), MESSAGES);
    for edge in edges {
        edge.shutdown().await;
    }
    cloud.shutdown().await;
}

/// Cuts either broker off at arbitrary points, with the last changes unsettled, and starts it again from the settled
/// ones; the link between them stalls and breaks off. With an odd seed four messages wait in memory, and others in the
/// store. `MQ_SEED=n` runs one seed.
#[test]
fn brokers_and_links_that_are_cut_off_lose_nothing_of_a_bridge_and_repeat_no_qos2() {
    let each = over_seeds(0..100, cut_off_again_and_again);
    let outages: usize = each.iter().sum();
    println!("{outages} times the link was cut off, or stood still");
    assert!(outages > each.len() || each.len() == 1, "hardly any harm");
}

/// Broker at one end of the bridge.
struct Site {
    name: String,
    store: Arc<SlowStore>,
    bridges: Vec<BridgeSettings>,
    /// Number of messages that may wait in memory.
    room: usize,
    broker: Option<Broker>,
}

impl Site {
    async fn new(name: String, bridges: Vec<BridgeSettings>, room: usize) -> Self {
        let mut site = Self {
            name,
            store: Arc::new(SlowStore::default().spilling()),
            bridges,
            room,
            broker: None,
        };
        site.start().await;
        site
    }

    async fn start(&mut self) {
        let mut settings = Settings::new(vec![url(&self.name).parse().unwrap()]);
        settings.store = Some(Arc::clone(&self.store).into());
        settings.bridges = self.bridges.clone();
        settings.quotas.mailbox.messages = self.room;
        self.broker = Some(Broker::start(settings).await.unwrap());
    }

    async fn cut_off(&mut self) {
        self.broker = None;
        self.store = Arc::new(self.store.cut_off());
        // Its tasks are gone, and its address is free, when they have had a turn.
        sleep(Duration::from_millis(1)).await;
        self.start().await;
    }
}

/// The topics either way, each with one QoS.
const TOPICS: usize = 6;

/// Returns how often the link was cut off, or stood still.
#[expect(clippy::too_many_lines, reason = "one story")]
async fn cut_off_again_and_again(seed: u64) -> usize {
    const MESSAGES: usize = 60;
    let mut random = fastrand::Rng::with_seed(seed);
    let topics = [
        topic(Direction::Out, "up/#", "", "edge/"),
        topic(Direction::In, "down/#", "", "edge/"),
    ];
    let names = ["edge", "cloud"].map(|side| format!("cut-{side}-{seed}"));
    let between = format!("cut-between-{seed}");
    let (address, target) = (
        url(&between).parse().unwrap(),
        url(&names[1]).parse().unwrap(),
    );
    let relay = FaultyRelay::start(address, target, seed).await.unwrap();
    let mut bridge = bridge_to(&between, &topics);
    bridge.client_id = Some("edge".to_owned());
    bridge.longest_wait = Duration::from_millis(500);
    bridge.keep_alive = Duration::from_secs(2);
    let bridges = vec![bridge];
    let [edge, cloud] = names.clone();
    let room = if seed % 2 == 1 { 4 } else { 10_000 };
    let mut sites = [
        Site::new(edge, bridges, room).await,
        Site::new(cloud, Vec::new(), room).await,
    ];
    let settle = |sites: &[Site; 2], most| sites.iter().for_each(|site| site.store.settle(most));
    let (at_edge, at_cloud) = (kept(&names[0], "device"), kept(&names[1], "reader"));
    let ready = async {
        let (device, reader) = (
            at_edge.build().await.unwrap(),
            at_cloud.build().await.unwrap(),
        );
        let up = reader
            .subscribe("edge/up/#", QoS::ExactlyOnce)
            .await
            .unwrap();
        let down = device.subscribe("down/#", QoS::ExactlyOnce).await.unwrap();
        (device, reader, up, down)
    };
    tokio::pin!(ready);
    let (device, reader, mut up, mut down) = loop {
        tokio::select! {
            ready = &mut ready => break ready,
            () = sleep(Duration::from_millis(1)) => settle(&sites, usize::MAX),
        }
    };
    // Meanwhile the bridge connects.
    for _ in 0..2_000 {
        sleep(Duration::from_millis(1)).await;
        settle(&sites, usize::MAX);
    }

    relay.set_harmful(true);
    let mut receipts = Vec::new();
    for n in 0..MESSAGES {
        for (client, topic) in [(&device, "up"), (&reader, "edge/down")] {
            let topic = format!("{topic}/{}", n % TOPICS);
            let message = message(&topic, n.to_string(), qos(n));
            receipts.push(client.send(message).await.unwrap());
        }
    }
    let everything = async {
        for receipt in &mut receipts {
            receipt.acknowledged().await.unwrap();
        }
    };
    tokio::pin!(everything);
    let mut arrived = [Vec::<usize>::new(), Vec::new()];
    let all = |arrived: &[Vec<usize>; 2]| {
        let different = arrived
            .iter()
            .map(|numbers| numbers.iter().collect::<BTreeSet<_>>().len());
        different.sum::<usize>() == 2 * MESSAGES
    };
    let (mut cuts, mut acknowledged, mut quiet, mut turns) = (0, false, 0, 0);
    let deadline = tokio::time::Instant::now() + HOUR;
    while quiet < 3_000 {
        assert!(tokio::time::Instant::now() < deadline, "{arrived:?}");
        tokio::select! {
            biased;
            (_, number) = next(&mut up) => {
                arrived[0].push(number.parse().unwrap());
                quiet = 0;
            }
            (_, number) = next(&mut down) => {
                arrived[1].push(number.parse().unwrap());
                quiet = 0;
            }
            () = &mut everything, if !acknowledged => acknowledged = true,
            () = sleep(Duration::from_millis(if quiet == 0 { 1 } else { 20 })) => {
                turns += 1;
                // For as long as it takes would be too long for some.
                let is_done = acknowledged && all(&arrived);
                relay.set_harmful(turns < 20_000 && !is_done);
                quiet += usize::from(is_done);
                if is_done {
                    settle(&sites, usize::MAX);
                } else if cuts < 12 && random.u8(..) < 8 {
                    cuts += 1;
                    sites[random.usize(..2)].cut_off().await;
                } else {
                    settle(&sites, random.usize(..4));
                }
            }
        }
    }
    assert!(cuts > 2, "the brokers were hardly cut off");
    for numbers in &arrived {
        check(numbers);
    }
    for site in &sites {
        site.store.assert_nothing_is_under_way();
    }
    relay.cuts() + relay.stalls()
}

/// Returns the QoS of that message of [`cut_off_again_and_again`].
fn qos(n: usize) -> QoS {
    [QoS::AtLeastOnce, QoS::ExactlyOnce][n % 2]
}

/// Checks what arrived: once at QoS 2, and in order within a topic, each of which has one QoS. A repetition may come
/// late, a first message may not.
fn check(numbers: &[usize]) {
    let mut times = BTreeMap::<usize, usize>::new();
    for number in numbers {
        *times.entry(*number).or_default() += 1;
    }
    for (n, times) in times {
        let once = times == 1 || qos(n) == QoS::AtLeastOnce;
        assert!(once, "{n} came {times} times: {numbers:?}");
    }
    for topic in 0..TOPICS {
        let mut first = Vec::new();
        for number in numbers.iter().filter(|number| *number % TOPICS == topic) {
            if !first.contains(number) {
                first.push(*number);
            }
        }
        assert!(first.is_sorted(), "{numbers:?}");
    }
}
