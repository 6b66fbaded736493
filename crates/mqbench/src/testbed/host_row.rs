//! Hosts in a row between the publisher and the broker.

use std::{net::Ipv4Addr, time::Instant};

use mq_netem::{Host, Lab, Link, LinkReport};

use super::{Station, Testbed, named::NamedProfile};

/// Frames that were handed to a link, and their bytes; both directions together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CarriedFrames {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Frames before which their direction had carried none for [`mq_netem::Counts::QUIET`].
    pub(crate) after_quiet: u64,
}

impl CarriedFrames {
    pub(super) fn of(report: &LinkReport) -> Self {
        let (up, down) = (report.up.counts, report.down.counts);
        Self {
            packets: up.arrived + down.arrived,
            bytes: up.bytes + down.bytes,
            after_quiet: up.after_quiet + down.after_quiet,
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            after_quiet: self.after_quiet + other.after_quiet,
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            after_quiet: self.after_quiet - before.after_quiet,
        }
    }
}

impl Testbed {
    /// Returns the hosts with brokers, the last one of the row first, each with the next one's address on its uplink.
    pub(crate) fn brokers(&self) -> impl Iterator<Item = (&Host, Option<Ipv4Addr>)> {
        let edges = self.edges.iter().rev().filter(|_| !self.passes_on);
        let edges = edges.map(|edge| (&edge.host, Some(edge.addresses.far)));
        std::iter::once((&self.broker, None)).chain(edges)
    }

    /// Returns the time at which the links began to be emulated, from which their changes count.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Returns the frames that the link to the last host of the row has carried so far; `None` without a row.
    pub(crate) fn uplink(&self) -> Option<CarriedFrames> {
        // The links were made in the order of the row, the publisher's first.
        let last = self.edges.len().checked_sub(1)?;
        self.lab.reports().get(1 + last).map(CarriedFrames::of)
    }
}

impl Station {
    /// Makes the publisher, and the hosts between it and the broker, each with its link to the next one.
    pub(super) fn in_row(
        lab: &mut Lab,
        links: Vec<NamedProfile<Link>>,
        broker: &Host,
        passes_on: bool,
        seed: u64,
    ) -> Result<Vec<Self>, mq_netem::Error> {
        let hosts = links.iter().map(|_| Host::new());
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        let row: Vec<_> = hosts.iter().chain([broker]).collect();
        let mut addresses = Vec::with_capacity(links.len());
        for ((number, link), ends) in (0..).zip(&links).zip(row.windows(2)) {
            // The seeds of the publisher and of the subscriber are those of a network without a row.
            let seed = match number {
                0 => seed,
                number => seed.wrapping_add(1 + number),
            };
            addresses.push(lab.connect(ends[0], ends[1], &link.profile, seed)?);
        }
        if passes_on {
            Lab::pass_on(&row, &addresses)?;
        }
        let stations = hosts.into_iter().zip(links).zip(addresses).zip(0..);
        let stations = stations.map(|(((host, link), addresses), number)| Self {
            role: row_role(number),
            host,
            link: Some(link),
            addresses,
            next: None,
        });
        Ok(stations.collect())
    }
}

/// Returns the role of a host of the row, the publisher's being the first.
fn row_role(number: u64) -> String {
    match number {
        0 => "publisher".to_owned(),
        1 => "edge".to_owned(),
        number => format!("edge-{number}"),
    }
}
