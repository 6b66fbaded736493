//! Arrivals at the subscriber, for a publisher that waits for each of its messages.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use mq_client::{Client, Subscription};
use tokio::{sync::mpsc::Receiver, time::timeout};

use crate::{
    mqtt::{MqttOptions, Route},
    payload::sequence,
};

/// The messages that have reached the subscriber.
#[derive(Debug)]
pub(crate) enum Arrivals {
    /// A subscriber in this process.
    Local {
        client: Client,
        messages: Subscription,
    },
    /// A subscriber elsewhere, which reports the numbers of its messages.
    Reported(Receiver<u64>),
}

impl Arrivals {
    /// Subscribes in this process, as the subscriber of the measured publisher.
    pub(crate) async fn subscribe(
        topic: &str,
        mqtt: &MqttOptions,
        route: &Route,
    ) -> anyhow::Result<Self> {
        Self::subscribe_as("mqbench-sub", topic, mqtt, route).await
    }

    /// Subscribes in this process with this client identifier.
    pub(super) async fn subscribe_as(
        client_id: &str,
        topic: &str,
        mqtt: &MqttOptions,
        route: &Route,
    ) -> anyhow::Result<Self> {
        let client = mqtt.connect(route, client_id).await;
        let client = client.context("the subscriber cannot connect")?;
        let messages = client.subscribe(topic, mqtt.qos).await?;
        Ok(Self::Local { client, messages })
    }

    /// Waits for a message. Returns when it arrived, if the subscriber is in this process.
    pub(super) async fn wait(
        &mut self,
        seq: u64,
        patience: Duration,
    ) -> anyhow::Result<Option<Instant>> {
        let arrived = async {
            loop {
                let (number, at) = self.next().await?;
                // This may be a repetition of an earlier message (QoS 1).
                if number == Some(seq) {
                    return anyhow::Ok(at);
                }
            }
        };
        let arrived = timeout(patience, arrived).await;
        arrived.with_context(|| format!("message {seq} did not arrive within {patience:?}"))?
    }

    async fn next(&mut self) -> anyhow::Result<(Option<u64>, Option<Instant>)> {
        match self {
            Self::Local { messages, .. } => {
                let incoming = messages.recv().await;
                let incoming = incoming.context("the subscriber's connection was lost")?;
                Ok((sequence(&incoming.payload), Some(incoming.received_at)))
            }
            Self::Reported(numbers) => {
                let number = numbers.recv().await;
                Ok((Some(number.context("nobody tells what arrives")?), None))
            }
        }
    }

    /// Ends the subscriber if it is in this process.
    pub(super) async fn disconnect(self) -> anyhow::Result<()> {
        if let Self::Local { client, .. } = self {
            client.disconnect().await.context("cannot disconnect")?;
        }
        Ok(())
    }
}
