//! The network that a testbed is built from.

use std::time::Duration;

use mq_netem::{Changes, Direction, Error, Link, Loss, Medium, Probability};
use serde::{Deserialize, Serialize};

use super::named::{NamedProfile, perfect};

/// Hosts that are connected to the broker, and their links.
pub(crate) enum Network {
    Links {
        publisher: Box<NamedProfile<Link>>,
        /// The subscriber's link; `None` where the subscriber is on the publisher's host.
        subscriber: Option<NamedProfile<Link>>,
        /// The publisher's link after a hand-over.
        next: Option<Box<NamedProfile<Link>>>,
    },
    /// A publisher and a subscriber with one or more hosts in a row between them. The last of these has the
    /// subscriber's broker.
    Row {
        /// The link to the first host of the row.
        publisher: Box<NamedProfile<Link>>,
        /// The links from each host of the row to the next one.
        uplinks: Vec<NamedProfile<Link>>,
        subscriber: Box<NamedProfile<Link>>,
        /// `true` if the hosts before the last one have no broker and forward packets.
        passes_on: bool,
    },
    Channel {
        medium: NamedProfile<Medium>,
        stations: u8,
        subscriber: NamedProfile<Link>,
    },
}

impl Network {
    /// Builds a network of hosts with a link each, by the links' names; a host without a name for its link has a
    /// perfect one.
    ///
    /// # Errors
    /// If a link is unknown.
    pub(crate) fn links(
        topology: Topology,
        publisher: Option<&str>,
        subscriber: Option<&str>,
    ) -> Result<Self, Error> {
        let shared = topology == Topology::Shared;
        Ok(Self::Links {
            subscriber: (!shared).then(|| link(subscriber)).transpose()?,
            publisher: Box::new(link(publisher)?),
            next: None,
        })
    }

    /// Adds a link that the publisher can be handed over to.
    ///
    /// # Errors
    /// If a link is unknown.
    pub(crate) fn with_next_link(mut self, name: &str) -> Result<Self, Error> {
        if let Self::Links { next, .. } = &mut self {
            *next = Some(Box::new(link(Some(name))?));
        }
        Ok(self)
    }

    /// Builds a row of hosts between the publisher and the subscriber, by the names of the links between them. The last
    /// uplink carries nothing during `outage`, if one is given.
    ///
    /// # Errors
    /// If a link is unknown, or the last uplink changes already and cannot have an outage.
    pub(crate) fn row(
        publisher: Option<&str>,
        uplinks: &[Option<String>],
        subscriber: Option<&str>,
        passes_on: bool,
        outage: Option<Outage>,
    ) -> Result<Self, Error> {
        let uplinks = uplinks.iter().map(|name| link(name.as_deref()));
        let mut uplinks = uplinks.collect::<Result<Vec<_>, _>>()?;
        if let (Some(outage), Some(last)) = (outage, uplinks.last_mut()) {
            outage.apply(last)?;
        }
        Ok(Self::Row {
            publisher: Box::new(link(publisher)?),
            uplinks,
            subscriber: Box::new(link(subscriber)?),
            passes_on,
        })
    }

    /// Builds a network with the publisher on a radio channel with other stations, and the subscriber behind a link.
    ///
    /// # Errors
    /// If a medium or a link is unknown.
    pub(crate) fn channel(
        medium: &str,
        stations: u8,
        subscriber: Option<&str>,
    ) -> Result<Self, Error> {
        Ok(Self::Channel {
            medium: NamedProfile::load(medium, Medium::load)?,
            stations,
            subscriber: link(subscriber)?,
        })
    }
}

fn link(name: Option<&str>) -> Result<NamedProfile<Link>, Error> {
    name.map_or_else(
        || Ok(perfect()),
        |name| NamedProfile::load(name, Link::load),
    )
}

/// Topology of the emulated network: the hosts, and the place of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// Three hosts; the link is the publisher's, the subscriber's is perfect (S22)
    Publisher,
    /// Three hosts; publisher and subscriber have such a link each (S21's scenario A)
    Both,
    /// Two hosts; publisher and subscriber share one and its link to the broker (W20)
    Shared,
    /// Brokers in a row, each bridged to the next one; the publisher is at the first, the subscriber at the last
    Fog,
    /// The hosts and links of `fog`, without brokers before the last host: the others forward packets
    Direct,
}

/// Period in which a link carries nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outage {
    /// Begin of the outage, since the network was built.
    pub(crate) from: Duration,
    pub(crate) lasts: Duration,
}

impl Outage {
    pub(crate) fn ends(self) -> Duration {
        self.from + self.lasts
    }

    fn apply(self, link: &mut NamedProfile<Link>) -> Result<(), Error> {
        let wrong = |problem: String| Error::Profile {
            name: link.name.clone(),
            problem,
        };
        let with_outage = |direction: &Direction| {
            if !direction.changes.is_empty() {
                return Err(wrong("it changes already: it cannot have an outage".into()));
            }
            let gone = Direction {
                loss: Loss::Bernoulli(Probability::new(1.0).expect("100 % is a share")),
                ..direction.clone()
            };
            let steps = [(self.from, gone), (self.ends(), direction.clone())];
            Ok(Direction {
                changes: Changes::new(steps, None).map_err(wrong)?,
                ..direction.clone()
            })
        };
        let (up, down) = (
            with_outage(&link.profile.up)?,
            with_outage(&link.profile.down)?,
        );
        (link.profile.up, link.profile.down) = (up, down);
        Ok(())
    }
}

impl Topology {
    /// Returns `true` if there are hosts in a row between publisher and subscriber.
    pub(crate) fn is_row(self) -> bool {
        matches!(self, Self::Fog | Self::Direct)
    }

    /// Returns the name of the subscriber's link: `own` if it is given, else the topology's.
    pub(crate) fn subscriber_link<'a>(
        self,
        link: Option<&'a str>,
        own: Option<&'a str>,
    ) -> Option<&'a str> {
        match self {
            Self::Publisher | Self::Fog | Self::Direct => own,
            Self::Both => own.or(link),
            Self::Shared => None,
        }
    }
}
