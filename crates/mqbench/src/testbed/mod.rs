//! The network of a comparison: hosts on this machine, with emulated links between them.

mod report;

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::Context as _;
use mq_netem::{Addresses, Capture, Host, Lab, Link};

use crate::sut::output_directory;

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
    /// Who is behind the link
    #[arg(long, value_enum, default_value_t = Topology::Publisher)]
    pub(crate) topology: Topology,
    /// Directory for what each host sends and receives, one pcap file a host
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
}

impl LinkArgs {
    /// Whether any link is asked for.
    pub(crate) fn any(&self) -> bool {
        self.link.is_some() || self.pub_link.is_some() || self.sub_link.is_some()
    }

    /// The name and the link of each station's access to the broker: the publisher's, and the
    /// subscriber's unless they share one.
    fn links(&self) -> anyhow::Result<(Named, Option<Named>)> {
        let shared = self.topology == Topology::Shared;
        if shared && (self.pub_link.is_some() || self.sub_link.is_some()) {
            anyhow::bail!(
                "--pub-link and --sub-link have no place in --topology shared: there is one link"
            );
        }
        let both = self.topology == Topology::Both;
        let publisher = self.pub_link.as_ref().or(self.link.as_ref());
        let subscriber = self
            .sub_link
            .as_ref()
            .or(self.link.as_ref().filter(|_| both));
        let load = |name: Option<&String>| match name {
            Some(name) => Ok::<_, mq_netem::Error>((name.clone(), Link::load(name)?)),
            None => Ok(("perfect".to_owned(), Link::default())),
        };
        let subscriber = (!shared).then(|| load(subscriber)).transpose()?;
        Ok((load(publisher)?, subscriber))
    }
}

type Named = (String, Link);

/// Where the link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Topology {
    /// Three hosts; the link is the publisher's, the subscriber's is perfect (S22)
    Publisher,
    /// Three hosts; both have a link like it (S21's scenario A)
    Both,
    /// Two hosts; publisher and subscriber share one and its link to the broker (W20)
    Shared,
}

/// Hosts and links, while they last.
#[derive(Debug)]
pub(crate) struct Testbed {
    lab: Lab,
    broker: Host,
    publisher: Station,
    /// `None` where it is on the publisher's host.
    subscriber: Option<Station>,
    captures: Vec<(PathBuf, Capture)>,
}

/// A host with one link to the broker.
#[derive(Debug)]
struct Station {
    role: &'static str,
    host: Host,
    link: Link,
    name: String,
    addresses: Addresses,
}

/// How one role reaches the broker.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Where its sockets belong.
    pub(crate) namespace: PathBuf,
    /// The broker's address on its link.
    pub(crate) broker: Ipv4Addr,
}

impl Testbed {
    /// Builds what is asked for; links that are not are perfect. Before any thread is started.
    pub(crate) fn build(args: &LinkArgs, seed: u64) -> anyhow::Result<Self> {
        // Mistakes first: nothing is built for a link that does not exist.
        let (publisher, subscriber) = args.links()?;
        if let Some(folder) = &args.pcap {
            output_directory(folder)?;
        }
        let mut lab = Lab::enter()?;
        let broker = Host::new()?;
        let mut station = |role, (name, link), seed| -> anyhow::Result<Station> {
            let host = Host::new()?;
            let addresses = lab.connect(&host, &broker, &link, seed)?;
            Ok(Station {
                role,
                host,
                link,
                name,
                addresses,
            })
        };
        let publisher = station("publisher", publisher, seed)?;
        let subscriber = subscriber
            .map(|link| station("subscriber", link, seed.wrapping_add(1)))
            .transpose()?;
        let mut testbed = Self {
            lab,
            broker,
            publisher,
            subscriber,
            captures: Vec::new(),
        };
        if let Some(folder) = &args.pcap {
            testbed.capture(folder)?;
        }
        Ok(testbed)
    }

    fn capture(&mut self, folder: &Path) -> anyhow::Result<()> {
        let captures = self.hosts().map(|(role, host)| {
            let file = folder.join(format!("{role}.pcap"));
            let capture = host.capture(&file)?;
            Ok((file, capture))
        });
        self.captures = captures.collect::<anyhow::Result<_>>()?;
        Ok(())
    }

    /// Ends the captures.
    pub(crate) fn finish_captures(&mut self) -> anyhow::Result<()> {
        for (file, capture) in self.captures.drain(..) {
            let report = capture.finish();
            let report = report.with_context(|| format!("cannot write {}", file.display()))?;
            if report.dropped > 0 {
                let (dropped, file) = (report.dropped, file.display());
                eprintln!("mqbench: {dropped} packets came too fast and are missing in {file}");
            }
        }
        Ok(())
    }

    /// The hosts and their roles.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&'static str, &Host)> {
        let stations = self.stations().map(|station| (station.role, &station.host));
        stations.chain([("broker", &self.broker)])
    }

    /// Runs a command to its end in the testbed; see [`Lab::run`].
    pub(crate) fn run(&self, command: Command) -> std::io::Result<ExitStatus> {
        self.lab.run(command)
    }

    /// Packets that the publisher's host has sent so far, and such that were sent to it.
    pub(crate) fn publisher_packets(&self) -> (u64, u64) {
        let report = self.lab.reports()[0];
        (report.up.counts.arrived, report.down.counts.arrived)
    }

    /// The broker's host.
    pub(crate) fn broker(&self) -> &Host {
        &self.broker
    }

    /// The broker's addresses, one a link.
    pub(crate) fn broker_addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.stations().map(|station| station.addresses.far)
    }

    /// How the publisher reaches the broker.
    pub(crate) fn publisher(&self) -> Access {
        self.publisher.access()
    }

    /// How the subscriber does.
    pub(crate) fn subscriber(&self) -> Access {
        self.subscriber.as_ref().unwrap_or(&self.publisher).access()
    }

    /// CPU time of the emulator, which is part of this process and none of the clients' work.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.lab.cpu_time()
    }

    fn stations(&self) -> impl Iterator<Item = &Station> {
        std::iter::once(&self.publisher).chain(&self.subscriber)
    }
}

impl Station {
    fn access(&self) -> Access {
        Access {
            namespace: self.host.path(),
            broker: self.addresses.far,
        }
    }
}
