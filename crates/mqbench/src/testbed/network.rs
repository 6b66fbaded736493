//! The network that a testbed is built from.

use std::time::Duration;

use mq_netem::{Changes, Direction, Error, Link, Loss, Medium, Probability};
use serde::{Deserialize, Serialize};

use super::named::{NamedProfile, perfect};

/// Which hosts are connected to the broker, and by what.
pub(crate) enum Network {
    Links {
        publisher: Box<NamedProfile<Link>>,
        /// `None` where the subscriber is on the publisher's host.
        subscriber: Option<NamedProfile<Link>>,
        /// The publisher's link after a hand-over.
        next: Option<Box<NamedProfile<Link>>>,
    },
    /// A publisher behind one or more hosts in a row, of which the last one is the subscriber's broker's.
    Row {
        /// To the first of them.
        publisher: Box<NamedProfile<Link>>,
        /// From each of them to the next one.
        uplinks: Vec<NamedProfile<Link>>,
        subscriber: Box<NamedProfile<Link>>,
        /// Whether the hosts before the last one have no broker, and pass packets on.
        passes_on: bool,
    },
    Channel {
        medium: NamedProfile<Medium>,
        stations: u8,
        subscriber: NamedProfile<Link>,
    },
}

impl Network {
    /// Hosts with a link each, by the links' names; a host without a name for its link has a perfect one.
    ///
    /// # Errors
    /// If there is no such link.
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
    /// If there is no such link.
    pub(crate) fn with_next_link(mut self, name: &str) -> Result<Self, Error> {
        if let Self::Links { next, .. } = &mut self {
            *next = Some(Box::new(link(Some(name))?));
        }
        Ok(self)
    }

    /// Hosts in a row between the publisher and the subscriber, by the names of the links between them. The last uplink
    /// carries nothing in the time of `outage`, if there is one.
    ///
    /// # Errors
    /// If there is no such link, or the last uplink changes already and cannot have an outage.
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

    /// The publisher on a radio channel with other stations, the subscriber behind a link.
    ///
    /// # Errors
    /// If there is no such medium or link.
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

/// Where the link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// Three hosts; the link is the publisher's, the subscriber's is perfect (S22)
    Publisher,
    /// Three hosts; both have a link like it (S21's scenario A)
    Both,
    /// Two hosts; publisher and subscriber share one and its link to the broker (W20)
    Shared,
    /// Brokers in a row, each bridged to the next one; the publisher is at the first, the subscriber at the last
    Fog,
    /// The same hosts and links; those before the last one have no broker, and pass packets on
    Direct,
}

/// A time in which a link carries nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outage {
    /// Since the network was built.
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
    /// Whether there are hosts in a row between publisher and subscriber.
    pub(crate) fn is_row(self) -> bool {
        matches!(self, Self::Fog | Self::Direct)
    }

    /// The name of the subscriber's link: `own` if it is given, else as the topology has it.
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
