//! The options of `mqbench compare`.

use std::{fmt, num::NonZeroU32, path::PathBuf, str::FromStr, time::Duration};

use anyhow::bail;
use mq_transport::{Address, ConnectOptions, Repeat, Scheme};

use crate::{
    cmd::args::{ClientArgs, LinkArgs, parse_duration, topics},
    report::compare::REPEATED,
    testbed::Testbed,
};

/// Gap between a small datagram and its copy without `--repeat`, as in `docs/results/recovery.md`.
const REPEAT_GAP: Duration = Duration::from_millis(3);

/// A compared transport. Over QUIC small datagrams go once or again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Compared {
    pub(super) scheme: Scheme,
    pub(super) is_repeated: bool,
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_repeated {
            f.write_str(REPEATED)
        } else {
            self.scheme.fmt(f)
        }
    }
}

impl FromStr for Compared {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let schemes = [
            Scheme::Tcp,
            Scheme::Tls,
            Scheme::Quic,
            Scheme::Ws,
            Scheme::Wss,
        ];
        let plain = schemes.map(|scheme| Self {
            scheme,
            is_repeated: false,
        });
        let repeated = Self {
            scheme: Scheme::Quic,
            is_repeated: true,
        };
        let mut known = plain.into_iter().chain([repeated]);
        let found = known.find(|one| one.to_string() == name);
        found.ok_or_else(|| format!("there are tcp, tls, quic, {REPEATED}, ws and wss"))
    }
}

/// Options of `compare`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// A broker to measure instead of our own, repeated: one URL for each transport
    #[arg(long, value_name = "URL", conflicts_with_all = ["link", "pub_link", "sub_link", "medium"])]
    pub(super) broker: Vec<Address>,
    /// Transports to our own broker, in this order: tcp, tls, quic, quic-repeat, ws, wss; each is compared with those
    /// before it. `quic-repeat` is QUIC with `--repeat`, by default 3ms
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "tcp,tls,quic,quic-repeat",
        conflicts_with = "broker"
    )]
    pub(super) transports: Vec<Compared>,
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

    /// Returns the compared transports, each with its address at another broker, or without one at our own. Of another
    /// broker QUIC is compared with repeated datagrams only where `--repeat` asks for it: that broker may not repeat its own.
    pub(super) fn compared(&self) -> anyhow::Result<Vec<(Compared, Option<Address>)>> {
        let policy = self.client.transport.repeat;
        if self.broker.is_empty() {
            let mut all = self.transports.clone();
            if policy == Some(Repeat::Off) {
                all.retain(|one| !one.is_repeated);
            } else if policy.is_some() && all.iter().all(|one| !one.is_repeated) {
                bail!("--repeat is the policy of {REPEATED}: add {REPEATED} to --transports");
            }
            if all.is_empty() {
                bail!("--repeat off leaves no transport of --transports");
            }
            return Ok(all.into_iter().map(|one| (one, None)).collect());
        }
        let repeats = policy.is_some_and(|policy| policy != Repeat::Off);
        let rows = |address: &Address| {
            let scheme = address.scheme;
            let again = (repeats && scheme == Scheme::Quic).then_some(true);
            let kinds = [false].into_iter().chain(again);
            let rows = kinds.map(|is_repeated| {
                let row = Compared {
                    scheme,
                    is_repeated,
                };
                (row, Some(address.clone()))
            });
            rows.collect::<Vec<_>>()
        };
        Ok(self.broker.iter().flat_map(rows).collect())
    }

    /// Returns the options of a compared transport's clients.
    pub(super) fn options(&self, is_repeated: bool) -> ConnectOptions {
        let mut options = self.client.transport.options();
        let asked = self.client.transport.repeat;
        options.quic.repeat = if is_repeated {
            asked.unwrap_or(Repeat::after(REPEAT_GAP))
        } else {
            Repeat::Off
        };
        options
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
