//! The tables of the configuration file.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use mq_transport::{AckFrequency, Address, AllowedOrigins, Repeat, Scheme};
#[cfg(doc)]
use mq_transport::{QuicOptions, SocketOptions};
use serde::Deserialize;

use super::{Mistakes, seconds_from, set};
use crate::{AdminSettings, Durability, Settings, Storage, StoreFile};

/// The `[quic]` table: recovery from loss, and streams, for all listeners over QUIC ([`QuicOptions`]).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct QuicConfig {
    /// Policy by which small datagrams are sent a second time, a [`Repeat`] as text: `off`, `auto`, `probe`, or a gap
    /// such as `3ms`. Default: `off`.
    pub repeat: Option<String>,
    /// Policies of single listeners in the place of `repeat`, by their URLs in `listen`. Default: none.
    pub repeat_at: BTreeMap<String, String>,
    /// Round-trip time in milliseconds that is assumed until one is measured, from 0.001 to 60,000. Default: 333; see
    /// [`QuicOptions::initial_rtt`].
    pub initial_rtt_ms: Option<f64>,
    /// Milliseconds within which clients are asked to acknowledge, from 0.001 to 60,000. Default: none; a client
    /// keeps its own delay, mostly 25.
    pub max_ack_delay_ms: Option<f64>,
    /// Packets of 1,200 bytes that may be in flight before the first acknowledgement, from 1 to 1,000. Default: the
    /// congestion control's own, 10, or 200 with BBR; see [`QuicOptions::initial_window`].
    pub initial_window: Option<u32>,
    /// Later packets, 1 at least, after whose acknowledgement a packet counts as lost. Default: 3; see
    /// [`QuicOptions::packet_threshold`].
    pub packet_threshold: Option<u32>,
    /// Round-trip times, from 1 to 10, after which a packet counts as lost when a later one is acknowledged. Default:
    /// 1.125; see [`QuicOptions::time_threshold`].
    pub time_threshold: Option<f32>,
    /// `true` if the broker probes each client's path for packets above 1,200 bytes. Default: `false`; see
    /// [`QuicOptions::mtu_discovery`].
    pub mtu_discovery: Option<bool>,
    /// Streams of each kind that a client may have open, its control stream among them, from 1 to 10,000. Default:
    /// 64; see [`QuicOptions::max_bidi_streams`].
    pub max_streams: Option<u32>,
    /// Spread of a client's messages over QUIC streams that the broker opens: `asked`, as the client requests in
    /// CONNECT, or a [`Spread`](mq_proto::Spread) by name. Default: `asked`; see [`Settings::deliveries`].
    pub deliveries: Option<String>,
    /// Seconds without data after which a data stream is closed, from 0 to 86,400; 0 is never. Default: 0; see
    /// [`Settings::stream_idle_timeout`].
    pub stream_idle_timeout_s: Option<u64>,
}

impl QuicConfig {
    pub(super) fn apply(self, settings: &mut Settings, mistakes: &mut Mistakes) {
        for (url, policy) in self.repeat_at {
            let at = repeat_at(&url, &policy, &settings.listeners);
            let at = at.map_err(|problem| format!("quic.repeat_at: {problem}"));
            settings.repeat_at.extend(mistakes.note(at));
        }
        if matches!(self.stream_idle_timeout_s, Some(86_401..)) {
            mistakes.push("quic.stream_idle_timeout_s: it is within 0 and 86400");
        }
        let idle = self.stream_idle_timeout_s.map(Duration::from_secs);
        settings.stream_idle_timeout = idle.filter(|timeout| !timeout.is_zero());
        let options = &mut settings.listen.quic;
        if let Some(policy) = self.repeat {
            let policy = policy.parse::<Repeat>();
            let policy = policy.map_err(|error| format!("quic.repeat: {error}"));
            set(&mut options.repeat, mistakes.note(policy));
        }
        let time = milliseconds("quic.initial_rtt_ms", self.initial_rtt_ms);
        set(&mut options.initial_rtt, mistakes.note(time).flatten());
        let delay = milliseconds("quic.max_ack_delay_ms", self.max_ack_delay_ms);
        options.ack_frequency = mistakes.note(delay).flatten().map(AckFrequency::within);
        if self
            .initial_window
            .is_some_and(|packets| !(1..=1000).contains(&packets))
        {
            mistakes.push("quic.initial_window: it is within 1 and 1000");
        }
        options.initial_window = self.initial_window.or(options.initial_window);
        let thresholds = (self.packet_threshold, self.time_threshold);
        if matches!(thresholds, (Some(0), _)) {
            mistakes.push("quic.packet_threshold: it is 1 at least");
        }
        if matches!(thresholds, (_, Some(factor)) if !(1.0..=10.0).contains(&factor)) {
            mistakes.push("quic.time_threshold: it is within 1 and 10");
        }
        set(&mut options.packet_threshold, self.packet_threshold);
        set(&mut options.time_threshold, self.time_threshold);
        set(&mut options.mtu_discovery, self.mtu_discovery);
        if matches!(self.max_streams, Some(0 | 10_001..)) {
            mistakes.push("quic.max_streams: it is within 1 and 10000");
        }
        set(&mut options.max_bidi_streams, self.max_streams);
        let one_way = self.max_streams.map(|streams| streams.saturating_sub(1));
        set(&mut options.max_uni_streams, one_way);
        if let Some(name) = self.deliveries.filter(|name| name != "asked") {
            let spread = name.parse();
            let wrong = |error| format!("quic.deliveries: {error}, or \"asked\"");
            settings.deliveries = mistakes.note(spread.map_err(wrong));
        }
    }
}

fn repeat_at(url: &str, policy: &str, listeners: &[Address]) -> Result<(Address, Repeat), String> {
    let address = url.parse::<Address>().map_err(|error| error.to_string())?;
    if address.scheme != Scheme::Quic || !listeners.contains(&address) {
        return Err(format!("{url} is not a QUIC listener of `listen`"));
    }
    let policy = policy
        .parse::<Repeat>()
        .map_err(|error| error.to_string())?;
    Ok((address, policy))
}

pub(super) fn milliseconds(key: &str, value: Option<f64>) -> Result<Option<Duration>, String> {
    let time = value.map(|ms| {
        let allowed = (0.001..=60_000.0).contains(&ms);
        allowed.then(|| Duration::from_secs_f64(ms / 1e3))
    });
    match time {
        Some(None) => Err(format!("{key}: it is within 0.001 and 60000")),
        time => Ok(time.flatten()),
    }
}

/// The `[tcp]` table: options of the listeners over TCP, and of what runs over it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TcpConfig {
    /// `true` if clients may send their first bytes with the SYN (TCP Fast Open). Default: `false`; see
    /// [`SocketOptions::tcp_fast_open`].
    pub fast_open: bool,
}

/// The `[store]` table: the file that keeps what outlives the broker. Without the table nothing does.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Path of the store's file, which is made if it is missing. Required.
    pub path: PathBuf,
    /// Time at which acknowledged changes are on the disk: `always`, `interval` or `off`. Default: `always`; see
    /// [`Durability`].
    #[serde(default)]
    pub durability: DurabilityName,
    /// Milliseconds between two commits, 1 at least, for `durability = "interval"` alone. Default: 1,000, about what
    /// a disk's own cache holds back.
    pub interval_ms: Option<u64>,
    /// Seconds, 1 at least, that a change may wait for the disk before `/readyz` answers 503. Default: 5.
    pub not_ready_after_s: Option<u32>,
    /// Seconds, 1 at least, that a change may wait for the disk before `/healthz` answers 503. Default: 60.
    pub unhealthy_after_s: Option<u32>,
}

/// A [`Durability`] as the configuration file names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DurabilityName {
    /// [`Durability::Always`].
    #[default]
    Always,
    /// [`Durability::Interval`].
    Interval,
    /// [`Durability::Off`].
    Off,
}

impl StoreConfig {
    pub(super) fn apply(self, settings: &mut Settings, mistakes: &mut Mistakes) {
        let patience = &mut settings.store_patience;
        for (key, value, field) in [
            (
                "not_ready_after_s",
                self.not_ready_after_s,
                &mut patience.not_ready_after,
            ),
            (
                "unhealthy_after_s",
                self.unhealthy_after_s,
                &mut patience.unhealthy_after,
            ),
        ] {
            if value == Some(0) {
                mistakes.push(format!("store.{key}: it is at least 1"));
            }
            set(field, value.map(seconds_from));
        }
        let durability = mistakes.note(self.durability());
        // Other tables are checked against this store.
        settings.store = Some(Storage::File(StoreFile {
            path: self.path,
            durability: durability.unwrap_or_default(),
        }));
    }

    fn durability(&self) -> Result<Durability, String> {
        Ok(match (self.durability, self.interval_ms) {
            (DurabilityName::Interval, Some(0)) => {
                return Err("store.interval_ms: 0 is `durability = \"always\"`".to_owned());
            }
            (DurabilityName::Interval, every) => {
                Durability::Interval(Duration::from_millis(every.unwrap_or(1000)))
            }
            (_, Some(_)) => {
                return Err(
                    "store.interval_ms: only `durability = \"interval\"` has one".to_owned(),
                );
            }
            (DurabilityName::Always, None) => Durability::Always,
            (DurabilityName::Off, None) => Durability::Off,
        })
    }
}

/// The `[reload]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ReloadConfig {
    /// `true` if replaced files of certificates, revocation lists, users and rules are reloaded without a signal.
    /// Default: `true`.
    pub watch: bool,
}

impl Default for ReloadConfig {
    fn default() -> Self {
        Self { watch: true }
    }
}

/// The `[ws]` table, for WebSocket over TCP and over TLS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct WsConfig {
    /// Origins of the web pages that may connect; `["*"]` is all. Default: all, or where clients without a user are
    /// accepted, pages of the listener's own host ([`AllowedOrigins::SameHost`]).
    pub allowed_origins: Option<Vec<String>>,
}

impl WsConfig {
    pub(super) fn origins(self, settings: &Settings) -> AllowedOrigins {
        match self.allowed_origins {
            None if settings.lets_anonymous_in() => AllowedOrigins::SameHost,
            None => AllowedOrigins::All,
            Some(origins) if origins == ["*"] => AllowedOrigins::All,
            Some(origins) => AllowedOrigins::Listed(origins),
        }
    }
}

/// The `[admin]` table: the interfaces for operators ([`AdminSettings`]).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct AdminConfig {
    /// Address and port of the HTTP listener. Default: none.
    pub http: Option<SocketAddr>,
    /// File with the tokens of operators, one a line, for its owner alone. Default: none; without a token HTTP has
    /// metrics and health alone.
    pub token_file: Option<PathBuf>,
    /// `true` if programs of this machine read over HTTP without a token. Default: `false`.
    pub open_on_loopback: bool,
    /// Host names by which HTTP is reached, besides `localhost` and addresses. Default: none.
    pub hosts: Vec<String>,
    /// Path of the Unix socket, whose folder has to exist. Default: none.
    pub socket: Option<PathBuf>,
    /// Seconds between two publications of the broker's own figures under `$SYS/broker`; 0 is never. Default: 10.
    pub sys_interval_s: Option<u32>,
}

impl AdminConfig {
    pub(super) fn apply(self, settings: &mut Settings) {
        settings.admin = AdminSettings {
            http: self.http,
            token_file: self.token_file,
            open_on_loopback: self.open_on_loopback,
            hosts: self.hosts,
            socket: self.socket,
        };
        let every = seconds_from(self.sys_interval_s.unwrap_or(10));
        settings.sys_interval = (!every.is_zero()).then_some(every);
    }
}

/// The `[log]` table. The library only writes to `tracing`; the program `mqbroker` applies the
/// table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LogConfig {
    /// Format of a line, `text` or `json`. Default: `text`.
    pub format: LogFormat,
    /// Level down to which events are written: `off`, `error`, `warn`, `info`, `debug` or `trace`. Default: `info`.
    pub level: Option<String>,
    /// Levels of parts of the broker, such as `store`, or of modules, by name. Default: none.
    pub levels: BTreeMap<String, String>,
}

/// The format of a line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// JSON, one object a line.
    Json,
}
