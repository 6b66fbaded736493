//! Operation of a cluster while its clients continue: nodes are upgraded one after the other, added
//! and removed, and the whole cluster is restored from a copy.

use std::{
    collections::BTreeMap,
    future::pending,
    io::Read as _,
    net::TcpStream,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mq_client::{Client, ClientBuilder, Event, EventStream, Outgoing, QoS, Subscription};
use mq_codec::{Ack, Packet, PacketId, ReasonCode};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet, block_in_place},
    time::{sleep, sleep_until, timeout},
};

use crate::{
    cluster_programs::{Nats, Node, SOON},
    raw::{self, RawClients},
};

/// The lease of nodes in seconds: longer than the upgrade, which must not wait for it.
const LEASE_S: u32 = 30;

/// The number of a publisher's topics; each has messages of one QoS.
const TOPICS: usize = 4;

/// The most messages of a publisher that wait for their acknowledgement.
const OUTSTANDING: usize = 16;

/// Builds a client whose session is kept. It connects to the first of these nodes that answers.
pub(crate) fn client(id: &str, nodes: &[&Node]) -> ClientBuilder {
    let builder = mq_testkit::kept(&nodes[0].url(), id);
    let others = nodes[1..].iter();
    others.fold(builder, |builder, node| {
        builder.fallback(&node.url()).unwrap()
    })
}

/// Fails if a client had to begin a new session, or was refused for good.
async fn keeps_its_session(id: String, client: Client, mut events: EventStream) {
    while let Some(event) = events.recv().await {
        match event {
            Event::Connected(connected) => {
                assert!(connected.session_present, "{id} has lost its session");
            }
            Event::Missed(count) => panic!("{count} events of {id} are missed"),
            _ => {}
        }
    }
    panic!("{id} gave up: {}", client.closed().await);
}

/// The number of acknowledged messages by topic; their numbers count from 0.
type Acknowledged = BTreeMap<String, usize>;

/// The times of acknowledgements.
type Times = Arc<Mutex<Vec<Instant>>>;

/// A running publisher.
struct Publisher {
    task: JoinHandle<Acknowledged>,
    times: Times,
}

impl Publisher {
    /// Makes the session, and publishes until `over` is set.
    async fn start(id: &str, nodes: &[&Node], over: watch::Receiver<bool>) -> Self {
        let connected = client(id, nodes).build().await.unwrap();
        let times = Times::default();
        let task = publish(id.to_owned(), connected, Arc::clone(&times), over);
        let task = tokio::spawn(task);
        Self { task, times }
    }

    fn count(&self) -> usize {
        self.times.lock().unwrap().len()
    }
}

fn qos(topic: usize) -> QoS {
    [QoS::AtLeastOnce, QoS::ExactlyOnce][topic % 2]
}

/// Publishes numbers until `over` is set. All of them are acknowledged.
async fn publish(
    id: String,
    client: Client,
    times: Times,
    over: watch::Receiver<bool>,
) -> Acknowledged {
    let mut checks = JoinSet::new();
    checks.spawn(keeps_its_session(
        id.clone(),
        client.clone(),
        client.events(),
    ));
    let mut sent = Acknowledged::new();
    let mut waiting = JoinSet::new();
    for number in 0.. {
        if *over.borrow() {
            break;
        }
        let topic = number % TOPICS;
        let name = format!("m/{id}/{topic}");
        let message = Outgoing::to(name.as_str(), (number / TOPICS).to_string()).unwrap();
        let receipt = client.send(message.qos(qos(topic))).await;
        let mut receipt = receipt.unwrap_or_else(|error| panic!("{id} gave up: {error}"));
        *sent.entry(name).or_default() += 1;
        let times = Arc::clone(&times);
        waiting.spawn(async move {
            receipt.acknowledged().await.unwrap();
            times.lock().unwrap().push(Instant::now());
        });
        // At full speed the test would spend all its time on this.
        sleep(Duration::from_millis(10)).await;
        while waiting.len() >= OUTSTANDING {
            waiting.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(acknowledged) = waiting.join_next().await {
        acknowledged.unwrap();
    }
    if let Some(ended) = checks.try_join_next() {
        ended.unwrap();
    }
    checks.shutdown().await;
    client.disconnect().await.unwrap();
    sent
}

/// A running reader with a session.
struct Reader {
    task: JoinHandle<usize>,
    all: watch::Sender<Option<Acknowledged>>,
}

impl Reader {
    /// Starts to read, with a session that exists.
    async fn start(id: &str, nodes: &[&Node]) -> Self {
        let builder = client(id, nodes);
        let messages = builder.messages();
        let client = builder.build().await.unwrap();
        assert!(client.last_connected().unwrap().session_present, "{id}");
        let (all, is_all) = watch::channel(None);
        let task = tokio::spawn(read(id.to_owned(), client, messages, is_all));
        Self { task, all }
    }

    /// Ends when it has received all messages in their order, each of QoS 2 once. Returns the
    /// number of QoS 1 messages received again.
    async fn ends_with(self, all: &Acknowledged) -> usize {
        self.all.send_replace(Some(all.clone()));
        self.task.await.unwrap()
    }
}

async fn read(
    id: String,
    client: Client,
    mut messages: Subscription,
    mut all: watch::Receiver<Option<Acknowledged>>,
) -> usize {
    let mut checks = JoinSet::new();
    checks.spawn(keeps_its_session(
        id.clone(),
        client.clone(),
        client.events(),
    ));
    let mut came: Acknowledged = Acknowledged::new();
    let mut again = 0;
    let mut note = |message: mq_client::Incoming, came: &mut Acknowledged| {
        let topic = message.topic.to_string();
        let number: usize = message.text().unwrap().parse().unwrap();
        let next = came.entry(topic.clone()).or_default();
        if number < *next {
            assert_eq!(
                message.qos,
                QoS::AtLeastOnce,
                "{id}: {topic} {number} came twice"
            );
            again += 1;
        } else {
            assert_eq!(number, *next, "{id}: the next of {topic}");
            *next += 1;
        }
    };
    let mut late = None;
    while all.borrow().as_ref() != Some(&came) {
        let give_up = async {
            match late {
                Some(late) => sleep_until(late).await,
                None => pending().await,
            }
        };
        tokio::select! {
            message = messages.recv() => note(message.unwrap(), &mut came),
            ended = checks.join_next() => ended.unwrap().unwrap(),
            Ok(()) = all.changed() => late = Some(tokio::time::Instant::now() + SOON),
            () = give_up => panic!("{id} has {came:?} of {:?}", *all.borrow()),
        }
    }
    checks.shutdown().await;
    client.disconnect().await.unwrap();
    // Messages after the last one are repeated.
    while let Some(message) = messages.recv().await {
        note(message, &mut came);
    }
    again
}

/// Makes a session with a subscription, and disconnects.
async fn make_session(id: &str, node: &Node, filter: &str) {
    let client = client(id, &[node]).build().await.unwrap();
    let subscribed = client.subscribe(filter, QoS::ExactlyOnce).await.unwrap();
    client.disconnect().await.unwrap();
    drop(subscribed);
}

/// Publishes a message and waits for its acknowledgement.
pub(crate) async fn send(node: &Node, message: Outgoing) {
    let client = client("sender", &[node]).build().await.unwrap();
    let mut receipt = client.send(message).await.unwrap();
    let acknowledged = timeout(SOON, receipt.acknowledged()).await;
    acknowledged.expect("it is acknowledged").unwrap();
    client.disconnect().await.unwrap();
}

/// Returns the texts of `count` messages to a session.
pub(crate) async fn texts(id: &str, node: &Node, count: usize) -> Vec<String> {
    let builder = client(id, &[node]);
    let mut messages = builder.messages();
    let client = builder.build().await.unwrap();
    assert!(client.last_connected().unwrap().session_present, "{id}");
    let mut texts = Vec::new();
    while texts.len() < count {
        let message = mq_testkit::next(&mut messages).await;
        texts.push(message.text().unwrap().to_owned());
    }
    client.disconnect().await.unwrap();
    texts
}

/// Returns the text of a retained message, as a new client receives it.
async fn retained(node: &Node, topic: &str) -> String {
    let client = Client::builder(&node.url()).unwrap().build().await.unwrap();
    let mut messages = client.subscribe(topic, QoS::AtLeastOnce).await.unwrap();
    let message = mq_testkit::next(&mut messages).await;
    client.disconnect().await.unwrap();
    message.text().unwrap().to_owned()
}

/// Waits until `holds` is true for a node's status.
pub(crate) fn until_shown(nats: &Nats, node: &Node, holds: impl Fn(&serde_json::Value) -> bool) {
    let began = Instant::now();
    loop {
        let shown = nats.status(&node.name);
        if holds(&shown) {
            return;
        }
        assert!(began.elapsed() < SOON, "{shown}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns `true` if `node` lives according to the status of a node.
fn lives(shown: &serde_json::Value, node: &str) -> bool {
    let mut nodes = shown["nodes"].as_array().unwrap().iter();
    let found = nodes.find(|found| found["name"] == node);
    found.is_some_and(|found| found["is_over"] == false)
}

/// Waits until `more` further messages of each publisher are acknowledged.
async fn go_on(publishers: &[Publisher], more: usize) {
    let begin: Vec<_> = publishers.iter().map(Publisher::count).collect();
    let going = async {
        for (publisher, begin) in publishers.iter().zip(begin) {
            while publisher.count() < begin + more {
                assert!(!publisher.task.is_finished(), "a publisher has ended");
                sleep(Duration::from_millis(5)).await;
            }
        }
    };
    timeout(SOON, going)
        .await
        .expect("messages are acknowledged");
}

/// Ends the publishers. Returns the acknowledged messages.
async fn end(publishers: Vec<Publisher>, over: &watch::Sender<bool>) -> Acknowledged {
    over.send_replace(true);
    let mut all = Acknowledged::new();
    for Publisher { task, .. } in publishers {
        let ended = timeout(SOON, task).await;
        all.extend(ended.expect("all is acknowledged").unwrap());
    }
    all
}

/// Returns the longest time of one publisher without an acknowledgement.
fn longest_silence(publishers: &[Publisher]) -> Duration {
    let silences = publishers.iter().map(|publisher| {
        let mut times = publisher.times.lock().unwrap().clone();
        times.sort_unstable();
        let silences = times.windows(2).map(|pair| pair[1] - pair[0]);
        silences.max().unwrap_or_default()
    });
    silences.max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_costs_clients_no_more_than_a_reconnect() {
    let Some(nats) = Nats::start(3, false) else {
        return;
    };
    let mut nodes = ["a", "b", "c"].map(|name| nats.node(name, LEASE_S));
    let (over, is_over) = watch::channel(false);
    let mut readers = Vec::new();
    let mut publishers = Vec::new();
    let from = |home: usize| [0, 1, 2].map(|n| &nodes[(home + n) % 3]);
    for (home, node) in nodes.iter().enumerate() {
        let id = format!("reader-{home}");
        make_session(&id, node, "m/#").await;
        readers.push(Reader::start(&id, &from(home)).await);
    }
    for home in 0..3 {
        let id = format!("publisher-{home}");
        publishers.push(Publisher::start(&id, &from(home), is_over.clone()).await);
    }
    go_on(&publishers, 20).await;
    for _ in 0..2 {
        for node in &mut nodes {
            let took = block_in_place(|| node.end());
            // Other nodes own its sessions meanwhile.
            go_on(&publishers, 20).await;
            let began = Instant::now();
            block_in_place(|| node.start(&nats));
            println!(
                "{} ended in {took:?}, began in {:?}",
                node.name,
                began.elapsed()
            );
            go_on(&publishers, 20).await;
        }
    }
    let silence = longest_silence(&publishers);
    let all = end(publishers, &over).await;
    let mut again = 0;
    for reader in readers {
        again += reader.ends_with(&all).await;
    }
    println!(
        "{} messages for each of 3 readers, {again} of QoS 1 again, longest time without an acknowledgement {silence:?}",
        all.values().sum::<usize>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_nats_are_upgraded_one_after_the_other() {
    let Some(mut nats) = Nats::start(3, false) else {
        return;
    };
    let [a, b] = ["a", "b"].map(|name| nats.node(name, 3));
    let (over, is_over) = watch::channel(false);
    make_session("reader", &b, "m/#").await;
    let reader = Reader::start("reader", &[&b, &a]).await;
    let publishers = [Publisher::start("publisher", &[&a, &b], is_over).await];
    go_on(&publishers, 20).await;
    for server in 0..3 {
        nats.restart(server).await;
        go_on(&publishers, 20).await;
    }
    let silence = longest_silence(&publishers);
    let all = end(publishers.into(), &over).await;
    let again = reader.ends_with(&all).await;
    println!(
        "{} messages, {again} of QoS 1 again, longest time without an acknowledgement {silence:?}",
        all.values().sum::<usize>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_added_and_another_removed_while_clients_go_on() {
    let Some(nats) = Nats::start(1, false) else {
        return;
    };
    let [a, mut b, c] = ["a", "b", "c"].map(|name| nats.node(name, 3));
    let plan = Outgoing::to("r/plan", "kept").unwrap();
    send(&a, plan.qos(QoS::AtLeastOnce).retain(true)).await;
    // By their names some of these sessions would belong to `b`, if it lived.
    let away = [0, 1, 2, 3].map(|n| format!("away-{n}"));
    for id in &away {
        make_session(id, &b, "m/#").await;
    }
    for (id, node) in [("stays", &b), ("comes", &a), ("moves", &b)] {
        make_session(id, node, "m/#").await;
    }
    let (over, is_over) = watch::channel(false);
    let stays = Reader::start("stays", &[&b, &c]).await;
    let mut publishers = Vec::new();
    for (id, nodes) in [("publisher-0", [&a, &b]), ("publisher-1", [&b, &c])] {
        publishers.push(Publisher::start(id, &nodes, is_over.clone()).await);
    }
    go_on(&publishers, 20).await;
    let d = block_in_place(|| nats.node("d", 3));
    assert_eq!(retained(&d, "r/plan").await, "kept");
    let comes = Reader::start("comes", &[&d]).await;
    let moves = Reader::start("moves", &[&b, &d]).await;
    publishers.push(Publisher::start("publisher-2", &[&d], is_over.clone()).await);
    go_on(&publishers, 20).await;
    block_in_place(|| b.end());
    go_on(&publishers, 20).await;
    block_in_place(|| {
        until_shown(&nats, &d, |shown| {
            !lives(shown, "b") && ["a", "c", "d"].iter().all(|node| lives(shown, node))
        });
    });
    let silence = longest_silence(&publishers);
    let all = end(publishers, &over).await;
    for reader in [stays, comes, moves] {
        reader.ends_with(&all).await;
    }
    // Sessions without a connection have moved as well: seven readers, three publishers and the
    // sender.
    let sessions = |node: &Node| nats.status(&node.name)["sessions"].as_u64().unwrap();
    block_in_place(|| {
        until_shown(&nats, &d, |_| {
            [&a, &c, &d].into_iter().map(sessions).sum::<u64>() == 11
        });
    });
    for id in &away {
        let away = Reader::start(id, &[&d]).await;
        away.ends_with(&all).await;
    }
    assert_eq!(retained(&c, "r/plan").await, "kept");
    println!("longest time without an acknowledgement {silence:?}");
}

/// Returns the next packet: its first byte, and its packet identifier if it has one.
fn packet(stream: &mut TcpStream) -> (u8, Option<PacketId>) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let [kind, length] = head;
    assert!(length < 0x80, "a short packet");
    let mut body = vec![0; usize::from(length)];
    stream.read_exact(&mut body).unwrap();
    let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
    // PUBLISH has its packet identifier after the topic.
    let at = if kind >> 4 == 3 { 2 + topic } else { 0 };
    (
        kind,
        PacketId::new(u16::from_be_bytes([body[at], body[at + 1]])),
    )
}

/// Connects a client of raw packets, whose session is kept.
fn by_hand(id: &str, node: &Node) -> TcpStream {
    let clients = RawClients::new(&node.url());
    let kept = |connect: &mut mq_codec::Connect| {
        connect.clean_start = false;
        connect.properties.session_expiry_interval = Some(3_600);
    };
    clients.connect(id, kept).expect("it is let in")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_what_the_servers_store_brings_all_back_on_fresh_servers() {
    let (Some(mut nats), Some(mut fresh)) = (Nats::start(3, false), Nats::new(3, false)) else {
        return;
    };
    let mut nodes = ["a", "b"].map(|name| nats.node(name, 3));
    let [a, b] = &nodes;
    let message = |topic: &str, text: &str, qos| {
        let message = Outgoing::to(topic, text.to_owned()).unwrap();
        message.qos(qos)
    };
    send(a, message("r/plan", "kept", QoS::AtLeastOnce).retain(true)).await;
    make_session("reader", b, "t/#").await;
    for n in 0..10 {
        send(a, message("t/1", &n.to_string(), qos(n))).await;
    }
    let success = ReasonCode::Success;
    let [sends, kept_receiver] = block_in_place(|| {
        // A client that has sent a QoS 2 message, and not released it.
        let mut sender = by_hand("half sent", a);
        let mut half = raw::publish("t/half".to_owned(), b"half".to_vec());
        half.qos = QoS::ExactlyOnce;
        half.packet_id = PacketId::new(7);
        raw::send(&mut sender, &Packet::from(half.clone())).unwrap();
        assert_eq!(packet(&mut sender), (0x50, half.packet_id));
        // A client that has received a QoS 2 message, and not completed it.
        let mut receiver = by_hand("half taken", b);
        let filters = ["t/half".to_owned()].into_iter();
        raw::send(&mut receiver, &raw::subscribe(filters, QoS::ExactlyOnce)).unwrap();
        assert_eq!(packet(&mut receiver).0, 0x90);
        [sender, receiver]
    });
    send(a, message("t/half", "other half", QoS::ExactlyOnce)).await;
    let released = block_in_place(|| {
        let mut receiver = kept_receiver;
        let (kind, id) = packet(&mut receiver);
        assert_eq!(kind, 0x34);
        let id = id.unwrap();
        raw::send(&mut receiver, &Packet::PubRec(Ack::new(id, success))).unwrap();
        assert_eq!(packet(&mut receiver), (0x62, Some(id)));
        id
    });
    drop(sends);
    // A new cluster on a copy of the storage.
    let nodes = block_in_place(|| {
        for node in &mut nodes {
            node.end();
        }
        nats.end();
        for server in 0..3 {
            copy(&nats.data(server), &fresh.data(server));
        }
        fresh.begin();
        ["a", "b"].map(|name| fresh.node(name, 3))
    });
    let [a, b] = &nodes;
    let waited: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    let waited = [&waited[..], &["half".into(), "other half".into()]].concat();
    let in_order = |mut texts: Vec<String>| {
        // The messages are of two topics, which may be in two logs.
        texts.sort_by_key(|text| text.ends_with("half"));
        texts
    };
    assert_eq!(in_order(texts("reader", a, 12).await), waited);
    assert_eq!(retained(b, "r/plan").await, "kept");
    block_in_place(|| {
        let mut receiver = by_hand("half taken", a);
        assert_eq!(packet(&mut receiver), (0x62, Some(released)));
        raw::send(&mut receiver, &Packet::PubComp(Ack::new(released, success))).unwrap();
        let mut sender = by_hand("half sent", b);
        let mut again = raw::publish("t/half".to_owned(), b"half".to_vec());
        again.qos = QoS::ExactlyOnce;
        again.packet_id = PacketId::new(7);
        again.dup = true;
        raw::send(&mut sender, &Packet::from(again.clone())).unwrap();
        let id = again.packet_id.unwrap();
        assert_eq!(packet(&mut sender), (0x50, Some(id)));
        raw::send(&mut sender, &Packet::PubRel(Ack::new(id, success))).unwrap();
        assert_eq!(packet(&mut sender), (0x70, Some(id)));
    });
    send(b, message("t/half", "next", QoS::ExactlyOnce)).await;
    // The message `half` is not delivered again.
    assert_eq!(texts("reader", a, 1).await, ["next"]);
}

/// Copies a folder to a new one.
fn copy(from: &str, to: &str) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}
