//! `hosts.toml`: real machines that a campaign is to run on, and what each cell would have them do.
//!
//! ```toml
//! [[host]]
//! name = "pi-1"
//! roles = ["publisher"]           # broker, publisher, subscriber: each on one host
//! agent = "192.168.1.11:7883"     # where it is told what to do: another way than the one below
//! address = "10.0.0.11"           # where the others reach it
//! interface = "wlan0"             # what carries that, and is shaped
//! meter = "dmm:192.168.1.9"       # of the publisher's host, if there is one: as in `energy measure`
//! volts = 5.08                    # what a multimeter has to be told
//! ```

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context as _, bail};
use mq_netem::{Direction, Link};
use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
use super::meter::Probe;
use super::{cell::Cell, file::line};
#[cfg(target_os = "linux")]
use crate::cmd::energy::Instrument;
use crate::{cmd::energy::Spec, testbed::Topology};

/// The machines of a testbed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hosts {
    #[serde(rename = "host")]
    hosts: Vec<Machine>,
}

/// One of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) name: String,
    roles: BTreeSet<Role>,
    /// Where its agent listens.
    pub(crate) agent: SocketAddr,
    /// What the others reach it by.
    pub(crate) address: IpAddr,
    /// The interface that has this address.
    pub(crate) interface: String,
    /// What tells its energy, if anything does.
    meter: Option<Spec>,
    /// The voltage of its supply, for a multimeter.
    volts: Option<f64>,
    /// The current that has to fit into a multimeter's range.
    amps: Option<f64>,
}

#[cfg(target_os = "linux")]
impl Machine {
    /// One that does nothing, for tests.
    #[cfg(test)]
    pub(crate) fn at(address: IpAddr, interface: &str, meter: &str) -> Self {
        Self {
            name: "some".to_owned(),
            roles: BTreeSet::new(),
            agent: SocketAddr::new(address, 7883),
            address,
            interface: interface.to_owned(),
            meter: Some(meter.parse().expect("a meter")),
            volts: None,
            amps: None,
        }
    }

    /// What tells its energy, if anything does.
    pub(crate) fn probe(&self) -> Option<Probe> {
        Some(Probe {
            spec: self.meter.clone()?,
            instrument: Instrument::at(self.volts, self.amps),
        })
    }
}

/// What a host does in a cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    Broker,
    Publisher,
    Subscriber,
}

/// A direction of a link, as [`Link`] has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// From the client.
    Up,
    /// To the client.
    Down,
}

/// Which host does what in a cell.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Placement<'a> {
    pub(crate) broker: &'a Machine,
    pub(crate) publisher: &'a Machine,
    pub(crate) subscriber: &'a Machine,
    /// What is to be set on interfaces: a kernel shapes what leaves a host.
    pub(crate) shaped: Vec<Shaped<'a>>,
}

/// A direction of a link, on the interface that its packets leave by.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Shaped<'a> {
    pub(crate) host: &'a Machine,
    /// The link's name, with its changes.
    pub(crate) link: String,
    /// Which of its directions.
    pub(crate) way: Way,
    direction: Direction,
}

impl Hosts {
    /// Reads a file.
    ///
    /// # Errors
    /// One line with the file, and what is wrong in it.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the hosts {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let hosts: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = line(text, at);
            anyhow::anyhow!("line {line}: {}", error.message().replace('\n', " "))
        })?;
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for host in &hosts.hosts {
            if host.name.is_empty() {
                bail!("a host has no name");
            }
            if !names.insert(&host.name) {
                bail!("two hosts are called {}", host.name);
            }
            if !addresses.insert(host.address) {
                bail!("{} has another host's address {}", host.name, host.address);
            }
        }
        for role in [Role::Broker, Role::Publisher, Role::Subscriber] {
            hosts.doing(role)?;
        }
        let publisher = hosts.doing(Role::Publisher)?;
        let other = |host: &&Machine| host.meter.is_some() && *host != publisher;
        if let Some(host) = hosts.hosts.iter().find(other) {
            bail!(
                "{} has a meter: the energy is the publisher's, which is {}",
                host.name,
                publisher.name
            );
        }
        Ok(hosts)
    }

    /// All of them.
    #[cfg(target_os = "linux")]
    pub(crate) fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.hosts.iter()
    }

    /// The one host with this role.
    fn doing(&self, role: Role) -> anyhow::Result<&Machine> {
        let mut doing = self.hosts.iter().filter(|host| host.roles.contains(&role));
        let role = format!("{role:?}").to_lowercase();
        let host = doing.next();
        let host = host.with_context(|| format!("no host has the role {role}"))?;
        match doing.next() {
            None => Ok(host),
            Some(other) => bail!(
                "{} and {} have the role {role}: one may",
                host.name,
                other.name
            ),
        }
    }

    /// Where the parts of a cell run, and which interfaces are shaped how.
    ///
    /// # Errors
    /// Why these hosts cannot do it.
    pub(crate) fn place(&self, cell: &Cell) -> anyhow::Result<Placement<'_>> {
        if cell.medium.is_some() {
            bail!("a shared channel is emulated on one machine only");
        }
        let (broker, publisher) = (self.doing(Role::Broker)?, self.doing(Role::Publisher)?);
        let subscriber = match cell.topology {
            // There they are one host.
            Topology::Shared => publisher,
            Topology::Publisher | Topology::Both => self.doing(Role::Subscriber)?,
        };
        let network = cell.network();
        let of_subscriber = match cell.topology {
            Topology::Both => network.sub_link.as_ref().or(network.link.as_ref()),
            Topology::Publisher => network.sub_link.as_ref(),
            Topology::Shared => None,
        };
        let mut shaped = Vec::new();
        for (client, link) in [
            (publisher, network.link.as_ref()),
            (subscriber, of_subscriber),
        ] {
            if let Some(link) = link {
                shape(&mut shaped, client, link, Way::Up)?;
                shape(&mut shaped, broker, link, Way::Down)?;
            }
        }
        Ok(Placement {
            broker,
            publisher,
            subscriber,
            shaped,
        })
    }
}

/// Adds what leaves a host, which has one interface.
fn shape<'a>(
    shaped: &mut Vec<Shaped<'a>>,
    host: &'a Machine,
    link: &str,
    way: Way,
) -> anyhow::Result<()> {
    let profile = Link::load(link)?;
    let direction = match way {
        Way::Up => profile.up,
        Way::Down => profile.down,
    };
    let other = shaped.iter().find(|shaped| shaped.host == host);
    match other {
        Some(other) if other.direction == direction => {}
        Some(_) => bail!(
            "the two links differ in what leaves {} by {}: it needs two interfaces",
            host.name,
            host.interface
        ),
        None if direction == Direction::default() => {}
        None => shaped.push(Shaped {
            host,
            link: link.to_owned(),
            way,
            direction,
        }),
    }
    Ok(())
}

#[cfg(target_os = "linux")]
impl Placement<'_> {
    /// What is shaped, for the record: host, interface, link and direction.
    pub(crate) fn configured(&self) -> serde_json::Value {
        let shaped = self.shaped.iter().map(|shaped| {
            serde_json::json!({
                "host": shaped.host.name,
                "interface": shaped.host.interface,
                "link": shaped.link,
                "direction": shaped.way,
            })
        });
        shaped.collect()
    }
}

impl fmt::Display for Placement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            broker,
            publisher,
            subscriber,
            shaped,
        } = self;
        write!(
            f,
            "broker on {} ({}), publisher on {}, subscriber on {}; ",
            broker.name, broker.address, publisher.name, subscriber.name
        )?;
        if shaped.is_empty() {
            return write!(f, "nothing shaped");
        }
        for (number, Shaped { host, .. }) in shaped.iter().enumerate() {
            let before = if number == 0 { "shaped: " } else { ", " };
            write!(f, "{before}{} of {}", host.interface, host.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = r#"
[[host]]
name = "hub"
roles = ["broker"]
agent = "192.168.1.10:7883"
address = "10.0.0.10"
interface = "eth0"
[[host]]
name = "pi-1"
roles = ["publisher"]
agent = "192.168.1.11:7883"
address = "10.0.0.11"
interface = "wlan0"
[[host]]
name = "pi-2"
roles = ["subscriber"]
agent = "192.168.1.12:7883"
address = "10.0.0.12"
interface = "eth0"
"#;

    fn cell(topology: Topology, link: &str, sub_link: Option<&str>) -> Cell {
        Cell {
            topology,
            link: Some(link.to_owned()),
            sub_link: sub_link.map(str::to_owned),
            ..Cell::default()
        }
    }

    #[test]
    fn a_direction_is_shaped_where_its_packets_leave_a_host() {
        let hosts = Hosts::parse(THREE).unwrap();
        let shaped = |cell: &Cell| -> Vec<String> {
            let placement = hosts.place(cell).unwrap();
            assert_eq!(placement.broker.name, "hub");
            let shaped = placement.shaped.iter();
            shaped.map(|one| one.host.name.clone()).collect()
        };
        // S22's stands on the publisher's way out alone.
        assert_eq!(
            shaped(&cell(Topology::Publisher, "s22/wifi", None)),
            ["pi-1"]
        );
        assert_eq!(
            shaped(&cell(Topology::Both, "s21/wifi", None)),
            ["pi-1", "hub", "pi-2"]
        );
        let one_host = cell(Topology::Shared, "w20/wifi", None);
        assert_eq!(shaped(&one_host), ["pi-1", "hub"]);
        assert_eq!(hosts.place(&one_host).unwrap().subscriber.name, "pi-1");
        assert_eq!(shaped(&Cell::default()), [""; 0]);
    }

    #[test]
    fn what_these_hosts_cannot_do_is_said() {
        let hosts = Hosts::parse(THREE).unwrap();
        let channel = Cell {
            medium: Some("s21/medium".to_owned()),
            ..Cell::default()
        };
        let wired = cell(Topology::Publisher, "s21/wifi", Some("s21/wired-100ms"));
        for (cell, says) in [(channel, "shared channel"), (wired, "two interfaces")] {
            let error = hosts.place(&cell).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn mistakes_in_the_file_are_one_line() {
        for (from, to, says) in [
            ("\"broker\"", "\"boker\"", "line 4: unknown variant `boker`"),
            ("\"broker\"", "", "no host has the role broker"),
            (
                "\"broker\"",
                "\"broker\", \"publisher\"",
                "hub and pi-1 have the role publisher",
            ),
            ("pi-2", "pi-1", "two hosts are called pi-1"),
            ("10.0.0.12", "10.0.0.11", "pi-2 has another host's address"),
            ("10.0.0.12", "ten", "invalid IP address"),
            (
                "\"eth0\"",
                "\"eth0\"\nmeter = \"watt\"",
                "line 8: `watt` is no meter",
            ),
            (
                "\"eth0\"",
                "\"eth0\"\nmeter = \"rapl\"",
                "hub has a meter: the energy is the publisher's, which is pi-1",
            ),
            ("interface = \"wlan0\"\n", "", "missing field `interface`"),
        ] {
            let error = Hosts::parse(&THREE.replacen(from, to, 1)).unwrap_err();
            let error = format!("{error:#}");
            assert!(
                error.contains(says) && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
