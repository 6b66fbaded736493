//! A new connection for every message (W20, S21 pattern B).
//!
//! S21's Δ†: from the start of the second, resumed connection at the publisher until its message
//! has reached the subscriber. W20's variant: from the start of the connection until the PUBLISH
//! is sent, with the first connection counted too.

use anyhow::Context;
use mq_client::Outgoing;
use mq_measure::Sample;
use mq_transport::{Address, ConnectOptions, EarlyData, HandshakeKind};
use serde::{Deserialize, Serialize};

use super::{Clock, arrivals::Arrivals, connect::leave, stopwait::Plan};
use crate::{
    mqtt::{Mqtt, Route},
    payload::Payloads,
};

/// The default topic.
pub(crate) const TOPIC: &str = "mqbench/reconnect";

/// One connection with one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Intended at the dial, sent when the PUBLISH was handed to the transport.
    pub(crate) sample: Sample,
    /// The kind of handshake.
    pub(crate) handshake: HandshakeKind,
    /// What became of early data.
    pub(crate) early_data: EarlyData,
}

impl Attempt {
    /// W20: the dial until the PUBLISH was handed to the transport.
    pub(crate) fn sent_ns(&self) -> u64 {
        self.sample.sent_ns - self.sample.intended_ns
    }

    /// Δ†: the dial until the message was received; `None` if the subscriber is elsewhere.
    pub(crate) fn delta_ns(&self) -> Option<u64> {
        self.sample.latency_intended_ns()
    }
}

/// How the publisher comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Resumption {
    /// A full handshake each time
    #[serde(rename = "full")]
    Full,
    /// With a ticket
    #[serde(rename = "resumed")]
    Resumed,
    /// With a ticket, CONNECT and PUBLISH as early data
    #[serde(rename = "0-rtt")]
    ZeroRtt,
}

impl Resumption {
    /// The options of a client that comes back like this.
    pub(crate) fn apply(self, options: ConnectOptions) -> ConnectOptions {
        ConnectOptions {
            resumption: self != Self::Full,
            early_data: self == Self::ZeroRtt,
            ..options
        }
    }
}

/// Connects once with a full handshake, then as often as the plan's count, and publishes one message on each
/// connection.
pub(crate) async fn run(
    plan: &Plan,
    clock: Clock,
    resumption: Resumption,
    mqtt: &Mqtt,
    (address, options): (Address, ConnectOptions),
    mut arrivals: Arrivals,
) -> anyhow::Result<Vec<Attempt>> {
    let route = Route::new((address, resumption.apply(options)))?;
    let payloads = Payloads::new(plan.size, 1);
    let mut attempts = Vec::new();
    for seq in 0..=plan.count {
        // The receiver counts by sequence number, so a message is safe to repeat.
        let message = Outgoing::new(plan.topic.clone(), payloads.make(seq))
            .qos(mqtt.qos)
            .early(true);
        let dialled_ns = clock.now_ns();
        // PUBLISH follows CONNECT at once, without waiting for CONNACK.
        let client = mqtt
            .builder(&route, "mqbench-pub")?
            .start()
            .context("cannot connect")?;
        let mut receipt = client.send(message).await.context("cannot publish")?;
        receipt.written().await.context("cannot publish")?;
        let sent_ns = clock.now_ns();
        let arrived = arrivals.wait(seq, plan.patience).await?;
        let stats = leave(&client).await?;
        attempts.push(Attempt {
            sample: Sample {
                seq,
                intended_ns: dialled_ns,
                sent_ns,
                received_ns: arrived.map(|at| clock.at_ns(at)),
            },
            handshake: stats.handshake,
            early_data: stats.early_data,
        });
    }
    arrivals.end().await?;
    Ok(attempts)
}
