//! The network that a testbed is built from.

use mq_netem::{Error, Link, Medium};
use serde::{Deserialize, Serialize};

use super::{Named, perfect};

/// Which hosts are connected to the broker, and by what.
pub(crate) enum Network {
    Links {
        publisher: Box<Named<Link>>,
        /// `None` where the subscriber is on the publisher's host.
        subscriber: Option<Named<Link>>,
        /// The publisher's link after a hand-over.
        next: Option<Box<Named<Link>>>,
    },
    Channel {
        medium: Named<Medium>,
        stations: u8,
        subscriber: Named<Link>,
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

    /// The same network, with a link that the publisher can be handed over to.
    ///
    /// # Errors
    /// If there is no such link.
    pub(crate) fn then(mut self, name: &str) -> Result<Self, Error> {
        if let Self::Links { next, .. } = &mut self {
            *next = Some(Box::new(link(Some(name))?));
        }
        Ok(self)
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
            medium: Named::load(medium, Medium::load)?,
            stations,
            subscriber: link(subscriber)?,
        })
    }
}

fn link(name: Option<&str>) -> Result<Named<Link>, Error> {
    name.map_or_else(|| Ok(perfect()), |name| Named::load(name, Link::load))
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
}

impl Topology {
    /// The name of the subscriber's link: `own` if it is given, else as the topology has it.
    pub(crate) fn subscriber_link<'a>(
        self,
        link: Option<&'a str>,
        own: Option<&'a str>,
    ) -> Option<&'a str> {
        match self {
            Self::Publisher => own,
            Self::Both => own.or(link),
            Self::Shared => None,
        }
    }
}
