//! Stop and wait (W20, S21 pattern A): message i + 1 is sent when i has reached the subscriber.
//!
//! This is a closed loop. Its figure is Δ, the time from the first PUBLISH until the last message has arrived
//! (S21 Fig. 6a), beside the latency of each message.

use std::time::Duration;

use anyhow::Context;
use mq_client::{Client, Outgoing};
use mq_codec::{QoS, TopicName};
use mq_measure::{Sample, Samples};

use super::{RunClock, arrivals::Arrivals};
use crate::{
    mqtt::{MqttOptions, Route},
    payload::Payloads,
};

/// The default topic.
pub(crate) const TOPIC: &str = "mqbench/stopwait";

/// The client identifier of the measured publisher, with this pattern and with [`reconnect`](super::reconnect).
pub(crate) const PUBLISHER: &str = "mqbench-pub";

/// The plan of a run: messages that are sent one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) topic: TopicName,
    pub(crate) count: u64,
    /// The payload's size in bytes.
    pub(crate) size: usize,
    /// Time within which a message has to arrive; a message that takes longer ends the run.
    pub(crate) patience: Duration,
}

/// Returns Δ: first PUBLISH sent until last message received; `None` if an arrival time is not known.
pub(crate) fn delta(samples: &Samples) -> Option<Duration> {
    let (first, last) = (samples.0.first()?, samples.0.last()?);
    Some(Duration::from_nanos(
        last.received_ns?.checked_sub(first.sent_ns)?,
    ))
}

/// Connects a publisher and sends the plan's messages. Times are the clock's; an arrival has one if the subscriber
/// is in this process.
pub(crate) async fn run(
    plan: &Plan,
    clock: RunClock,
    mqtt: &MqttOptions,
    route: &Route,
    arrivals: Arrivals,
) -> anyhow::Result<Samples> {
    let publisher = Publisher::connect(plan, mqtt, route, PUBLISHER, arrivals).await?;
    publisher.run(clock, |_| {}).await
}

/// A connected publisher, and what it learns of arrivals.
#[derive(Debug)]
pub(crate) struct Publisher {
    plan: Plan,
    qos: QoS,
    payloads: Payloads,
    sender: Client,
    arrivals: Arrivals,
}

impl Publisher {
    pub(crate) async fn connect(
        plan: &Plan,
        mqtt: &MqttOptions,
        route: &Route,
        client_id: &str,
        arrivals: Arrivals,
    ) -> anyhow::Result<Self> {
        let sender = mqtt.connect(route, client_id).await;
        Ok(Self {
            plan: plan.clone(),
            qos: mqtt.qos,
            payloads: Payloads::new(plan.size, 1),
            sender: sender.context("the publisher cannot connect")?,
            arrivals,
        })
    }

    /// Sends the plan's messages, and disconnects. `arrived` gets the number of each message that has arrived.
    pub(crate) async fn run(
        mut self,
        clock: RunClock,
        mut arrived: impl FnMut(u64),
    ) -> anyhow::Result<Samples> {
        let mut samples = Vec::new();
        for seq in 0..self.plan.count {
            samples.push(self.deliver(clock, seq).await?);
            arrived(seq);
        }
        let disconnected = self.sender.disconnect().await;
        disconnected.context("cannot disconnect")?;
        self.arrivals.disconnect().await?;
        Ok(Samples(samples))
    }

    /// Sends a message, and waits until it has arrived.
    pub(super) async fn deliver(&mut self, clock: RunClock, seq: u64) -> anyhow::Result<Sample> {
        let sent_ns = clock.now_ns();
        let message = Outgoing::new(self.plan.topic.clone(), self.payloads.make(seq));
        let sent = self.sender.send(message.qos(self.qos)).await;
        sent.context("cannot publish")?;
        let arrived = self.arrivals.wait(seq, self.plan.patience).await?;
        Ok(Sample {
            seq,
            intended_ns: sent_ns,
            sent_ns,
            received_ns: arrived.map(|at| clock.at_ns(at)),
        })
    }
}
