//! A new connection for every message (W20, S21 pattern B).
//!
//! S21's Δ†: from the start of the second, resumed connection at the publisher until its message
//! has reached the subscriber. W20's variant: from the start of the connection until the PUBLISH
//! is sent, with the first connection counted too.

use anyhow::Context;
use mq_client::{Client, Outgoing};
use mq_measure::{Sample, result::WireUse};
use mq_transport::{Address, ConnectOptions, EarlyData, HandshakeKind};

use super::{
    RunClock,
    arrivals::Arrivals,
    connect::leave,
    resumption::Resumption,
    stopwait::{PUBLISHER, Plan},
    wire_use,
};
use crate::{
    mqtt::{MqttOptions, Route},
    payload::Payloads,
};

/// The default topic.
pub(crate) const TOPIC: &str = "mqbench/reconnect";

/// A connection with one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// The message's sample: intended at the dial, sent when the PUBLISH was handed to the transport.
    pub(crate) sample: Sample,
    /// The kind of handshake.
    pub(crate) handshake: HandshakeKind,
    /// Fate of early data.
    pub(crate) early_data: EarlyData,
    /// `true` if the broker took data that came with the SYN.
    pub(crate) data_in_syn: bool,
    /// Traffic of the connection, except for its end.
    pub(crate) wire: WireUse,
}

impl Attempt {
    /// Returns W20's time: from the dial until the PUBLISH was handed to the transport.
    pub(crate) fn sent_ns(&self) -> u64 {
        self.sample.sent_ns - self.sample.intended_ns
    }

    /// Returns Δ†: from the dial until the message was received; `None` if the subscriber is elsewhere.
    pub(crate) fn delta_ns(&self) -> Option<u64> {
        self.sample.latency_intended_ns()
    }
}

/// Connects once with a full handshake, then as often as the plan's count, and publishes one message on each
/// connection.
pub(crate) async fn run(
    plan: &Plan,
    clock: RunClock,
    resumption: Resumption,
    mqtt: &MqttOptions,
    end: (Address, ConnectOptions),
    arrivals: Arrivals,
) -> anyhow::Result<Vec<Attempt>> {
    let publisher = Publisher::new(plan, resumption, mqtt, end, PUBLISHER, arrivals)?;
    publisher.run(clock, |_| {}).await
}

/// A publisher before its first connection, and the source of its arrivals.
#[derive(Debug)]
pub(crate) struct Publisher {
    plan: Plan,
    mqtt: MqttOptions,
    route: Route,
    client_id: String,
    payloads: Payloads,
    arrivals: Arrivals,
}

impl Publisher {
    pub(crate) fn new(
        plan: &Plan,
        resumption: Resumption,
        mqtt: &MqttOptions,
        (address, options): (Address, ConnectOptions),
        client_id: &str,
        arrivals: Arrivals,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            plan: plan.clone(),
            mqtt: mqtt.clone(),
            route: Route::new((address, resumption.apply(options)))?,
            client_id: client_id.to_owned(),
            payloads: Payloads::new(plan.size, 1),
            arrivals,
        })
    }

    /// Sends the plan's messages. `arrived` is called with the number of each message that has arrived, before its
    /// connection ends.
    pub(crate) async fn run(
        mut self,
        clock: RunClock,
        mut arrived: impl FnMut(u64),
    ) -> anyhow::Result<Vec<Attempt>> {
        let mut attempts = Vec::new();
        for seq in 0..=self.plan.count {
            let (client, sample) = self.deliver(clock, seq).await?;
            arrived(seq);
            let stats = leave(&client).await?;
            attempts.push(Attempt {
                sample,
                handshake: stats.handshake,
                early_data: stats.early_data,
                data_in_syn: stats.data_in_syn == Some(true),
                wire: wire_use(&stats),
            });
        }
        self.arrivals.disconnect().await?;
        Ok(attempts)
    }

    /// Connects, sends a message, and waits until it has arrived. Then the client can [`leave`].
    pub(super) async fn deliver(
        &mut self,
        clock: RunClock,
        seq: u64,
    ) -> anyhow::Result<(Client, Sample)> {
        // The receiver counts by sequence number, so a message is safe to repeat.
        let message = Outgoing::new(self.plan.topic.clone(), self.payloads.make(seq))
            .qos(self.mqtt.qos)
            .early(true);
        let dialled_ns = clock.now_ns();
        // PUBLISH follows CONNECT at once, without waiting for CONNACK.
        let client = self
            .mqtt
            .builder(&self.route, &self.client_id)?
            .start()
            .context("cannot connect")?;
        let mut receipt = client.send(message).await.context("cannot publish")?;
        receipt.written().await.context("cannot publish")?;
        let sent_ns = clock.now_ns();
        let arrived = self.arrivals.wait(seq, self.plan.patience).await?;
        let sample = Sample {
            seq,
            intended_ns: dialled_ns,
            sent_ns,
            received_ns: arrived.map(|at| clock.at_ns(at)),
        };
        Ok((client, sample))
    }
}
