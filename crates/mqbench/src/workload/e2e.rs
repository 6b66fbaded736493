//! Open loop, one way: a publisher on a schedule, a subscriber, one clock.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use mq_client::{Client, ClientBuilder, Outgoing};
use mq_codec::{QoS, TopicName};
use mq_measure::{
    Counts, Sample, Samples, Tracker,
    process::own_thread_cpu_ns,
    result::WireUse,
    schedule::{Lateness, OpenLoop},
};

use super::{
    RunClock, add_wire,
    send_thread::{SendThread, wait_until},
    topics::{self, Subscriptions},
    wire_use,
};
use crate::{
    mqtt::{MqttOptions, Route},
    payload::{Payloads, sequence},
};

/// Time that the subscriber waits for stragglers after the last message.
const GRACE: Duration = Duration::from_secs(5);

/// Time between the start of the clock and the first message.
pub(super) const LEAD: Duration = Duration::from_millis(20);

/// The plan of a run: topics, messages and schedule.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The topic, or the prefix of several topics' names.
    pub(crate) topic: String,
    /// Number of topics: message i is published to topic i modulo this.
    pub(crate) topics: NonZeroU32,
    pub(crate) count: u64,
    pub(crate) interval: Duration,
    /// Number of messages that are due together.
    pub(crate) burst: NonZeroU32,
    pub(crate) size: usize,
    pub(crate) seed: u64,
    pub(crate) grace: Duration,
    /// `true` if messages may be early data. They are safe to repeat, since the subscriber counts by number.
    pub(crate) early: bool,
}

impl Plan {
    pub(crate) fn new(topic: &str, count: u64, interval: Duration, size: usize, seed: u64) -> Self {
        Self {
            topic: topic.to_owned(),
            topics: NonZeroU32::MIN,
            count,
            interval,
            burst: NonZeroU32::MIN,
            size,
            seed,
            grace: GRACE,
            early: false,
        }
    }

    /// Returns the instant at which message `seq` is due by the run's clock, with a burst of 1.
    pub(crate) fn due(&self, clock: RunClock, seq: u64) -> Instant {
        let before = self.interval * u32::try_from(seq).unwrap_or(u32::MAX);
        clock.instant(super::nanoseconds(LEAD + before))
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct E2eResult {
    /// Origin of the samples' times, in nanoseconds since the Unix epoch.
    pub(crate) origin_ns: u64,
    pub(crate) samples: Samples,
    pub(crate) counts: Counts,
    pub(crate) lateness: Lateness,
    /// Traffic of both clients' links; `None` if a link was lost.
    pub(crate) wire: Option<WireUse>,
    /// Traffic of the publisher's link alone.
    pub(crate) publisher_wire: Option<WireUse>,
    /// CPU time of the thread that keeps the schedule, which mostly spins until the moment to send; `None` if
    /// it is not known.
    pub(crate) pacing_cpu_ns: Option<u64>,
    pub(crate) elapsed: Duration,
    /// `true` if messages were missing when the wait for stragglers ended.
    pub(crate) timed_out: bool,
}

/// A publisher and a subscriber that are connected.
pub(crate) struct ClientPair<'a> {
    plan: &'a Plan,
    qos: QoS,
    topics: Vec<TopicName>,
    began: Instant,
    sender: Client,
    receiver: Client,
    subscriptions: Subscriptions,
}

impl<'a> ClientPair<'a> {
    pub(crate) async fn connect(
        plan: &'a Plan,
        mqtt: &MqttOptions,
        publisher: &Route,
        subscriber: &Route,
    ) -> anyhow::Result<Self> {
        let sender = mqtt.builder(publisher, "mqbench-pub")?;
        Self::connect_with(plan, mqtt, sender, subscriber).await
    }

    /// Connects like [`connect`](Self::connect), with the caller's builder of the publisher.
    pub(super) async fn connect_with(
        plan: &'a Plan,
        mqtt: &MqttOptions,
        sender: ClientBuilder,
        subscriber: &Route,
    ) -> anyhow::Result<Self> {
        let began = Instant::now();
        let receiver = mqtt.connect(subscriber, "mqbench-sub").await;
        let receiver = receiver.context("the subscriber cannot connect")?;
        let topics = topics::names(&plan.topic, plan.topics)?;
        let subscriptions = Subscriptions::to(&topics, &receiver, mqtt.qos).await?;
        let sender = sender.build().await;
        let sender = sender.context("the publisher cannot connect")?;
        Ok(Self {
            plan,
            qos: mqtt.qos,
            topics,
            began,
            sender,
            receiver,
            subscriptions,
        })
    }

    pub(super) fn plan(&self) -> &'a Plan {
        self.plan
    }

    pub(super) fn publisher(&self) -> Client {
        self.sender.clone()
    }

    /// Sends the plan's messages, from [`LEAD`] after the clock's start on, and waits for their arrival.
    /// `progress` gets the number of messages sent.
    pub(crate) async fn run(
        mut self,
        clock: RunClock,
        progress: impl Fn(u64) + Send + 'static,
    ) -> anyhow::Result<E2eResult> {
        let plan = self.plan;
        let tracker = Arc::new(Mutex::new(
            Tracker::new(plan.count).over_topics(plan.topics),
        ));
        let thread = Sender {
            client: self.sender.clone(),
            topics: self.topics.clone(),
            qos: self.qos,
            schedule: OpenLoop::new(super::nanoseconds(LEAD), plan.interval).in_bursts(plan.burst),
            payloads: Payloads::new(plan.size, plan.seed),
            count: plan.count,
            early: plan.early,
            clock,
            tracker: Arc::clone(&tracker),
        };
        let sending = SendThread::start(move |stop| thread.run(stop, progress));
        let timed_out = self.receive(clock, &tracker).await;
        let (lateness, pacing_cpu_ns) = sending.finish().await?;
        self.receive_duplicates(clock, &tracker).await;
        let elapsed = self.began.elapsed();
        let wires = self.goodbye().await;
        let tracker = lock(&tracker);
        Ok(E2eResult {
            origin_ns: clock.origin_ns(),
            samples: tracker.samples(),
            counts: tracker.counts(),
            lateness,
            wire: wires.map(|(sender, receiver)| add_wire(&sender, &receiver)),
            publisher_wire: wires.map(|(sender, _)| sender),
            pacing_cpu_ns,
            elapsed,
            timed_out,
        })
    }

    /// Receives until all messages have arrived; returns `true` if the time is over before.
    async fn receive(&mut self, clock: RunClock, tracker: &Mutex<Tracker>) -> bool {
        let plan = self.plan;
        let bursts = plan.count.div_ceil(plan.burst.get().into());
        let schedule_end = LEAD + plan.interval * u32::try_from(bursts).unwrap_or(u32::MAX);
        let deadline = tokio::time::Instant::now() + schedule_end + plan.grace;
        loop {
            let incoming = match tokio::time::timeout_at(deadline, self.subscriptions.next()).await
            {
                Ok(Some(incoming)) => incoming,
                Ok(None) => return false,
                Err(_) => return true,
            };
            let at = clock.at_ns(incoming.received_at);
            let mut tracker = lock(tracker);
            // A payload without a sequence number counts as unknown.
            tracker.received(sequence(&incoming.payload).unwrap_or(u64::MAX), at);
            if tracker.is_complete() {
                return false;
            }
        }
    }

    /// Receives for another 20 ms, since a duplicate would follow its original closely.
    async fn receive_duplicates(&mut self, clock: RunClock, tracker: &Mutex<Tracker>) {
        let end = tokio::time::Instant::now() + Duration::from_millis(20);
        while let Ok(Some(incoming)) = tokio::time::timeout_at(end, self.subscriptions.next()).await
        {
            let at = clock.at_ns(incoming.received_at);
            lock(tracker).received(sequence(&incoming.payload).unwrap_or(u64::MAX), at);
        }
    }

    /// Disconnects both clients; returns the traffic of the publisher's link and of the subscriber's.
    async fn goodbye(&self) -> Option<(WireUse, WireUse)> {
        let stats = (self.sender.stats().await, self.receiver.stats().await);
        // A link may be broken, as the counts show already.
        let _ = self.sender.disconnect().await;
        let _ = self.receiver.disconnect().await;
        let (sender, receiver) = (stats.0.ok()?, stats.1.ok()?);
        Some((wire_use(&sender), wire_use(&receiver)))
    }
}

struct Sender {
    client: Client,
    topics: Vec<TopicName>,
    qos: QoS,
    schedule: OpenLoop,
    payloads: Payloads,
    count: u64,
    early: bool,
    clock: RunClock,
    tracker: Arc<Mutex<Tracker>>,
}

impl Sender {
    /// Sends on the schedule; returns the lateness of messages, and the CPU time of this thread.
    fn run(
        self,
        stop: &AtomicBool,
        progress: impl Fn(u64),
    ) -> anyhow::Result<(Lateness, Option<u64>)> {
        // The thread may have done other work before.
        let before = own_thread_cpu_ns();
        let mut lateness = Lateness::new();
        for (seq, topic) in (0..self.count).zip(self.topics.iter().cycle()) {
            let payload = self.payloads.make(seq);
            let message = Outgoing::new(topic.clone(), payload)
                .qos(self.qos)
                .early(self.early);
            let intended = self.schedule.intended_ns(seq);
            wait_until(self.clock.instant(intended));
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let sent = self.clock.now_ns();
            lock(&self.tracker).sent(seq, intended, sent);
            lateness.note(intended, sent);
            // An open loop never waits for a reply. A message that the client cannot take counts as lost.
            if let Err(error) = self.client.try_send(message)
                && !matches!(error, mq_client::Error::QueueFull)
            {
                return Err(error).context("cannot publish");
            }
            progress(seq + 1);
        }
        let used = own_thread_cpu_ns().zip(before);
        Ok((lateness, used.map(|(after, before)| after - before)))
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the samples of several rounds, with numbers that continue from round to round.
pub(crate) fn concatenate(rounds: &[Samples]) -> Samples {
    let mut all: Vec<Sample> = Vec::new();
    for round in rounds {
        let offset = all.len() as u64;
        all.extend(round.0.iter().map(|sample| Sample {
            seq: sample.seq + offset,
            ..*sample
        }));
    }
    Samples(all)
}
