//! What an operator does to a cluster, while its clients go on: nodes are upgraded one after the other, added and
//! removed, and all is put back from a copy.

#![cfg(all(unix, feature = "cluster"))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster_programs;

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cluster_programs::{Nats, Node, SOON};
use mq_client::{Client, ClientBuilder, Event, EventStream, Outgoing, QoS, Subscription};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet, block_in_place},
    time::{sleep, sleep_until, timeout},
};

/// Longer than any of these tests: nothing in them may wait for it.
const LEASE_S: u32 = 30;

/// A publisher's topics; each has messages of one QoS.
const TOPICS: usize = 4;

/// Messages of a publisher that wait for their acknowledgement.
const OUTSTANDING: usize = 16;

/// A client whose session is kept. It comes to these nodes, the first that answers.
fn client(id: &str, nodes: &[&Node]) -> ClientBuilder {
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

/// What a publisher was acknowledged, by topic: so many messages, with numbers from 0 on.
type Acknowledged = BTreeMap<String, usize>;

/// When messages were acknowledged.
type Times = Arc<Mutex<Vec<Instant>>>;

/// A publisher at work.
struct Publisher {
    task: JoinHandle<Acknowledged>,
    times: Times,
}

impl Publisher {
    /// Makes the session, and begins to publish until that is over.
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

/// Publishes numbers until that is over. All of them are acknowledged.
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
        // As fast as it may go all would be spent on this.
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

/// A reader with a session, at work.
struct Reader {
    task: JoinHandle<usize>,
    all: watch::Sender<Option<Acknowledged>>,
}

impl Reader {
    /// Makes the session, and begins to read.
    async fn start(id: &str, nodes: &[&Node]) -> Self {
        let builder = client(id, nodes);
        let earlier = builder.messages();
        let client = builder.build().await.unwrap();
        let own = client.subscribe("m/#", QoS::ExactlyOnce).await.unwrap();
        let (all, is_all) = watch::channel(None);
        let task = tokio::spawn(read(id.to_owned(), client, [own, earlier], is_all));
        Self { task, all }
    }

    /// Ends when it has all, in their order: each message of QoS 2 once. Returns how many of QoS 1 came again.
    async fn ends_with(self, all: &Acknowledged) -> usize {
        self.all.send_replace(Some(all.clone()));
        self.task.await.unwrap()
    }
}

async fn read(
    id: String,
    client: Client,
    [mut own, mut earlier]: [Subscription; 2],
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
            message = own.recv() => note(message.unwrap(), &mut came),
            message = earlier.recv() => note(message.unwrap(), &mut came),
            ended = checks.join_next() => ended.unwrap().unwrap(),
            Ok(()) = all.changed() => late = Some(tokio::time::Instant::now() + SOON),
            () = give_up => panic!("{id} has {came:?} of {:?}", *all.borrow()),
        }
    }
    checks.shutdown().await;
    client.disconnect().await.unwrap();
    // What has come behind the last one comes again.
    for messages in [&mut own, &mut earlier] {
        while let Some(message) = messages.recv().await {
            note(message, &mut came);
        }
    }
    again
}

/// Waits until each of them was acknowledged so many messages more.
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

/// Ends the publishing. Returns what was acknowledged.
async fn end(publishers: Vec<Publisher>, over: &watch::Sender<bool>) -> Acknowledged {
    over.send_replace(true);
    let mut all = Acknowledged::new();
    for Publisher { task, .. } in publishers {
        let ended = timeout(SOON, task).await;
        all.extend(ended.expect("all is acknowledged").unwrap());
    }
    all
}

/// The longest time of one publisher without an acknowledgement.
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
    for home in 0..3 {
        readers.push(Reader::start(&format!("reader-{home}"), &from(home)).await);
    }
    for home in 0..3 {
        let id = format!("publisher-{home}");
        publishers.push(Publisher::start(&id, &from(home), is_over.clone()).await);
    }
    go_on(&publishers, 20).await;
    for _ in 0..2 {
        for node in &mut nodes {
            let took = block_in_place(|| node.end());
            // The others have its sessions meanwhile.
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
