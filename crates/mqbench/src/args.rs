//! Options that several commands share.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use mq_client::{Client, ClientBuilder, Probes};
use mq_codec::{QoS, Version};
use mq_netem::{Direction, Link};
use mq_transport::{
    Address, CipherSuite, ClientIdentity, CongestionControl, ConnectOptions, Connector,
    KeyExchangeGroup, Qlog, Trust,
};
use serde::{Deserialize, Serialize};

/// A direction of a link, as [`Link`] has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// From the clients to the broker
    Up,
    /// From the broker to the clients
    Down,
}

impl Way {
    /// As the command line and the link's file have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// What that direction of the link does.
    pub(crate) fn of(self, link: Link) -> Direction {
        match self {
            Self::Up => link.up,
            Self::Down => link.down,
        }
    }
}

/// How clients connect.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub(crate) struct TransportArgs {
    /// CA certificates (PEM) to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Trust any certificate: for tests only
    #[arg(long, conflicts_with = "ca")]
    pub(crate) insecure: bool,
    /// Client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub(crate) client_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,
    /// Server name to ask for and verify (SNI) instead of the host in the URL
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// Congestion control of all transports: reno, cubic or bbr; `compare` with its own broker
    /// takes cubic, else TCP has the kernel's default and QUIC cubic
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<CongestionControl>,
    /// Cipher suites in order of preference, such as aes128-gcm,chacha20-poly1305
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) ciphers: Vec<CipherSuite>,
    /// Key exchange groups in order of preference, such as x25519
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) groups: Vec<KeyExchangeGroup>,
    /// Initial round-trip time that QUIC assumes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) initial_rtt: Option<Duration>,
    /// How often QUIC sends a packet on a silent connection; else MQTT's keep-alive does
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) quic_keep_alive: Option<Duration>,
    /// Switch GSO and GRO off: one datagram a packet
    #[arg(long)]
    pub(crate) no_gso: bool,
    /// Switch QUIC's path MTU discovery off
    #[arg(long)]
    pub(crate) no_mtu_discovery: bool,
    /// Write TLS secrets where SSLKEYLOGFILE says, for Wireshark
    #[arg(long)]
    pub(crate) keylog: bool,
    /// Directory for qlog files, one a QUIC connection
    #[arg(long, value_name = "DIR")]
    pub(crate) qlog: Option<PathBuf>,
}

impl TransportArgs {
    /// The options for a connector. `early_data` and the rest of resumption belong to the command.
    pub(crate) fn options(&self) -> ConnectOptions {
        let mut options = ConnectOptions {
            server_name: self.server_name.clone(),
            congestion: self.congestion,
            ..ConnectOptions::default()
        };
        if let Some(file) = &self.ca {
            options.trust = Trust::CaFile(file.clone());
        }
        if self.insecure {
            options.trust = Trust::Insecure;
        }
        if let (Some(certificates), Some(key)) = (&self.client_cert, &self.client_key) {
            options.identity = Some(ClientIdentity {
                certificates: certificates.clone(),
                key: key.clone(),
            });
        }
        if !self.ciphers.is_empty() {
            options.crypto.cipher_suites.clone_from(&self.ciphers);
        }
        if !self.groups.is_empty() {
            options.crypto.key_exchange_groups.clone_from(&self.groups);
        }
        if let Some(rtt) = self.initial_rtt {
            options.quic.initial_rtt = rtt;
        }
        options.quic.keep_alive_interval = self.quic_keep_alive;
        options.quic.segmentation_offload = !self.no_gso;
        options.quic.mtu_discovery = !self.no_mtu_discovery;
        options.crypto.key_log = self.keylog;
        options.quic.qlog = self.qlog.as_ref().map(Qlog::all);
        options
    }

    /// A connector with these options.
    pub(crate) fn connector(&self) -> anyhow::Result<Connector> {
        Ok(Connector::new(self.options())?)
    }
}

/// What clients say.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "MQTT")]
pub(crate) struct MqttArgs {
    /// Quality of service: 0, 1 or 2
    #[arg(long, default_value = "0", value_parser = qos)]
    pub(crate) qos: QoS,
    /// MQTT version
    #[arg(long, value_enum, default_value_t = MqttVersion::V5)]
    pub(crate) mqtt: MqttVersion,
    /// Keep-alive in seconds, 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) keep_alive: u16,
    #[command(flatten)]
    pub(crate) probes: ProbeArgs,
    /// User name
    #[arg(long, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// Password
    #[arg(
        long,
        value_name = "TEXT",
        env = "MQBENCH_PASSWORD",
        hide_env_values = true
    )]
    pub(crate) password: Option<String>,
    /// How long a connection may take, until CONNACK; lossy links want more
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
}

/// When a subscriber over QUIC looks whether its address has changed. Off, unlike the library's default:
/// what is measured is compared with transports that send nothing of the kind.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ProbeArgs {
    /// QUIC subscribers send PINGREQ after this long without a packet, 0 for not at all
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    probe_quiet: Duration,
    /// The same after a busy flow has fallen silent
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    probe_busy: Duration,
}

impl ProbeArgs {
    pub(crate) fn get(self) -> Probes {
        let some = |time: Duration| (!time.is_zero()).then_some(time);
        Probes {
            quiet: some(self.probe_quiet),
            busy: some(self.probe_busy),
        }
    }

    /// As a manifest tells it; `null` is for none.
    pub(crate) fn parameters(self) -> serde_json::Value {
        let Probes { quiet, busy } = self.get();
        let nanoseconds = |time: Option<Duration>| time.map(crate::clock::nanoseconds);
        serde_json::json!({ "quiet_ns": nanoseconds(quiet), "busy_ns": nanoseconds(busy) })
    }
}

impl MqttArgs {
    /// A builder for a client at `address` that connects with `connector` and does not reconnect:
    /// a lost connection is a result, not something to hide.
    pub(crate) fn builder(
        &self,
        address: &Address,
        connector: &Connector,
        client_id: &str,
    ) -> anyhow::Result<ClientBuilder> {
        let mut builder = Client::builder(&address.to_string())?
            .connector(connector.clone())
            .version(self.mqtt.into())
            .client_id(client_id)?
            .keep_alive(Duration::from_secs(self.keep_alive.into()))
            .connect_timeout(self.connect_timeout)
            .probes(self.probes.get())
            .reconnect(mq_client::Reconnect::never());
        if let Some(name) = &self.username {
            builder = builder.user_name(name)?;
        }
        if let Some(password) = &self.password {
            builder = builder.password(password.clone());
        }
        Ok(builder)
    }
}

/// A pattern for the identifiers of many clients, such as `mqbench-%r-%i`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientIds(Vec<Piece>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(String),
    Role,
    Number,
}

/// What a client is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Publisher,
    Subscriber,
}

impl std::str::FromStr for ClientIds {
    type Err = String;

    fn from_str(pattern: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = pattern.chars();
        while let Some(c) = rest.next() {
            let piece = match (c, (c == '%').then(|| rest.next()).flatten()) {
                ('%', Some('r')) => Piece::Role,
                ('%', Some('i')) => Piece::Number,
                ('%', Some('%')) => {
                    text.push('%');
                    continue;
                }
                ('%', other) => {
                    return Err(format!(
                        "`%{}` is unknown: there are %r (pub or sub), %i (number) and %%",
                        other.map_or_else(String::new, String::from)
                    ));
                }
                (c, _) => {
                    text.push(c);
                    continue;
                }
            };
            pieces.extend([Piece::Text(std::mem::take(&mut text)), piece]);
        }
        pieces.push(Piece::Text(text));
        Ok(Self(pieces))
    }
}

impl ClientIds {
    /// The identifier of one client.
    pub(crate) fn id(&self, role: Role, number: usize) -> String {
        let show = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Role if role == Role::Publisher => "pub".to_owned(),
            Piece::Role => "sub".to_owned(),
            Piece::Number => number.to_string(),
        };
        self.0.iter().map(show).collect()
    }

    /// An identifier that more than one of so many clients would have.
    pub(crate) fn clash(&self, publishers: usize, subscribers: usize) -> Option<String> {
        let publisher = (0..publishers).map(|number| self.id(Role::Publisher, number));
        let subscriber = (0..subscribers).map(|number| self.id(Role::Subscriber, number));
        let mut seen = std::collections::HashSet::new();
        let mut all = publisher.chain(subscriber);
        // An empty identifier asks the broker for one.
        all.find(|id| !id.is_empty() && !seen.insert(id.clone()))
    }
}

/// MQTT versions as the command line names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub(crate) enum MqttVersion {
    /// MQTT 3.1
    #[value(name = "3.1")]
    #[serde(rename = "3.1")]
    V3_1,
    /// MQTT 3.1.1
    #[value(name = "3.1.1")]
    #[serde(rename = "3.1.1")]
    V3_1_1,
    /// MQTT 5.0
    #[value(name = "5")]
    #[serde(rename = "5")]
    V5,
}

impl From<MqttVersion> for Version {
    fn from(version: MqttVersion) -> Self {
        match version {
            MqttVersion::V3_1 => Self::V3_1,
            MqttVersion::V3_1_1 => Self::V3_1_1,
            MqttVersion::V5 => Self::V5,
        }
    }
}

/// `0`, `1` or `2`.
pub(crate) fn qos(text: &str) -> Result<QoS, String> {
    text.parse()
        .ok()
        .and_then(QoS::from_bits)
        .ok_or_else(|| "a QoS is 0, 1 or 2".to_owned())
}

/// A time such as `250us`, `10ms`, `1.5s`; a bare number is milliseconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let scale = match unit {
        "us" | "µs" => 1e-6,
        "ms" | "" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        _ => return Err("a time is a number with us, ms, s or min, such as 10ms".to_owned()),
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * scale).ok())
        .ok_or_else(|| "a time is a number with us, ms, s or min, such as 10ms".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_identifiers_are_made_from_a_pattern() {
        let ids: ClientIds = "100%%-%r/%i%i".parse().unwrap();
        assert_eq!(ids.id(Role::Publisher, 7), "100%-pub/77");
        assert_eq!(ids.id(Role::Subscriber, 0), "100%-sub/00");
        let clash = |pattern: &str| pattern.parse::<ClientIds>().unwrap().clash(2, 2);
        assert_eq!(clash("%r%i"), None);
        assert_eq!(clash("a%i"), Some("a0".into()));
        assert_eq!(clash("%r"), Some("pub".into()));
        assert_eq!(clash(""), None);
        for wrong in ["%", "a%n", "%r%"] {
            assert!(wrong.parse::<ClientIds>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10"), Ok(Duration::from_millis(10)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250us"), Ok(Duration::from_micros(250)));
        assert!(duration("10 parsecs").is_err());
        assert!(duration("").is_err());
        assert!(duration("-1s").is_err());
    }
}
