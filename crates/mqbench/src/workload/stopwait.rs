//! Stop and wait (W20, S21 pattern A): message i + 1 is sent when i has reached the subscriber.
//!
//! A closed loop, and honest about it: the figure is Δ, the time from the first PUBLISH until the
//! last message has arrived (S21 Fig. 6a), beside the latency of each message.

use std::time::Duration;

use anyhow::{Context, bail};
use mq_client::Outgoing;
use mq_codec::TopicName;
use mq_measure::{Sample, Samples};
use mq_transport::{Address, Connector};

use super::Clock;
use crate::{
    args::MqttArgs,
    payload::{Payloads, sequence},
};

/// What was measured.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Δ: first PUBLISH sent until last message received.
    pub(crate) delta: Duration,
    pub(crate) samples: Samples,
}

/// Sends `count` messages of `size` bytes, one at a time; one that takes longer than `patience`
/// ends the run.
pub(crate) async fn run(
    count: u64,
    size: usize,
    patience: Duration,
    mqtt: &MqttArgs,
    publisher: (&Address, &Connector),
    subscriber: (&Address, &Connector),
) -> anyhow::Result<Outcome> {
    const TOPIC: &str = "mqbench/stopwait";
    let receiver = mqtt
        .builder(subscriber.0, subscriber.1, "mqbench-sub")?
        .build()
        .await
        .context("the subscriber cannot connect")?;
    let mut subscription = receiver.subscribe(TOPIC, mqtt.qos).await?;
    let sender = mqtt
        .builder(publisher.0, publisher.1, "mqbench-pub")?
        .build()
        .await
        .context("the publisher cannot connect")?;
    let topic = TopicName::new(TOPIC)?;
    let payloads = Payloads::new(size, 1);
    let clock = Clock::start();
    let mut samples = Vec::new();
    for seq in 0..count {
        let sent_ns = clock.now_ns();
        let message = Outgoing::new(topic.clone(), payloads.make(seq)).qos(mqtt.qos);
        sender.send(message).await.context("cannot publish")?;
        let arrived = loop {
            let incoming = tokio::time::timeout(patience, subscription.recv())
                .await
                .with_context(|| format!("message {seq} did not arrive within {patience:?}"))?
                .context("the subscriber's connection was lost")?;
            // A repetition of an earlier one (QoS 1) is not what is waited for.
            if sequence(&incoming.payload) == Some(seq) {
                break incoming.received_at;
            }
        };
        samples.push(Sample {
            seq,
            intended_ns: sent_ns,
            sent_ns,
            received_ns: Some(clock.at_ns(arrived)),
        });
    }
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        bail!("nothing to send: --count is 0");
    };
    let delta = last.received_ns.unwrap_or_default() - first.sent_ns;
    sender.disconnect().await.context("cannot disconnect")?;
    receiver.disconnect().await.context("cannot disconnect")?;
    Ok(Outcome {
        delta: Duration::from_nanos(delta),
        samples: Samples(samples),
    })
}
