//! Many publishers, subscribers and topics: throughput and latency, at a rate, at saturation, or with a bound on
//! messages in flight.

use std::{
    collections::VecDeque,
    num::{NonZeroU32, NonZeroUsize},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use mq_client::{Client, Error, Outgoing, Receipt, Subscription};
use mq_codec::{QoS, TopicName};
use mq_measure::{
    LatencyRecorder, Summary,
    convert::{float, float_len},
};
use tokio::task::JoinSet;

use super::latency_stamps::{LatencyStamps, Recorders};
use crate::{
    mqtt::{ClientIds, ClientRole, MqttOptions, Route},
    payload::Payloads,
};

/// Number of messages that a client gets at a time without a rate. The latency of one of them is recorded: reading the
/// clock for each would cost a part of what is measured.
const BATCH: u64 = 64;

/// Pace of a publisher: the condition that has to hold before it sends its next message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// A schedule, independent of acknowledgements: messages a second of all publishers together.
    Rate(f64),
    /// Room in the client's queue.
    Saturate,
    /// Fewer messages of the publisher without an acknowledgement than this number.
    InFlight(NonZeroUsize),
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) publishers: usize,
    pub(crate) subscribers: usize,
    /// Number of topics that the publishers are spread over.
    pub(crate) topics: usize,
    /// Number of topics below that one which each publisher's messages go to in turn; with one there is none below it.
    pub(crate) topics_of_each: NonZeroU32,
    pub(crate) size: usize,
    pub(crate) pace: Pace,
    /// The time after the ramp-up that is not measured: windows and buffers fill.
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    /// The time over which the publishers begin, one after the other.
    pub(crate) ramp_up: Duration,
    pub(crate) client_ids: ClientIds,
}

/// Messages sent and received in a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadResult {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) elapsed: Duration,
    /// Latency of the messages received: with a rate from the time at which each was due, else from its passing to the
    /// client.
    pub(crate) latency: Option<Summary>,
}

impl LoadResult {
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        float(count) / self.elapsed.as_secs_f64()
    }
}

/// Event of a run in progress.
pub(crate) enum LoadProgress {
    /// A second, or the rest of one, before the measurement.
    WarmingUp(LoadResult),
    /// A second, or the rest of one, of the measurement, and the measured time so far.
    Measured(LoadResult, Duration),
    /// The begin or the end of the measurement: meters are read now.
    Steady,
}

/// State that all clients share.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    stamps: LatencyStamps,
    recorders: Recorders,
}

/// Runs the plan, and reports its progress to `tell`.
pub(crate) async fn run(
    plan: &Plan,
    mqtt: &MqttOptions,
    route: &Route,
    mut tell: impl FnMut(LoadProgress) -> anyhow::Result<()>,
) -> anyhow::Result<LoadResult> {
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        stamps: LatencyStamps::start(),
        recorders: Recorders::new(),
    });
    let mut tasks = JoinSet::new();
    let topic = |index: usize| format!("mqbench/load/{}", index % plan.topics.max(1));
    let connect = async |role: ClientRole, index: usize| {
        mqtt.connect(route, &plan.client_ids.id(role, index)).await
    };
    let mut clients = Vec::new();
    for index in 0..plan.subscribers {
        let client = connect(ClientRole::Subscriber, index).await;
        let client = client.with_context(|| format!("subscriber {index} cannot connect"))?;
        let filter = topic(index)
            + if plan.topics_of_each.get() > 1 {
                "/+"
            } else {
                ""
            };
        let subscription = client.subscribe(filter, mqtt.qos).await?;
        tasks.spawn(receive(subscription, index, Arc::clone(&shared)));
        clients.push(client);
    }
    let step = plan.ramp_up / u32::try_from(plan.publishers.max(1)).unwrap_or(u32::MAX);
    for index in 0..plan.publishers {
        let client = connect(ClientRole::Publisher, index).await;
        let client = client.with_context(|| format!("publisher {index} cannot connect"))?;
        let publisher = Publisher {
            client: client.clone(),
            topics: topics_of(&topic(index), plan.topics_of_each)?,
            qos: mqtt.qos,
            payloads: Payloads::new(plan.size, index as u64),
            shared: Arc::clone(&shared),
        };
        tasks.spawn(publisher.run(plan.pace, plan.publishers));
        clients.push(client);
        tokio::time::sleep(step).await;
    }
    let mut watch = Watch::new(&shared);
    watch
        .over(plan.warm_up, |second, _| {
            tell(LoadProgress::WarmingUp(second))
        })
        .await?;
    tell(LoadProgress::Steady)?;
    let mut watch = Watch::new(&shared);
    let outcome = watch
        .over(plan.duration, |second, passed| {
            tell(LoadProgress::Measured(second, passed))
        })
        .await?;
    tell(LoadProgress::Steady)?;
    shared.stop.store(true, Ordering::Relaxed);
    // Under overload a DISCONNECT may not get through; the measurement is over.
    let ends = clients.into_iter().map(async |client| {
        let _ = tokio::time::timeout(Duration::from_secs(2), client.disconnect()).await;
    });
    ends.collect::<JoinSet<_>>().join_all().await;
    tasks.shutdown().await;
    Ok(outcome)
}

/// Watch over the counters of a load, which are read once a second.
struct Watch<'a> {
    shared: &'a Shared,
    began: Instant,
    since: Instant,
    /// Sent and received messages when this watch began; `last` has them when the second began.
    first: (u64, u64),
    last: (u64, u64),
    all: LatencyRecorder,
    second: LatencyRecorder,
}

impl<'a> Watch<'a> {
    fn new(shared: &'a Shared) -> Self {
        // Latencies recorded before this part are dropped.
        let mut second = LatencyRecorder::new();
        shared.recorders.drain_into(&mut second);
        second.clear();
        let now = Instant::now();
        let counts = Self::counts(shared);
        Self {
            shared,
            began: now,
            since: now,
            first: counts,
            last: counts,
            all: LatencyRecorder::new(),
            second,
        }
    }

    fn counts(shared: &Shared) -> (u64, u64) {
        (
            shared.sent.load(Ordering::Relaxed),
            shared.received.load(Ordering::Relaxed),
        )
    }

    /// Watches for `time`, reports each second to `tell`, and returns the sum of all.
    async fn over(
        &mut self,
        time: Duration,
        mut tell: impl FnMut(LoadResult, Duration) -> anyhow::Result<()>,
    ) -> anyhow::Result<LoadResult> {
        let end = self.began + time;
        while self.since < end {
            let until = end.min(self.since + Duration::from_secs(1));
            tokio::time::sleep_until(until.into()).await;
            let (now, counts) = (Instant::now(), Self::counts(self.shared));
            self.shared.recorders.drain_into(&mut self.second);
            let second = outcome(self.last, counts, now - self.since, &self.second);
            self.all.merge(&self.second);
            self.second.clear();
            (self.since, self.last) = (now, counts);
            tell(second, now - self.began)?;
        }
        let elapsed = self.since - self.began;
        Ok(outcome(self.first, self.last, elapsed, &self.all))
    }
}

fn outcome(
    before: (u64, u64),
    after: (u64, u64),
    elapsed: Duration,
    latencies: &LatencyRecorder,
) -> LoadResult {
    LoadResult {
        sent: after.0 - before.0,
        received: after.1 - before.1,
        elapsed,
        latency: latencies.summary(),
    }
}

fn topics_of(above: &str, count: NonZeroU32) -> anyhow::Result<Vec<TopicName>> {
    if count == NonZeroU32::MIN {
        return Ok(vec![TopicName::new(above)?]);
    }
    let below = (0..count.get()).map(|number| Ok(TopicName::new(format!("{above}/{number}"))?));
    below.collect()
}

async fn receive(mut subscription: Subscription, index: usize, shared: Arc<Shared>) {
    while let Some(message) = subscription.recv().await {
        shared.received.fetch_add(1, Ordering::Relaxed);
        let latency = shared
            .stamps
            .latency_ns(&message.payload, message.received_at);
        if let Some(latency) = latency {
            shared.recorders.record(index, latency);
        }
    }
}

struct Publisher {
    client: Client,
    /// The topics of its messages in turn; one at least.
    topics: Vec<TopicName>,
    qos: QoS,
    payloads: Payloads,
    shared: Arc<Shared>,
}

impl Publisher {
    async fn run(self, pace: Pace, publishers: usize) {
        // A client that has ended returns an error; the counts show it.
        let _ended = match pace {
            Pace::Rate(rate) => {
                let interval = Duration::from_secs_f64(float_len(publishers) / rate);
                self.on_schedule(interval).await
            }
            Pace::Saturate => self.saturate().await,
            Pace::InFlight(most) => self.in_flight(most.get()).await,
        };
    }

    /// Publishes on a schedule. Timers tick in milliseconds; messages that are due in one tick are sent together, each
    /// with the time at which it was due.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of messages stay far below 2^53 and are not negative"
    )]
    async fn on_schedule(&self, interval: Duration) -> Result<(), Error> {
        let start = tokio::time::Instant::now();
        let due_at = |seq: u64| start + interval.mul_f64(float(seq));
        let mut seq = 0;
        while self.goes_on() {
            tokio::time::sleep_until(due_at(seq)).await;
            let passed = start.elapsed().as_secs_f64() / interval.as_secs_f64();
            let due = (passed as u64).saturating_sub(seq).clamp(1, BATCH);
            for seq in seq..seq + due {
                let stamp = self.shared.stamps.of(due_at(seq).into_std());
                self.client.send(self.message(seq, stamp)).await?;
            }
            seq += due;
            self.shared.sent.fetch_add(due, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn saturate(&self) -> Result<(), Error> {
        let mut batches: u64 = 0;
        while self.goes_on() {
            // A different message of each batch is measured: the first and the last wait for different times.
            let measured = batches % BATCH;
            for index in 0..BATCH {
                let stamp = if index == measured {
                    self.shared.stamps.of(Instant::now())
                } else {
                    self.shared.stamps.none()
                };
                let seq = batches * BATCH + index;
                self.client.send(self.message(seq, stamp)).await?;
            }
            batches += 1;
            self.shared.sent.fetch_add(BATCH, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn in_flight(&self, most: usize) -> Result<(), Error> {
        let mut waiting: VecDeque<Receipt> = VecDeque::with_capacity(most);
        let mut seq = 0;
        while self.goes_on() {
            while waiting.len() < most {
                let stamp = self.shared.stamps.of(Instant::now());
                waiting.push_back(self.client.send(self.message(seq, stamp)).await?);
                seq += 1;
                self.shared.sent.fetch_add(1, Ordering::Relaxed);
            }
            // Acknowledgements arrive in the order of the messages, except for a few over several streams.
            if let Some(mut oldest) = waiting.pop_front()
                && let Err(error) = oldest.acknowledged().await
                && !matches!(error, Error::PublishRefused { .. })
            {
                return Err(error);
            }
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }

    fn message(&self, seq: u64, stamp: u64) -> Outgoing {
        let payload = self.payloads.make(stamp);
        let topic = seq % self.topics.len() as u64;
        let topic = &self.topics[usize::try_from(topic).expect("an index of a list")];
        Outgoing::new(topic.clone(), payload).qos(self.qos)
    }
}
