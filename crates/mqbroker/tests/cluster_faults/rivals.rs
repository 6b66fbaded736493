//! Two clients with one identifier, at two nodes: once the later one is connected, the session is its own.

use std::{sync::Arc, time::Duration};

use mq_client::{Client, Outgoing, QoS, Reconnect};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::cluster::Place;

/// Between two messages of a client.
const INTERVAL: Duration = Duration::from_millis(20);

/// Time that a connection may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Nobody who reads `#` gets it (§4.7.2).
const TOPIC: &str = "$rivals";

/// Outcome of the contention.
#[derive(Debug, Default)]
pub(crate) struct Rivals {
    /// Number of times that the session went from one client to the other.
    pub(crate) took_over: usize,
    /// Messages that an earlier client has sent when a later one was connected.
    pub(crate) sent_late: usize,
    /// Messages of an earlier client that were acknowledged, as (connected, sent, acknowledged) in milliseconds since the
    /// campaign began: two nodes took the session for their own.
    pub(crate) acknowledged_late: Vec<(u64, u64, u64)>,
}

/// Times at which a message was sent, and acknowledged.
type Sent = (u64, Option<u64>);

/// A client that publishes as long as its connection lives.
struct Rival {
    node: usize,
    client: Client,
    sent: JoinHandle<Vec<Sent>>,
}

/// Lets one client after the other take the session, until the faults are over.
pub(crate) async fn contend(place: Arc<Place>, over: watch::Receiver<bool>, seed: u64) -> Rivals {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut found = Rivals::default();
    let mut earlier: Option<Rival> = None;
    while !*over.borrow() {
        let node = match &earlier {
            Some(earlier) => (earlier.node + random.usize(1..3)) % 3,
            None => random.usize(..3),
        };
        let Some(client) = connect(&place, node, random.usize(..3)).await else {
            continue;
        };
        let connected = place.now();
        let later = Rival {
            node,
            client: client.clone(),
            sent: tokio::spawn(publish(Arc::clone(&place), client)),
        };
        if let Some(earlier) = earlier.replace(later) {
            found.took_over += 1;
            found.note(connected, ended(earlier).await);
        }
        sleep(Duration::from_millis(random.u64(100..2_000))).await;
    }
    if let Some(last) = earlier {
        let _ = last.client.disconnect().await;
        ended(last).await;
    }
    found
}

impl Rivals {
    /// Notes messages that were sent late, when another client was connected.
    pub(crate) fn note(&mut self, connected: u64, sent: Vec<Sent>) {
        let late = sent.into_iter().filter(|(at, _)| *at > connected);
        for (at, acknowledged) in late {
            self.sent_late += 1;
            let known = acknowledged.map(|known| (connected, at, known));
            self.acknowledged_late.extend(known);
        }
    }
}

async fn connect(place: &Place, node: usize, scheme: usize) -> Option<Client> {
    let builder = place.client("rival", &[node], scheme);
    let built = builder.reconnect(Reconnect::never()).build();
    timeout(PATIENCE, built).await.ok()?.ok()
}

/// Returns the messages that a rival sent until its connection ended, which its keep-alive finds in seconds whatever happens.
async fn ended(rival: Rival) -> Vec<Sent> {
    rival.sent.await.unwrap()
}

async fn publish(place: Arc<Place>, client: Client) -> Vec<Sent> {
    let mut sent = Vec::new();
    let mut waiting = JoinSet::new();
    loop {
        let message = Outgoing::to(TOPIC, "mine").unwrap();
        let at = place.now();
        let Ok(mut receipt) = client.send(message.qos(QoS::AtLeastOnce)).await else {
            break;
        };
        let place = Arc::clone(&place);
        waiting.spawn(async move {
            let acknowledged = receipt.acknowledged().await;
            (at, acknowledged.ok().map(|_| place.now()))
        });
        sleep(INTERVAL).await;
    }
    while let Some(one) = waiting.join_next().await {
        sent.push(one.unwrap());
    }
    sent
}
