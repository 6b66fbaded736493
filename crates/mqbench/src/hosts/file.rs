//! `hosts.toml`: real machines that a campaign is to run on.
//!
//! ```toml
//! [[host]]
//! name = "pi-1"
//! roles = ["publisher"]           # broker, publisher, subscriber: each on one host
//! ssh = "pi@192.168.1.11"         # how ssh reaches it, by another network than `address`
//! program = "/usr/bin/mqbench"    # mqbench on the host; from the PATH unless given
//! address = "10.0.0.11"           # where the other hosts reach it
//! interface = "wlan0"             # has that address, and is shaped
//! meter = "dmm:192.168.1.9"       # of the publisher's host alone, as in `energy measure`; may be missing
//! volts = 5.08                    # the supply's voltage, for a multimeter
//! ```

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::meter::MeterSpec;
#[cfg(target_os = "linux")]
use crate::meter::{ConfiguredMeter, MeterSettings};

/// The machines of a testbed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hosts {
    #[serde(rename = "host")]
    hosts: Vec<Machine>,
}

/// A machine of a testbed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) name: String,
    roles: BTreeSet<HostRole>,
    /// The machine's name for OpenSSH: `user@host`, `ssh://user@host:port`, or a name of its configuration.
    pub(crate) ssh: String,
    /// The path of mqbench on the machine.
    program: Option<String>,
    /// The machine's address for the other machines.
    pub(crate) address: IpAddr,
    /// The interface that has this address.
    pub(crate) interface: String,
    /// The machine's meter, if it has one.
    meter: Option<MeterSpec>,
    /// The supply's voltage, for a multimeter.
    volts: Option<f64>,
    /// The current that has to fit into a multimeter's range.
    amps: Option<f64>,
}

#[cfg(target_os = "linux")]
impl Machine {
    /// Makes a machine without a role, for tests.
    #[cfg(test)]
    pub(crate) fn at(address: IpAddr, interface: &str, meter: &str) -> Self {
        Self {
            name: "some".to_owned(),
            roles: BTreeSet::new(),
            ssh: address.to_string(),
            program: None,
            address,
            interface: interface.to_owned(),
            meter: Some(meter.parse().expect("a meter")),
            volts: None,
            amps: None,
        }
    }

    /// Returns the path of mqbench on the machine.
    pub(crate) fn program(&self) -> &str {
        self.program.as_deref().unwrap_or("mqbench")
    }

    /// Returns the machine's meter, if it has one.
    pub(crate) fn configured_meter(&self) -> Option<ConfiguredMeter> {
        Some(ConfiguredMeter {
            spec: self.meter.clone()?,
            settings: MeterSettings {
                volts: self.volts,
                amps: self.amps,
                ..MeterSettings::default()
            },
        })
    }
}

/// The role of a host in a cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HostRole {
    Broker,
    Publisher,
    Subscriber,
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

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let hosts: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = line_number(text, at);
            anyhow::anyhow!("line {line}: {}", error.message().replace('\n', " "))
        })?;
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for host in &hosts.hosts {
            if host.name.is_empty() {
                bail!("a host has no name");
            }
            if host.ssh.is_empty() {
                bail!("{} has no name for ssh", host.name);
            }
            if !names.insert(&host.name) {
                bail!("two hosts are called {}", host.name);
            }
            if !addresses.insert(host.address) {
                bail!("{} has another host's address {}", host.name, host.address);
            }
        }
        for role in [HostRole::Broker, HostRole::Publisher, HostRole::Subscriber] {
            hosts.doing(role)?;
        }
        let publisher = hosts.doing(HostRole::Publisher)?;
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

    /// Returns all machines.
    #[cfg(target_os = "linux")]
    pub(crate) fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.hosts.iter()
    }

    /// Returns the host with this role; each role has one host.
    pub(crate) fn doing(&self, role: HostRole) -> anyhow::Result<&Machine> {
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
}

/// Returns the number of the line, from 1, that has the byte at `at`.
pub(crate) fn line_number(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const THREE: &str = r#"
[[host]]
name = "hub"
roles = ["broker"]
ssh = "pi@192.168.1.10"
address = "10.0.0.10"
interface = "eth0"
[[host]]
name = "pi-1"
roles = ["publisher"]
ssh = "pi@192.168.1.11"
address = "10.0.0.11"
interface = "wlan0"
[[host]]
name = "pi-2"
roles = ["subscriber"]
ssh = "pi@192.168.1.12"
address = "10.0.0.12"
interface = "eth0"
"#;

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
