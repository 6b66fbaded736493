//! Peers that misbehave: they neither block nor slow others, nor leave anything behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a run says what it saw")]

mod counting;
mod gaps;
mod heap;
mod peers;
mod wire;

use std::{collections::BTreeMap, time::Duration};

use mq_client::{Client, QoS};
use mq_testkit::{SCHEMES, Scheme, TestBroker};
use mq_transport::TicketStore;
use peers::{Kind, misbehave};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use wire::Target;

/// Tests of this program count its memory, so one runs at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const PEERS: usize = 10_000;
/// At once: each takes file descriptors on both sides of this one process.
const AT_ONCE: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_bad_peers_slow_no_client_and_leave_nothing() {
    let _alone = ALONE.lock().await;
    let seed = std::env::var("ABUSE_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("seed {seed} (ABUSE_SEED sets another)");
    let broker = TestBroker::start_with(|settings| {
        // All are at one address.
        settings.quotas.protocol_errors_per_minute = None;
        // Short, for silent peers to be thrown out while the test runs; yet longer than a good
        // client's handshake takes where other programs take the CPU.
        settings.handshake_timeout = Duration::from_secs(4);
        settings.protocol.connect_timeout = Duration::from_secs(4);
        // Full before memory is read, so that a bounded store does not look like a leak.
        settings.listen.ticket_store = TicketStore::new(200);
    })
    .await;
    let target = Target::new(&broker);
    let good = broker.client(Scheme::Quic, "good").build().await.unwrap();
    let mut messages = good.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    let new = broker.connector(false);
    // Once around, so that what is allocated once is there, as the 3 MB that a QUIC socket reads to.
    let early = broker.client(Scheme::Quic, "early").connector(new.clone());
    early.build().await.unwrap().disconnect().await.unwrap();
    attack(seed, PEERS..PEERS + 2 * AT_ONCE, &target).await;
    settle(&broker).await;

    let before = Held::now();
    let began = Instant::now();
    let mut good_rounds = GoodRounds::default();
    let mut attacking = Box::pin(attack(seed, 0..PEERS, &target));
    let cut_short = loop {
        let round = async {
            let began = Instant::now();
            good.publish("t", "ping", QoS::AtLeastOnce).await.unwrap();
            messages.recv().await.unwrap();
            let round_trip = began.elapsed();
            // New clients get in as well.
            let began = Instant::now();
            let scheme = SCHEMES[good_rounds.count % SCHEMES.len()];
            let client = broker.client(scheme, "new").connector(new.clone());
            let client: Client = client.build().await.unwrap();
            let new_client = began.elapsed();
            client.disconnect().await.unwrap();
            sleep(Duration::from_millis(50)).await;
            (round_trip, new_client)
        };
        tokio::select! {
            cut_short = &mut attacking => break cut_short,
            took = timeout(Duration::from_secs(10), round) => {
                good_rounds.add(took.expect("a good client was blocked"));
            }
        }
    };
    drop(attacking);
    println!(
        "{PEERS} bad peers took {:?}, cut short by the broker: {cut_short:?}",
        began.elapsed()
    );
    settle(&broker).await;
    let after = Held::now();
    println!("{good_rounds:?}\nbefore {before:?}\nafter  {after:?}");
    assert!(good_rounds.count > 10);
    good.disconnect().await.unwrap();
    settle(&broker).await;
    let metrics = broker.broker().metrics();
    assert_eq!(metrics.connections.get(), 0);
    assert_eq!(metrics.sessions.get(), 0);
    assert_eq!(metrics.subscriptions.get(), 0);
    // The bad ones were not kept out: many a session came as far as its PUBLISH.
    let refused = metrics.refused.by_reason();
    let mut reasons = refused.iter().map(|(reason, _)| *reason);
    assert!(
        reasons.all(|reason| !reason.starts_with("too many")),
        "{refused:?}"
    );
    assert!(metrics.messages_in.get() > good_rounds.count + PEERS / 50);
    // Tables keep the room that they once needed; 10,000 peers that each left 100 bytes, or one in
    // a hundred a file descriptor, would show.
    assert!(after.heap_bytes < before.heap_bytes + 100 * PEERS);
    assert!(after.files < before.files + PEERS / 100);
    // Memory outside Rust's heap; the allocator takes its share once, for reasons of its own.
    assert!(after.resident_kib < before.resident_kib + 50 * 1024);
    let began = Instant::now();
    broker.shutdown().await;
    println!("shutdown took {:?}", began.elapsed());
}

/// The observations of the good clients.
#[derive(Default, Debug)]
struct GoodRounds {
    count: usize,
    slowest_round_trip: Duration,
    slowest_new_client: Duration,
}

impl GoodRounds {
    fn add(&mut self, (round_trip, new_client): (Duration, Duration)) {
        self.count += 1;
        self.slowest_round_trip = self.slowest_round_trip.max(round_trip);
        self.slowest_new_client = self.slowest_new_client.max(new_client);
    }
}

/// Sends the peers with these numbers; returns how many of each kind were stopped before their end.
async fn attack(
    seed: u64,
    numbers: std::ops::Range<usize>,
    target: &Target,
) -> BTreeMap<Kind, usize> {
    let mut cut_short = BTreeMap::new();
    let mut tasks = JoinSet::new();
    for number in numbers {
        if tasks.len() >= AT_ONCE
            && let Some(ended) = tasks.join_next().await
            && let (kind, Err(_)) = ended.unwrap()
        {
            *cut_short.entry(kind).or_default() += 1;
        }
        tasks.spawn(misbehave(seed, number, target.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        if let (kind, Err(_)) = ended.unwrap() {
            *cut_short.entry(kind).or_default() += 1;
        }
    }
    cut_short
}

/// Waits until the broker has thrown out all but the good client.
async fn settle(broker: &TestBroker) {
    let metrics = broker.broker().metrics();
    let began = Instant::now();
    let deadline = began + Duration::from_secs(20);
    while metrics.connections.get() > 1 {
        assert!(Instant::now() < deadline, "{metrics:?}");
        sleep(Duration::from_millis(50)).await;
    }
    println!("the last bad connection ended after {:?}", began.elapsed());
    // Links that were never connections end within the handshake's bound.
    sleep(Duration::from_secs(4)).await;
}

/// The resources of this process, which is broker and peers.
#[derive(Debug)]
struct Held {
    heap_bytes: usize,
    resident_kib: u64,
    files: usize,
}

impl Held {
    fn now() -> Self {
        let memory = mq_measure::process::memory(std::process::id()).unwrap();
        Self {
            heap_bytes: heap::bytes(),
            resident_kib: memory.rss_bytes / 1024,
            files: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        }
    }
}
