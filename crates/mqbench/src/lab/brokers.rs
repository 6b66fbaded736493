//! The brokers of a run: one, or with hosts in a row several, each bridged to the next one.

use std::{future::poll_fn, task::Poll, time::Duration};

use anyhow::Context as _;
use mq_client::Outgoing;
use mq_codec::{QoS, TopicName};
use mq_transport::{Address, Scheme};

use crate::{
    broker_under_test::{BridgeTo, BrokerProcess, BrokerSetup, TestCertificate, any_port},
    campaign::cell::{Cell, Tickets},
    mqtt::{MqttOptions, Route},
    testbed::Testbed,
    units::serialized_name,
};

/// Time within which the bridges have to carry a first message.
const BRIDGED_WITHIN: Duration = Duration::from_mins(1);

/// The time between two messages that ask whether the bridges carry any.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The brokers of a run: mostly one.
#[derive(Debug)]
pub(super) struct Brokers<'a> {
    /// Setup of each broker: the subscriber's broker first, and each before the one that is bridged to it.
    setups: Vec<BrokerSetup<'a>>,
    /// Processes of the brokers, in the order of `setups`; empty while the brokers are stopped.
    processes: Vec<BrokerProcess>,
    /// Address of the publisher's broker, except for the host, which differs for each link.
    pub(super) publisher: Address,
    /// Address of the subscriber's broker, with the same exception.
    pub(super) subscriber: Address,
}

impl<'a> Brokers<'a> {
    /// Starts a broker on each host of the testbed that has one.
    pub(super) async fn start(
        cell: &Cell,
        testbed: &'a Testbed,
        certificate: &'a TestCertificate,
    ) -> anyhow::Result<Self> {
        let hosts: Vec<_> = testbed.brokers().collect();
        let bridge = cell.bridge_transport();
        let mut setups = Vec::with_capacity(hosts.len());
        let mut processes: Vec<BrokerProcess> = Vec::with_capacity(hosts.len());
        for (tier, (host, next)) in hosts.iter().enumerate() {
            // Clients are at both ends, and a bridge at every host but the publisher's broker.
            let is_first = tier + 1 == hosts.len();
            let mut schemes = Vec::new();
            if tier == 0 || is_first {
                schemes.push(cell.scheme());
            }
            if !is_first && !schemes.contains(&bridge.scheme()) {
                schemes.push(bridge.scheme());
            }
            let mut congestion = cell.congestion();
            let bridge = match (next, processes.last()) {
                (Some(next), Some(to)) => {
                    // What it sends goes over the bridge.
                    congestion = cell.congestion_of(bridge);
                    let mut address = to.address(bridge.scheme())?;
                    address.host = next.to_string();
                    Some(BridgeTo {
                        name: format!("edge-{tier}"),
                        address,
                        mqtt: serialized_name(cell.mqtt),
                        keep_alive: cell.keep_alive(),
                    })
                }
                _ => None,
            };
            let setup = BrokerSetup {
                listen: listeners(cell, &schemes),
                certificate,
                congestion: Some(congestion),
                host: Some(host),
                keeps_tickets: cell.pattern.restarts_broker() && cell.tickets == Tickets::Kept,
                bridge,
            };
            processes.push(setup.start().await?);
            setups.push(setup);
        }
        let at = |process: Option<&BrokerProcess>| {
            let process = process.context("no host has a broker")?;
            process.address(cell.scheme())
        };
        let (publisher, subscriber) = (at(processes.last())?, at(processes.first())?);
        Ok(Self {
            setups,
            processes,
            publisher,
            subscriber,
        })
    }

    /// Returns the process identifiers of the brokers.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().filter_map(BrokerProcess::pid)
    }

    /// Ends them, those first that are bridged to others.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        let mut went = Ok(());
        while let Some(process) = self.processes.pop() {
            went = went.and(process.stop().await);
        }
        went
    }

    /// Starts stopped brokers again, each as before.
    pub(super) async fn start_again(&mut self) -> anyhow::Result<()> {
        for setup in &self.setups[self.processes.len()..] {
            self.processes.push(setup.start().await?);
        }
        Ok(())
    }

    /// Waits for an end of one of them that was not asked for, and returns how it ended. Cancel-safe.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        let processes = self.processes.iter_mut();
        let mut ends: Vec<_> = processes.map(|process| Box::pin(process.ended())).collect();
        poll_fn(|cx| {
            let mut ends = ends.iter_mut().map(|end| end.as_mut().poll(cx));
            ends.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

/// Returns the addresses that a broker of the cell listens at: ports that the system chooses, on all addresses of its
/// host.
///
/// A broker that is restarted has the scheme's own port on loopback. That port is below the ports that the system gives
/// to clients: else a device that dials while the broker is away could get the broker's port.
fn listeners(cell: &Cell, schemes: &[Scheme]) -> Vec<Address> {
    if !cell.pattern.restarts_broker() {
        return any_port(schemes, true);
    }
    let schemes = schemes.iter();
    schemes
        .map(|scheme| Address::new(*scheme, "127.0.0.1", scheme.default_port()))
        .collect()
}

/// Waits until a message comes through from the publisher's broker to the subscriber's: all bridges are connected.
///
/// # Errors
/// If none does within [`BRIDGED_WITHIN`].
pub(super) async fn bridged(
    mqtt: &MqttOptions,
    publisher: &Route,
    subscriber: &Route,
) -> anyhow::Result<()> {
    const TOPIC: &str = "mqbench/bridged";
    let receiver = mqtt.connect(subscriber, "mqbench-bridged-sub").await?;
    let mut came = receiver.subscribe(TOPIC, QoS::AtMostOnce).await?;
    let sender = mqtt.connect(publisher, "mqbench-bridged-pub").await?;
    let topic = TopicName::new(TOPIC)?;
    let asking = async {
        loop {
            // One that is lost is followed by another.
            let _ = sender.try_send(Outgoing::new(topic.clone(), "?"));
            if let Ok(came) = tokio::time::timeout(ASK_EVERY, came.recv()).await {
                return came
                    .context("the subscriber's connection has ended")
                    .map(drop);
            }
        }
    };
    let asked = tokio::time::timeout(BRIDGED_WITHIN, asking).await;
    asked.with_context(|| format!("the bridges carry nothing after {BRIDGED_WITHIN:?}"))??;
    sender.disconnect().await?;
    receiver.disconnect().await?;
    Ok(())
}
