//! The tables of the configuration file.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    num::{NonZeroU16, NonZeroU32},
    path::PathBuf,
    time::Duration,
};

#[cfg(doc)]
use mq_transport::QuicOptions;
use mq_transport::{AckFrequency, Address, AllowedOrigins, ClientAuth, Repeat, Scheme};
use serde::Deserialize;

use super::{Mistakes, set};
#[cfg(doc)]
use crate::Quotas;
use crate::{
    AdminSettings, Durability, Overflow, Settings, Storage, StoreFile,
    auth::{Access, AccessFiles, CertificateUser, JwtSettings, TakeOverPolicy},
};

/// The `[auth]` table; `docs/guide/access.md` describes its files.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// Users and the hashes of their passwords.
    pub password_file: Option<PathBuf>,
    /// The rules of users (topics that they may publish and receive); without it they may do
    /// everything.
    pub acl_file: Option<PathBuf>,
    /// Takes the user from the client's certificate; needs `tls.client_ca`.
    pub certificate_user: Option<CertificateUser>,
    /// Accepts tokens as passwords.
    pub jwt: Option<JwtConfig>,
    /// Accepts clients that send neither user name nor password nor certificate. Without users and
    /// rules it accepts every client, whatever it sends. Default no.
    pub allow_anonymous: bool,
    /// See [`Settings::take_over`].
    pub take_over: TakeOverPolicy,
    /// See [`Settings::failures_per_minute`]; 0 is no limit.
    pub failures_per_minute: Option<u32>,
}

/// The `[auth.jwt]` table; see [`JwtSettings`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    /// The public keys of the issuer.
    pub keys: PathBuf,
    /// The issuer that tokens have to name.
    pub issuer: Option<String>,
    /// The audience: this broker.
    pub audience: Option<String>,
    /// The claim with the user's name; `sub` if absent.
    pub user_claim: Option<String>,
    /// The claim that must equal the client identifier.
    pub client_id_claim: Option<String>,
    /// Seconds by which the clocks may differ; 5 if absent.
    pub leeway_s: Option<u64>,
    /// `true` if the connection ends when the token expires; `true` if absent.
    pub disconnect_at_expiry: Option<bool>,
}

impl JwtConfig {
    /// The longest leeway, in seconds: no clock that is set at all is wrong by more.
    const LONGEST_LEEWAY_S: u64 = 300;

    fn into_settings(self, mistakes: &mut Mistakes) -> JwtSettings {
        if cfg!(not(feature = "jwt")) {
            mistakes.push("auth.jwt: this build takes no tokens: its feature `jwt` is off");
        }
        let mut settings = JwtSettings::new(self.keys);
        settings.issuer = self.issuer;
        settings.audience = self.audience;
        set(&mut settings.user_claim, self.user_claim);
        settings.client_id_claim = self.client_id_claim;
        if let Some(seconds) = self.leeway_s {
            if seconds > Self::LONGEST_LEEWAY_S {
                mistakes.push(format!(
                    "auth.jwt.leeway_s: {seconds} is more than {}: set the clocks instead",
                    Self::LONGEST_LEEWAY_S
                ));
            }
            settings.leeway = Duration::from_secs(seconds);
        }
        set(
            &mut settings.disconnect_at_expiry,
            self.disconnect_at_expiry,
        );
        settings
    }
}

impl AuthConfig {
    pub(super) fn apply(self, settings: &mut Settings, mistakes: &mut Mistakes) {
        if self.certificate_user.is_some() && settings.listen.client_auth == ClientAuth::Off {
            mistakes.push("auth.certificate_user: give tls.client_ca as well");
        }
        let files = AccessFiles {
            password_file: self.password_file,
            acl_file: self.acl_file,
            certificate_user: self.certificate_user,
            jwt: self.jwt.map(|jwt| jwt.into_settings(mistakes)),
            allow_anonymous: self.allow_anonymous,
        };
        if files.password_file.is_none()
            && files.certificate_user.is_none()
            && files.jwt.is_none()
            && !files.allow_anonymous
        {
            mistakes.push(
                "auth: nobody could log in: give password_file, certificate_user, the table jwt \
                 or `allow_anonymous = true`",
            );
        }
        // Without users and rules every client is accepted.
        let is_open = files.password_file.is_none()
            && files.certificate_user.is_none()
            && files.jwt.is_none()
            && files.acl_file.is_none();
        if !is_open {
            settings.access = Access::Files(files);
        }
        settings.take_over = self.take_over;
        if let Some(count) = self.failures_per_minute {
            settings.failures_per_minute = NonZeroU32::new(count);
        }
    }
}

/// The `[quic]` table; see [`QuicOptions`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuicConfig {
    /// A [`Repeat`].
    pub repeat: Option<String>,
    /// The [`Repeat`] of single listeners, by their URLs in `listen`.
    pub repeat_at: BTreeMap<String, String>,
    /// Milliseconds of a round trip until one is measured, with fractions; see
    /// [`QuicOptions::initial_rtt`].
    pub initial_rtt_ms: Option<f64>,
    /// Milliseconds within which clients are requested to acknowledge, with fractions.
    pub max_ack_delay_ms: Option<f64>,
    /// Packets before the first acknowledgement; see [`QuicOptions::initial_window`].
    pub initial_window: Option<u32>,
    /// See [`QuicOptions::packet_threshold`].
    pub packet_threshold: Option<u32>,
    /// See [`QuicOptions::time_threshold`].
    pub time_threshold: Option<f32>,
    /// See [`QuicOptions::mtu_discovery`].
    pub mtu_discovery: Option<bool>,
    /// Streams of each kind that a client may have open, its control stream among them; see
    /// [`QuicOptions::max_bidi_streams`].
    pub max_streams: Option<u32>,
    /// Spread of a client's messages over QUIC streams that the broker opens: `asked` (the default, as the client
    /// requests in CONNECT), or a [`Spread`](mq_proto::Spread) by name; see [`Settings::deliveries`].
    pub deliveries: Option<String>,
    /// Seconds without data after which a data stream is closed, 0 for never; see
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

/// The `[store]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// The path of the store's file.
    pub path: PathBuf,
    /// `always`, the default, `interval` or `off`; see [`Durability`].
    #[serde(default)]
    pub durability: DurabilityName,
    /// Milliseconds, for `interval` alone; 1000 unless given: about what a disk's own cache holds back.
    pub interval_ms: Option<u64>,
    /// Seconds that a change may wait for the disk before `/readyz` answers 503; 5 unless given.
    pub not_ready_after_s: Option<u64>,
    /// Seconds that a change may wait for the disk before `/healthz` answers 503; 60 unless given.
    pub unhealthy_after_s: Option<u64>,
}

/// A [`Durability`] as the configuration file names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
            set(field, value.map(Duration::from_secs));
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

/// The `[tls]` table, for TLS, QUIC and WebSocket over TLS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The certificate chain, PEM.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate, PEM.
    pub key: Option<PathBuf>,
    /// The policy of early data: `off`, `connect` or `full`, the default.
    pub early_data: Option<String>,
    /// The file that keeps tickets over a restart; see [`Settings::ticket_file`].
    pub ticket_file: Option<PathBuf>,
    /// See [`max_record_size`](mq_transport::ListenOptions::max_record_size).
    pub max_record_size: Option<u16>,
    /// The CAs that sign clients' certificates, PEM.
    pub client_ca: Option<PathBuf>,
    /// `required`, the default with a `client_ca`, or `optional`.
    pub client_certificate: Option<ClientCertificate>,
    /// Revocation lists for clients' certificates, PEM or DER; see
    /// [`client_crls`](mq_transport::ListenOptions::client_crls).
    pub client_crls: Vec<PathBuf>,
    /// See [`enforce_crl_expiry`](mq_transport::ListenOptions::enforce_crl_expiry).
    pub enforce_crl_expiry: bool,
}

/// The certificate that clients must or may show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCertificate {
    /// [`ClientAuth::Required`].
    Required,
    /// [`ClientAuth::Optional`].
    Optional,
}

impl TlsConfig {
    /// Returns the size of records, if one is set.
    pub(super) fn record_size(&self) -> Result<Option<u16>, String> {
        match self.max_record_size {
            Some(size) if !(512..=16_384).contains(&size) => {
                Err(format!("tls.max_record_size: {size} is not 512 to 16384"))
            }
            size => Ok(size),
        }
    }

    pub(super) fn client_auth(&self) -> Result<ClientAuth, String> {
        match (&self.client_ca, self.client_certificate) {
            (None, None) if self.client_crls.is_empty() => Ok(ClientAuth::Off),
            (None, None) => Err("tls.client_crls: there is no client_ca".to_owned()),
            (None, Some(_)) => Err("tls.client_certificate: there is no client_ca".to_owned()),
            (Some(ca), Some(ClientCertificate::Optional)) => Ok(ClientAuth::Optional(ca.clone())),
            (Some(ca), _) => Ok(ClientAuth::Required(ca.clone())),
        }
    }
}

/// The `[reload]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadConfig {
    /// `true` if replaced files of certificates, revocation lists, users and rules are reloaded
    /// without a signal.
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
pub struct WsConfig {
    /// Origins of the web pages that may connect; `["*"]` is all. Default: all, and where clients
    /// without a user are accepted, pages of the listener's own host
    /// ([`AllowedOrigins::SameHost`]).
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

/// The `[admin]` table; see [`AdminSettings`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Address and port of the HTTP listener.
    pub http: Option<SocketAddr>,
    /// The file of tokens for HTTP.
    pub token_file: Option<PathBuf>,
    /// `true` if programs of this machine read over HTTP without a token.
    pub open_on_loopback: bool,
    /// Host names by which HTTP is reached.
    pub hosts: Vec<String>,
    /// The path of the Unix socket.
    pub socket: Option<PathBuf>,
    /// Seconds between the broker's own figures under `$SYS/broker`; 0 is never. Default 10.
    pub sys_interval_s: Option<u64>,
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
        let every = Duration::from_secs(self.sys_interval_s.unwrap_or(10));
        settings.sys_interval = (!every.is_zero()).then_some(every);
    }
}

/// The `[log]` table. The library only writes to `tracing`; the program `mqbroker` applies the
/// table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// The format of a line.
    pub format: LogFormat,
    /// The level; `info` if absent.
    pub level: Option<String>,
    /// The levels of parts of the broker, by name.
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

/// The `[limits]` table. An absent key has the default of [`Settings`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Greatest number of connections at once.
    pub max_connections: Option<usize>,
    /// Greatest number of connections at once from one IPv4 address or one IPv6 network of 64 bits.
    pub connections_per_address: Option<usize>,
    /// Greatest number of handshakes in progress at once.
    pub max_handshakes: Option<usize>,
    /// Seconds that a handshake may take, and CONNECT after it.
    pub handshake_timeout_s: Option<u64>,
    /// The largest packet accepted, in bytes.
    pub max_packet_size: Option<NonZeroU32>,
    /// The largest packet taken from a client that is not accepted yet, in bytes: CONNECT with its
    /// will.
    pub max_connect_size: Option<NonZeroU32>,
    /// Greatest number of QoS 1 and 2 messages that a client may send before the first is acknowledged.
    pub receive_maximum: Option<NonZeroU16>,
    /// Greatest number of QoS 1 and 2 messages in flight to a client at once.
    pub max_inflight: Option<NonZeroU16>,
    /// Greatest number of topic aliases that a client may use.
    pub topic_alias_maximum: Option<u16>,
    /// The highest QoS that clients may publish at: 0, 1 or 2.
    pub maximum_qos: Option<u8>,
    /// The longest keep-alive, in seconds. 5.0 clients that want a longer one or none get this. 0
    /// is no limit.
    pub max_keep_alive_s: Option<u16>,
    /// `true` if strings may have control characters and Unicode noncharacters. Default `false`.
    pub allow_control_characters: bool,
    /// Messages that wait for one session in memory.
    pub mailbox_messages: Option<usize>,
    /// Payload bytes that wait for one session in memory.
    pub mailbox_bytes: Option<usize>,
    /// The policy for QoS 1 and 2 messages beyond these bounds; see [`Overflow`].
    pub overflow: Option<OverflowName>,
    /// Bytes of one session that may wait in the store.
    pub spill_bytes: Option<usize>,
    /// Bytes that wait for all sessions, retained messages included; see [`Quotas::memory`].
    pub memory: Option<usize>,
    /// Sessions at once, connected or not.
    pub sessions: Option<usize>,
    /// Subscriptions of one session.
    pub subscriptions: Option<usize>,
    /// Topics with a retained message.
    pub retained: Option<usize>,
    /// See [`Quotas::protocol_errors_per_minute`]; 0 is no limit.
    pub protocol_errors_per_minute: Option<u32>,
    /// Messages a second that each client may publish.
    pub publish_messages_per_s: Option<NonZeroU32>,
    /// Payload bytes a second that each client may publish.
    pub publish_bytes_per_s: Option<NonZeroU32>,
    /// Seconds that a reader may take nothing while a publisher waits for room in its full mailbox.
    /// 0 is no limit.
    pub reader_timeout_s: Option<u64>,
    /// Seconds that a session lives on without a connection, at the longest.
    pub session_expiry_s: Option<u64>,
    /// Seconds that connections have to end at shutdown.
    pub shutdown_timeout_s: Option<u64>,
}

/// The names of [`Overflow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverflowName {
    /// [`Overflow::Spill`].
    Spill,
    /// [`Overflow::Evict`].
    Evict,
    /// [`Overflow::DropOldest`].
    DropOldest,
    /// [`Overflow::Wait`].
    Wait,
}

impl From<OverflowName> for Overflow {
    fn from(name: OverflowName) -> Self {
        match name {
            OverflowName::Spill => Self::Spill,
            OverflowName::Evict => Self::Evict,
            OverflowName::DropOldest => Self::DropOldest,
            OverflowName::Wait => Self::Wait,
        }
    }
}
