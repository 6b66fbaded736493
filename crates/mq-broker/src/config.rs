//! The configuration file: TOML, checked once, then [`Settings`].

use std::{
    net::SocketAddr,
    num::{NonZeroU16, NonZeroU32},
    path::{Path, PathBuf},
    time::Duration,
};

use mq_codec::QoS;
use mq_transport::{Address, AllowedOrigins, ClientAuth, EarlyDataPolicy, ServerIdentity};
use serde::Deserialize;

#[cfg(doc)]
use crate::Quotas;
use crate::{
    AdminSettings, Durability, Error, Overflow, Settings, StoreFile,
    auth::{AccessFiles, CertificateUser, JwtSettings, TakeOver},
};

mod openness;

use openness::DEFAULT_LISTENERS;

/// The configuration file. Every key is optional and unknown keys are errors.
///
/// ```toml
/// listen = ["tcp://127.0.0.1:1883", "tls://0.0.0.0:8883", "quic://0.0.0.0:14567",
///           "ws://127.0.0.1:8083/mqtt", "wss://0.0.0.0:8084/mqtt"]
///                                 # tcp://127.0.0.1:1883 and quic://127.0.0.1:14567 if absent
///
/// [tls]
/// certificate = "server.pem"      # chain, PEM; if absent, mqbroker makes one for development
/// key = "server.key"
/// early_data = "full"             # off, connect or full
/// ticket_file = "/var/lib/mqbroker/tickets"  # carries tickets over a restart; none if absent
/// client_ca = "clients.pem"       # who signs clients' certificates; they are not asked for if absent
/// client_certificate = "required" # or optional
/// client_crls = ["revoked.pem"]   # revocation lists, PEM or DER
/// enforce_crl_expiry = false      # whether a list that is out of date refuses everybody
///
/// [reload]
/// watch = true                    # take replaced files of [tls]; SIGHUP does that and reads this file
///
/// [store]                         # nothing is kept if absent
/// path = "/var/lib/mqbroker/store"
/// durability = "always"           # interval or off: see Durability for what each may lose
/// interval_ms = 1000              # of interval
///
/// [ws]
/// allowed_origins = ["https://app.example"]  # of web pages; ["*"] is all. If absent: all, or pages of
///                                 # the listener's own host where clients without a user are let in
///
/// [admin]
/// http = "127.0.0.1:9883"         # /metrics, /healthz and /readyz; nowhere if absent
/// socket = "/run/mqbroker/admin.sock"  # the same, and backups
/// sys_interval_s = 10             # of the topics under $SYS/broker; 0 is never
///
/// [auth]                          # if absent, everybody gets in and may do everything, and no listener
///                                 # may be reached from other machines
/// password_file = "/etc/mqbroker/passwords"  # see `mqbroker passwd`
/// acl_file = "/etc/mqbroker/acl"  # what users may do; everything if absent
/// certificate_user = "cn"         # or san-dns, san-uri, san-email; not the user if absent
/// allow_anonymous = false         # whether clients that say nothing of themselves get in; if that is all
///                                 # of [auth], everybody does
/// take_over = "same-user"         # or any-user: who may take over a session by its client identifier
/// failures_per_minute = 10        # of log-ins from one address; 0 is no limit
///
/// [auth.jwt]                      # tokens are no passwords if absent
/// keys = "/etc/mqbroker/jwks.json"           # of who makes them; RFC 7517
/// issuer = "https://id.example"   # `iss`; anything if absent
/// audience = "mqtt"               # `aud`; only tokens without one if absent
/// user_claim = "sub"              # the user
/// client_id_claim = "client_id"   # has to be the client identifier; not looked at if absent
/// leeway_s = 5                    # between the clocks
/// disconnect_at_expiry = true     # whether the connection ends with the token
///
/// [limits]
/// max_packet_size = 1048576       # bytes
/// max_connect_size = 65536        # the same of CONNECT, with its will
/// mailbox_messages = 10000        # that wait for one session
/// mailbox_bytes = 16777216
/// overflow = "spill"              # evict, drop-oldest or wait; if absent, evict where there is no store
/// spill_bytes = 1073741824        # in the store, of one session
/// memory = 268435456              # bytes that wait for all sessions, and retained messages
/// connections_per_address = 200
/// publish_messages_per_s = 1000   # of each client; no bound if absent
/// session_expiry_s = 604800       # the longest life of a session without a connection
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// URLs to listen at. Default: loopback, by TCP and QUIC at their usual ports.
    pub listen: Vec<String>,
    /// Certificate and key, and early data.
    pub tls: TlsConfig,
    /// What outlives the broker.
    pub store: Option<StoreConfig>,
    /// Who may come over WebSocket.
    pub ws: WsConfig,
    /// Where operators are answered.
    pub admin: AdminConfig,
    /// What happens when files are replaced.
    pub reload: ReloadConfig,
    /// Who comes in, and what they may do.
    pub auth: Option<AuthConfig>,
    /// Bounds on what clients can use.
    pub limits: LimitsConfig,
}

/// The `[auth]` table; `docs/access.md` tells what its files look like.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// Users and the hashes of their passwords.
    pub password_file: Option<PathBuf>,
    /// What users may do; without it they may do everything.
    pub acl_file: Option<PathBuf>,
    /// Takes the user from the client's certificate; needs `tls.client_ca`.
    pub certificate_user: Option<CertificateUser>,
    /// Takes tokens as passwords.
    pub jwt: Option<JwtConfig>,
    /// Lets clients in that bring neither user name nor password nor certificate; with nothing that
    /// tells users apart and no rules, everybody, whatever they bring. Default no.
    pub allow_anonymous: bool,
    /// See [`Settings::take_over`].
    pub take_over: TakeOver,
    /// See [`Settings::failures_per_minute`]; 0 is no limit.
    pub failures_per_minute: Option<u32>,
}

/// The `[auth.jwt]` table; see [`JwtSettings`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    /// The public keys of who makes the tokens.
    pub keys: PathBuf,
    /// Who makes them.
    pub issuer: Option<String>,
    /// Who they are for.
    pub audience: Option<String>,
    /// The claim that is the user; `sub` if absent.
    pub user_claim: Option<String>,
    /// The claim that is the client identifier.
    pub client_id_claim: Option<String>,
    /// Seconds that the clocks may differ; 5 if absent.
    pub leeway_s: Option<u64>,
    /// Whether the connection ends with the token; it does if absent.
    pub disconnect_at_expiry: Option<bool>,
}

impl JwtConfig {
    /// What a clock that is set by anybody at all is never wrong by.
    const LONGEST_LEEWAY_S: u64 = 300;

    fn into_settings(self) -> Result<JwtSettings, String> {
        if cfg!(not(feature = "jwt")) {
            return Err(
                "auth.jwt: this build takes no tokens: its feature `jwt` is off".to_owned(),
            );
        }
        let mut settings = JwtSettings::new(self.keys);
        settings.issuer = self.issuer;
        settings.audience = self.audience;
        set(&mut settings.user_claim, self.user_claim);
        settings.client_id_claim = self.client_id_claim;
        if let Some(seconds) = self.leeway_s {
            if seconds > Self::LONGEST_LEEWAY_S {
                return Err(format!(
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
        Ok(settings)
    }
}

impl AuthConfig {
    fn apply(self, settings: &mut Settings) -> Result<(), String> {
        if self.certificate_user.is_some() && settings.listen.client_auth == ClientAuth::Off {
            return Err("auth.certificate_user: give tls.client_ca as well".to_owned());
        }
        let files = AccessFiles {
            password_file: self.password_file,
            acl_file: self.acl_file,
            certificate_user: self.certificate_user,
            jwt: self.jwt.map(JwtConfig::into_settings).transpose()?,
            allow_anonymous: self.allow_anonymous,
        };
        if files.password_file.is_none()
            && files.certificate_user.is_none()
            && files.jwt.is_none()
            && !files.allow_anonymous
        {
            return Err(
                "auth: nobody could log in: give password_file, certificate_user, the table jwt \
                 or `allow_anonymous = true`"
                    .to_owned(),
            );
        }
        // With neither users nor rules there is nothing to ask anybody.
        let is_open = files.password_file.is_none()
            && files.certificate_user.is_none()
            && files.jwt.is_none()
            && files.acl_file.is_none();
        settings.access_files = (!is_open).then_some(files);
        settings.take_over = self.take_over;
        if let Some(count) = self.failures_per_minute {
            settings.failures_per_minute = NonZeroU32::new(count);
        }
        Ok(())
    }
}

/// The `[store]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// The file.
    pub path: PathBuf,
    /// `always`, the default, `interval` or `off`; see [`Durability`].
    #[serde(default)]
    pub durability: DurabilityName,
    /// Milliseconds, for `interval` alone; 1000 unless given: about what a disk's own cache holds back.
    pub interval_ms: Option<u64>,
}

/// The names of [`Durability`].
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
    fn into_file(self) -> Result<StoreFile, String> {
        let durability = match (self.durability, self.interval_ms) {
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
        };
        Ok(StoreFile {
            path: self.path,
            durability,
        })
    }
}

/// The `[tls]` table; it holds for TLS, QUIC and WebSocket over TLS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The certificate chain, PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// `off`, `connect` or `full`, the default.
    pub early_data: Option<String>,
    /// Carries tickets over a restart; see [`Settings::ticket_file`].
    pub ticket_file: Option<PathBuf>,
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

/// Whether clients must have a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCertificate {
    /// [`ClientAuth::Required`].
    Required,
    /// [`ClientAuth::Optional`].
    Optional,
}

impl TlsConfig {
    fn client_auth(&self) -> Result<ClientAuth, String> {
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
    /// Whether files of certificates, revocation lists, users and rules that were replaced are taken
    /// without a signal.
    pub watch: bool,
}

impl Default for ReloadConfig {
    fn default() -> Self {
        Self { watch: true }
    }
}

/// The `[ws]` table; it holds for WebSocket over TCP and over TLS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WsConfig {
    /// Origins of the web pages that are let in; `["*"]` is all. Default: all, and where clients without
    /// a user are let in, pages of the listener's own host ([`AllowedOrigins::SameHost`]).
    pub allowed_origins: Option<Vec<String>>,
}

impl WsConfig {
    fn origins(self, settings: &Settings) -> AllowedOrigins {
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
    /// Address and port of HTTP.
    pub http: Option<SocketAddr>,
    /// A Unix socket.
    pub socket: Option<PathBuf>,
    /// Seconds between what the broker tells of itself under `$SYS/broker`; 0 is never. Default 10.
    pub sys_interval_s: Option<u64>,
}

/// The `[limits]` table; what is absent has the default of [`Settings`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Connections at once.
    pub max_connections: Option<usize>,
    /// Connections at once from one IPv4 address or one IPv6 network of 64 bits.
    pub connections_per_address: Option<usize>,
    /// Handshakes at once.
    pub max_handshakes: Option<usize>,
    /// Seconds that a handshake may take, and then CONNECT.
    pub handshake_timeout_s: Option<u64>,
    /// The largest packet taken, in bytes.
    pub max_packet_size: Option<NonZeroU32>,
    /// The largest packet taken of a client that was not let in yet, in bytes: CONNECT with its will.
    pub max_connect_size: Option<NonZeroU32>,
    /// QoS 1 and 2 messages that a client may send before the first is acknowledged.
    pub receive_maximum: Option<NonZeroU16>,
    /// QoS 1 and 2 messages on their way to a client at once.
    pub max_inflight: Option<NonZeroU16>,
    /// Topic aliases that a client may use.
    pub topic_alias_maximum: Option<u16>,
    /// The highest QoS that clients may publish at: 0, 1 or 2.
    pub maximum_qos: Option<u8>,
    /// The longest keep-alive, in seconds: 5.0 clients that want a longer one or none get this. 0
    /// is no limit.
    pub max_keep_alive_s: Option<u16>,
    /// Whether strings may have control characters and Unicode noncharacters. Default no.
    pub allow_control_characters: bool,
    /// Messages that wait for one session.
    pub mailbox_messages: Option<usize>,
    /// Payload bytes that wait for one session.
    pub mailbox_bytes: Option<usize>,
    /// What becomes of QoS 1 and 2 messages beyond that; see [`Overflow`].
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
    /// Messages a second that each client may publish.
    pub publish_messages_per_s: Option<NonZeroU32>,
    /// Payload bytes a second that each client may publish.
    pub publish_bytes_per_s: Option<NonZeroU32>,
    /// Seconds that a reader may take nothing while somebody waits for room in its full mailbox; 0
    /// is as long as it likes.
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

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is not valid; the message names the line and the key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::ReadConfig {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| {
                text[..span.start.min(text.len())].matches('\n').count() + 1
            });
            Error::Config {
                path: path.to_owned(),
                problem: format!("line {line}: {}", error.message().replace('\n', ", ")),
            }
        })
    }

    /// Checks the values and reads the certificate and its key; `path` is named in errors.
    ///
    /// # Errors
    /// [`Error::Config`] if a value is not allowed, [`Error::Transport`] if a file cannot be read.
    pub fn into_settings(self, path: &Path) -> Result<Settings, Error> {
        let wrong = |problem: String| Error::Config {
            path: path.to_owned(),
            problem,
        };
        let default = DEFAULT_LISTENERS.map(str::to_owned);
        let listen = match &self.listen[..] {
            [] => &default[..],
            listen => listen,
        };
        let listeners = listen
            .iter()
            .map(|url| {
                url.parse::<Address>()
                    .map_err(|error| wrong(format!("listen: {error}")))
            })
            .collect::<Result<_, _>>()?;
        let mut settings = Settings::new(listeners);
        settings.listen.client_auth = self.tls.client_auth().map_err(wrong)?;
        settings.listen.client_crls = self.tls.client_crls;
        settings.listen.enforce_crl_expiry = self.tls.enforce_crl_expiry;
        settings.watch_files = self.reload.watch;
        settings.set_identity(self.tls.certificate, self.tls.key, path)?;
        if let Some(text) = self.tls.early_data {
            settings.early_data = text
                .parse::<EarlyDataPolicy>()
                .map_err(|error| wrong(format!("tls.early_data: {error}")))?;
        }
        settings.ticket_file = self.tls.ticket_file;
        let store = self.store.map(StoreConfig::into_file);
        settings.store_file = store.transpose().map_err(wrong)?;
        settings.admin = AdminSettings {
            http: self.admin.http,
            socket: self.admin.socket,
        };
        let every = Duration::from_secs(self.admin.sys_interval_s.unwrap_or(10));
        settings.sys_interval = (!every.is_zero()).then_some(every);
        let allow_anonymous = self.auth.as_ref().is_some_and(|auth| auth.allow_anonymous);
        if let Some(auth) = self.auth {
            auth.apply(&mut settings).map_err(wrong)?;
        }
        if !allow_anonymous && let Some(at) = settings.open_to_others() {
            return Err(wrong(format!(
                "listen: other machines reach {at}, and everybody would be let in: name users in \
                 [auth], or allow it by `allow_anonymous = true` there or by --allow-anonymous"
            )));
        }
        settings.listen.allowed_origins = self.ws.origins(&settings);
        let limits = self.limits;
        let protocol = &mut settings.protocol;
        set(&mut protocol.max_packet_size, limits.max_packet_size);
        set(&mut protocol.max_connect_size, limits.max_connect_size);
        set(&mut protocol.receive_maximum, limits.receive_maximum);
        set(&mut protocol.max_inflight, limits.max_inflight);
        set(
            &mut protocol.topic_alias_maximum,
            limits.topic_alias_maximum,
        );
        if let Some(qos) = limits.maximum_qos {
            protocol.maximum_qos = QoS::from_bits(qos)
                .ok_or_else(|| wrong(format!("limits.maximum_qos: {qos} is not 0, 1 or 2")))?;
        }
        protocol.allow_control_characters = limits.allow_control_characters;
        protocol.max_keep_alive = limits.max_keep_alive_s.filter(|seconds| *seconds > 0);
        set(&mut settings.max_connections, limits.max_connections);
        set(&mut settings.max_handshakes, limits.max_handshakes);
        set(
            &mut settings.max_connections_per_address,
            limits.connections_per_address,
        );
        let quotas = &mut settings.quotas;
        set(&mut quotas.mailbox.messages, limits.mailbox_messages);
        set(&mut quotas.mailbox.bytes, limits.mailbox_bytes);
        quotas.overflow = limits.overflow.map(Overflow::from);
        if quotas.overflow == Some(Overflow::Spill) && settings.store_file.is_none() {
            let problem =
                "limits.overflow: \"spill\" needs a store: give [store] or another policy";
            return Err(wrong(problem.to_owned()));
        }
        set(&mut quotas.spill_bytes, limits.spill_bytes);
        set(&mut quotas.memory, limits.memory);
        set(&mut quotas.sessions, limits.sessions);
        set(&mut quotas.subscriptions, limits.subscriptions);
        set(&mut quotas.retained, limits.retained);
        let rate = &mut settings.publish_rate;
        rate.messages = limits.publish_messages_per_s.map(NonZeroU32::get);
        rate.bytes = limits.publish_bytes_per_s.map(NonZeroU32::get);
        if let Some(seconds) = limits.reader_timeout_s {
            let timeout = Duration::from_secs(seconds);
            settings.reader_timeout = (!timeout.is_zero()).then_some(timeout);
        }
        if let Some(seconds) = limits.handshake_timeout_s {
            settings.handshake_timeout = Duration::from_secs(seconds);
            settings.protocol.connect_timeout = settings.handshake_timeout;
        }
        settings.max_session_expiry = limits.session_expiry_s.map(Duration::from_secs);
        if let Some(seconds) = limits.shutdown_timeout_s {
            settings.shutdown_timeout = Duration::from_secs(seconds);
        }
        Ok(settings)
    }
}

impl Settings {
    /// Reads certificate and key, PEM files both; with `None` for both nothing changes.
    ///
    /// # Errors
    /// [`Error::Config`], which names `source`, if only one of them is given; [`Error::Transport`]
    /// if they cannot be read.
    pub fn set_identity(
        &mut self,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        source: &Path,
    ) -> Result<(), Error> {
        match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let identity = ServerIdentity::from_pem_files(&certificate, &key)?;
                self.listen.identity = Some(identity);
                Ok(())
            }
            (None, None) => Ok(()),
            (Some(_), None) => Err(half(source, "a certificate without its key")),
            (None, Some(_)) => Err(half(source, "a key without its certificate")),
        }
    }
}

fn half(path: &Path, problem: &str) -> Error {
    Error::Config {
        path: path.to_owned(),
        problem: format!("{problem}: give both or neither"),
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Config::read(file.path())
            .and_then(|config| config.into_settings(file.path()))
            .map_err(|error| {
                error
                    .to_string()
                    .replace(&*file.path().to_string_lossy(), "FILE")
            })
    }

    #[test]
    fn values_reach_the_settings() {
        let settings = read(
            "listen = [\"tcp://127.0.0.1:1\"]\n[tls]\nearly_data = \"off\"\n\
             ticket_file = \"t\"\n[ws]\nallowed_origins = [\"https://a\"]\n[admin]\nsocket = \"s\"\n[limits]\nmax_packet_size = 77\nmax_connect_size = 66\nmaximum_qos = 1\nallow_control_characters = true\nsession_expiry_s = 5\n\
             overflow = \"drop-oldest\"\nspill_bytes = 3\nmemory = 9\npublish_bytes_per_s = 8\nreader_timeout_s = 0\nconnections_per_address = 7\n",
        )
        .unwrap();
        assert_eq!(settings.listeners[0].port, 1);
        assert_eq!(settings.early_data, EarlyDataPolicy::Off);
        assert_eq!(settings.ticket_file, Some("t".into()));
        let listed = AllowedOrigins::Listed(vec!["https://a".to_owned()]);
        assert_eq!(settings.listen.allowed_origins, listed);
        assert_eq!(settings.admin.socket, Some("s".into()));
        assert_eq!(settings.protocol.max_packet_size.get(), 77);
        assert_eq!(settings.protocol.max_connect_size.get(), 66);
        assert_eq!(settings.protocol.maximum_qos, QoS::AtLeastOnce);
        assert!(settings.protocol.allow_control_characters);
        assert_eq!(settings.max_session_expiry, Some(Duration::from_secs(5)));
        assert_eq!(settings.quotas.overflow, Some(Overflow::DropOldest));
        assert_eq!(settings.quotas.spill_bytes, 3);
        assert_eq!(settings.quotas.memory, 9);
        assert_eq!(settings.publish_rate.bytes, Some(8));
        assert_eq!(settings.reader_timeout, None);
        assert_eq!(settings.max_connections_per_address, 7);
    }

    #[test]
    fn a_broker_that_is_not_told_where_listens_on_loopback() {
        let settings = read("").unwrap();
        let at: Vec<_> = settings.listeners.iter().map(Address::to_string).collect();
        assert_eq!(at, ["mqtt://127.0.0.1:1883", "quic://127.0.0.1:14567"]);
    }

    #[test]
    fn other_machines_get_in_without_a_user_only_where_that_is_allowed() {
        let at = |listen: &str, rest: &str| read(&format!("listen = [{listen}]\n{rest}"));
        let (local, far) = (
            "\"tcp://localhost\", \"tls://[::1]\"",
            "\"tls://192.0.2.1\"",
        );
        let both = &format!("{local}, {far}");
        let users = "[auth]\npassword_file = \"p\"\n";
        let certificates = "[tls]\nclient_ca = \"ca\"\n";
        let optional = "[tls]\nclient_ca = \"ca\"\nclient_certificate = \"optional\"\n";
        for (listen, rest, starts) in [
            (local, "", true),
            (far, "", false),
            (both, "", false),
            (far, users, true),
            (far, "[auth]\nallow_anonymous = true\n", true),
            (far, certificates, true),
            ("\"tcp://192.0.2.1\"", certificates, false),
            (far, optional, false),
        ] {
            let read = at(listen, rest);
            assert_eq!(read.is_ok(), starts, "{listen} {rest}: {read:?}");
            if let Err(error) = read {
                assert!(error.contains("//192.0.2.1"), "{error}");
                assert!(error.contains("`allow_anonymous = true`"), "{error}");
                assert_eq!(error.lines().count(), 1, "{error}");
            }
        }
    }

    #[test]
    fn pages_of_other_hosts_are_kept_out_where_no_user_is_needed() {
        let users = "[auth]\npassword_file = \"p\"\n";
        let also = "[auth]\npassword_file = \"p\"\nallow_anonymous = true\n";
        let anybody = "[auth]\nallow_anonymous = true\n";
        let all = "[ws]\nallowed_origins = [\"*\"]\n";
        for (text, origins) in [
            ("", AllowedOrigins::SameHost),
            (anybody, AllowedOrigins::SameHost),
            (also, AllowedOrigins::SameHost),
            (users, AllowedOrigins::All),
            (all, AllowedOrigins::All),
            (
                "[ws]\nallowed_origins = []\n",
                AllowedOrigins::Listed(Vec::new()),
            ),
        ] {
            assert_eq!(
                read(text).unwrap().listen.allowed_origins,
                origins,
                "{text}"
            );
        }
    }

    #[test]
    fn clients_certificates_are_required_where_there_is_a_ca() {
        let settings =
            read("[tls]\nclient_ca = \"ca\"\nclient_crls = [\"crl\"]\n[reload]\nwatch = false\n")
                .unwrap();
        assert_eq!(
            settings.listen.client_auth,
            ClientAuth::Required("ca".into())
        );
        assert_eq!(settings.listen.client_crls, [PathBuf::from("crl")]);
        assert!(!settings.watch_files);
        let optional = "[tls]\nclient_ca = \"ca\"\nclient_certificate = \"optional\"\n";
        let settings = read(optional).unwrap();
        assert_eq!(
            settings.listen.client_auth,
            ClientAuth::Optional("ca".into())
        );
        assert!(settings.watch_files);
    }

    #[test]
    fn a_store_has_a_durability() {
        for (text, durability) in [
            ("", Durability::Always),
            ("durability = \"off\"", Durability::Off),
            (
                "durability = \"interval\"\ninterval_ms = 5",
                Durability::Interval(Duration::from_millis(5)),
            ),
        ] {
            let settings = read(&format!("[store]\npath = \"s\"\n{text}\n")).unwrap();
            let path = PathBuf::from("s");
            assert_eq!(settings.store_file, Some(StoreFile { path, durability }));
        }
    }

    #[test]
    fn who_comes_in_is_told_by_one_table() {
        let settings = read(
            "[tls]\nclient_ca = \"c\"\n[auth]\npassword_file = \"p\"\nacl_file = \"a\"\n\
             certificate_user = \"san-uri\"\nallow_anonymous = true\nfailures_per_minute = 0\n",
        )
        .unwrap();
        let files = settings.access_files.unwrap();
        assert_eq!(files.password_file, Some("p".into()));
        assert_eq!(files.acl_file, Some("a".into()));
        assert_eq!(files.certificate_user, Some(CertificateUser::SanUri));
        assert!(files.allow_anonymous);
        assert_eq!(settings.failures_per_minute, None);
        let settings = read("").unwrap();
        assert_eq!(settings.access_files, None);
        assert_eq!(settings.failures_per_minute, NonZeroU32::new(10));
    }

    #[cfg(feature = "jwt")]
    #[test]
    fn tokens_have_a_table_of_their_own() {
        let read = |text: &str| read(text).unwrap().access_files.unwrap().jwt.unwrap();
        let default = JwtSettings::new("k".into());
        assert_eq!(read("[auth.jwt]\nkeys = \"k\"\n"), default);
        let mut all = default;
        all.issuer = Some("i".to_owned());
        all.audience = Some("a".to_owned());
        all.user_claim = "name".to_owned();
        all.client_id_claim = Some("device".to_owned());
        all.leeway = Duration::ZERO;
        all.disconnect_at_expiry = false;
        let text = "[auth.jwt]\nkeys = \"k\"\nissuer = \"i\"\naudience = \"a\"\n\
                    user_claim = \"name\"\nclient_id_claim = \"device\"\nleeway_s = 0\n\
                    disconnect_at_expiry = false\n";
        assert_eq!(read(text), all);
    }

    #[cfg(not(feature = "jwt"))]
    #[test]
    fn tokens_are_refused_in_a_build_without_them() {
        let error = read("[auth.jwt]\nkeys = \"k\"\n").unwrap_err();
        assert!(
            error.contains("auth.jwt: this build takes no tokens"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }

    #[test]
    fn mistakes_are_named_with_line_and_key() {
        for (text, part) in [
            ("[auth]\n", "auth: nobody could log in"),
            ("[auth]\ncertificate_user = \"cn\"\n", "give tls.client_ca"),
            (
                "[auth]\ncertificate_user = \"ou\"\n",
                "line 2: unknown variant `ou`",
            ),
            ("[auth.jwt]\n", "missing field `keys`"),
            #[cfg(feature = "jwt")]
            (
                "[auth.jwt]\nkeys = \"k\"\nleeway_s = 301\n",
                "auth.jwt.leeway_s: 301 is more than 300",
            ),
            ("[store]\n", "missing field `path`"),
            (
                "[store]\npath = \"s\"\ninterval_ms = 5\n",
                "store.interval_ms: only",
            ),
            (
                "[store]\npath = \"s\"\ndurability = \"never\"\n",
                "line 3: unknown variant `never`",
            ),
            ("\n\nlissen = []\n", "FILE: line 3: unknown field `lissen`"),
            (
                "[limits]\nmaximum_qos = 3\n",
                "limits.maximum_qos: 3 is not 0, 1 or 2",
            ),
            ("[limits]\nmax_packet_size = 0\n", "FILE: line 2:"),
            ("[limits]\noverflow = \"spill\"\n", "needs a store"),
            (
                "[limits]\noverflow = \"drop\"\n",
                "line 2: unknown variant `drop`",
            ),
            ("[tls]\nkey = \"k\"\n", "a key without its certificate"),
            (
                "[tls]\nclient_crls = [\"crl\"]\n",
                "tls.client_crls: there is no client_ca",
            ),
            ("listen = [\"http://x\"]\n", "listen:"),
            (
                "\n[ws]\npath = \"/\"\n",
                "FILE: line 3: unknown field `path`",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
