//! The network of a comparison: hosts on this machine, with emulated links between them.

use std::{net::Ipv4Addr, path::PathBuf, time::Duration};

use mq_measure::{Validity, Warning, validity};
use mq_netem::{Addresses, Direction, DirectionReport, Host, Lab, Link, LinkReport};
use serde_json::{Value, json};

use crate::{report::units::time, workload::nanoseconds};

/// Departures later than this at the 99th percentile are not what the profile says.
const LATE: Duration = Duration::from_micros(500);

/// Options of emulated links.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Emulated links")]
pub(crate) struct LinkArgs {
    /// Emulate this link: a shipped one such as s22/wifi@loss=5%, or a file that ends in .toml
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<String>,
    /// The link between broker and subscriber, if it is another
    #[arg(long, value_name = "LINK", requires = "link")]
    pub(crate) sub_link: Option<String>,
    /// Who is behind the link
    #[arg(long, value_enum, default_value_t = Topology::Publisher, requires = "link")]
    pub(crate) topology: Topology,
}

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
    /// Builds what is asked for; `None` if no link is. Before any thread is started.
    pub(crate) fn build(args: &LinkArgs, seed: u64) -> anyhow::Result<Option<Self>> {
        let Some(name) = &args.link else {
            return Ok(None);
        };
        // Mistakes first: nothing is built for a link that does not exist.
        let link = Link::load(name)?;
        let perfect = (Link::default(), "perfect".to_owned());
        let sub_link = match (&args.sub_link, args.topology) {
            (Some(_), Topology::Shared) => {
                anyhow::bail!("--sub-link has no place in --topology shared: there is one link")
            }
            (None, Topology::Shared) => None,
            (Some(name), _) => Some((Link::load(name)?, name.clone())),
            (None, Topology::Both) => Some((link.clone(), name.clone())),
            (None, Topology::Publisher) => Some(perfect),
        };
        let mut lab = Lab::enter()?;
        let broker = Host::new()?;
        let mut station = |role, (link, name), seed| -> anyhow::Result<Station> {
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
        let publisher = station("publisher", (link, name.clone()), seed)?;
        let subscriber = sub_link
            .map(|link| station("subscriber", link, seed.wrapping_add(1)))
            .transpose()?;
        Ok(Some(Self {
            lab,
            broker,
            publisher,
            subscriber,
        }))
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

    fn links(&self) -> impl Iterator<Item = (&Station, LinkReport)> {
        self.stations().zip(self.lab.reports())
    }

    /// The links as they were to be.
    pub(crate) fn configured(&self) -> Value {
        let direction = |direction: &Direction| {
            json!({
                "delay_ns": nanoseconds(direction.delay),
                "jitter_ns": nanoseconds(direction.jitter),
                "distribution": format!("{:?}", direction.distribution).to_lowercase(),
                "reorder": direction.reorder.share(),
                "rate_bps": direction.rate.map(mq_netem::Rate::bits_per_second),
                "trace_mean_bps": direction.trace.as_ref().map(|trace| trace.mean_rate().bits_per_second()),
                "queue": format!("{:?}", direction.queue),
                "loss": format!("{:?}", direction.loss),
                "mean_loss": direction.loss.mean(),
                "duplicate": direction.duplicate.share(),
                "corrupt": direction.corrupt.share(),
            })
        };
        let link = |station: &Station| {
            json!({
                "of": station.role,
                "name": station.name,
                "description": station.link.description,
                "up": direction(&station.link.up),
                "down": direction(&station.link.down),
            })
        };
        self.stations().map(link).collect()
    }

    /// The links as they were.
    pub(crate) fn measured(&self) -> Value {
        let direction = |report: &DirectionReport| {
            let counts = &report.counts;
            json!({
                "packets": counts.arrived,
                "lost": counts.lost,
                "overflowed": counts.overflowed,
                "duplicated": counts.duplicated,
                "corrupted": counts.corrupted,
                "reordered": counts.reordered,
                "lateness_p50_ns": report.lateness.map(|(median, _)| nanoseconds(median)),
                "lateness_p99_ns": report.lateness.map(|(_, p99)| nanoseconds(p99)),
            })
        };
        let link = |(station, report): (&Station, LinkReport)| {
            json!({
                "of": station.role,
                "up": direction(&report.up),
                "down": direction(&report.down),
            })
        };
        self.links().map(link).collect()
    }

    /// Warns of links that were not what they were to be.
    pub(crate) fn check(&self, validity: &mut Validity) {
        for (station, report) in self.links() {
            let directions = [
                ("up", &station.link.up, report.up),
                ("down", &station.link.down, report.down),
            ];
            for (name, direction, report) in directions {
                let what =
                    |quantity| format!("{quantity} of the {}'s {name} direction", station.role);
                validity.note(loss_off(&what("loss"), direction.loss.mean(), &report));
                let late = report.lateness.filter(|(_, p99)| *p99 > LATE);
                validity.note(late.map(|(_, p99)| Warning::LinkOffProfile {
                    quantity: what("p99 lateness in µs"),
                    configured: LATE.as_secs_f64() * 1e6,
                    measured: p99.as_secs_f64() * 1e6,
                }));
            }
        }
    }

    /// A line a link: what it was to be, and what it was.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (station, report) in self.links() {
            let description = match station.link.description.as_str() {
                "" => String::new(),
                description => format!(" ({description})"),
            };
            text.push_str(&format!(
                "{}'s link: {}{description}\n",
                station.role, station.name
            ));
            for (name, report) in [("up", report.up), ("down", report.down)] {
                text.push_str(&format!("  {name}: {}\n", describe(&report)));
            }
        }
        text
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

fn describe(report: &DirectionReport) -> String {
    let counts = &report.counts;
    let mut text = format!("{} packets, {} lost", counts.arrived, counts.lost);
    for (count, what) in [
        (counts.overflowed, "dropped by the queue"),
        (counts.duplicated, "duplicated"),
        (counts.corrupted, "corrupted"),
        (counts.reordered, "reordered"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    if let Some((median, p99)) = report.lateness {
        let (median, p99) = (time(nanoseconds(median)), time(nanoseconds(p99)));
        text.push_str(&format!("; emulated {median} late (p50), {p99} (p99)"));
    }
    text
}

/// Whether the share that was lost is outside what chance explains in 99 of 100 runs.
fn loss_off(quantity: &str, configured: f64, report: &DirectionReport) -> Option<Warning> {
    #[expect(clippy::cast_precision_loss, reason = "counts of packets")]
    let (lost, all) = (report.counts.lost as f64, report.counts.arrived as f64);
    if all == 0.0 {
        return None;
    }
    // Bursts make a share less certain; the interval is that of single losses.
    let likely = 2.58 * (configured * (1.0 - configured) / all).sqrt();
    let measured = lost / all;
    if (measured - configured).abs() <= likely {
        return None;
    }
    validity::link_off_profile(quantity, configured, measured, 0.0)
}
