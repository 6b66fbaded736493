//! MQTT options of a workload's clients.

use std::time::Duration;

use mq_client::{Client, ClientBuilder, Probes, QuicStreams, Spread};
use mq_codec::{QoS, Version};
use mq_transport::{Address, ConnectOptions, Connector, TicketCache};
use serde::{Deserialize, Serialize};

/// The way of a client to the broker. Clones share the tickets of earlier sessions.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) address: Address,
    connector: Connector,
}

impl Route {
    pub(crate) fn new((address, options): (Address, ConnectOptions)) -> anyhow::Result<Self> {
        let connector = Connector::new(options)?;
        Ok(Self { address, connector })
    }

    /// Returns a route with the same sockets over QUIC for another device, which has tickets of its own.
    pub(crate) fn for_another_device(&self) -> Self {
        Self {
            address: self.address.clone(),
            connector: self.connector.with_ticket_cache(TicketCache::new()),
        }
    }
}

/// The MQTT options that all clients of a workload share.
#[derive(Clone, Debug)]
pub(crate) struct MqttOptions {
    pub(crate) qos: QoS,
    pub(crate) version: Version,
    /// Keep-alive in whole seconds; zero for no keep-alive.
    pub(crate) keep_alive: Duration,
    /// PINGREQs by which a subscriber over QUIC finds out that its address has changed.
    pub(crate) probes: Probes,
    pub(crate) user_name: Option<String>,
    pub(crate) password: Option<String>,
    /// Time within which a connection has to be made, until CONNACK.
    pub(crate) connect_timeout: Duration,
    /// QUIC stream of each message and each subscription.
    pub(crate) streams: QuicStreams,
    /// Spread of messages over QUIC streams of the broker's, which the client asks for.
    pub(crate) deliveries: Spread,
    /// `true` if QoS 0 messages go as QUIC datagrams, both ways.
    pub(crate) datagrams: bool,
}

impl MqttOptions {
    /// No probes, unlike the library's default: the transports that QUIC is compared with send none.
    pub(crate) const NO_PROBES: Probes = Probes {
        quiet: None,
        busy: None,
    };

    /// Connects a client. The client does not reconnect: a lost connection is a result, not something to hide.
    pub(crate) async fn connect(&self, route: &Route, client_id: &str) -> anyhow::Result<Client> {
        Ok(self.builder(route, client_id)?.build().await?)
    }

    /// Makes a builder for a client as [`connect`](Self::connect) makes it.
    pub(crate) fn builder(&self, route: &Route, client_id: &str) -> anyhow::Result<ClientBuilder> {
        let mut builder = Client::builder(&route.address.to_string())?
            .connector(route.connector.clone())
            .version(self.version)
            .client_id(client_id)?
            .keep_alive(self.keep_alive)
            .connect_timeout(self.connect_timeout)
            .probes(self.probes)
            .quic_streams(self.streams.clone())
            .quic_datagrams(self.datagrams)
            .reconnect(mq_client::Reconnect::never());
        if self.deliveries != Spread::Control {
            builder = builder.quic_deliveries(self.deliveries);
        }
        if let Some(name) = &self.user_name {
            builder = builder.user_name(name)?;
        }
        if let Some(password) = &self.password {
            builder = builder.password(password.clone());
        }
        Ok(builder)
    }
}

/// Probes as a manifest tells them; `null` is for none.
pub(crate) fn probe_parameters(Probes { quiet, busy }: Probes) -> serde_json::Value {
    let nanoseconds = |time: Option<Duration>| time.map(crate::clock::nanoseconds);
    serde_json::json!({ "quiet_ns": nanoseconds(quiet), "busy_ns": nanoseconds(busy) })
}

/// A pattern for the identifiers of many clients, such as `mqbench-%r-%i`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientIds(Vec<Piece>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(String),
    ClientRole,
    Number,
}

/// The part of a client in a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientRole {
    Publisher,
    Subscriber,
}

impl ClientIds {
    /// The pattern of which each client has an identifier of its own.
    pub(crate) const USUAL: &str = "mqbench-%r-%i";
}

impl std::str::FromStr for ClientIds {
    type Err = String;

    fn from_str(pattern: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = pattern.chars();
        while let Some(c) = rest.next() {
            let piece = match (c, (c == '%').then(|| rest.next()).flatten()) {
                ('%', Some('r')) => Piece::ClientRole,
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
    /// Makes the identifier of one client.
    pub(crate) fn id(&self, role: ClientRole, number: usize) -> String {
        let show = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::ClientRole if role == ClientRole::Publisher => "pub".to_owned(),
            Piece::ClientRole => "sub".to_owned(),
            Piece::Number => number.to_string(),
        };
        self.0.iter().map(show).collect()
    }

    /// Returns an identifier that two of these clients would share; `None` if all differ.
    pub(crate) fn clash(&self, publishers: usize, subscribers: usize) -> Option<String> {
        let publisher = (0..publishers).map(|number| self.id(ClientRole::Publisher, number));
        let subscriber = (0..subscribers).map(|number| self.id(ClientRole::Subscriber, number));
        let mut seen = std::collections::HashSet::new();
        let mut all = publisher.chain(subscriber);
        // An empty identifier asks the broker for one.
        all.find(|id| !id.is_empty() && !seen.insert(id.clone()))
    }
}

/// MQTT versions as the command line and a campaign file name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum MqttVersion {
    /// MQTT 3.1
    #[serde(rename = "3.1")]
    V3_1,
    /// MQTT 3.1.1
    #[serde(rename = "3.1.1")]
    V3_1_1,
    /// MQTT 5.0
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

/// Parses a QoS: `0`, `1` or `2`.
pub(crate) fn parse_qos(text: &str) -> Result<QoS, String> {
    text.parse()
        .ok()
        .and_then(QoS::from_bits)
        .ok_or_else(|| "a QoS is 0, 1 or 2".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_identifiers_are_made_from_a_pattern() {
        let ids: ClientIds = "100%%-%r/%i%i".parse().unwrap();
        assert_eq!(ids.id(ClientRole::Publisher, 7), "100%-pub/77");
        assert_eq!(ids.id(ClientRole::Subscriber, 0), "100%-sub/00");
        let clash = |pattern: &str| pattern.parse::<ClientIds>().unwrap().clash(2, 2);
        assert_eq!(clash("%r%i"), None);
        assert_eq!(clash("a%i"), Some("a0".into()));
        assert_eq!(clash("%r"), Some("pub".into()));
        assert_eq!(clash(""), None);
        for wrong in ["%", "a%n", "%r%"] {
            assert!(wrong.parse::<ClientIds>().is_err(), "{wrong}");
        }
    }
}
