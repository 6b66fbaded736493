//! Stop and wait (W20, S21 pattern A): message i + 1 is sent when i has reached the subscriber.
//!
//! This is a closed loop. Its figure is Δ, the time from the first PUBLISH until the last message has arrived
//! (S21 Fig. 6a), beside the latency of each message.

use std::time::Duration;

use anyhow::Context;
use mq_client::Outgoing;
use mq_codec::TopicName;
use mq_measure::{Sample, Samples};

use super::{Clock, arrivals::Arrivals};
use crate::{
    mqtt::{Mqtt, Route},
    payload::Payloads,
};

/// The default topic.
pub(crate) const TOPIC: &str = "mqbench/stopwait";

/// The plan of a run: messages that are sent one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) topic: TopicName,
    pub(crate) count: u64,
    /// The payload's size in bytes.
    pub(crate) size: usize,
    /// A message that takes longer ends the run.
    pub(crate) patience: Duration,
}

/// Δ: first PUBLISH sent until last message received; `None` if an arrival time is not known.
pub(crate) fn delta(samples: &Samples) -> Option<Duration> {
    let (first, last) = (samples.0.first()?, samples.0.last()?);
    Some(Duration::from_nanos(
        last.received_ns?.checked_sub(first.sent_ns)?,
    ))
}

/// Sends the plan's messages. Times are the clock's; an arrival has one if the subscriber is in this process.
pub(crate) async fn run(
    plan: &Plan,
    clock: Clock,
    mqtt: &Mqtt,
    route: &Route,
    mut arrivals: Arrivals,
) -> anyhow::Result<Samples> {
    let sender = mqtt.connect(route, "mqbench-pub").await;
    let sender = sender.context("the publisher cannot connect")?;
    let payloads = Payloads::new(plan.size, 1);
    let mut samples = Vec::new();
    for seq in 0..plan.count {
        let sent_ns = clock.now_ns();
        let message = Outgoing::new(plan.topic.clone(), payloads.make(seq)).qos(mqtt.qos);
        sender.send(message).await.context("cannot publish")?;
        let arrived = arrivals.wait(seq, plan.patience).await?;
        samples.push(Sample {
            seq,
            intended_ns: sent_ns,
            sent_ns,
            received_ns: arrived.map(|at| clock.at_ns(at)),
        });
    }
    sender.disconnect().await.context("cannot disconnect")?;
    arrivals.end().await?;
    Ok(Samples(samples))
}
