//! The options of `mqbench compare`.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use anyhow::bail;
use mq_transport::{Address, Scheme};

use crate::{
    cmd::args::{ClientArgs, LinkArgs, parse_duration, topics},
    testbed::Testbed,
};

/// Options of `compare`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// A broker to measure instead of our own, repeated: one URL for each transport
    #[arg(long, value_name = "URL", conflicts_with_all = ["link", "pub_link", "sub_link", "medium"])]
    pub(super) broker: Vec<Address>,
    /// Transports to our own broker, in this order: tcp, tls, quic, ws, wss; the others are compared with the first
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "tcp,tls,quic",
        value_parser = transport,
        conflicts_with = "broker"
    )]
    pub(super) transports: Vec<Scheme>,
    /// Messages over each transport
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: u64,
    /// Payload size in bytes, at least 8
    #[arg(long, default_value_t = 100)]
    pub(super) size: usize,
    /// Topics to which messages are published in turn
    #[arg(long, default_value = "1", value_parser = topics)]
    pub(super) topics: NonZeroU32,
    /// Time between messages
    #[arg(long, default_value = "4ms", value_parser = parse_duration)]
    pub(super) interval: Duration,
    /// Rounds, in each of which every transport has a turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
    /// Connections of each kind in each round
    #[arg(long, default_value_t = 10)]
    pub(super) connections: u32,
    /// A tenth of the messages: a look, not a measurement
    #[arg(long)]
    pub(super) quick: bool,
    /// Print the result as JSON on standard output instead of the table
    #[arg(long)]
    pub(super) json: bool,
    /// Directory for raw samples (CSV), histograms (HdrHistogram log) and the result (JSON)
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Seed of the payloads and of the order of the transports
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) client: ClientArgs,
    #[command(flatten)]
    pub(super) links: LinkArgs,
}

/// Parses a transport that our own broker has, by its name.
fn transport(name: &str) -> Result<Scheme, String> {
    let known = [
        Scheme::Tcp,
        Scheme::Tls,
        Scheme::Quic,
        Scheme::Ws,
        Scheme::Wss,
    ];
    let found = known.into_iter().find(|scheme| scheme.to_string() == name);
    found.ok_or_else(|| "there are tcp, tls, quic, ws and wss".to_owned())
}

impl Args {
    /// Builds the network that the options ask for; `None` for this machine's own.
    pub(crate) fn testbed(&self) -> anyhow::Result<Option<Testbed>> {
        if self.links.medium.is_some() && self.interval.is_zero() {
            bail!(
                "--medium needs an --interval: the other stations publish until the publisher has"
            );
        }
        if self.links.any() {
            return self.links.build(self.seed).map(Some);
        }
        if self.links.pcap.is_some() {
            bail!("--pcap needs a --link or a --medium: hosts of its own");
        }
        if self.links.tcp_tuning().is_any() {
            bail!("--tcp-rto-min and --tcp-thin need a --link or a --medium: hosts of its own");
        }
        Ok(None)
    }

    pub(super) fn messages_per_round(&self) -> u64 {
        let all = if self.quick {
            self.count / 10
        } else {
            self.count
        };
        (all / u64::from(self.rounds)).max(1)
    }

    pub(super) fn connections_per_round(&self) -> u32 {
        if self.quick {
            self.connections.div_ceil(3)
        } else {
            self.connections
        }
    }
}
