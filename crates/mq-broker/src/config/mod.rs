//! The configuration file: TOML, checked once, then [`Settings`].

use std::{
    mem,
    path::{Path, PathBuf},
    time::Duration,
};

use mq_transport::{Address, ServerIdentity};
use serde::Deserialize;

use crate::{Error, Settings, files};

mod auth;
mod bridge;
mod cluster;
mod limits;
mod listener;
mod open_access;
mod tables;
mod tls;

pub use auth::{AuthConfig, JwtConfig};
pub use bridge::{BridgeConfig, QueueConfig, Start, TopicConfig};
pub use cluster::ClusterConfig;
pub use limits::{LimitsConfig, OverflowName};
use limits::{NO_MESSAGE, no_store};
pub use listener::{ListenerConfig, ProxyUse};
use open_access::DEFAULT_LISTENERS;
pub use tables::{
    AdminConfig, DurabilityName, LogConfig, LogFormat, QuicConfig, ReloadConfig, StoreConfig,
    TcpConfig, WsConfig,
};
pub use tls::{ClientCertificate, TlsConfig};

/// The configuration file. Every key is optional and unknown keys are errors.
///
/// ```toml
/// listen = ["tcp://127.0.0.1:1883", "tls://0.0.0.0:8883", "quic://0.0.0.0:14567",
///           "ws://127.0.0.1:8083/mqtt", "wss://0.0.0.0:8084/mqtt"]
///                                 # tcp://127.0.0.1:1883 and quic://127.0.0.1:14567 if absent
///
/// [[listener]]                    # one more, with keys of its own; any number of these
/// url = "tcp://0.0.0.0:1884"
/// proxy_protocol = "required"     # or optional: takes clients' addresses from PROXY headers
/// trusted_proxies = ["192.0.2.7", "10.0.0.0/8"]  # those whose headers are believed
///
/// [tls]
/// certificate = "server.pem"      # chain, PEM; if absent, mqbroker makes one for development
/// key = "server.key"
/// early_data = "full"             # off, connect or full
/// ticket_file = "/var/lib/mqbroker/tickets"  # carries tickets over a restart; none if absent
/// max_record_size = 16384         # bytes of data in a TLS record
/// groups = ["x25519", "secp256r1"]  # of the key exchange, the preferred one first
/// client_ca = "clients.pem"       # authorities of clients' certificates; none are asked for if absent
/// client_certificate = "required" # or optional
/// client_crls = ["revoked.pem"]   # revocation lists, PEM or DER
/// enforce_crl_expiry = false      # whether an outdated list refuses every client
///
/// [quic]
/// repeat = "off"                  # auto, probe, or a gap such as "3ms": see mq_transport::Repeat
/// repeat_at = { "quic://0.0.0.0:14567" = "auto" }  # of single listeners
/// initial_rtt_ms = 333            # assumed until it is measured
/// max_ack_delay_ms = 25           # asked of clients; their own if absent
/// initial_window = 10             # packets before the first acknowledgement
/// packet_threshold = 3            # later packets after which one counts as lost
/// time_threshold = 1.125          # round trips after which a packet counts as lost
/// mtu_discovery = false           # probes each client's path for packets above 1,200 bytes
/// max_streams = 64                # of each kind, for a client
/// stream_idle_timeout_s = 0       # closes data streams on which nothing came for so long; 0 is never
///
/// [tcp]
/// fast_open = false               # takes first bytes with the SYN, where net.ipv4.tcp_fastopen is 3
///
/// [log]
/// format = "text"                 # or json
/// level = "info"                  # off, error, warn, info, debug or trace
/// levels = { store = "debug" }    # of access, admin, cluster, connections, quic, refusals, sessions, store,
///                                 # tls, transport, or of a module such as "mq_broker::conn"
///
/// [reload]
/// watch = true                    # take replaced files of [tls]; SIGHUP does so and reads this file
///
/// [store]                         # nothing is kept if absent
/// path = "/var/lib/mqbroker/store"
/// durability = "always"           # interval or off: see Durability for what each may lose
/// interval_ms = 1000              # of interval
/// not_ready_after_s = 5           # /readyz answers 503 while a change waits for the disk for longer
/// unhealthy_after_s = 60          # and /healthz, so that a supervisor starts the broker again
///
/// [ws]
/// allowed_origins = ["https://app.example"]  # of web pages; ["*"] is all. If absent: all, or pages of
///                                 # the listener's own host where clients without a user are accepted
///
/// [admin]
/// http = "127.0.0.1:9883"         # metrics, health, a page and an API; nowhere if absent
/// token_file = "/etc/mqbroker/tokens"  # of operators; see `mqbroker token`. If absent, HTTP has metrics and
///                                 # health alone
/// open_on_loopback = false        # whether programs of this machine read over HTTP without a token; not where a
///                                 # proxy runs on this machine
/// hosts = ["broker.example"]      # names of it in URLs, besides localhost and addresses
/// socket = "/run/mqbroker/admin.sock"  # the same, and backups
/// sys_interval_s = 10             # of the topics under $SYS/broker; 0 is never
///
/// [auth]                          # if absent, every client is accepted and may do everything, and no
///                                 # listener may be reached from other machines
/// password_file = "/etc/mqbroker/passwords"  # see `mqbroker passwd`
/// acl_file = "/etc/mqbroker/acl"  # what users may do; everything if absent
/// certificate_user = "cn"         # or san-dns, san-uri, san-email; not the user if absent
/// allow_anonymous = false         # accepts clients without user and certificate; as the only
///                                 # key of [auth] it accepts every client
/// take_over = "same-user"         # or any-user: which users may take over a session by its client identifier
/// failures_per_minute = 10        # of log-ins from one address; 0 is no limit
///
/// [auth.jwt]                      # tokens are no passwords if absent
/// keys = "/etc/mqbroker/jwks.json"           # of their issuer; RFC 7517
/// issuer = "https://id.example"   # `iss`; anything if absent
/// audience = "mqtt"               # `aud`; only tokens without one if absent
/// user_claim = "sub"              # the user
/// client_id_claim = "client_id"   # has to be the client identifier; not looked at if absent
/// leeway_s = 5                    # between the clocks
/// disconnect_at_expiry = true     # whether the connection ends with the token
///
/// [limits]
/// max_packet_size = 1048576       # bytes
/// max_connect_size = 65536        # of CONNECT, with its will, in bytes
/// mailbox_messages = 10000        # waiting for one session
/// mailbox_bytes = 16777216
/// overflow = "spill"              # evict, drop-oldest or wait; if absent, evict where there is no store
/// spill_bytes = 1073741824        # in the store, of one session
/// memory = 268435456              # bytes waiting for all sessions, and retained messages
/// connections_per_address = 200
/// publish_messages_per_s = 1000   # of each client; no bound if absent
/// session_expiry_s = 604800       # the longest life of a session without a connection
///
/// [cluster]                       # a node of a cluster on NATS; none if absent. Not with [store]
/// node = "a"                      # no other node has this name
/// name = "mq"                     # of the cluster
/// servers = ["tls://nats-1.example:4222", "tls://nats-2.example:4222"]  # all of them
/// plaintext = false               # whether nats:// may lead to other machines
/// user = "mq"                     # at the NATS servers
/// password_file = "/etc/mqbroker/nats.password"
/// ca = "nats.pem"                 # authorities to believe; the system's if absent
/// certificate = "node.pem"        # of this node
/// key = "node.key"
/// shards = 8                      # logs of messages; cannot be changed later
/// replicas = 3                    # servers that have each message
/// create_streams = true           # whether a node that finds no streams begins a new cluster
/// log_max_bytes = 10000000000     # of one log; the oldest messages are forgotten then
/// lease_s = 3                     # a node that is silent for so long counts as dead
///
/// [[bridge]]                      # a remote broker; any number of these
/// name = "cloud"
/// address = ["quic://cloud.example", "tls://cloud.example"]  # the preferred one first
/// plaintext = false               # whether tcp:// and ws:// may lead to other machines
/// client_id = "edge-7"            # at the remote broker; bridge-NAME-xxxxxxxxxxxx if absent
/// user_name = "edge"
/// password_file = "/etc/mqbroker/cloud.password"  # or a token; nothing else is in it
/// ca = "cloud.pem"                # authorities to believe; the system's if absent
/// server_name = "cloud.example"   # in the certificate; that of the address if absent
/// certificate = "edge.pem"        # of this broker
/// key = "edge.key"
/// early_data = true               # sends CONNECT in the first flight (0-RTT)
/// mqtt = "5.0"                    # 3.1.1 or 3.1
/// keep_alive_s = 60
/// connect_timeout_s = 10          # of each address
/// reconnect_max_s = 30            # the longest wait before it connects again
/// clean = false                   # ends the sessions with the connection
/// start = "automatic"             # or lazy: while messages wait
/// max_hops = 8                    # bridges that a message may have passed
/// equal_per_s = 20                # more equal messages a second are a loop
///
/// [bridge.queue]                  # bounds of the messages that wait; if absent, as for every session
/// messages = 10000
/// age_s = 86400                   # a message that has waited for longer is dropped
///
/// [[bridge.topic]]                # at least one
/// pattern = "sensors/#"
/// direction = "out"               # in or both
/// qos = 1                         # the highest
/// local_prefix = ""
/// remote_prefix = "edge-7/"
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Config {
    /// URLs to listen at. Default: loopback, by TCP and QUIC at their usual ports.
    pub listen: Vec<String>,
    /// Further listeners, with keys of their own.
    pub listener: Vec<ListenerConfig>,
    /// Certificate and key, and early data.
    pub tls: TlsConfig,
    /// Loss recovery, streams and other options of QUIC.
    pub quic: QuicConfig,
    /// Options of TCP.
    pub tcp: TcpConfig,
    /// The store of everything that survives a restart.
    pub store: Option<StoreConfig>,
    /// Origins of the web pages that may connect over WebSocket.
    pub ws: WsConfig,
    /// The admin interface.
    pub admin: AdminConfig,
    /// Levels and format of the log.
    pub log: LogConfig,
    /// The reload of replaced files.
    pub reload: ReloadConfig,
    /// Authentication and authorization of clients.
    pub auth: Option<AuthConfig>,
    /// Bounds on what clients can use.
    pub limits: LimitsConfig,
    /// Remote brokers that this one is a client of.
    pub bridge: Vec<BridgeConfig>,
    /// The cluster that this broker is a node of.
    pub cluster: Option<ClusterConfig>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is not valid; the message names the line and the key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = files::read_text(path).map_err(|source| Error::ReadConfig {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|error| mistake(path, &text, &error))
    }

    /// Reads a file, and returns every mistake of its form: keys that are not known, and values of
    /// another type. Each mistake names its line.
    ///
    /// # Errors
    /// The mistakes; at least one.
    pub fn read_all(path: &Path) -> Result<Self, Vec<Error>> {
        let mut text = files::read_text(path).map_err(|source| {
            vec![Error::ReadConfig {
                path: path.to_owned(),
                source,
            }]
        })?;
        let mut mistakes = Vec::new();
        loop {
            let error = match toml::from_str(&text) {
                Ok(config) if mistakes.is_empty() => return Ok(config),
                Ok(_) => return Err(mistakes),
                Err(error) => error,
            };
            let start = error.span().map(|span| span.start.min(text.len()));
            // The next mistake is found with this one removed; one that follows from the removal
            // would not be the user's.
            let is_toml = text.parse::<toml::Table>().is_ok();
            let rest = start.filter(|_| is_toml).and_then(|at| without(&text, at));
            if mistakes.is_empty() || is_toml {
                mistakes.push(mistake(path, &text, &error));
            }
            match rest {
                Some(rest) if mistakes.len() < MOST_MISTAKES => text = rest,
                _ => return Err(mistakes),
            }
        }
    }

    /// Checks the values and reads the certificate and its key; `path` is named in errors.
    ///
    /// # Errors
    /// [`Error::Config`] if a value is not allowed, [`Error::Transport`] if a file cannot be read; the first mistake of
    /// [`into_settings_all`](Self::into_settings_all).
    pub fn into_settings(self, path: &Path) -> Result<Settings, Error> {
        let settings = self.into_settings_all(path);
        settings.map_err(|mut mistakes| mistakes.swap_remove(0))
    }

    /// Checks the values and reads the certificate and its key, and returns every mistake. `path` is named in errors.
    ///
    /// # Errors
    /// The mistakes, as of [`into_settings`](Self::into_settings); at least one.
    pub fn into_settings_all(self, path: &Path) -> Result<Settings, Vec<Error>> {
        let mut mistakes = Mistakes::of(path);
        let settings = self.check_values(path, &mut mistakes);
        if mistakes.all.is_empty() {
            Ok(settings)
        } else {
            Err(mistakes.all)
        }
    }

    /// Converts the file to settings, and notes each value that is not allowed.
    fn check_values(self, path: &Path, mistakes: &mut Mistakes) -> Settings {
        let mut settings = Settings::new(Vec::new());
        settings.listeners = listeners(&self.listen, !self.listener.is_empty(), mistakes);
        for listener in self.listener {
            listener.apply(&mut settings, mistakes);
        }
        self.tls.apply(&mut settings, path, mistakes);
        settings.watch_files = self.reload.watch;
        self.quic.apply(&mut settings, mistakes);
        settings.listen.socket.tcp_fast_open = self.tcp.fast_open;
        if let Some(store) = self.store {
            store.apply(&mut settings, mistakes);
        }
        if let Some(cluster) = self.cluster {
            cluster.apply(&mut settings, mistakes);
        }
        self.admin.apply(&mut settings);
        let allow_anonymous = self.auth.as_ref().is_some_and(|auth| auth.allow_anonymous);
        let before = mistakes.all.len();
        if let Some(auth) = self.auth {
            auth.apply(&mut settings, mistakes);
        }
        let is_auth_wrong = mistakes.all.len() > before;
        if !allow_anonymous
            && !is_auth_wrong
            && let Some(at) = settings.open_to_others()
        {
            mistakes.push(format!(
                "listen: other machines reach {at}, and every client would be let in: name users in \
                 [auth], or allow it by `allow_anonymous = true` there or by --allow-anonymous"
            ));
        }
        settings.listen.allowed_origins = self.ws.origins(&settings);
        self.limits.apply(&mut settings, mistakes);
        for bridge in self.bridge {
            bridge.apply(&mut settings, mistakes);
        }
        settings
    }
}

/// Parses the URLs to listen at, and notes those that are wrong; without any, and without listeners that have a table, returns the
/// default addresses.
fn listeners(urls: &[String], have_tables: bool, mistakes: &mut Mistakes) -> Vec<Address> {
    let default = DEFAULT_LISTENERS.map(str::to_owned);
    let is_default = urls.is_empty() && !have_tables;
    let urls = if is_default { &default[..] } else { urls };
    let addresses = urls.iter().filter_map(|url| {
        let address = url.parse::<Address>();
        mistakes.note(address.map_err(|error| format!("listen: {error}")))
    });
    addresses.collect()
}

/// Collector of the mistakes of one configuration file while its values are checked.
struct Mistakes {
    path: PathBuf,
    /// Prefix of the problems noted now, with the name of the table that is being checked; empty outside of
    /// [`within`](Self::within).
    table: String,
    /// The mistakes so far.
    all: Vec<Error>,
}

impl Mistakes {
    fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            table: String::new(),
            all: Vec::new(),
        }
    }

    /// Notes a problem of the file, with the prefix of the table in front.
    fn push(&mut self, problem: impl AsRef<str>) {
        self.all.push(Error::Config {
            path: self.path.clone(),
            problem: format!("{}{}", self.table, problem.as_ref()),
        });
    }

    /// Calls `check`, and puts `table` in front of each mistake that it notes. Returns the value of `check`, or `None`
    /// if it noted any.
    fn within<T>(&mut self, table: String, check: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let (outer, before) = (mem::replace(&mut self.table, table), self.all.len());
        let value = check(self);
        self.table = outer;
        (self.all.len() == before).then_some(value)
    }

    /// Returns the value, or notes the error as a mistake and returns `None`.
    fn note<T>(&mut self, value: Result<T, String>) -> Option<T> {
        value.map_err(|problem| self.push(problem)).ok()
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

/// The most mistakes of a file's form that are reported.
const MOST_MISTAKES: usize = 100;

/// Makes the error that `text`, from the file at `path`, is not valid, with the number of the line.
fn mistake(path: &Path, text: &str, error: &toml::de::Error) -> Error {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text[..start].matches('\n').count() + 1;
    Error::Config {
        path: path.to_owned(),
        problem: format!("line {line}: {}", error.message().replace('\n', ", ")),
    }
}

/// Returns `text` without the line that has the byte `at`, or without the whole table if that line is a table's head.
/// The lines stay as empty ones, so that others keep their numbers. `None` if the line is empty already.
fn without(text: &str, at: usize) -> Option<String> {
    let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let is_head = text[begin..].starts_with('[');
    let mut end = begin;
    for line in text[begin..].split_inclusive('\n') {
        if end > begin && (!is_head || line.starts_with('[')) {
            break;
        }
        end += line.len();
    }
    let lines = "\n".repeat(text[begin..end].matches('\n').count());
    if text[begin..end].trim().is_empty() {
        return None;
    }
    Some(format!("{}{lines}{}", &text[..begin], &text[end..]))
}

/// Reads a secret from a file of its own, without the end of the line.
///
/// # Errors
/// The problem, in one line: every user of the machine can read the file, it cannot be read, or it is empty.
fn read_secret(path: &Path) -> Result<String, String> {
    let shown = path.display();
    if files::is_open_to_all(path) {
        return Err(format!(
            "{shown} is readable by every user of this machine: chmod o= {shown}"
        ));
    }
    let text = files::read_text(path);
    let text = text.map_err(|error| format!("cannot read {shown}: {error}"))?;
    let secret = text.trim_end_matches(['\n', '\r']);
    if secret.is_empty() {
        return Err(format!("{shown} is empty"));
    }
    Ok(secret.to_owned())
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

/// Returns the duration of a key in seconds. A key has no more of them than the clock has.
fn seconds_from(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

#[cfg(test)]
mod tests;
