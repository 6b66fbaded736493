//! Emulated links by their names.

use std::{path::PathBuf, time::Duration};

use anyhow::bail;

use super::value_parsers::topology;
use crate::testbed::{Network, TcpTuning, Testbed, Topology};
use crate::units::parse_duration;

/// Stations on a channel unless `--stations` says how many: the fewest that S21 has.
const STATIONS: u8 = 3;

/// Options of emulated links.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Emulated links")]
pub(crate) struct LinkArgs {
    /// Emulate this link: a shipped one such as s22/wifi@loss=5%, or a file that ends in .toml
    #[arg(long, value_name = "LINK")]
    link: Option<String>,
    /// The link between publisher and broker, if it differs
    #[arg(long, value_name = "LINK")]
    pub_link: Option<String>,
    /// The link between broker and subscriber, if it differs
    #[arg(long, value_name = "LINK")]
    sub_link: Option<String>,
    /// Hosts that are connected to the broker by the link
    #[arg(long, default_value = "publisher", value_parser = topology())]
    topology: Topology,
    /// Emulate a radio channel that the publisher shares with other stations, the broker its access
    /// point: s21/medium@frame_error_rate=5%,retries=0, or a file that ends in .toml
    #[arg(long, value_name = "MEDIUM", conflicts_with_all = ["link", "pub_link"])]
    pub(crate) medium: Option<String>,
    /// Stations on that channel, the publisher among them: 1 to 64, 3 unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    stations: Option<u8>,
    /// TCP's minimum retransmission timeout in the emulated hosts, such as 25ms in place of the kernel's 200 ms
    /// (net.ipv4.tcp_rto_min_us, Linux 6.11)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    tcp_rto_min: Option<Duration>,
    /// In the emulated hosts, TCP's retransmission timeouts are linear in thin flows
    /// (net.ipv4.tcp_thin_linear_timeouts)
    #[arg(long)]
    tcp_thin: bool,
    /// Directory for a packet capture of each host, one pcap file a host
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
}

impl LinkArgs {
    /// Returns `true` if an option asks for an emulated network.
    pub(crate) fn any(&self) -> bool {
        let names = [&self.link, &self.pub_link, &self.sub_link, &self.medium];
        names.into_iter().any(Option::is_some) || self.stations.is_some()
    }

    /// Builds the network that the options ask for. Call it before any thread is started.
    pub(crate) fn build(&self, seed: u64) -> anyhow::Result<Testbed> {
        let testbed = Testbed::build(self.network()?, self.pcap.as_deref(), seed)?;
        testbed.tune_tcp(self.tcp_tuning())?;
        Ok(testbed)
    }

    /// Returns the settings of TCP for the emulated hosts.
    pub(crate) fn tcp_tuning(&self) -> TcpTuning {
        TcpTuning {
            rto_min: self.tcp_rto_min,
            thin: self.tcp_thin,
            fast_open: false,
        }
    }

    fn network(&self) -> anyhow::Result<Network> {
        let (topology, sub_link) = (self.topology, self.sub_link.as_deref());
        if let Some(medium) = &self.medium {
            if topology != Topology::Publisher {
                bail!(
                    "--topology has no place beside --medium: the subscriber has a host and a --sub-link"
                );
            }
            let stations = self.stations.unwrap_or(STATIONS);
            return Ok(Network::channel(medium, stations, sub_link)?);
        }
        if self.stations.is_some() {
            bail!("--stations needs a --medium: the channel that they share")
        }
        if topology == Topology::Shared && (self.pub_link.is_some() || sub_link.is_some()) {
            bail!(
                "--pub-link and --sub-link have no place in --topology shared: there is one link"
            );
        }
        let link = self.link.as_deref();
        let publisher = self.pub_link.as_deref().or(link);
        let subscriber = topology.subscriber_link(link, sub_link);
        Ok(Network::links(topology, publisher, subscriber)?)
    }
}
