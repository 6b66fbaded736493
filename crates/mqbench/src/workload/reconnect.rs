//! A new connection for every message (W20, S21 pattern B).
//!
//! S21's Δ†: from the start of the second, resumed connection at the publisher until its message
//! has reached the subscriber. W20's variant: from the start of the connection until the PUBLISH
//! is sent, with the first connection counted too.

use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use clap::ValueEnum;
use mq_client::Outgoing;
use mq_codec::{QoS, TopicName};
use mq_transport::{Address, ConnectOptions, Connector, EarlyData, HandshakeKind};
use serde::{Deserialize, Serialize};

use crate::{
    args::MqttArgs,
    clock::nanoseconds,
    payload::{Payloads, sequence},
};

/// One connection with one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Δ†: the dial until the message was received.
    pub(crate) delta_ns: u64,
    /// W20: the dial until the PUBLISH was handed to the transport.
    pub(crate) sent_ns: u64,
    /// What the handshake was.
    pub(crate) handshake: HandshakeKind,
    /// What became of early data.
    pub(crate) early_data: EarlyData,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The first connection, with a full handshake.
    pub(crate) first: Attempt,
    /// Those after it.
    pub(crate) again: Vec<Attempt>,
}

/// How the publisher comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Resumption {
    /// A full handshake each time
    #[serde(rename = "full")]
    Full,
    /// With a ticket
    #[serde(rename = "resumed")]
    Resumed,
    /// With a ticket, CONNECT and PUBLISH as early data
    #[value(name = "0-rtt")]
    #[serde(rename = "0-rtt")]
    ZeroRtt,
}

/// Connects `count` times after a first time, publishing one message each time.
pub(crate) async fn run(
    count: u64,
    size: usize,
    patience: Duration,
    resumption: Resumption,
    mqtt: &MqttArgs,
    publisher: (&Address, &ConnectOptions),
    subscriber: (&Address, &ConnectOptions),
) -> anyhow::Result<Outcome> {
    const TOPIC: &str = "mqbench/reconnect";
    let connector = Connector::new(ConnectOptions {
        resumption: resumption != Resumption::Full,
        early_data: resumption == Resumption::ZeroRtt,
        ..publisher.1.clone()
    })?;
    // The subscriber stays, on tickets of its own.
    let own = Connector::new(subscriber.1.clone())?;
    let receiver = mqtt
        .builder(subscriber.0, &own, "mqbench-sub")?
        .build()
        .await
        .context("the subscriber cannot connect")?;
    let mut subscription = receiver.subscribe(TOPIC, mqtt.qos).await?;
    let topic = TopicName::new(TOPIC)?;
    let payloads = Payloads::new(size, 1);
    let mut attempts = Vec::new();
    for seq in 0..=count {
        // The receiver counts by sequence number, so a message is safe to repeat.
        let message = Outgoing::new(topic.clone(), payloads.make(seq))
            .qos(mqtt.qos)
            .early(true);
        let dialled = Instant::now();
        // PUBLISH goes right behind CONNECT, without waiting for CONNACK.
        let client = mqtt
            .builder(publisher.0, &connector, "mqbench-pub")?
            .start()
            .context("cannot connect")?;
        let mut receipt = client.send(message).await.context("cannot publish")?;
        receipt.written().await.context("cannot publish")?;
        let sent = Instant::now();
        let arrived = loop {
            let incoming = tokio::time::timeout(patience, subscription.recv())
                .await
                .with_context(|| format!("message {seq} did not arrive within {patience:?}"))?
                .context("the subscriber's connection was lost")?;
            if sequence(&incoming.payload) == Some(seq) {
                break incoming.received_at;
            }
        };
        // Not timed: one more round trip, so that the next ticket is here.
        client
            .publish("mqbench/dial", Bytes::new(), QoS::AtLeastOnce)
            .await
            .context("the connection was lost at once")?;
        let stats = client
            .stats()
            .await
            .context("the connection was lost at once")?;
        client.disconnect().await.context("cannot disconnect")?;
        attempts.push(Attempt {
            delta_ns: nanoseconds(arrived.saturating_duration_since(dialled)),
            sent_ns: nanoseconds(sent.saturating_duration_since(dialled)),
            handshake: stats.handshake,
            early_data: stats.early_data,
        });
    }
    receiver.disconnect().await.context("cannot disconnect")?;
    let first = attempts.remove(0);
    Ok(Outcome {
        first,
        again: attempts,
    })
}
