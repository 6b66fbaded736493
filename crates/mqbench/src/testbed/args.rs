//! What the command line says of a testbed.

use std::path::PathBuf;

use anyhow::bail;
use mq_netem::{Error, Link, Medium};
use serde::{Deserialize, Serialize};

use super::{Named, perfect};

/// Stations on a channel unless it is said: the fewest that S21 has.
const STATIONS: u8 = 3;

/// Options of emulated links.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Emulated links")]
pub(crate) struct LinkArgs {
    /// Emulate this link: a shipped one such as s22/wifi@loss=5%, or a file that ends in .toml
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<String>,
    /// The link between publisher and broker, if it is another
    #[arg(long, value_name = "LINK")]
    pub(crate) pub_link: Option<String>,
    /// The link between broker and subscriber, if it is another
    #[arg(long, value_name = "LINK")]
    pub(crate) sub_link: Option<String>,
    /// Which hosts are behind the link
    #[arg(long, value_enum, default_value_t = Topology::Publisher)]
    pub(crate) topology: Topology,
    /// Emulate a radio channel that the publisher shares with other stations, the broker its access
    /// point: s21/medium@frame_error_rate=5%,retries=0, or a file that ends in .toml
    #[arg(long, value_name = "MEDIUM", conflicts_with_all = ["link", "pub_link"])]
    pub(crate) medium: Option<String>,
    /// Stations on that channel, the publisher among them: 1 to 64, 3 unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) stations: Option<u8>,
    /// Directory for what each host sends and receives, one pcap file a host
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
}

/// Which hosts are connected to the broker, and by what.
pub(super) enum Network {
    Links {
        publisher: Named<Link>,
        /// `None` where it is on the publisher's host.
        subscriber: Option<Named<Link>>,
    },
    Channel {
        medium: Named<Medium>,
        stations: u8,
        subscriber: Named<Link>,
    },
}

impl LinkArgs {
    /// Whether anything is to be emulated.
    pub(crate) fn any(&self) -> bool {
        let names = [&self.link, &self.pub_link, &self.sub_link, &self.medium];
        names.into_iter().any(Option::is_some) || self.stations.is_some()
    }

    /// What is asked for, loaded and checked.
    pub(super) fn network(&self) -> anyhow::Result<Network> {
        match &self.medium {
            Some(medium) => self.channel(medium),
            None if self.stations.is_some() => {
                bail!("--stations needs a --medium: the channel that they share")
            }
            None => self.links(),
        }
    }

    fn channel(&self, medium: &str) -> anyhow::Result<Network> {
        if self.topology != Topology::Publisher {
            bail!(
                "--topology has no place beside --medium: the subscriber has a host and a --sub-link"
            );
        }
        Ok(Network::Channel {
            medium: Named::load(medium, Medium::load)?,
            stations: self.stations.unwrap_or(STATIONS),
            subscriber: link(self.sub_link.as_ref())?,
        })
    }

    fn links(&self) -> anyhow::Result<Network> {
        let shared = self.topology == Topology::Shared;
        if shared && (self.pub_link.is_some() || self.sub_link.is_some()) {
            bail!(
                "--pub-link and --sub-link have no place in --topology shared: there is one link"
            );
        }
        let both = self.topology == Topology::Both;
        let publisher = self.pub_link.as_ref().or(self.link.as_ref());
        let subscriber = self
            .sub_link
            .as_ref()
            .or(self.link.as_ref().filter(|_| both));
        Ok(Network::Links {
            subscriber: (!shared).then(|| link(subscriber)).transpose()?,
            publisher: link(publisher)?,
        })
    }
}

fn link(name: Option<&String>) -> Result<Named<Link>, Error> {
    name.map_or_else(|| Ok(perfect()), |name| Named::load(name, Link::load))
}

/// Where the link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topology {
    /// Three hosts; the link is the publisher's, the subscriber's is perfect (S22)
    Publisher,
    /// Three hosts; both have a link like it (S21's scenario A)
    Both,
    /// Two hosts; publisher and subscriber share one and its link to the broker (W20)
    Shared,
}
