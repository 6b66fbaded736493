//! Job and result (DL): a job is published on a schedule, a worker answers, the publisher matches.
//!
//! `rtt` is matched by sequence number. `rtt_last` is DL's own estimator: each new job overwrites the one start
//! time, so a result that comes after the next job is timed from that job.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use mq_client::{Client, Outgoing};
use mq_codec::{QoS, TopicName};
use mq_measure::{
    Counts, LastSendEstimator, Samples, Tracker,
    schedule::{Lateness, OpenLoop},
};

use super::{RunClock, send_thread::wait_until};
use crate::{
    mqtt::{MqttOptions, Route},
    payload::{Payloads, sequence},
};

pub(crate) const JOBS: &str = "mqbench/job";
pub(crate) const RESULTS: &str = "mqbench/result";

/// The plan of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Number of jobs.
    pub(crate) count: u64,
    pub(crate) interval: Duration,
    /// A job's payload in bytes.
    pub(crate) size: usize,
    /// Time to wait for results after the last job.
    pub(crate) grace: Duration,
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct RttResult {
    /// Origin of the samples' times, in nanoseconds since the Unix epoch.
    pub(crate) origin_ns: u64,
    pub(crate) samples: Samples,
    pub(crate) counts: Counts,
    /// DL's estimator, in nanoseconds.
    pub(crate) last: Vec<u64>,
    pub(crate) lateness: Lateness,
}

struct Shared {
    tracker: Tracker,
    last: LastSendEstimator,
}

/// Runs the plan beside a worker in this process, which answers at once.
pub(crate) async fn run_with_worker(
    plan: Plan,
    mqtt: &MqttOptions,
    publisher: &Route,
    subscriber: &Route,
) -> anyhow::Result<RttResult> {
    let client = mqtt.connect(subscriber, "mqbench-worker").await;
    let client = client.context("the worker cannot connect")?;
    tokio::select! {
        outcome = run(plan, mqtt, publisher) => outcome,
        ended = worker(&client, mqtt.qos, Duration::ZERO, || Ok(())) => {
            ended?;
            bail!("the worker's connection was lost");
        }
    }
}

/// Publishes the plan's jobs, and collects the results of a [`worker`].
pub(crate) async fn run(
    plan: Plan,
    mqtt: &MqttOptions,
    route: &Route,
) -> anyhow::Result<RttResult> {
    let Plan {
        count,
        interval,
        size,
        grace,
    } = plan;
    let client = mqtt.connect(route, "mqbench-jobs").await;
    let client = client.context("cannot connect")?;
    let mut results = client.subscribe(RESULTS, mqtt.qos).await?;
    let shared = Arc::new(Mutex::new(Shared {
        tracker: Tracker::new(count),
        last: LastSendEstimator::new(),
    }));
    let clock = RunClock::start();
    let sending = {
        let (client, shared) = (client.clone(), Arc::clone(&shared));
        let topic = TopicName::new(JOBS)?;
        let (qos, payloads) = (mqtt.qos, Payloads::new(size, 1));
        tokio::task::spawn_blocking(move || -> anyhow::Result<Lateness> {
            let schedule = OpenLoop::new(20_000_000, interval);
            let mut lateness = Lateness::new();
            for seq in 0..count {
                let message = Outgoing::new(topic.clone(), payloads.make(seq)).qos(qos);
                let intended = schedule.intended_ns(seq);
                wait_until(clock.instant(intended));
                let sent = clock.now_ns();
                {
                    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    shared.tracker.sent(seq, intended, sent);
                    shared.last.sent(sent);
                }
                lateness.note(intended, sent);
                client.try_send(message).context("cannot publish")?;
            }
            Ok(lateness)
        })
    };
    let whole = interval * u32::try_from(count).unwrap_or(u32::MAX) + grace;
    let deadline = tokio::time::Instant::now() + whole;
    let mut last = Vec::new();
    while let Ok(Some(incoming)) = tokio::time::timeout_at(deadline, results.recv()).await {
        let at = clock.at_ns(incoming.received_at);
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        last.extend(shared.last.received(at));
        shared
            .tracker
            .received(sequence(&incoming.payload).unwrap_or(u64::MAX), at);
        if shared.tracker.is_complete() {
            break;
        }
    }
    let lateness = sending.await.context("the sending thread failed")??;
    client.disconnect().await.context("cannot disconnect")?;
    let shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(RttResult {
        origin_ns: clock.origin_ns(),
        samples: shared.tracker.samples(),
        counts: shared.tracker.counts(),
        last,
        lateness,
    })
}

/// Answers jobs with results until the connection ends. Calls `ready` when it has subscribed; each job takes
/// `compute`.
pub(crate) async fn worker(
    client: &Client,
    qos: QoS,
    compute: Duration,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut jobs = client.subscribe(JOBS, qos).await?;
    ready()?;
    let topic = TopicName::new(RESULTS)?;
    while let Some(job) = jobs.recv().await {
        if !compute.is_zero() {
            tokio::time::sleep(compute).await;
        }
        let result = Outgoing::new(topic.clone(), job.payload).qos(qos);
        client.send(result).await.context("cannot publish")?;
    }
    Ok(())
}
