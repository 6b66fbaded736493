//! Connections without messages: the time until one is usable, and until CONNACK.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use mq_client::Client;
use mq_codec::QoS;
use mq_measure::{
    Sample, Samples, Summary, Warning,
    result::{ConnectKind, ConnectTimes},
};
use mq_transport::{Address, ConnectOptions, EarlyData, HandshakeKind, LinkStats, Scheme};

use super::resumption::Resumption;
use crate::{
    clock::nanoseconds,
    mqtt::{MqttOptions, Route},
};

/// Times and kind of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected {
    /// Time from the dial until bytes could be written.
    pub(crate) usable_ns: u64,
    /// Time from the dial until CONNACK.
    pub(crate) connack_ns: u64,
    /// The kind that the handshake turned out to be.
    pub(crate) kind: ConnectKind,
}

/// Returns the kinds of connection that a transport has.
pub(crate) fn kinds(scheme: Scheme) -> &'static [ConnectKind] {
    match scheme {
        Scheme::Tls | Scheme::Quic => &[
            ConnectKind::Full,
            ConnectKind::Resumed,
            ConnectKind::ZeroRtt,
        ],
        // Early data on WebSocket is its HTTP request and never a packet: no 0-RTT for MQTT.
        Scheme::Wss => &[ConnectKind::Full, ConnectKind::Resumed],
        _ => &[ConnectKind::Tcp],
    }
}

/// Returns the kind of connection that a transport makes with `resumption`.
pub(crate) fn kind(scheme: Scheme, resumption: Resumption) -> ConnectKind {
    match (kinds(scheme), resumption) {
        ([ConnectKind::Tcp], _) => ConnectKind::Tcp,
        (_, Resumption::Full) => ConnectKind::Full,
        (_, Resumption::Resumed) => ConnectKind::Resumed,
        (_, Resumption::ZeroRtt) => ConnectKind::ZeroRtt,
    }
}

/// Returns the kind of connection that a complete handshake made.
pub(super) fn kind_of(handshake: HandshakeKind, early_data: EarlyData) -> ConnectKind {
    match (handshake, early_data) {
        (HandshakeKind::Resumed, EarlyData::Accepted) => ConnectKind::ZeroRtt,
        (HandshakeKind::Resumed, _) => ConnectKind::Resumed,
        (HandshakeKind::Full, _) => ConnectKind::Full,
        _ => ConnectKind::Tcp,
    }
}

/// Maker of connections of one kind, one after the other, each closed before the next.
#[derive(Debug)]
pub(crate) struct Dialler {
    route: Route,
    kind: ConnectKind,
    primed: bool,
    count: u64,
    last_error: Option<String>,
}

impl Dialler {
    pub(crate) fn new(
        address: &Address,
        options: &ConnectOptions,
        kind: ConnectKind,
    ) -> anyhow::Result<Self> {
        let options = ConnectOptions {
            resumption: matches!(kind, ConnectKind::Resumed | ConnectKind::ZeroRtt),
            early_data: kind == ConnectKind::ZeroRtt,
            ..options.clone()
        };
        Ok(Self {
            route: Route::new((address.clone(), options))?,
            kind,
            primed: matches!(kind, ConnectKind::Tcp | ConnectKind::Full),
            count: 0,
            last_error: None,
        })
    }

    /// Makes a connection and measures it. For resumed kinds the first call makes one more connection before,
    /// which gets the tickets and is not measured.
    pub(crate) async fn dial(&mut self, mqtt: &MqttOptions) -> anyhow::Result<Connected> {
        let dialled = self.dial_primed(mqtt).await;
        if let Err(error) = &dialled {
            self.last_error = Some(format!("{error:#}"));
        }
        dialled
    }

    async fn dial_primed(&mut self, mqtt: &MqttOptions) -> anyhow::Result<Connected> {
        if !self.primed {
            self.dial_once(mqtt).await?;
            self.primed = true;
        }
        self.dial_once(mqtt).await
    }

    async fn dial_once(&mut self, mqtt: &MqttOptions) -> anyhow::Result<Connected> {
        self.count += 1;
        let id = format!("mqbench-dial-{}-{}", self.route.address.scheme, self.count);
        let client = mqtt.connect(&self.route, &id).await;
        let client = client.context("cannot connect")?;
        let times = client.connect_times().context("not connected")?;
        let stats = leave(&client).await?;
        let kind = kind_of(stats.handshake, stats.early_data);
        let since = |at: std::time::Instant| at.saturating_duration_since(times.dialled_at);
        Ok(Connected {
            usable_ns: nanoseconds(since(times.link_at)),
            connack_ns: nanoseconds(since(times.connack_at)),
            kind,
        })
    }

    pub(crate) fn kind(&self) -> ConnectKind {
        self.kind
    }

    /// Warns of the connections that failed, if any of these attempts did.
    pub(crate) fn failures(&self, attempts: &[Option<Connected>]) -> Option<Warning> {
        let failed = attempts.iter().filter(|attempt| attempt.is_none()).count();
        let last_error = self.last_error.clone().filter(|_| failed > 0)?;
        Some(Warning::ConnectionsFailed {
            failed: failed as u64,
            tried: attempts.len() as u64,
            last_error,
        })
    }
}

/// Disconnects after one more round trip, which is not timed: the server sends its tickets after the
/// handshake, and the next connection needs one.
pub(super) async fn leave(client: &Client) -> anyhow::Result<LinkStats> {
    let lost = "the connection was lost at once";
    let dial = client.publish("mqbench/dial", Bytes::new(), QoS::AtLeastOnce);
    dial.await.context(lost)?;
    let stats = client.stats().await.context(lost)?;
    client.disconnect().await.context("cannot disconnect")?;
    Ok(stats)
}

/// Returns the attempts as samples, intended at the dial and sent when CONNECT was, which is as soon as bytes can be
/// written. An attempt that failed or turned out to be of another kind has no arrival.
pub(crate) fn samples(kind: ConnectKind, attempts: &[Option<Connected>]) -> Samples {
    let sample = |(seq, attempt): (u64, &Option<Connected>)| {
        let found = attempt.filter(|connected| connected.kind == kind);
        Sample {
            seq,
            intended_ns: 0,
            sent_ns: found.map_or(0, |connected| connected.usable_ns),
            received_ns: found.map(|connected| connected.connack_ns),
        }
    };
    (0..).zip(attempts).map(sample).collect()
}

/// Sums up the connections of one kind. Connections that failed, or turned out to be of another kind, are
/// counted as failed.
pub(crate) fn summarise(kind: ConnectKind, dialled: &[Option<Connected>]) -> ConnectTimes {
    let good: Vec<_> = dialled
        .iter()
        .flatten()
        .filter(|connected| connected.kind == kind)
        .collect();
    let usable: Vec<_> = good.iter().map(|connected| connected.usable_ns).collect();
    let connack: Vec<_> = good.iter().map(|connected| connected.connack_ns).collect();
    ConnectTimes {
        kind,
        count: good.len() as u64,
        failed: (dialled.len() - good.len()) as u64,
        usable: Summary::from_samples(&usable),
        connack: Summary::from_samples(&connack),
    }
}

/// Pause between connections, so that the end of one does not overlap with the beginning of the next.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);
