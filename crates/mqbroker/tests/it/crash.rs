//! A broker that is killed without warning, over and over: every acknowledged message is kept.
//!
//! 40 times on each transport; `MQ_KILLS=500` for more, `MQ_SEED` for another run.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use mq_client::{Client, ClientBuilder, Outgoing, QoS, QuicStreams, Reconnect, Subscription};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::program::Broker;

const HOUR: Duration = Duration::from_hours(1);

/// The longest wait for operations that are usually immediate.
const PATIENCE: Duration = Duration::from_mins(1);

/// Topics with a retained message each.
const RETAINED: usize = 4;

/// Builds a client that reconnects soon after the broker has restarted, to the session that it had.
fn device(broker: &Broker, client_id: &str) -> ClientBuilder {
    device_of(broker, client_id, Duration::ZERO)
}

/// Builds a client with timeouts for a broker whose disk takes `commit` for each commit: every answer waits for some
/// commits.
fn device_of(broker: &Broker, client_id: &str, commit: Duration) -> ClientBuilder {
    let slower = 10 * commit;
    let again = Reconnect {
        initial: Duration::from_millis(5),
        max: Duration::from_millis(50),
        ..Reconnect::default()
    };
    broker
        .client(client_id)
        .reconnect(again)
        .clean_start(false)
        .session_expiry(HOUR)
        .keep_alive(Duration::from_secs(2) + slower)
        .ping_timeout(Duration::from_secs(1) + slower)
        .connect_timeout(Duration::from_secs(2) + slower)
}

/// Starts a broker with a store, which keeps most messages of a session without a connection:
/// memory has room for few.
fn start(scheme: &str, durability: &str) -> Broker {
    start_with(scheme, durability, &[])
}

/// Starts a broker with such a store and these variables in its environment.
fn start_with(scheme: &str, durability: &str, environment: &[(String, String)]) -> Broker {
    let configuration = format!(
        "[store]\npath = \"FOLDER/store\"\ndurability = \"{durability}\"\n\
         [limits]\nmailbox_messages = 50\noverflow = \"spill\"\nspill_bytes = 10000000000\n"
    );
    Broker::with_environment(scheme, &configuration, environment)
}

/// The broker's promise: the numbers of the last messages that it acknowledged.
#[derive(Default)]
struct Promised {
    /// The last acknowledged number of each topic, by the topic's number.
    last: [AtomicU64; RETAINED],
    count: AtomicU64,
}

/// Publishes numbers, each after the one before was acknowledged, until `stop` is set.
async fn publish(
    client: Client,
    topic: String,
    qos: QoS,
    retain: bool,
    stop: Arc<AtomicBool>,
    promised: Arc<Promised>,
) {
    for number in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let of = usize::try_from(number).unwrap() % RETAINED;
        let name = if retain {
            format!("{topic}/{of}")
        } else {
            topic.clone()
        };
        let message = Outgoing::to(name, number.to_string()).unwrap();
        let message = message.qos(qos).retain(retain);
        let mut receipt = client.send(message).await.unwrap();
        let reason = timeout(PATIENCE, receipt.acknowledged()).await;
        let reason = reason.expect("an acknowledgement").unwrap();
        assert!(!reason.is_error(), "{reason:?}");
        promised.last[of].store(number, Ordering::Relaxed);
        promised.count.store(number, Ordering::Relaxed);
    }
}

/// The number of deliveries of each number.
type Seen = BTreeMap<u64, u32>;

async fn note(messages: &mut Subscription, seen: &mut Seen) {
    let message = messages.recv().await.expect("the client goes on");
    let number: u64 = std::str::from_utf8(&message.payload)
        .unwrap()
        .parse()
        .unwrap();
    *seen.entry(number).or_default() += 1;
}

/// Notes messages until a further one was acknowledged, and then for `life`.
async fn live(
    [one, other]: [(&mut Subscription, &mut Seen); 2],
    acknowledged: impl Fn() -> u64,
    life: Duration,
) {
    let before = acknowledged();
    let lived = async {
        while acknowledged() == before {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(life).await;
    };
    tokio::pin!(lived);
    let all = async {
        loop {
            tokio::select! {
                () = note(one.0, one.1) => {}
                () = note(other.0, other.1) => {}
                () = &mut lived => break,
            }
        }
    };
    timeout(PATIENCE, all).await.expect("clients come back");
}

/// Waits until the publishers have ended.
async fn finish(publishers: &mut JoinSet<()>) {
    let ended = async { while publishers.join_next().await.transpose().unwrap().is_some() {} };
    timeout(PATIENCE, ended)
        .await
        .expect("what was begun is acknowledged");
}

/// Waits for all promised messages; `exactly` once, or at least once.
async fn check(
    what: &str,
    messages: &mut Subscription,
    mut seen: Seen,
    promised: u64,
    exactly: bool,
) {
    let missing = |seen: &Seen| {
        (1..=promised)
            .filter(|number| !seen.contains_key(number))
            .count()
    };
    while missing(&seen) > 0 {
        let more = timeout(PATIENCE, note(messages, &mut seen)).await;
        assert!(
            more.is_ok(),
            "{what}: {} of {promised} are missing",
            missing(&seen)
        );
    }
    let repeated = seen.values().filter(|times| **times > 1).count();
    println!("{what}: {promised} acknowledged, none is missing, {repeated} came more than once");
    assert!(!exactly || repeated == 0, "{what}");
    assert!(promised > 0, "{what}: nothing was published");
}

/// Returns a number from a variable of the environment.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn seed() -> u64 {
    number("MQ_SEED").unwrap_or(1)
}

/// Kills a broker whose disk takes `commit` for each commit, this often unless `MQ_KILLS` is
/// another number.
async fn killed_again_and_again(
    what: &str,
    mut broker: Broker,
    kills: u64,
    commit: Duration,
    seed: u64,
) {
    let kills = number("MQ_KILLS").unwrap_or(kills);
    println!("{what}: {kills} kills, seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let device = |broker: &Broker, client_id: &str| device_of(broker, client_id, commit);

    let subscriber = device(&broker, "subscriber").build().await.unwrap();
    let mut once = subscriber
        .subscribe("once", QoS::ExactlyOnce)
        .await
        .unwrap();
    let mut again = subscriber
        .subscribe("again", QoS::AtLeastOnce)
        .await
        .unwrap();
    // Disconnected all the time, so that its messages wait in the broker.
    let away = device(&broker, "away").build().await.unwrap();
    let _asleep = away.subscribe("once", QoS::ExactlyOnce).await.unwrap();
    away.disconnect().await.unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let mut publishers = JoinSet::new();
    let mut of_topics = Vec::new();
    for (topic, qos, retain) in [
        ("once", QoS::ExactlyOnce, false),
        ("again", QoS::AtLeastOnce, false),
        ("kept", QoS::AtLeastOnce, true),
    ] {
        let client = device(&broker, &format!("publisher-{topic}")).build();
        let client = client.await.unwrap();
        let promised = Arc::<Promised>::default();
        let stop = Arc::clone(&stop);
        publishers.spawn(publish(
            client,
            topic.to_owned(),
            qos,
            retain,
            stop,
            Arc::clone(&promised),
        ));
        of_topics.push(promised);
    }
    let count = |which: usize| of_topics[which].count.load(Ordering::Relaxed);

    let (mut seen_once, mut seen_again) = (Seen::new(), Seen::new());
    for _ in 0..kills {
        let life = Duration::from_millis(random.u64(1..120)) + commit.mul_f64(random.f64());
        let acknowledged = || count(0).min(count(1)).min(count(2));
        let streams = [(&mut once, &mut seen_once), (&mut again, &mut seen_again)];
        live(streams, acknowledged, life).await;
        broker.kill();
        broker.start();
    }
    stop.store(true, Ordering::Relaxed);
    finish(&mut publishers).await;

    check("QoS 2", &mut once, seen_once, count(0), true).await;
    check("QoS 1", &mut again, seen_again, count(1), false).await;

    broker.kill();
    broker.start();
    let away = device(&broker, "away").start().unwrap();
    let mut waiting = away.messages();
    timeout(PATIENCE, away.connected()).await.unwrap().unwrap();
    assert!(away.last_connected().unwrap().session_present);
    check("QoS 2, away", &mut waiting, Seen::new(), count(0), true).await;

    let reader = device(&broker, "reader").start().unwrap();
    let mut retained = reader.subscribe("kept/+", QoS::AtMostOnce).await.unwrap();
    for _ in 0..RETAINED {
        let message = timeout(PATIENCE, retained.recv()).await.unwrap().unwrap();
        let of: usize = message.topic.as_str()["kept/".len()..].parse().unwrap();
        let number: u64 = std::str::from_utf8(&message.payload)
            .unwrap()
            .parse()
            .unwrap();
        let promised = of_topics[2].last[of].load(Ordering::Relaxed);
        assert_eq!(number, promised, "the retained message of topic {of}");
    }
    println!(
        "retained: {} acknowledged, the last of each topic is there",
        count(2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost_over_tcp() {
    let broker = start("tcp", "always");
    killed_again_and_again("tcp", broker, 40, Duration::ZERO, seed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost_over_quic() {
    let broker = start("quic", "always");
    killed_again_and_again("quic", broker, 40, Duration::ZERO, seed()).await;
}

/// Brokers on a disk that takes its time for each commit: 100 ms and four kills of one broker, nightly 2 s and thirty kills of
/// each of ten, which wait for the disk side by side. Starting a broker holds a thread until it is ready.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 12)]
async fn nothing_that_was_acknowledged_is_lost_on_a_slow_disk() {
    let Some(disk) = crate::hanging_disk::Disk::new() else {
        return;
    };
    let (brokers, kills, commit) = mq_testkit::nightly(
        (1, 4, Duration::from_millis(100)),
        (10, 30, Duration::from_secs(2)),
    );
    disk.takes(commit);
    let mut runs = JoinSet::new();
    for seed in (seed()..).take(brokers) {
        let broker = start_with("tcp", "always", &disk.environment());
        runs.spawn(async move {
            let what = format!("a slow disk, {seed}");
            killed_again_and_again(&what, broker, kills, commit, seed).await;
        });
    }
    while runs.join_next().await.transpose().unwrap().is_some() {}
}

/// Messages of devices at one broker reach another one over a QUIC bridge; either broker is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost_over_a_bridge() {
    let kills = number("MQ_KILLS").unwrap_or(20);
    let seed = seed();
    println!("a bridge: {kills} kills, seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let cloud = start("quic", "always");
    let bridge = format!(
        "[store]\npath = \"FOLDER/store\"\n[limits]\nmailbox_messages = 50\n\
         [[bridge]]\nname = \"cloud\"\naddress = [\"{}\"]\nca = \"{}\"\nreconnect_max_s = 1\n\
         [[bridge.topic]]\npattern = \"#\"\nqos = 2\nremote_prefix = \"edge/\"\n",
        cloud.url,
        cloud.file("cert.pem").display()
    );
    let mut brokers = [Broker::new("tcp", &bridge), cloud];
    let reader = device(&brokers[1], "reader").build().await.unwrap();
    let mut once = reader
        .subscribe("edge/once", QoS::ExactlyOnce)
        .await
        .unwrap();
    let mut again = reader
        .subscribe("edge/again", QoS::AtLeastOnce)
        .await
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut publishers = JoinSet::new();
    let mut of_topics = Vec::new();
    for (topic, qos) in [("once", QoS::ExactlyOnce), ("again", QoS::AtLeastOnce)] {
        let client = device(&brokers[0], topic).build().await.unwrap();
        let promised = Arc::<Promised>::default();
        let (stop, to) = (Arc::clone(&stop), Arc::clone(&promised));
        publishers.spawn(publish(client, topic.to_owned(), qos, false, stop, to));
        of_topics.push(promised);
    }
    let count = |which: usize| of_topics[which].count.load(Ordering::Relaxed);

    let (mut seen_once, mut seen_again) = (Seen::new(), Seen::new());
    for _ in 0..kills {
        let life = Duration::from_millis(random.u64(1..1_500));
        let streams = [(&mut once, &mut seen_once), (&mut again, &mut seen_again)];
        live(streams, || count(0) + count(1), life).await;
        let broker = &mut brokers[random.usize(..2)];
        broker.kill();
        broker.start();
    }
    stop.store(true, Ordering::Relaxed);
    finish(&mut publishers).await;
    // Both at once: unread messages of one subscription hold up the other.
    tokio::join!(
        check("QoS 2", &mut once, seen_once, count(0), true),
        check("QoS 1", &mut again, seen_again, count(1), false),
    );
}

/// Each of sixteen topics has a QUIC stream of its own, from its publisher and to its subscriber.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost_over_many_quic_streams() {
    let kills = number("MQ_KILLS").unwrap_or(40);
    let seed = seed();
    println!("quic, with streams: {kills} kills, seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut broker = start("quic", "always");
    let streams = QuicStreams::PerTopic { most: 16 };
    let with_streams = |client_id| device(&broker, client_id).quic_streams(streams.clone());
    let subscriber = with_streams("subscriber").build().await.unwrap();
    let publisher = with_streams("publisher").build().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (end, ended) = watch::channel(false);
    let (mut publishers, mut readers) = (JoinSet::new(), JoinSet::new());
    let mut of_topics = Vec::new();
    for (index, qos) in (0..16).zip([QoS::ExactlyOnce, QoS::AtLeastOnce].into_iter().cycle()) {
        let topic = format!("topic/{index}");
        let mut messages = subscriber.subscribe(topic.as_str(), qos).await.unwrap();
        let promised = Arc::<Promised>::default();
        of_topics.push(Arc::clone(&promised));
        let (publisher, stop) = (publisher.clone(), Arc::clone(&stop));
        publishers.spawn(publish(
            publisher,
            topic.clone(),
            qos,
            false,
            stop,
            Arc::clone(&promised),
        ));
        let mut ended = ended.clone();
        readers.spawn(async move {
            let mut came = Seen::new();
            while !*ended.borrow_and_update() {
                tokio::select! {
                    () = note(&mut messages, &mut came) => {}
                    _ = ended.changed() => {}
                }
            }
            let count = promised.count.load(Ordering::Relaxed);
            let exactly = qos == QoS::ExactlyOnce;
            check(&topic, &mut messages, came, count, exactly).await;
        });
    }
    let count = || -> u64 {
        let counts = of_topics.iter();
        counts
            .map(|promised| promised.count.load(Ordering::Relaxed))
            .sum()
    };
    for _ in 0..kills {
        let before = count();
        let lived = async {
            while count() == before {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, lived).await.expect("clients come back");
        sleep(Duration::from_millis(random.u64(1..120))).await;
        broker.kill();
        broker.start();
    }
    stop.store(true, Ordering::Relaxed);
    finish(&mut publishers).await;
    end.send(true).unwrap();
    while readers.join_next().await.transpose().unwrap().is_some() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_end_loses_nothing_even_without_durability() {
    for durability in ["interval", "off"] {
        let mut broker = start("tcp", durability);
        let client = device(&broker, "one").build().await.unwrap();
        let message = Outgoing::to("kept", "x").unwrap();
        let message = message.qos(QoS::AtLeastOnce).retain(true);
        let mut receipt = client.send(message).await.unwrap();
        receipt.acknowledged().await.unwrap();
        broker.end();
        broker.start();
        let reader = device(&broker, "reader").start().unwrap();
        let mut kept = reader.subscribe("kept", QoS::AtMostOnce).await.unwrap();
        let message = timeout(PATIENCE, kept.recv()).await.unwrap().unwrap();
        assert_eq!(&message.payload[..], b"x", "{durability}");
    }
}

#[test]
fn a_store_that_cannot_be_opened_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let start = |store: &Path| {
        let output = Command::new(env!("CARGO_BIN_EXE_mqbroker"))
            .args(["--listen", "tcp://127.0.0.1:0", "--store"])
            .arg(store)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let damaged = folder.path().join("damaged");
    std::fs::write(&damaged, "no database".repeat(1000)).unwrap();
    for store in [damaged, folder.path().join("no/such/folder/store")] {
        let said = start(&store);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(store.to_str().unwrap()), "{said}");
    }
}
