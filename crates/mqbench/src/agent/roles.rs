//! What an agent does for its controller: this program's own commands, and no others.

use clap::ValueEnum as _;
use mq_measure::energy::profile::Profile;
use mq_netem::Link;
use mq_transport::{Address, CongestionControl};
use serde::{Deserialize, Serialize};

use super::folder::Name;
use crate::{
    args::{MqttVersion, Way},
    meter::Spec,
};

/// A role, with all that its command is told. Files are names in the work folder.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Role {
    /// `mqbench broker`
    Broker {
        listen: Vec<String>,
        certificate: Option<Name>,
        key: Option<Name>,
        congestion: Option<String>,
    },
    /// `mqbench pub`
    Publisher {
        client: Client,
        count: u64,
        size: usize,
        interval_ns: u64,
        /// The send log.
        log: Name,
    },
    /// `mqbench sub`
    Subscriber {
        client: Client,
        count: u64,
        idle_ns: u64,
        /// The receive log.
        log: Name,
    },
    /// `mqbench net apply`
    Link {
        interface: String,
        /// A shipped link with its changes, such as `s22/wifi@loss=5%`.
        link: String,
        direction: Way,
    },
    /// `mqbench energy record`: a meter that hangs on this host
    Meter {
        meter: Spec,
        /// What it found.
        log: Name,
    },
}

/// What publisher and subscriber have in common.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Client {
    pub(crate) broker: String,
    pub(crate) topic: String,
    pub(crate) run: String,
    pub(crate) qos: u8,
    pub(crate) mqtt: MqttVersion,
    pub(crate) ca: Option<Name>,
    pub(crate) congestion: Option<String>,
    pub(crate) initial_rtt_ns: Option<u64>,
}

impl Role {
    /// The command, after the program. A value is never taken for an option, nor for a path that leads
    /// out of the work folder.
    ///
    /// # Errors
    /// What is wrong with a value.
    pub(super) fn command(&self) -> Result<Vec<String>, String> {
        match self {
            Self::Broker {
                listen,
                certificate,
                key,
                congestion,
            } => {
                // The testbed's hosts are let in: it has no users.
                let command = ["broker", "--announce", "--allow-anonymous"];
                let mut command: Vec<_> = command.map(str::to_owned).into();
                for url in listen {
                    command.push(format!("--listen={}", address(url)?));
                }
                for (option, file) in [("--cert", certificate), ("--key", key)] {
                    command.extend(
                        file.iter()
                            .map(|file| format!("{option}={}", file.as_str())),
                    );
                }
                command.extend(congestion_option(congestion.as_deref())?);
                Ok(command)
            }
            Self::Publisher {
                client,
                count,
                size,
                interval_ns,
                log,
            } => {
                let mut command = client.command("pub")?;
                command.push(format!("--count={count}"));
                command.push(format!("--size={size}"));
                command.push(format!("--interval={}", nanoseconds(*interval_ns)));
                command.push(format!("--log={}", log.as_str()));
                Ok(command)
            }
            Self::Subscriber {
                client,
                count,
                idle_ns,
                log,
            } => {
                let mut command = client.command("sub")?;
                command.push("--announce".to_owned());
                command.push(format!("--count={count}"));
                command.push(format!("--idle={}", nanoseconds(*idle_ns)));
                command.push(format!("--log={}", log.as_str()));
                Ok(command)
            }
            Self::Link {
                interface,
                link,
                direction,
            } => {
                // Only what ships: a path could lead anywhere.
                if link.contains(".toml") {
                    return Err(format!("{link} does not ship: an agent reads no profiles"));
                }
                Link::load(link).map_err(|error| error.to_string())?;
                Ok(vec![
                    "net".to_owned(),
                    "apply".to_owned(),
                    "--announce".to_owned(),
                    format!("--direction={}", direction.name()),
                    interface_name(interface)?.to_owned(),
                    link.clone(),
                ])
            }
            Self::Meter { meter, log } => {
                match meter {
                    Spec::Rapl | Spec::Sensor(..) => {}
                    Spec::Model(profile) if Profile::shipped().any(|name| name == profile) => {}
                    Spec::Model(_) => {
                        return Err(format!("{meter} does not ship: an agent reads no profiles"));
                    }
                    Spec::Dmm(_) | Spec::Csv(_) => {
                        return Err(format!("{meter} does not hang on this host"));
                    }
                }
                Ok(vec![
                    "energy".to_owned(),
                    "record".to_owned(),
                    "--announce".to_owned(),
                    format!("--meter={meter}"),
                    format!("--log={}", log.as_str()),
                ])
            }
        }
    }

    /// The interface that it shapes.
    pub(super) fn interface(&self) -> Option<&str> {
        match self {
            Self::Link { interface, .. } => Some(interface),
            _ => None,
        }
    }
}

impl Client {
    fn command(&self, name: &str) -> Result<Vec<String>, String> {
        let mut command = vec![
            name.to_owned(),
            address(&self.broker)?.to_string(),
            format!("--topic={}", self.topic),
            format!("--run={}", self.run),
            format!("--qos={}", self.qos),
        ];
        let version = self.mqtt.to_possible_value();
        command.extend(version.map(|version| format!("--mqtt={}", version.get_name())));
        let ca = self.ca.iter().map(|file| format!("--ca={}", file.as_str()));
        command.extend(ca);
        command.extend(congestion_option(self.congestion.as_deref())?);
        let rtt = self.initial_rtt_ns;
        command.extend(rtt.map(|ns| format!("--initial-rtt={}", nanoseconds(ns))));
        Ok(command)
    }
}

fn address(url: &str) -> Result<Address, String> {
    url.parse().map_err(|error| format!("{error}"))
}

fn congestion_option(name: Option<&str>) -> Result<Option<String>, String> {
    let Some(name) = name else { return Ok(None) };
    let known: Result<CongestionControl, _> = name.parse();
    let known = known.map_err(|error| error.to_string())?;
    Ok(Some(format!("--congestion={known}")))
}

/// As the command line reads it.
fn nanoseconds(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns, 104 days")]
    let ns = ns as f64;
    format!("{}us", ns / 1e3)
}

/// Linux has at most 15 bytes, of which these are all that is ever used.
fn interface_name(name: &str) -> Result<&str, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@');
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= 15 && name.chars().all(allowed) {
        Ok(name)
    } else {
        Err(format!("`{name}` is no interface"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text.to_owned()).unwrap()
    }

    fn client(topic: &str) -> Client {
        Client {
            broker: "quic://10.0.0.1:14567".to_owned(),
            topic: topic.to_owned(),
            run: "run".to_owned(),
            qos: 1,
            mqtt: MqttVersion::V3_1_1,
            ca: Some(name("ca.pem")),
            congestion: Some("cubic".to_owned()),
            initial_rtt_ns: Some(100_000_000),
        }
    }

    fn meter(meter: &str) -> Role {
        Role::Meter {
            meter: meter.parse().unwrap(),
            log: name("energy.json"),
        }
    }

    #[test]
    fn a_role_is_a_command_of_this_program() {
        let publisher = Role::Publisher {
            client: client("t"),
            count: 10,
            size: 100,
            interval_ns: 1_500_000,
            log: name("send.csv"),
        };
        let text = serde_json::to_string(&publisher).unwrap();
        let read: Role = serde_json::from_str(&text).unwrap();
        assert_eq!(read, publisher);
        assert_eq!(
            publisher.command().unwrap().join(" "),
            "pub quic://10.0.0.1:14567 --topic=t --run=run --qos=1 --mqtt=3.1.1 --ca=ca.pem \
             --congestion=cubic --initial-rtt=100000us --count=10 --size=100 --interval=1500us \
             --log=send.csv"
        );
        let link = Role::Link {
            interface: "eth0".to_owned(),
            link: "s22/wifi@loss=5%".to_owned(),
            direction: Way::Up,
        };
        let command = link.command().unwrap().join(" ");
        assert_eq!(
            command,
            "net apply --announce --direction=up eth0 s22/wifi@loss=5%"
        );
        let command = meter("iio:ina226").command().unwrap().join(" ");
        assert_eq!(
            command,
            "energy record --announce --meter=iio:ina226 --log=energy.json"
        );
    }

    #[test]
    fn no_value_becomes_an_option_or_another_file() {
        let link = |interface: &str, link: &str| Role::Link {
            interface: interface.to_owned(),
            link: link.to_owned(),
            direction: Way::Down,
        };
        for (role, says) in [
            (link("--keep", "s22/wifi"), "no interface"),
            (link("eth0; reboot", "s22/wifi"), "no interface"),
            (link("eth0", "/etc/shadow.toml"), "does not ship"),
            (link("eth0", "--keep"), "--keep"),
            (meter("csv:/etc/shadow"), "does not hang on this host"),
            (meter("dmm:10.0.0.9"), "does not hang on this host"),
            (meter("model:/etc/shadow.toml"), "does not ship"),
        ] {
            let error = role.command().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let mut odd = client("--log=/etc/passwd");
        let command = odd.command("pub").unwrap();
        assert!(command.contains(&"--topic=--log=/etc/passwd".to_owned()));
        odd.broker = "--insecure".to_owned();
        assert!(odd.command("pub").is_err());
    }
}
