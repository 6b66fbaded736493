//! Many publishers, subscribers and topics: throughput, by rate or to saturation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use mq_client::{Client, Outgoing, Subscription};
use mq_codec::{QoS, TopicName};
use tokio::task::JoinSet;

use crate::{
    mqtt::{ClientIds, Mqtt, Role, Route},
    payload::Payloads,
};

/// Messages that a client gets at a time without a rate.
const BATCH: u64 = 64;

/// The plan of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) publishers: usize,
    pub(crate) subscribers: usize,
    pub(crate) topics: usize,
    pub(crate) size: usize,
    /// Messages a second of all publishers together; `None` for as many as they can send.
    pub(crate) rate: Option<f64>,
    pub(crate) duration: Duration,
    /// The time over which the publishers begin, one after the other.
    pub(crate) ramp_up: Duration,
    pub(crate) client_ids: ClientIds,
}

/// The outcome of a run, over the time after the ramp-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) elapsed: Duration,
}

/// Counters that all clients share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
}

/// Runs the plan. `steady` is called at the end of the ramp-up and at the end of the measured time, to read
/// meters.
pub(crate) async fn run(
    plan: &Plan,
    mqtt: &Mqtt,
    route: &Route,
    mut steady: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    let shared = Arc::new(Shared::default());
    let mut tasks = JoinSet::new();
    let topic = |index: usize| format!("mqbench/load/{}", index % plan.topics.max(1));
    let connect = async |role: Role, index: usize| {
        mqtt.connect(route, &plan.client_ids.id(role, index)).await
    };
    let mut clients = Vec::new();
    for index in 0..plan.subscribers {
        let client = connect(Role::Subscriber, index).await;
        let client = client.with_context(|| format!("subscriber {index} cannot connect"))?;
        let subscription = client.subscribe(topic(index), mqtt.qos).await?;
        tasks.spawn(receive(subscription, Arc::clone(&shared)));
        clients.push(client);
    }
    let step = plan.ramp_up / u32::try_from(plan.publishers.max(1)).unwrap_or(u32::MAX);
    for index in 0..plan.publishers {
        let client = connect(Role::Publisher, index).await;
        let client = client.with_context(|| format!("publisher {index} cannot connect"))?;
        let publisher = Publisher {
            client: client.clone(),
            topic: TopicName::new(topic(index))?,
            qos: mqtt.qos,
            payloads: Payloads::new(plan.size, index as u64),
            #[expect(clippy::cast_precision_loss, reason = "a count of publishers")]
            interval: plan
                .rate
                .map(|rate| Duration::from_secs_f64(plan.publishers as f64 / rate)),
        };
        tasks.spawn(publisher.run(Arc::clone(&shared)));
        clients.push(client);
        tokio::time::sleep(step).await;
    }
    // A moment for windows and buffers to fill.
    tokio::time::sleep(Duration::from_millis(500)).await;
    steady()?;
    let before = (
        shared.sent.load(Ordering::Relaxed),
        shared.received.load(Ordering::Relaxed),
        Instant::now(),
    );
    tokio::time::sleep(plan.duration).await;
    let outcome = Outcome {
        sent: shared.sent.load(Ordering::Relaxed) - before.0,
        received: shared.received.load(Ordering::Relaxed) - before.1,
        elapsed: before.2.elapsed(),
    };
    steady()?;
    shared.stop.store(true, Ordering::Relaxed);
    for client in clients {
        // Under overload a goodbye may not get through; the measurement is over.
        let _ = tokio::time::timeout(Duration::from_secs(2), client.disconnect()).await;
    }
    tasks.shutdown().await;
    Ok(outcome)
}

async fn receive(mut subscription: Subscription, shared: Arc<Shared>) {
    while subscription.recv().await.is_some() {
        shared.received.fetch_add(1, Ordering::Relaxed);
    }
}

struct Publisher {
    client: Client,
    topic: TopicName,
    qos: QoS,
    payloads: Payloads,
    interval: Option<Duration>,
}

impl Publisher {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of messages stay far below 2^53 and are not negative"
    )]
    async fn run(self, shared: Arc<Shared>) {
        let start = tokio::time::Instant::now();
        let mut seq = 0;
        while !shared.stop.load(Ordering::Relaxed) {
            let due = match self.interval {
                // Timers tick in milliseconds; messages that became due in one tick are sent together.
                Some(interval) => {
                    let next = start + interval.mul_f64(seq as f64);
                    tokio::time::sleep_until(next).await;
                    let passed = start.elapsed().as_secs_f64() / interval.as_secs_f64();
                    (passed as u64).saturating_sub(seq).clamp(1, BATCH)
                }
                None => BATCH,
            };
            for _ in 0..due {
                let payload = self.payloads.make(seq);
                let message = Outgoing::new(self.topic.clone(), payload).qos(self.qos);
                if self.client.send(message).await.is_err() {
                    return;
                }
                seq += 1;
            }
            shared.sent.fetch_add(due, Ordering::Relaxed);
        }
    }
}
