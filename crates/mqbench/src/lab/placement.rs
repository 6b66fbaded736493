//! The real machine of each part of a cell.

use std::fmt;

use anyhow::bail;
use mq_netem::{Direction, Link};

use serde::{Deserialize, Serialize};

use crate::{
    campaign::{cell::Cell, pattern::Pattern},
    hosts::{HostRole, Hosts, Machine},
    testbed::Topology,
};

/// The host of each part of a cell.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Placement<'a> {
    pub(crate) broker: &'a Machine,
    pub(crate) publisher: &'a Machine,
    pub(crate) subscriber: &'a Machine,
    /// The interfaces to be shaped. A kernel shapes packets that leave a host.
    pub(crate) shaped: Vec<ShapedInterface<'a>>,
}

/// A direction of a link, on the interface that its packets leave by.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ShapedInterface<'a> {
    pub(crate) host: &'a Machine,
    /// The link's name, with its changes.
    pub(crate) link: String,
    /// The direction of the link.
    pub(crate) way: TrafficDirection,
    direction: Direction,
}

impl Hosts {
    /// Places the parts of a cell on hosts, and the links on interfaces.
    ///
    /// # Errors
    /// The reason if these hosts cannot run the cell.
    pub(crate) fn placement(&self, cell: &Cell) -> anyhow::Result<Placement<'_>> {
        if cell.medium.is_some() {
            bail!("a shared channel is emulated on one machine only");
        }
        if cell.tcp_rto_min_ns.is_some() || cell.tcp_thin {
            bail!("TCP's time-outs are set in emulated hosts only: use sysctl on these");
        }
        if cell.tcp_fast_open.is_used() {
            bail!("TCP Fast Open is for emulated hosts only, whose kernel is set for it");
        }
        if cell.handover.is_some() {
            bail!("a hand-over is emulated on one machine only");
        }
        if cell.topology.is_row() {
            bail!("a row of hosts is emulated on one machine only");
        }
        if matches!(
            cell.pattern,
            Pattern::HalfOpen | Pattern::Coap | Pattern::Load
        ) {
            bail!("half-open, coap and load run on one machine only, behind an emulated link");
        }
        if cell.pattern.restarts_broker() {
            bail!("a storm restarts its broker, on one machine only");
        }
        let (broker, publisher) = (
            self.doing(HostRole::Broker)?,
            self.doing(HostRole::Publisher)?,
        );
        let subscriber = match cell.topology {
            // Publisher and subscriber are one host.
            Topology::Shared => publisher,
            _ => self.doing(HostRole::Subscriber)?,
        };
        let mut shaped = Vec::new();
        for (client, link) in [publisher, subscriber].into_iter().zip(cell.links()) {
            if let Some(link) = link {
                shape(&mut shaped, client, &link, TrafficDirection::Up)?;
                shape(&mut shaped, broker, &link, TrafficDirection::Down)?;
            }
        }
        Ok(Placement {
            broker,
            publisher,
            subscriber,
            shaped,
        })
    }
}

/// A direction of a link, as [`Link`] has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TrafficDirection {
    /// From the clients to the broker
    Up,
    /// From the broker to the clients
    Down,
}

impl TrafficDirection {
    /// Returns its name on the command line and in a link's file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// Returns this direction of a link.
    pub(crate) fn in_link(self, link: Link) -> Direction {
        match self {
            Self::Up => link.up,
            Self::Down => link.down,
        }
    }
}

/// Adds the shape of packets that leave a host, which has one interface.
fn shape<'a>(
    shaped: &mut Vec<ShapedInterface<'a>>,
    host: &'a Machine,
    link: &str,
    way: TrafficDirection,
) -> anyhow::Result<()> {
    let direction = way.in_link(Link::load(link)?);
    let other = shaped.iter().find(|shaped| shaped.host == host);
    match other {
        Some(other) if other.direction == direction => {}
        Some(_) => bail!(
            "the two links differ in what leaves {} by {}: it needs two interfaces",
            host.name,
            host.interface
        ),
        None if direction == Direction::default() => {}
        None => shaped.push(ShapedInterface {
            host,
            link: link.to_owned(),
            way,
            direction,
        }),
    }
    Ok(())
}

#[cfg(target_os = "linux")]
impl<'a> Placement<'a> {
    /// Returns the hosts that take part, each once.
    pub(crate) fn hosts(&self) -> Vec<&'a Machine> {
        let mut hosts = vec![self.broker];
        for host in [self.publisher, self.subscriber] {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts
    }

    /// Returns the shaped interfaces for the record: host, interface, link and direction.
    pub(crate) fn configured(&self) -> serde_json::Value {
        let shaped = self.shaped.iter().map(|shaped| {
            serde_json::json!({
                "host": shaped.host.name,
                "interface": shaped.host.interface,
                "link": shaped.link,
                "direction": shaped.way,
            })
        });
        shaped.collect()
    }
}

impl fmt::Display for Placement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            broker,
            publisher,
            subscriber,
            shaped,
        } = self;
        write!(
            f,
            "broker on {} ({}), publisher on {}, subscriber on {}; ",
            broker.name, broker.address, publisher.name, subscriber.name
        )?;
        if shaped.is_empty() {
            return write!(f, "nothing shaped");
        }
        for (number, ShapedInterface { host, .. }) in shaped.iter().enumerate() {
            let before = if number == 0 { "shaped: " } else { ", " };
            write!(f, "{before}{} of {}", host.interface, host.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{campaign::pattern::Pattern, hosts::tests::THREE};

    fn cell(topology: Topology, link: &str, sub_link: Option<&str>) -> Cell {
        Cell {
            topology,
            link: Some(link.to_owned()),
            sub_link: sub_link.map(str::to_owned),
            ..Cell::default()
        }
    }

    #[test]
    fn a_direction_is_shaped_where_its_packets_leave_a_host() {
        let hosts = Hosts::parse(THREE).unwrap();
        let shaped = |cell: &Cell| -> Vec<String> {
            let placement = hosts.placement(cell).unwrap();
            assert_eq!(placement.broker.name, "hub");
            let shaped = placement.shaped.iter();
            shaped.map(|one| one.host.name.clone()).collect()
        };
        // S22's link shapes only what leaves the publisher.
        assert_eq!(
            shaped(&cell(Topology::Publisher, "s22/wifi", None)),
            ["pi-1"]
        );
        assert_eq!(
            shaped(&cell(Topology::Both, "s21/wifi", None)),
            ["pi-1", "hub", "pi-2"]
        );
        let one_host = cell(Topology::Shared, "w20/wifi", None);
        assert_eq!(shaped(&one_host), ["pi-1", "hub"]);
        assert_eq!(hosts.placement(&one_host).unwrap().subscriber.name, "pi-1");
        assert_eq!(shaped(&Cell::default()), [""; 0]);
    }

    #[test]
    fn a_cell_that_these_hosts_cannot_run_has_a_reason() {
        let hosts = Hosts::parse(THREE).unwrap();
        let channel = Cell {
            medium: Some("s21/medium".to_owned()),
            ..Cell::default()
        };
        let wired = cell(Topology::Publisher, "s21/wifi", Some("s21/wired-100ms"));
        let storm = Cell {
            pattern: Pattern::Storm,
            ..Cell::default()
        };
        let fog = Cell {
            topology: Topology::Fog,
            ..Cell::default()
        };
        for (cell, says) in [
            (fog, "a row of hosts"),
            (channel, "shared channel"),
            (wired, "two interfaces"),
            (storm, "restarts its broker"),
        ] {
            let error = hosts.placement(&cell).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
