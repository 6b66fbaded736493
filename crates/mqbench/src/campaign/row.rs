//! Brokers in a row, each bridged to the next one, and the same way without those in between.
//!
//! ```text
//!   fog      publisher --link--> edge's broker --uplink--> cloud's broker --sub_link--> subscriber
//!   direct   publisher --link--> edge, a router --uplink--> cloud's broker --sub_link--> subscriber
//! ```
//!
//! With three tiers there is a second edge, behind an uplink of its own.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use mq_client::Outgoing;
use mq_codec::{QoS, TopicName};
use mq_measure::Warning;
use mq_transport::Address;

use super::cell::{Cell, Pattern, Transport};
use crate::{
    broker_under_test::{BridgeTo, BrokerProcess, BrokerSetup, TestCertificate, anywhere},
    clock::nanoseconds,
    mqtt::{Mqtt, Route},
    testbed::{Outage, Testbed, Topology},
    units::{ms, word},
};

/// How long a network, its brokers and its clients usually need before the first message is due.
const SETTLED: Duration = Duration::from_secs(2);

/// How long the bridges may take to carry a first message.
const BRIDGED_WITHIN: Duration = Duration::from_mins(1);

/// The time between two messages that ask whether the bridges carry any.
const ASK_EVERY: Duration = Duration::from_millis(50);

impl Cell {
    /// Hosts in a row that have a broker, or would have one: the subscriber's broker is the last.
    pub(crate) fn tiers(&self) -> u8 {
        let unless_given = if self.topology.is_row() { 2 } else { 1 };
        self.tiers.unwrap_or(unless_given)
    }

    /// The names of the links from each host of the row to the next one; `None` for a perfect one.
    pub(crate) fn uplinks(&self) -> Vec<Option<String>> {
        let loss = self.uplink_loss.as_ref();
        let loss = loss.map(|loss| format!("loss={loss}"));
        let uplink = self.uplink.as_ref();
        let uplink = uplink.map(|name| super::cell::with_changes(name, [loss, None]));
        vec![uplink; usize::from(self.tiers()) - 1]
    }

    /// When the last uplink carries nothing: about the middle of the messages.
    pub(super) fn outage(&self) -> Option<Outage> {
        let lasts = Duration::from_nanos(self.outage_ns?);
        let middle = SETTLED + self.schedule() / 2;
        let from = middle.saturating_sub(lasts / 2);
        Some(Outage { from, lasts })
    }

    /// How much longer than otherwise the subscriber waits for stragglers. Where the tries before an outage's end were
    /// each twice as long apart, the next one may come as late again, and after two that are lost four times as late.
    pub(super) fn patience_after_outage(&self) -> Duration {
        Duration::from_nanos(self.outage_ns.unwrap_or_default()) * 4
    }

    /// The time in which messages are due.
    fn schedule(&self) -> Duration {
        let turns = self.messages.div_ceil(self.burst.get().into());
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        self.interval().saturating_mul(turns)
    }

    /// The warning, if the outage was not within the time in which messages were due, `first` to `last`.
    pub(super) fn outage_missed(
        &self,
        began: Instant,
        (first, last): (Instant, Instant),
    ) -> Option<Warning> {
        let outage = self.outage()?;
        let (from, until) = (began + outage.from, began + outage.ends());
        (from < first || until > last).then(|| Warning::LinkOffProfile {
            quantity: "outage's beginning in ms after the network was built".to_owned(),
            configured: ms(nanoseconds(outage.from)),
            measured: ms(nanoseconds(first.duration_since(began))),
        })
    }

    fn bridge_transport(&self) -> Transport {
        self.bridge.unwrap_or(Transport::Quic)
    }

    /// What is wrong about a row, or about its keys without one.
    pub(super) fn contradicts_row(&self) -> Option<(&'static str, String)> {
        let of_a_row = [
            ("uplink", self.uplink.is_some()),
            ("uplink_loss", self.uplink_loss.is_some()),
            ("outage", self.outage_ns.is_some()),
            ("bridge", self.bridge.is_some()),
            ("tiers", self.tiers.is_some()),
        ];
        if !self.topology.is_row() {
            let (key, _) = of_a_row.into_iter().find(|(_, given)| *given)?;
            return Some((key, "it takes the topology `fog` or `direct`".into()));
        }
        if self.pattern != Pattern::Periodic {
            return Some(("topology", "a row takes the pattern `periodic`".into()));
        }
        if self.uplink_loss.is_some() && self.uplink.is_none() {
            return Some(("uplink_loss", "there is no uplink to lose anything".into()));
        }
        if self.outage_ns.is_some() && self.tiers() == 1 {
            return Some(("outage", "with one tier there is no uplink".into()));
        }
        let outage = Duration::from_nanos(self.outage_ns.unwrap_or_default());
        if outage > self.schedule() / 2 {
            let most = self.schedule() / 2;
            let why = format!("it is within the time of the messages: {most:?} at most");
            return Some(("outage", why));
        }
        if self.topology == Topology::Direct && self.bridge.is_some() {
            return Some(("bridge", "the topology `direct` has none".into()));
        }
        if self.topology == Topology::Direct && self.tiers() == 1 {
            return Some(("tiers", "one tier is the topology `fog`".into()));
        }
        self.contradicts_bridges()
    }

    /// A key that the clients would follow and a bridge would not.
    fn contradicts_bridges(&self) -> Option<(&'static str, String)> {
        if self.topology != Topology::Fog {
            return None;
        }
        let plain = Self::default();
        let tuned = [
            ("tls_version", self.tls_version.is_some()),
            ("initial_rtt", self.initial_rtt_ns != plain.initial_rtt_ns),
            ("initial_window", self.initial_window.is_some()),
            ("packet_threshold", self.packet_threshold.is_some()),
            ("time_threshold", self.time_threshold.is_some()),
            ("repeat", self.repeat != plain.repeat),
            ("max_ack_delay", self.max_ack_delay_ns.is_some()),
        ];
        let (key, _) = tuned.into_iter().find(|(_, given)| *given)?;
        Some((key, "a bridge has the defaults of its transport".into()))
    }
}

/// The brokers of a run: mostly one.
#[derive(Debug)]
pub(super) struct Brokers {
    /// The subscriber's first, and each before the one that is bridged to it.
    processes: Vec<BrokerProcess>,
    /// Where the publisher finds its broker, but for the host, which differs for each link.
    pub(super) publisher: Address,
    /// The same of the subscriber.
    pub(super) subscriber: Address,
}

impl Brokers {
    /// Starts a broker on each host of the testbed that has one.
    pub(super) async fn start(
        cell: &Cell,
        testbed: &Testbed,
        certificate: &TestCertificate,
    ) -> anyhow::Result<Self> {
        let hosts: Vec<_> = testbed.brokers().collect();
        let bridge = cell.bridge_transport();
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
            let mut congestion = cell.congestion()?;
            let bridge = match (next, processes.last()) {
                (Some(next), Some(to)) => {
                    // What it sends goes over the bridge.
                    congestion = cell.congestion_of(bridge)?;
                    let mut address = to.address(bridge.scheme())?;
                    address.host = next.to_string();
                    Some(BridgeTo {
                        name: format!("edge-{tier}"),
                        address,
                        mqtt: word(cell.mqtt),
                        keep_alive: cell.keep_alive(),
                    })
                }
                _ => None,
            };
            let setup = BrokerSetup {
                listen: anywhere(&schemes, true),
                certificate,
                congestion: Some(congestion),
                host: Some(host),
                keeps_tickets: false,
                bridge,
            };
            processes.push(setup.start().await?);
        }
        let at = |process: Option<&BrokerProcess>| {
            let process = process.context("no host has a broker")?;
            process.address(cell.scheme())
        };
        let (publisher, subscriber) = (at(processes.last())?, at(processes.first())?);
        Ok(Self {
            processes,
            publisher,
            subscriber,
        })
    }

    /// Their process identifiers.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().filter_map(BrokerProcess::pid)
    }

    /// Ends them, those first that are bridged to others.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let mut went = Ok(());
        for process in self.processes.into_iter().rev() {
            went = went.and(process.stop().await);
        }
        went
    }
}

/// Waits until a message comes through from the publisher's broker to the subscriber's: all bridges are connected.
///
/// # Errors
/// If none does within [`BRIDGED_WITHIN`].
pub(super) async fn bridged(
    mqtt: &Mqtt,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fog() -> Cell {
        Cell {
            topology: Topology::Fog,
            link: Some("s21/wired-1ms".to_owned()),
            uplink: Some("w20/cellular".to_owned()),
            uplink_loss: Some("2%".to_owned()),
            messages: 100,
            interval_ns: 100_000_000,
            ..Cell::default()
        }
    }

    #[test]
    fn a_row_has_an_uplink_between_each_two_tiers() {
        let uplinks = |tiers| Cell { tiers, ..fog() }.uplinks();
        let lossy = Some("w20/cellular@loss=2%".to_owned());
        assert_eq!(uplinks(Some(3)), [lossy.clone(), lossy.clone()]);
        assert_eq!(uplinks(None), [lossy]);
        assert_eq!(uplinks(Some(1)), []);
        assert_eq!(Cell::default().uplinks(), []);
        let one_way = |tiers| {
            let delay = Cell { tiers, ..fog() }.one_way().unwrap();
            delay.as_micros()
        };
        let thing = one_way(Some(1));
        let uplink = one_way(None) - thing;
        assert!(uplink >= 50_000, "{uplink} µs");
        assert_eq!(one_way(Some(3)), thing + 2 * uplink);
    }

    #[test]
    fn an_outage_is_in_the_middle_of_the_messages_or_a_warning_says_that_it_is_not() {
        let cell = Cell {
            outage_ns: Some(4_000_000_000),
            ..fog()
        };
        let outage = cell.outage().unwrap();
        let seconds = Duration::from_secs;
        assert_eq!((outage.from, outage.ends()), (seconds(5), seconds(9)));
        assert!(cell.network().is_ok());
        let began = Instant::now();
        let missed = |first, last| cell.outage_missed(began, (began + first, began + last));
        assert_eq!(missed(seconds(2), seconds(12)), None);
        assert!(missed(seconds(6), seconds(16)).is_some());
        assert!(missed(seconds(0), seconds(8)).is_some());
        let changing = Cell {
            uplink: Some("leo".to_owned()),
            ..cell
        };
        let Err(error) = changing.network() else {
            panic!("an outage of a link that changes");
        };
        assert!(error.to_string().contains("changes already"), "{error}");
    }

    #[test]
    fn a_row_names_the_key_that_it_does_not_take() {
        assert_eq!(fog().contradiction(), None);
        let direct = Cell {
            topology: Topology::Direct,
            ..fog()
        };
        assert_eq!(direct.contradiction(), None);
        let tuned = Cell {
            repeat: "3ms".to_owned(),
            transport: Transport::Quic,
            ..direct.clone()
        };
        assert_eq!(tuned.contradiction(), None);
        let outage_ns = Some(1_000_000_000);
        for (cell, key, says) in [
            (
                Cell {
                    topology: Topology::Publisher,
                    ..fog()
                },
                "uplink",
                "`fog` or `direct`",
            ),
            (
                Cell {
                    pattern: Pattern::StopAndWait,
                    ..fog()
                },
                "topology",
                "`periodic`",
            ),
            (
                Cell {
                    uplink: None,
                    ..fog()
                },
                "uplink_loss",
                "no uplink",
            ),
            (
                Cell {
                    tiers: Some(1),
                    outage_ns,
                    ..fog()
                },
                "outage",
                "no uplink",
            ),
            (
                Cell {
                    messages: 15,
                    outage_ns,
                    ..fog()
                },
                "outage",
                "750ms at most",
            ),
            (
                Cell {
                    bridge: Some(Transport::Tls),
                    ..direct.clone()
                },
                "bridge",
                "has none",
            ),
            (
                Cell {
                    tiers: Some(1),
                    ..direct
                },
                "tiers",
                "`fog`",
            ),
            (
                Cell {
                    topology: Topology::Fog,
                    ..tuned
                },
                "repeat",
                "defaults",
            ),
        ] {
            let (blamed, why) = cell.contradiction().expect(says);
            assert_eq!(blamed, key, "{why}");
            assert!(why.contains(says), "{why}");
        }
    }
}
