//! The network of a comparison: hosts on this machine, with emulated links between them.

mod host_row;
mod named;
mod network;
mod radio;
mod report;
mod tcp;

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use mq_netem::{Addresses, Capture, Host, Lab, Link, LinkReport, Loss, Medium, Probability};

use mq_transport::{Address, ConnectOptions};

use crate::this_program::create_output_directory;
pub(crate) use host_row::CarriedFrames;
use named::NamedProfile;
pub(crate) use network::{Network, Outage, Topology};
pub(crate) use radio::ChannelUse;
pub(crate) use tcp::{TcpSettings, TcpTuning};

/// Hosts and their links, as long as this value lives.
#[derive(Debug)]
pub(crate) struct Testbed {
    lab: Lab,
    broker: Host,
    publisher: Station,
    /// The stations that share the channel with the publisher; none without a channel.
    neighbours: Vec<Station>,
    /// The hosts between the publisher and the broker's, each with its link to the next one; mostly none.
    edges: Vec<Station>,
    /// `true` if the hosts of `edges` pass packets on; `false` if each has a broker.
    passes_on: bool,
    /// `None` if the subscriber is on the publisher's host.
    subscriber: Option<Station>,
    /// Time at which the first link began to be emulated.
    began: Instant,
    /// The channel that stations without a link share with the broker.
    channel: Option<NamedProfile<Medium>>,
    captures: Vec<(PathBuf, Capture)>,
}

/// A host with one way to the broker.
#[derive(Debug)]
struct Station {
    role: String,
    host: Host,
    /// `None` if the host is on the channel.
    link: Option<NamedProfile<Link>>,
    addresses: Addresses,
    /// The link that the host can be handed over to, and its addresses there.
    next: Option<(NamedProfile<Link>, Addresses)>,
}

/// The way of a role to the broker.
#[derive(Clone, Debug)]
pub(crate) struct BrokerAccess {
    /// The namespace of the role's sockets.
    pub(crate) namespace: PathBuf,
    /// The broker's address on the role's link.
    pub(crate) broker: Ipv4Addr,
}

impl BrokerAccess {
    /// Returns the address and options by which a client of this role dials the broker, made from those of another
    /// network.
    pub(crate) fn dial_options(
        self,
        address: &Address,
        options: &ConnectOptions,
    ) -> (Address, ConnectOptions) {
        let (mut address, mut options) = (address.clone(), options.clone());
        address.host = self.broker.to_string();
        options.socket.network_namespace = Some(self.namespace);
        (address, options)
    }
}

impl Testbed {
    /// Builds a network, and captures in `pcap` what its hosts send and receive, one file a host, and what each
    /// direction of their links loses. Call it before any thread is started.
    pub(crate) fn build(network: Network, pcap: Option<&Path>, seed: u64) -> anyhow::Result<Self> {
        if let Some(folder) = pcap {
            create_output_directory(folder)?;
        }
        let mut testbed = Self::connect(network, seed)?;
        if let Some(folder) = pcap {
            testbed.capture(folder)?;
        }
        Ok(testbed)
    }

    fn connect(network: Network, seed: u64) -> anyhow::Result<Self> {
        let mut lab = Lab::enter()?;
        let broker = Host::new()?;
        let began = Instant::now();
        let (mut edges, mut passes_on) = (Vec::new(), false);
        let (mut stations, channel, subscriber) = match network {
            Network::Row {
                publisher,
                uplinks,
                subscriber,
                passes_on: without_brokers,
            } => {
                passes_on = without_brokers;
                let links = std::iter::once(*publisher).chain(uplinks).collect();
                let mut row = Station::in_row(&mut lab, links, &broker, passes_on, seed)?;
                edges = row.split_off(1);
                (row, None, Some(*subscriber))
            }
            Network::Links {
                publisher,
                subscriber,
                next,
            } => {
                let mut publisher =
                    Station::with_link(&mut lab, "publisher", &broker, *publisher, seed)?;
                if let Some(next) = next {
                    publisher.add_next_link(&mut lab, &broker, *next, seed.wrapping_add(2))?;
                }
                (vec![publisher], None, subscriber)
            }
            Network::Channel {
                medium,
                stations,
                subscriber,
            } => {
                let stations =
                    Station::on_channel(&mut lab, stations, &broker, &medium.profile, seed)?;
                (stations, Some(medium), Some(subscriber))
            }
        };
        let subscriber = subscriber.map(|link| {
            Station::with_link(&mut lab, "subscriber", &broker, link, seed.wrapping_add(1))
        });
        Ok(Self {
            lab,
            broker,
            publisher: stations.remove(0),
            neighbours: stations,
            edges,
            passes_on,
            subscriber: subscriber.transpose()?,
            began,
            channel,
            captures: Vec::new(),
        })
    }

    fn capture(&mut self, folder: &Path) -> anyhow::Result<()> {
        let captures = self.hosts().map(|(role, host)| {
            let file = folder.join(format!("{role}.pcap"));
            let capture = host.capture(&file)?;
            Ok((file, capture))
        });
        self.captures = captures.collect::<anyhow::Result<_>>()?;
        for station in self.stations().filter(|station| station.link.is_some()) {
            let file = |direction| folder.join(format!("{}-{direction}-lost.pcap", station.role));
            self.lab
                .record_losses(station.addresses, &file("up"), &file("down"))?;
        }
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

    /// Returns the hosts and their roles.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&str, &Host)> {
        let stations = self
            .stations()
            .map(|station| (&station.role[..], &station.host));
        stations.chain([("broker", &self.broker)])
    }

    /// Runs a command to its end in the testbed; see [`Lab::run`].
    pub(crate) fn run(&self, command: Command) -> std::io::Result<ExitStatus> {
        self.lab.run(command)
    }

    /// Returns the number of packets that the publisher's host has sent so far, and of packets sent to it. The second
    /// is `None` on a channel, which does not count by the receiver.
    pub(crate) fn publisher_packets(&self) -> (u64, Option<u64>) {
        let Some(reports) = self.publisher_reports() else {
            return (self.lab.medium_reports()[0].stations[0].arrived, None);
        };
        let counts = reports
            .iter()
            .map(|report| (report.up.counts.arrived, report.down.counts.arrived));
        let (up, down) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (up, Some(down))
    }

    /// Returns the bytes of frames that the publisher's host has sent so far, and those sent to it; `None` on a channel.
    pub(crate) fn publisher_bytes(&self) -> Option<(u64, u64)> {
        let reports = self.publisher_reports()?;
        let bytes = reports
            .iter()
            .map(|report| (report.up.counts.bytes, report.down.counts.bytes));
        bytes.reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Returns the frames that the publisher's link has carried so far, both ways; `None` on a channel, which does not
    /// count by the receiver.
    pub(crate) fn publisher_link(&self) -> Option<CarriedFrames> {
        let reports = self.publisher_reports()?;
        let each = reports.iter().map(CarriedFrames::of);
        each.reduce(CarriedFrames::plus)
    }

    /// Returns the reports of the publisher's links: the link, and the next one where there is a hand-over. `None` on a channel.
    fn publisher_reports(&self) -> Option<Vec<LinkReport>> {
        if !self.lab.medium_reports().is_empty() {
            return None;
        }
        let mut reports = self.lab.reports();
        reports.truncate(1 + usize::from(self.publisher.next.is_some()));
        Some(reports)
    }

    /// Hands the publisher's host over to its next link; see [`Lab::hand_over`].
    pub(crate) fn hand_over(&self) -> anyhow::Result<()> {
        let publisher = &self.publisher;
        let (_, next) = publisher
            .next
            .as_ref()
            .context("the publisher has no link to hand over to")?;
        Ok(Lab::hand_over(&publisher.host, publisher.addresses, *next)?)
    }

    /// Makes a UDP socket at the publisher's host, and one at the broker's; returns the address of the second as the first
    /// reaches it.
    pub(crate) fn udp_sockets(&self) -> anyhow::Result<((UdpSocket, UdpSocket), SocketAddr)> {
        let bind = || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let thing = self.publisher.host.run(bind)?;
        let server = self.broker.run(bind)?;
        let port = server.local_addr()?.port();
        let to = SocketAddr::from((self.publisher().broker, port));
        Ok(((thing, server), to))
    }

    /// Cuts the publisher's host off: packets from it, to it, or both do not arrive from now on.
    pub(crate) fn cut_publisher(&self, up: bool, down: bool) -> anyhow::Result<()> {
        let publisher = &self.publisher;
        let link = publisher
            .link
            .as_ref()
            .context("the publisher has no link")?;
        let mut link = link.profile.clone();
        for (direction, is_cut) in [(&mut link.up, up), (&mut link.down, down)] {
            if is_cut {
                direction.loss = Loss::Bernoulli(Probability::new(1.0).expect("it is one"));
            }
        }
        Ok(self.lab.change(publisher.addresses, &link)?)
    }

    /// Returns the broker's host.
    pub(crate) fn broker(&self) -> &Host {
        &self.broker
    }

    /// Returns the brokers' addresses, one a link or channel.
    pub(crate) fn broker_addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        let networks = std::iter::once(&self.publisher).chain(&self.edges);
        let networks = networks.chain(&self.subscriber);
        networks.map(|station| station.addresses.far)
    }

    /// Returns the publisher's way to its broker.
    pub(crate) fn publisher(&self) -> BrokerAccess {
        let access = self.publisher.access();
        let last = self.edges.last().filter(|_| self.passes_on);
        BrokerAccess {
            broker: last.map_or(access.broker, |last| last.addresses.far),
            ..access
        }
    }

    /// Returns the way to the broker of each other station on the channel.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = BrokerAccess> {
        self.neighbours.iter().map(Station::access)
    }

    /// Returns the subscriber's way to the broker.
    pub(crate) fn subscriber(&self) -> BrokerAccess {
        self.subscriber.as_ref().unwrap_or(&self.publisher).access()
    }

    /// Returns the number of stations that share the channel, if there is one.
    pub(crate) fn stations_on_channel(&self) -> Option<usize> {
        self.channel.as_ref().map(|_| 1 + self.neighbours.len())
    }

    /// Returns the links' own delay from publisher to subscriber; `None` on a channel, whose delay depends on its use.
    pub(crate) fn one_way(&self) -> Option<Duration> {
        let subscriber = self.subscriber.as_ref().unwrap_or(&self.publisher);
        let [up, down] = [&self.publisher, subscriber].map(|station| station.link.as_ref());
        let between = self.edges.iter().filter_map(|edge| edge.link.as_ref());
        let between: Duration = between.map(|link| link.profile.up.delay).sum();
        Some(up?.profile.up.delay + between + down?.profile.down.delay)
    }

    /// Returns the CPU time of the emulator. Its threads are in this process, but are not the clients' work.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.lab.cpu_time()
    }

    fn stations(&self) -> impl Iterator<Item = &Station> {
        let publishers = std::iter::once(&self.publisher).chain(&self.neighbours);
        publishers.chain(&self.edges).chain(&self.subscriber)
    }
}

impl Station {
    /// Makes a host with a link to the broker.
    fn with_link(
        lab: &mut Lab,
        role: &str,
        broker: &Host,
        link: NamedProfile<Link>,
        seed: u64,
    ) -> Result<Self, mq_netem::Error> {
        let host = Host::new()?;
        let addresses = lab.connect(&host, broker, &link.profile, seed)?;
        Ok(Self {
            role: role.to_owned(),
            host,
            link: Some(link),
            addresses,
            next: None,
        })
    }

    /// Makes a link that the host can be handed over to.
    fn add_next_link(
        &mut self,
        lab: &mut Lab,
        broker: &Host,
        link: NamedProfile<Link>,
        seed: u64,
    ) -> Result<(), mq_netem::Error> {
        let addresses = lab.connect(&self.host, broker, &link.profile, seed)?;
        self.next = Some((link, addresses));
        Ok(())
    }

    /// Makes the publisher and its neighbours, on one channel with the broker.
    fn on_channel(
        lab: &mut Lab,
        count: u8,
        broker: &Host,
        medium: &Medium,
        seed: u64,
    ) -> Result<Vec<Self>, mq_netem::Error> {
        let hosts = (0..count).map(|_| Host::new());
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        let addresses = lab.share(&hosts.iter().collect::<Vec<_>>(), broker, medium, seed)?;
        let stations = hosts.into_iter().zip(addresses).zip(1..);
        let stations = stations.map(|((host, addresses), number)| Self {
            role: publisher_role(number),
            host,
            link: None,
            addresses,
            next: None,
        });
        Ok(stations.collect())
    }

    fn access(&self) -> BrokerAccess {
        BrokerAccess {
            namespace: self.host.path(),
            broker: self.addresses.far,
        }
    }
}

/// Returns the role of the measured publisher, and of the second and further stations of a channel.
fn publisher_role(number: usize) -> String {
    match number {
        1 => "publisher".to_owned(),
        number => format!("publisher-{number}"),
    }
}
