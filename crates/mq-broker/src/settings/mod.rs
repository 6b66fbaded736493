//! The settings of a broker.

mod bridge;
mod preflight;

use std::{num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use mq_proto::{ServerConfig, Spread};
use mq_transport::{
    Address, EarlyDataPolicy, ListenOptions, ProxyProtocol, Repeat, ServerIdentity,
};
use tracing::warn;

use crate::{
    AdminSettings, DiskStore, Durability, LogLevels, PublishRate, Quotas, Store, StorePatience,
    Workers,
    auth::{Access, TakeOverPolicy},
    cluster::ClusterSettings,
    files,
    hooks::Hooks,
    store::StoreError,
};
pub use bridge::{
    BridgeNotifications, BridgeQueue, BridgeSettings, BridgeStart, BridgeTopic, Direction,
};

/// The settings of a broker. [`Config`](crate::Config) reads them from a file.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses of the listeners; at least one.
    pub listeners: Vec<Address>,
    /// Certificates, congestion control, early data and the like, for all listeners.
    ///
    /// See [`ListenOptions`] for the defaults, of which a broker has another for `early_data`
    /// (0-RTT): [`EarlyDataPolicy::Full`], all but QoS 2, which always waits for the end of the
    /// handshake. Tickets are single-use, so that the broker acts on a first flight twice at most
    /// (RFC 8446 §8). Clients send early only packets that may come twice; `docs/guide/access.md`
    /// has a table.
    pub listen: ListenOptions,
    /// Listeners over QUIC, of those above, whose policy is not that of `listen`.
    pub repeat_at: Vec<(Address, Repeat)>,
    /// Listeners behind proxies, of those above, that take each client's address from a PROXY header.
    pub proxies: Vec<(Address, ProxyProtocol)>,
    /// Limits of the protocol; see [`ServerConfig`] for the defaults.
    pub protocol: ServerConfig,
    /// The spread of messages to a client over QUIC streams that the broker opens, as far as the
    /// client grants it streams; [`Spread::Control`] is never. Default `None`: as the client
    /// requests in CONNECT (5.0), else not. A client's request has precedence, unless this is
    /// never.
    ///
    /// A client that grants streams and does not read them loses its messages without this default.
    pub deliveries: Option<Spread>,
    /// Bounds of the messages, sessions and subscriptions that the broker keeps for clients.
    pub quotas: Quotas,
    /// The rate at which each client may publish. Default: no bound.
    pub publish_rate: PublishRate,
    /// With [`Overflow::Wait`](crate::Overflow::Wait): how long a reader may take less than half of
    /// its full mailbox while a publisher of QoS 1 or 2 waits for room in it. Then the reader is
    /// disconnected with 0x97. Default 30 s; `None` is no limit.
    pub reader_timeout: Option<Duration>,
    /// The time without data after which the broker closes a client's QUIC data stream. A stream
    /// stays while it carries a subscription or something is in flight on it; a part of a packet on
    /// it is an error of that stream. Default `None`, never: a client may not know that it can open
    /// another.
    pub stream_idle_timeout: Option<Duration>,
    /// Threads for connections, each with a runtime of its own. Default `None`: the runtime on which
    /// [`Broker::start`](crate::Broker::start) is called serves them.
    pub workers: Option<Workers>,
    /// Connections at once, those in their handshake included. Further ones are refused. Default
    /// 100,000.
    pub max_connections: usize,
    /// Connections at once from one IPv4 address or one IPv6 network of 64 bits. Default: no limit
    /// of its own, since all of a site's devices may be behind one address.
    pub max_connections_per_address: usize,
    /// Handshakes at once, which bounds what silent peers can hold. Further ones are refused.
    /// Default 4,096. From a quarter of it on QUIC clients first have to prove that they can be
    /// reached at their address (Retry, RFC 9000 §8.1.2), which costs them a round trip.
    pub max_handshakes: usize,
    /// The time that a handshake of TLS, QUIC or WebSocket may take, up to the first byte that can
    /// be read; CONNECT then has [`ServerConfig::connect_timeout`]. A handshake that begins with
    /// early data has as long again to complete. Default 10 s.
    pub handshake_timeout: Duration,
    /// The file that keeps tickets while no broker runs, so that clients resume, with early data,
    /// across a restart; `None`, the default, keeps none.
    ///
    /// A broker that starts takes the tickets out of the file and removes it before it accepts
    /// connections; [`Broker::shutdown`](crate::Broker::shutdown) writes it anew, readable for the
    /// owner alone. So each ticket is used once, which bounds the replay of early data (RFC 8446
    /// §8.1). A crash loses the tickets, and clients do a full handshake. Tickets are dropped where
    /// the certificate, the authorities for client certificates or the limits that clients remember
    /// have changed (see [`ListenOptions::ticket_scope`]), or where the file is damaged.
    ///
    /// A reader of the file can decrypt the early data of the sessions that resume by it. A writer can
    /// put an old copy in its place and replay early data. So its folder has to be the broker's own, and
    /// neither a backup of it nor a virtual machine's snapshot may be played back.
    pub ticket_file: Option<PathBuf>,
    /// The longest time that a session lives on without a connection; `None`, the default, for no
    /// limit. MQTT 3.1 and 3.1.1 clients without a clean session get this.
    pub max_session_expiry: Option<Duration>,
    /// The time that connections have to end at shutdown. Default 5 s.
    pub shutdown_timeout: Duration,
    /// The store of everything that survives a restart; `None`, the default, keeps nothing.
    pub store: Option<Storage>,
    /// Ages of changes that the store has not settled, from which on the broker reports it.
    pub store_patience: StorePatience,
    /// The listeners of the admin interface.
    pub admin: AdminSettings,
    /// The log levels that operators may change at run time; `None`, the default, if they may not.
    pub log: Option<Arc<dyn LogLevels>>,
    /// The interval at which the broker publishes its own figures under `$SYS/broker/`, by
    /// mosquitto's names. Clients cannot publish under `$SYS/` then, except a bridge its own state.
    /// Default never. A configuration file's default is 10 s, like mosquitto's.
    pub sys_interval: Option<Duration>,
    /// `true` if the program looks for replaced files ([`Reload::look`](crate::Reload::look)). In a
    /// library the owner of the broker calls that. Default `true`.
    pub watch_files: bool,
    /// Authentication and authorization of clients. Default: every client is accepted and may do
    /// everything.
    pub access: Access,
    /// Failed log-ins allowed from one IPv4 address or IPv6 /64: so many at once, and as many again
    /// each minute. Further ones are refused with 0x9F, before 5.0 with return code 3, whatever
    /// their password. Only with an authenticator; `None` is no limit. Default 10: more than people
    /// mistype, while a password of six random letters and digits holds for 400 years.
    pub failures_per_minute: Option<NonZeroU32>,
    /// The policy about another user's CONNECT with a session's client identifier. Default: only
    /// the session's own user takes it over.
    pub take_over: TakeOverPolicy,
    /// Calls to the program while the broker serves clients; `None`, the default, makes none.
    pub hooks: Option<Arc<dyn Hooks>>,
    /// Bridges to remote brokers. Default none.
    pub bridges: Vec<BridgeSettings>,
    /// Makes the broker a node of a cluster, which keeps what survives a restart: there is no
    /// [`store`](Self::store) then. Default `None`.
    pub cluster: Option<ClusterSettings>,
}

/// The store of everything that survives a restart.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Storage {
    /// A file, which [`Broker::start`](crate::Broker::start) opens as a [`DiskStore`].
    File(StoreFile),
    /// A store of the application.
    Custom(Arc<dyn Store>),
}

impl Storage {
    /// Returns the file, if the store is one.
    #[must_use]
    pub fn file(&self) -> Option<&StoreFile> {
        match self {
            Self::File(file) => Some(file),
            Self::Custom(_) => None,
        }
    }

    pub(crate) fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Self::File(StoreFile { path, durability }) => {
                Arc::new(DiskStore::open(path, *durability)?)
            }
            Self::Custom(store) => Arc::clone(store),
        })
    }
}

impl<S: Store> From<Arc<S>> for Storage {
    fn from(store: Arc<S>) -> Self {
        Self::Custom(store)
    }
}

/// A [`DiskStore`] that is to be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreFile {
    /// The file, which is made if it does not exist. Its folder has to exist.
    pub path: PathBuf,
    /// The time at which changes are on the disk.
    pub durability: Durability,
}

impl Settings {
    /// Returns what a start with these settings would fail at besides what its files say, and certificates that clients
    /// refuse: one line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        preflight::problems(self)
    }

    /// Returns the defaults, with these listeners.
    #[must_use]
    pub fn new(listeners: Vec<Address>) -> Self {
        Self {
            listeners,
            listen: ListenOptions {
                early_data: EarlyDataPolicy::Full,
                ..ListenOptions::default()
            },
            repeat_at: Vec::new(),
            proxies: Vec::new(),
            deliveries: None,
            protocol: ServerConfig::default(),
            quotas: Quotas::default(),
            publish_rate: PublishRate::default(),
            reader_timeout: Some(Duration::from_secs(30)),
            stream_idle_timeout: None,
            workers: None,
            max_connections: 100_000,
            max_connections_per_address: usize::MAX,
            max_handshakes: 4_096,
            handshake_timeout: Duration::from_secs(10),
            ticket_file: None,
            max_session_expiry: None,
            shutdown_timeout: Duration::from_secs(5),
            store: None,
            store_patience: StorePatience::default(),
            admin: AdminSettings::default(),
            log: None,
            sys_interval: None,
            watch_files: true,
            access: Access::Open,
            failures_per_minute: NonZeroU32::new(10),
            take_over: TakeOverPolicy::SameUser,
            hooks: None,
            bridges: Vec::new(),
            cluster: None,
        }
    }

    /// Returns the options of one listener.
    pub(crate) fn listen_at(&self, address: &Address) -> ListenOptions {
        let mut options = self.listen.clone();
        let own = self.repeat_at.iter().find(|(at, _)| at == address);
        if let Some((_, policy)) = own {
            options.quic.repeat = *policy;
        }
        let proxies = self.proxies.iter().find(|(at, _)| at == address);
        options.proxy_protocol = proxies.map(|(_, proxies)| proxies.clone());
        options
    }

    /// Warns of secrets that every user of this machine can read.
    pub(crate) fn warn_of_open_secrets(&self) {
        let identity = self.listen.identity.as_ref();
        let key = identity.and_then(ServerIdentity::files);
        let key = key.map(|(_, key)| ("private key", key));
        let passwords = self.access.files();
        let passwords = passwords.and_then(|files| files.password_file.as_deref());
        let passwords = passwords.map(|path| ("password file", path));
        let cluster = self.cluster.as_ref();
        let of_node = cluster.and_then(ClusterSettings::key);
        let of_node = of_node.map(|key| ("private key", key));
        for (what, path) in key.into_iter().chain(passwords).chain(of_node) {
            if files::is_open_to_all(path) {
                let path = path.display();
                warn!(
                    kind = what,
                    "secret readable by every user of this machine: chmod o= {path}"
                );
            }
        }
    }
}
