//! The broker as a whole: listeners, the tasks of connections, shutdown.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use mq_proto::ServerConfig;
use mq_transport::{Address, EarlyDataPolicy, Incoming, ListenOptions, Listener, ServerIdentity};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tracing::{debug, warn};

use crate::{
    AdminSettings, DiskStore, Durability, Error, PublishRate, Quotas, Reload, Store,
    admin::{Admin, Doors},
    auth::{AccessFiles, Authenticator, Authorizer, FileAccess, Guard, TakeOver},
    clock, conn, files,
    hub::Hub,
    metrics::{Gauge, ListenerMetrics, Metrics},
    quota::{PerNetwork, Place},
    shown::Shown,
    ticket_file::TicketFile,
};

/// How a broker is made. [`Config`](crate::Config) makes one from a file.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens; at least one.
    pub listeners: Vec<Address>,
    /// Certificates, congestion control and the like, for all listeners; see [`ListenOptions`] for
    /// the defaults. Its `early_data` is replaced by [`early_data`](Self::early_data) below.
    pub listen: ListenOptions,
    /// Limits of the protocol; see [`ServerConfig`] for the defaults.
    pub protocol: ServerConfig,
    /// What clients may make the broker keep.
    pub quotas: Quotas,
    /// How fast each client may publish. Default: no bound.
    pub publish_rate: PublishRate,
    /// With [`Overflow::Wait`](crate::Overflow::Wait): how long a reader may make no progress, which
    /// is to say take less than half of its mailbox, while a publisher of QoS 1 or 2 waits for room
    /// in it; then the reader is disconnected with 0x97. Default 30 s; `None` for as long as it
    /// likes.
    pub reader_timeout: Option<Duration>,
    /// Connections at once, those in their handshake included. Further ones are refused. Default
    /// 100,000.
    pub max_connections: usize,
    /// Of these, from one IPv4 address or one IPv6 network of 64 bits. Default: as many, since all
    /// of a site's devices may be behind one address.
    pub max_connections_per_address: usize,
    /// Handshakes at once: what silent peers can hold. Further ones are refused. Default 4,096. From
    /// a quarter of it on QUIC clients first have to prove that they can be reached at their address
    /// (Retry, RFC 9000 §8.1.2), which costs them a round trip.
    pub max_handshakes: usize,
    /// How long a handshake of TLS, QUIC or WebSocket may take, up to the first byte that can be
    /// read; CONNECT then has [`ServerConfig::connect_timeout`]. One that begins with early data
    /// has as long again to be complete. Default 10 s.
    pub handshake_timeout: Duration,
    /// What early data (0-RTT) may do: nothing, CONNECT alone, or all but QoS 2, which always waits
    /// for the end of the handshake. Default [`EarlyDataPolicy::Full`]: tickets are single-use, so
    /// that a first flight is acted on twice at most (RFC 8446 §8), and clients send early only what
    /// may be; `docs/access.md` has a table.
    pub early_data: EarlyDataPolicy,
    /// Where tickets are kept while no broker runs, so that clients resume, with early data, across
    /// a restart; `None`, the default, for nowhere.
    ///
    /// A broker that starts takes the tickets out of the file and removes it before it accepts
    /// anybody; [`Broker::shutdown`] writes it anew, readable for the owner alone. So each ticket
    /// is used once, which is what bounds the replay of early data (RFC 8446 §8.1). A crash
    /// loses the tickets, and clients do a full handshake. They are not taken up where the
    /// certificate, the authorities for client certificates or the limits that clients remember
    /// have changed (see [`ListenOptions::ticket_scope`]), or where the file is damaged.
    ///
    /// Who can read the file can decrypt the early data of the sessions that resume by it, and who
    /// can write it can put an old copy in its place and replay early data: its folder has to be
    /// the broker's own. So must not a backup be played back, nor a virtual machine's snapshot.
    pub ticket_file: Option<PathBuf>,
    /// The longest time that a session lives on without a connection; `None` for no limit, the
    /// default. MQTT 3.1 and 3.1.1 clients without a clean session get this.
    pub max_session_expiry: Option<Duration>,
    /// How long connections have to end at shutdown. Default 5 s.
    pub shutdown_timeout: Duration,
    /// What outlives the broker; `None`, the default, for nothing.
    pub store: Option<Arc<dyn Store>>,
    /// Where it is kept on disk, if there is no [`store`](Self::store): [`Broker::start`] opens it.
    pub store_file: Option<StoreFile>,
    /// Where operators are answered.
    pub admin: AdminSettings,
    /// How often the broker tells of itself under `$SYS/broker/`, by mosquitto's names; clients cannot
    /// publish under `$SYS/` then. Default never; a configuration file's default is 10 s, as
    /// mosquitto's.
    pub sys_interval: Option<Duration>,
    /// Whether the program looks for replaced files ([`Reload::look`]); a broker in a library does
    /// what its owner does. Default yes.
    pub watch_files: bool,
    /// Says who clients are; `None`, the default, lets everybody in.
    pub authenticator: Option<Arc<dyn Authenticator>>,
    /// Says what clients may do; `None`, the default, lets them do everything.
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// Files that say both, for where there is no [`authenticator`](Self::authenticator) or no
    /// [`authorizer`](Self::authorizer): [`Broker::start`] reads them, and
    /// [`Broker::reload_access`] does again.
    pub access_files: Option<AccessFiles>,
    /// Log-ins from one IPv4 address or IPv6 /64 that may fail: so many at once, and as many again
    /// each minute. Beyond, they are refused with 0x9F, before 5.0 with return code 3, whatever
    /// they bring. Only where there is an authenticator; `None` for no limit. Default 10: more than
    /// people mistype, and a password of six random letters and digits lasts for 400 years.
    pub failures_per_minute: Option<NonZeroU32>,
    /// Who may take over a session by its client identifier. Default: the user whose it is.
    pub take_over: TakeOver,
}

/// A [`DiskStore`] that is to be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreFile {
    /// The file; made if it is not there. Its folder has to be.
    pub path: PathBuf,
    /// When what is recorded is on the disk.
    pub durability: Durability,
}

impl Settings {
    /// The defaults, listening at `listeners`.
    #[must_use]
    pub fn new(listeners: Vec<Address>) -> Self {
        Self {
            listeners,
            listen: ListenOptions::default(),
            protocol: ServerConfig::default(),
            quotas: Quotas::default(),
            publish_rate: PublishRate::default(),
            reader_timeout: Some(Duration::from_secs(30)),
            max_connections: 100_000,
            max_connections_per_address: usize::MAX,
            max_handshakes: 4_096,
            handshake_timeout: Duration::from_secs(10),
            early_data: EarlyDataPolicy::Full,
            ticket_file: None,
            max_session_expiry: None,
            shutdown_timeout: Duration::from_secs(5),
            store: None,
            store_file: None,
            admin: AdminSettings::default(),
            sys_interval: None,
            watch_files: true,
            authenticator: None,
            authorizer: None,
            access_files: None,
            failures_per_minute: NonZeroU32::new(10),
            take_over: TakeOver::SameUser,
        }
    }

    /// Warns of secrets that everybody on this machine can read.
    fn warn_of_open_secrets(&self) {
        let identity = self.listen.identity.as_ref();
        let key = identity.and_then(ServerIdentity::files);
        let key = key.map(|(_, key)| ("private key", key));
        let passwords = self.access_files.as_ref();
        let passwords = passwords.and_then(|files| files.password_file.as_deref());
        let passwords = passwords.map(|path| ("password file", path));
        for (what, path) in key.into_iter().chain(passwords) {
            if files::is_open_to_all(path) {
                let path = path.display();
                warn!("everybody can read the {what} {path}: chmod o= {path}");
            }
        }
    }

    /// Takes what the access files say for what is not there.
    fn open_access(&mut self) -> Result<Option<Arc<FileAccess>>, Error> {
        let Some(files) = self.access_files.clone() else {
            return Ok(None);
        };
        let access = Arc::new(FileAccess::open(files)?);
        if self.authenticator.is_none() {
            self.authenticator = Some(Arc::clone(&access) as Arc<dyn Authenticator>);
        }
        if self.authorizer.is_none() && access.authorizes() {
            self.authorizer = Some(Arc::clone(&access) as Arc<dyn Authorizer>);
        }
        Ok(Some(access))
    }
}

/// A running broker.
///
/// Dropping it ends everything at once; [`shutdown`](Self::shutdown) does it with good manners.
#[derive(Debug)]
pub struct Broker {
    addresses: Vec<Address>,
    listeners: Vec<Arc<ListenerMetrics>>,
    admin_address: Option<SocketAddr>,
    hub: Arc<Hub>,
    shutdown: watch::Sender<bool>,
    shutdown_timeout: Duration,
    ticket_file: Option<Arc<TicketFile>>,
    reload: Reload,
    access: Option<Arc<FileAccess>>,
    /// One task a listener, which owns the tasks of its connections.
    tasks: JoinSet<()>,
    /// Timers, and the answers to operators: they never end by themselves.
    services: JoinSet<()>,
}

impl Broker {
    /// Binds all listeners and begins to accept.
    ///
    /// # Errors
    /// [`Error::NoListener`], [`Error::Transport`] if an address cannot be bound or TLS, QUIC or
    /// wss has no certificate, [`Error::Access`], [`Error::Store`], [`Error::Admin`], or that the
    /// ticket file cannot be read; nothing runs then.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(mut settings: Settings) -> Result<Self, Error> {
        if settings.listeners.is_empty() {
            return Err(Error::NoListener);
        }
        // Before it says that it listens: what was kept may not be readable.
        if let (None, Some(StoreFile { path, durability })) =
            (&settings.store, &settings.store_file)
        {
            settings.store = Some(Arc::new(DiskStore::open(path, *durability)?));
        }
        let access = settings.open_access()?;
        settings.warn_of_open_secrets();
        let guard = Guard::new(
            settings.authenticator.clone(),
            settings.authorizer.clone(),
            settings.failures_per_minute,
        );
        let hub = Hub::new(
            settings.quotas,
            settings.store.clone(),
            guard,
            settings.take_over,
        )?;
        settings.listen.early_data = settings.early_data;
        settings.listen.hold_tickets = true;
        let quic = &mut settings.listen.quic;
        quic.keep_alive_interval = quic.keep_alive_below_idle();
        let mut listeners = Vec::new();
        for address in &settings.listeners {
            listeners.push(Listener::bind(address, &settings.listen).await?);
        }
        let doors = Doors::open(&settings.admin).await?;
        let addresses: Vec<_> = listeners.iter().map(Listener::local_address).collect();
        let shutdown = watch::Sender::new(false);
        let hub = Arc::new(hub);
        // Last of all that can fail, so that a broker that does not start leaves the tickets where
        // they are; nobody is accepted yet.
        let ticket_file = settings.ticket_file.clone();
        let ticket_file = ticket_file
            .map(|path| TicketFile::take(path, &settings.listen).map(Arc::new))
            .transpose()?;
        let reload = Reload::new(&listeners, &settings, ticket_file.as_ref(), access.as_ref());
        let sys_interval = settings.sys_interval;
        let acceptor = Acceptor {
            hub: Arc::clone(&hub),
            connections: Arc::new(Semaphore::new(settings.max_connections)),
            networks: PerNetwork::new(settings.max_connections_per_address),
            handshakes: Arc::new(Semaphore::new(settings.max_handshakes)),
            shutdown: shutdown.subscribe(),
            settings: Arc::new(settings),
        };
        let metrics = addresses.iter().cloned().map(ListenerMetrics::new);
        let metrics: Vec<_> = metrics.map(Arc::new).collect();
        let mut tasks = JoinSet::new();
        let shutdown_timeout = acceptor.settings.shutdown_timeout;
        for (listener, metrics) in listeners.into_iter().zip(&metrics) {
            tasks.spawn(acceptor.clone().run(listener, Arc::clone(metrics)));
        }
        let mut services = JoinSet::new();
        let timers = Arc::clone(&hub);
        services.spawn(async move { timers.run_timers().await });
        if let Some(every) = sys_interval {
            let (hub, listeners) = (Arc::clone(&hub), metrics.clone());
            services.spawn(async move { hub.tell_of_itself(every, &listeners).await });
        }
        let admin_address = doors.http_address();
        services.spawn(doors.serve(Admin {
            hub: Arc::clone(&hub),
            listeners: metrics.clone(),
            shutdown: shutdown.subscribe(),
        }));
        Ok(Self {
            addresses,
            listeners: metrics,
            admin_address,
            hub,
            shutdown,
            shutdown_timeout,
            ticket_file,
            reload,
            access,
            tasks,
            services,
        })
    }

    /// Where it listens, with the ports that the system chose where 0 was asked for; in the order
    /// of [`Settings::listeners`].
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.hub.metrics
    }

    /// Where [`AdminSettings::http`] is, with the port that was chosen.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// What each listener counts, in the order of [`Settings::listeners`].
    #[must_use]
    pub fn listeners(&self) -> &[Arc<ListenerMetrics>] {
        &self.listeners
    }

    /// Bytes that wait for sessions or are retained now, as [`Quotas::memory`] counts them.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.hub.memory_used()
    }

    /// What changes certificates and the like while the broker runs, for whoever does not have the
    /// broker itself.
    #[must_use]
    pub fn reload_handle(&self) -> Reload {
        self.reload.clone()
    }

    /// As [`Reload::apply`].
    ///
    /// # Errors
    /// As there.
    pub fn reload(&self, settings: &Settings) -> Result<(), Error> {
        self.reload.apply(settings)
    }

    /// Reads the [`access_files`](Settings::access_files) alone again, as
    /// [`FileAccess::reload`] does; does nothing without them.
    ///
    /// # Errors
    /// [`Error::Access`]; the old rules stay.
    pub fn reload_access(&self) -> Result<(), Error> {
        match &self.access {
            Some(access) => access.reload(),
            None => Ok(()),
        }
    }

    /// Resolves when the store has failed: nothing is kept any more, and what would have to be is not
    /// acknowledged. It does not recover, as what the broker has in memory and what the store has may
    /// differ by then: end the broker, and start another one once the store can be written again. Never
    /// resolves without a store. Cancel-safe.
    pub async fn store_failed(&self) {
        let Some(store) = self.hub.store() else {
            return std::future::pending().await;
        };
        let mut settled = store.settled();
        while settled.changed().await.is_ok() {}
    }

    /// Stops accepting, sends 5.0 clients DISCONNECT, and waits for all links to close, up to
    /// [`Settings::shutdown_timeout`]; then cuts those that are left. Tickets go to
    /// [`Settings::ticket_file`].
    pub async fn shutdown(mut self) {
        self.shutdown.send_replace(true);
        let drained = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.shutdown_timeout, drained)
            .await
            .is_err()
        {
            warn!("connections were cut: they did not end in time");
        }
        self.tasks.shutdown().await;
        self.services.shutdown().await;
        // No connection is left that could use a ticket which is in the file already.
        if let Some(file) = &self.ticket_file {
            file.write();
        }
    }
}

/// What every listener's task needs.
#[derive(Clone)]
struct Acceptor {
    hub: Arc<Hub>,
    settings: Arc<Settings>,
    connections: Arc<Semaphore>,
    networks: Arc<PerNetwork>,
    handshakes: Arc<Semaphore>,
    shutdown: watch::Receiver<bool>,
}

impl Acceptor {
    /// Accepts until shutdown, then waits for the connections. Never waits for a peer: whatever
    /// needs one runs in the connection's own task.
    async fn run(mut self, mut listener: Listener, metrics: Arc<ListenerMetrics>) {
        let mut connections = JoinSet::new();
        loop {
            let incoming = tokio::select! {
                incoming = listener.accept() => incoming,
                _ = self.shutdown.changed() => break,
                Some(ended) = connections.join_next() => {
                    report(ended);
                    continue;
                }
            };
            match incoming {
                Ok(incoming) => self.admit(incoming, &metrics, &mut connections),
                Err(error) => {
                    // Out of file descriptors, for one. Trying again at once would only spin.
                    warn!(%error, address = %listener.local_address(), "accepting failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        listener.close();
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
        listener.drained().await;
    }

    fn admit(
        &self,
        incoming: Incoming,
        metrics: &Arc<ListenerMetrics>,
        connections: &mut JoinSet<()>,
    ) {
        let peer = incoming.peer_address();
        if self.is_loaded() && incoming.can_be_asked_for_its_address() {
            debug!(?peer, "asked to prove its address");
            self.hub.metrics.retried.add(1);
            incoming.ask_for_its_address();
            return;
        }
        let refused = |reason| self.hub.refused_connection(peer, reason, clock::now());
        let Ok(connection) = Arc::clone(&self.connections).try_acquire_owned() else {
            return refused("too many connections");
        };
        let Some(place) = self.networks.enter(peer.map(|peer| peer.ip())) else {
            return refused("too many connections of its address");
        };
        let Ok(handshake) = Arc::clone(&self.handshakes).try_acquire_owned() else {
            return refused("too many handshakes");
        };
        let metrics = Arc::clone(metrics);
        let served = self
            .clone()
            .serve(incoming, metrics, (connection, place), handshake);
        connections.spawn(served);
    }

    /// Whether a quarter of all handshakes that may be under way are.
    fn is_loaded(&self) -> bool {
        let most = self.settings.max_handshakes;
        most - self.handshakes.available_permits().min(most) >= most.div_ceil(4)
    }

    async fn serve(
        mut self,
        incoming: Incoming,
        metrics: Arc<ListenerMetrics>,
        _connection: (OwnedSemaphorePermit, Place),
        permit: OwnedSemaphorePermit,
    ) {
        let peer = incoming.peer_address();
        let under_way = Counted::new(&self.hub.metrics.handshakes);
        // Boxed, so that its room is free again once it has ended.
        let handshake = Box::pin(incoming.handshake());
        let open = tokio::time::timeout(self.settings.handshake_timeout, handshake);
        let open = tokio::select! {
            open = open => open,
            // Nobody has connected yet, so there is nobody to wait for.
            _ = self.shutdown.changed() => return debug!(?peer, "handshake cut by the shutdown"),
        };
        let failed = &metrics.handshakes_failed;
        let link = match open {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => {
                failed.add(1);
                // It may have words of the peer's.
                return debug!(?peer, error = %Shown(&error.to_string()), "handshake failed");
            }
            Err(_) => {
                failed.add(1);
                return debug!(?peer, "handshake timed out");
            }
        };
        drop((permit, under_way));
        metrics.accepted.add(1);
        let counted = [&self.hub.metrics.connections, &metrics.connections].map(Counted::new);
        let (hub, settings) = (Arc::clone(&self.hub), self.settings);
        conn::serve(link, hub, Arc::clone(&metrics), settings, self.shutdown).await;
        drop(counted);
    }
}

/// Counts a connection for as long as it lives, whichever way its task ends.
struct Counted<'a>(&'a Gauge);

impl<'a> Counted<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.add(1);
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

/// A connection's task that panicked has a bug; the others go on.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}
