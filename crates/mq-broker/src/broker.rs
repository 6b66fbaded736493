//! The broker as a whole: listeners, the tasks of connections, shutdown.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mq_codec::TopicError;
use mq_transport::{Address, Incoming, LineLimit, ListenOptions, Listener};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tracing::{debug, warn};

use crate::{
    Error, Reload, Settings,
    admin::{Admin, AdminListeners, STREAMS},
    auth::{AccessControl, FileAccess},
    bridge::{self, BridgeTask},
    broker_mark::BrokerMark,
    clock,
    conn::{self, Wire},
    hub::{FigurePublisher, Hub, HubParts, HubSettings, OwnTopics},
    metrics::{Gauge, ListenerMetrics, Metrics},
    persistence::Persistence,
    quota::{PerNetwork, Place},
    refusal_log::RefusalDetails,
    reload::{FirstStamps, OperatorTokens, Reloadable},
    store::{Snapshot, Store, StoreError},
    view::{self, Ban, Banned, CannotBan, NotConnected, Page, Query, TopicRates},
    workers::{MovableConnection, WorkerChannels, WorkerPool},
};
#[cfg(feature = "tls")]
use crate::{certificates::Certificates, ticket_file::TicketFile};

/// A running broker.
///
/// Dropping it ends everything at once. [`shutdown`](Self::shutdown) ends it in order.
#[derive(Debug)]
pub struct Broker {
    addresses: Vec<Address>,
    listeners: Vec<Arc<ListenerMetrics>>,
    admin_address: Option<SocketAddr>,
    hub: Arc<Hub>,
    shutdown: watch::Sender<bool>,
    shutdown_timeout: Duration,
    #[cfg(feature = "tls")]
    ticket_file: Option<Arc<TicketFile>>,
    reload: Reload,
    access: Option<Arc<FileAccess>>,
    worker_pool: Arc<WorkerPool>,
    /// A task for each listener, which owns the tasks of its connections.
    tasks: JoinSet<()>,
    /// Tasks that never end by themselves: timers, and the answers to operators.
    services: JoinSet<()>,
    persistence: Persistence,
    /// The tasks of a node of a cluster.
    cluster_tasks: JoinSet<()>,
}

impl Broker {
    /// Binds all listeners and begins to accept.
    ///
    /// # Errors
    /// [`Error::NoListener`], [`Error::Transport`] if an address cannot be bound or TLS, QUIC or
    /// wss has no certificate, [`Error::Access`], [`Error::Store`], [`Error::Admin`], or that the
    /// ticket file cannot be read. Nothing runs then.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(mut settings: Settings) -> Result<Self, Error> {
        check(&settings)?;
        let stamps = FirstStamps::take(&mut settings);
        // Before any listener is bound: the store may not be readable.
        let persistence = Persistence::open(&settings).await?;
        let (authenticator, authorizer, access) = settings.access.open()?;
        settings.warn_of_open_secrets();
        let access_control =
            AccessControl::new(authenticator, authorizer, settings.failures_per_minute);
        let worker_channels = Arc::new(WorkerChannels::new(settings.workers.as_ref()));
        let kept = persistence.load()?;
        let (bridges, mark) =
            bridge::open_all(&settings, persistence.store.as_ref(), &kept).await?;
        let hub = hub_of(
            &settings,
            &persistence,
            kept,
            access_control,
            &worker_channels,
            (&bridges, mark),
        );
        let worker_pool = WorkerPool::start(settings.workers.as_ref(), &worker_channels);
        let worker_pool = Arc::new(worker_pool.map_err(Error::Workers)?);
        prepare(&mut settings.listen, &worker_pool, &hub);
        let listeners = bind_all(&settings).await?;
        let admin_listeners = AdminListeners::open(&settings.admin).await?;
        let tokens = settings.admin.tokens()?;
        let addresses: Vec<_> = listeners.iter().map(Listener::local_address).collect();
        let shutdown = watch::Sender::new(false);
        let hub = Arc::new(hub);
        let cluster_tasks = persistence.join_cluster(&hub).await?;
        // The last step that can fail, so that a broker that does not start leaves the tickets
        // where they are. No client is accepted yet.
        #[cfg(feature = "tls")]
        let ticket_file = settings.ticket_file.clone();
        #[cfg(feature = "tls")]
        let ticket_file = ticket_file
            .map(|path| TicketFile::take(path, &settings.listen).map(Arc::new))
            .transpose()?;
        #[cfg(feature = "tls")]
        let certificates = Certificates::new(&listeners, &settings, ticket_file.as_ref());
        let mut parts: Vec<Box<dyn Reloadable>> = vec![
            #[cfg(feature = "tls")]
            Box::new(certificates),
        ];
        if let Some(tokens) = &tokens {
            parts.push(Box::new(OperatorTokens(Arc::clone(tokens))));
        }
        let reload = Reload::new(parts, &settings, &stamps, access.as_ref());
        let hosts = settings.admin.hosts.as_slice().into();
        let open_on_loopback = settings.admin.open_on_loopback;
        let log = settings.log.clone();
        let acceptor = Acceptor {
            hub: Arc::clone(&hub),
            worker_pool: Arc::clone(&worker_pool),
            connections: Arc::new(Semaphore::new(settings.max_connections)),
            networks: PerNetwork::new(settings.max_connections_per_address),
            handshakes: Arc::new(Semaphore::new(settings.max_handshakes)),
            shutdown: shutdown.subscribe(),
            settings: Arc::new(settings),
        };
        let metrics = addresses.iter().cloned().map(ListenerMetrics::new);
        let metrics: Vec<_> = metrics.map(Arc::new).collect();
        let tasks = acceptor.begin_all(listeners, &metrics, &bridges);
        let mut services = acceptor.begin_services(&metrics);
        let admin_address = admin_listeners.http_address();
        services.spawn(admin_listeners.serve(Admin {
            hub: Arc::clone(&hub),
            listeners: metrics.clone(),
            bridges: bridges.iter().map(BridgeTask::figures).collect(),
            cluster: persistence.cluster_status(),
            shutdown: shutdown.subscribe(),
            began: clock::now(),
            hosts,
            tokens,
            open_on_loopback,
            log,
            streams: Arc::new(Semaphore::new(STREAMS)),
        }));
        Ok(Self {
            addresses,
            listeners: metrics,
            admin_address,
            hub,
            shutdown,
            shutdown_timeout: acceptor.settings.shutdown_timeout,
            #[cfg(feature = "tls")]
            ticket_file,
            reload,
            access,
            worker_pool,
            tasks,
            services,
            persistence,
            cluster_tasks,
        })
    }

    /// Returns the addresses that the broker listens at, in the order of [`Settings::listeners`]. A port 0 is replaced
    /// by the port that the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the broker's metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.hub.metrics
    }

    /// Returns the address of [`AdminSettings::http`](crate::AdminSettings::http), with the port that was chosen.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Returns each listener's metrics, in the order of [`Settings::listeners`].
    #[must_use]
    pub fn listeners(&self) -> &[Arc<ListenerMetrics>] {
        &self.listeners
    }

    /// Returns the number of bytes that wait for sessions or are retained now, as
    /// [`Quotas::memory`](crate::Quotas::memory) counts them.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        self.hub.memory_used()
    }

    /// Lists the connected clients, by their identifiers. A client's own connection answers for what it alone knows,
    /// within 500 ms.
    pub async fn clients(&self, query: &Query) -> Page<view::Client> {
        self.hub.operators().clients(query).await
    }

    /// Lists the sessions without a connection, by their identifiers.
    pub async fn sessions(&self, query: &Query) -> Page<view::Session> {
        self.hub.operators().absent_sessions(query).await
    }

    /// Lists the subscriptions of all sessions, connected or not, by filter and then by identifier.
    pub async fn subscriptions(&self, query: &Query) -> Page<view::Subscription> {
        self.hub.operators().all_subscriptions(query, None).await
    }

    /// Lists the subscriptions of one session, by filter.
    pub async fn subscriptions_of(
        &self,
        client_id: &str,
        query: &Query,
    ) -> Page<view::Subscription> {
        self.hub
            .operators()
            .all_subscriptions(query, Some(client_id))
            .await
    }

    /// Returns the connected client of that identifier.
    ///
    /// # Errors
    /// If none is connected.
    pub async fn client(&self, client_id: &str) -> Result<view::Client, NotConnected> {
        self.hub.operators().client(client_id).await
    }

    /// Lists retained messages, by topic. [`Query::matching`] is a topic filter.
    ///
    /// # Errors
    /// If it is not.
    pub async fn retained(&self, query: &Query) -> Result<Page<view::Retained>, TopicError> {
        self.hub.operators().retained_topics(query).await
    }

    /// Lists topics by the rate of their messages, the busiest first. The broker counts them for 15 s after a call; the
    /// first call takes 2 s.
    pub async fn topic_rates(&self, query: &Query) -> TopicRates {
        self.hub.operators().topic_rates(query).await
    }

    /// Lists the last refusals, the newest first.
    #[must_use]
    pub fn refusals(&self, query: &Query) -> Page<view::Refusal> {
        self.hub.refusal_log.recent(query)
    }

    /// Refuses a client, a user or an address for some minutes, from 1 to
    /// [`LONGEST_BAN_MINUTES`](view::LONGEST_BAN_MINUTES), and disconnects those that are connected. The bans
    /// end with the broker.
    ///
    /// # Errors
    /// If the time is not allowed, or there are too many bans.
    pub fn ban(&self, banned: Banned, minutes: u32) -> Result<Ban, CannotBan> {
        self.hub.operators().ban(banned, minutes)
    }

    /// Lists the bans in force.
    #[must_use]
    pub fn bans(&self, query: &Query) -> Page<Ban> {
        self.hub.bans.list(query)
    }

    /// Lifts a ban; false if there is none.
    #[expect(clippy::must_use_candidate, reason = "it acts")]
    pub fn lift_ban(&self, banned: &Banned) -> bool {
        self.hub.bans.lift(banned)
    }

    /// Disconnects a client with the reason 0x98 (Administrative action). Its session stays for as long as
    /// its expiry says, its will is published, and the client may come again.
    ///
    /// # Errors
    /// If no client of that identifier is connected.
    pub fn kick(&self, client_id: &str) -> Result<(), NotConnected> {
        self.hub.operators().kick(client_id)
    }

    /// Runs `job` once on each thread of [`Settings::workers`], in the background: for what belongs to a
    /// thread, such as the memory that an allocator keeps for it.
    pub fn run_on_each_worker(&self, job: impl Fn() + Clone + Send + 'static) {
        for worker in self.worker_pool.handles() {
            let job = job.clone();
            worker.spawn(async move { job() });
        }
    }

    /// Returns a handle that changes certificates and the like while the broker runs, for code that does not own the
    /// broker.
    #[must_use]
    pub fn reload_handle(&self) -> Reload {
        self.reload.clone()
    }

    /// Applies new settings; see [`Reload::apply`].
    ///
    /// # Errors
    /// The errors of [`Reload::apply`].
    pub fn reload(&self, settings: &Settings) -> Result<(), Error> {
        self.reload.apply(settings)
    }

    /// Reads the files of [`Settings::access`] again, and nothing else, as [`FileAccess::reload`]
    /// does. Without such files it does nothing.
    ///
    /// # Errors
    /// [`Error::Access`]; the old rules stay.
    pub fn reload_access(&self) -> Result<(), Error> {
        match &self.access {
            Some(access) => access.reload(),
            None => Ok(()),
        }
    }

    /// Resolves when the store has failed: the broker then keeps nothing any more, and acknowledges
    /// nothing that it would have to keep. It does not recover, as memory and store may differ by
    /// then: end the broker, and start another one once the store can be written again. Never
    /// resolves without a store. Cancel-safe.
    pub async fn store_failed(&self) {
        let Some(store) = self.hub.store() else {
            return std::future::pending().await;
        };
        let mut settled = store.settled();
        while settled.changed().await.is_ok() {}
    }

    /// Stops accepting, sends DISCONNECT to 5.0 clients, and waits up to
    /// [`Settings::shutdown_timeout`] for all links to close; then cuts those that are left.
    /// A node of a cluster then leaves it in order, within 4 s, so that other nodes have its sessions at once. Tickets
    /// go to [`Settings::ticket_file`].
    ///
    /// The store settles its last changes within 5 s more, and [closes](crate::Store::close) within 10 s. A failure of
    /// either is in the report.
    pub async fn shutdown(mut self) -> ShutdownReport {
        self.shutdown.send_replace(true);
        self.hub.remind_all().await;
        let drained = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.shutdown_timeout, drained)
            .await
            .is_err()
        {
            warn!("shutdown timed out; remaining connections aborted");
        }
        self.tasks.shutdown().await;
        // Timers as well: what they would do now is for the next owners of the sessions.
        self.services.shutdown().await;
        self.persistence.leave_cluster().await;
        self.cluster_tasks.shutdown().await;
        #[cfg(feature = "tls")]
        // No connection is left that could use a ticket which is in the file already.
        if let Some(file) = self.ticket_file.take() {
            let written = tokio::task::spawn_blocking(move || file.write());
            if tokio::time::timeout(TICKETS_DEADLINE, written)
                .await
                .is_err()
            {
                warn!("ticket file not written in time; clients do a full handshake");
            }
        }
        let Some(writer) = self.hub.store_writer() else {
            return ShutdownReport::default();
        };
        let close_by = tokio::time::Instant::now() + 2 * STORE_DEADLINE;
        let settled = tokio::time::timeout(STORE_DEADLINE, writer.all_settled()).await;
        // Before the store is closed, which settles no more from then on.
        let unsettled_messages = match settled {
            Ok(true) => 0,
            Ok(false) | Err(_) => writer.unsettled_messages(),
        };
        let closed = close(Arc::clone(writer.store()), close_by).await;
        if let Err(error) = &closed {
            tracing::error!(%error, "store: not closed in order; last changes may be lost");
        }
        ShutdownReport {
            unsettled_messages,
            store_error: closed.err(),
        }
    }
}

/// The outcome of an orderly end. By default nothing is lost.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Messages that the store had not settled in time. None of them was acknowledged.
    pub unsettled_messages: usize,
    /// The error of the store's [`close`](crate::Store::close). Messages that were acknowledged before they were durable,
    /// as with [`Durability::Interval`](crate::Durability::Interval), may be lost then.
    pub store_error: Option<StoreError>,
}

/// Closes a store in a thread of its own, which is left behind if it takes longer than until `deadline`.
async fn close(store: Arc<dyn Store>, deadline: tokio::time::Instant) -> Result<(), StoreError> {
    let closing = tokio::task::spawn_blocking(move || store.close());
    match tokio::time::timeout_at(deadline, closing).await {
        Ok(Ok(closed)) => closed,
        // It has panicked.
        Ok(Err(_)) => Err(StoreError::Failed),
        Err(_) => Err(StoreError::Hangs {
            place: "the store".to_owned(),
        }),
    }
}

/// Time that the ticket file may take while the broker ends: it is small, and its disk may hang.
#[cfg(feature = "tls")]
const TICKETS_DEADLINE: Duration = Duration::from_secs(2);

/// Time that the store may take to settle its last changes while the broker ends; half of the time until it has closed.
const STORE_DEADLINE: Duration = Duration::from_secs(5);

/// Time for which closed QUIC connections may answer late packets while the broker ends. They would do so for three probe
/// time-outs each, which is many seconds where round trips were measured in a crowd, and every restart would wait for
/// them. A client that has missed the end is reset by the next broker with the same key (RFC 9000 §10.3).
const QUIC_DRAIN_TIME: Duration = Duration::from_secs(1);

/// The parts that every listener's task needs.
#[derive(Clone)]
struct Acceptor {
    hub: Arc<Hub>,
    worker_pool: Arc<WorkerPool>,
    settings: Arc<Settings>,
    connections: Arc<Semaphore>,
    networks: Arc<PerNetwork>,
    handshakes: Arc<Semaphore>,
    shutdown: watch::Receiver<bool>,
}

impl Acceptor {
    /// Begins to accept at all listeners, and to connect. Each of the tasks owns those of its connections.
    fn begin_all(
        &self,
        listeners: Vec<Listener>,
        metrics: &[Arc<ListenerMetrics>],
        bridges: &[BridgeTask],
    ) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for (listener, metrics) in listeners.into_iter().zip(metrics) {
            self.begin(listener, metrics, &mut tasks);
        }
        for bridge in bridges {
            self.begin_bridge(bridge.clone(), &mut tasks);
        }
        tasks
    }

    /// Begins to accept, each part of the listener on its own runtime: QUIC's clients come to the workers' sockets and
    /// are served there, so no other thread has to wake up for them.
    fn begin(&self, listener: Listener, metrics: &Arc<ListenerMetrics>, tasks: &mut JoinSet<()>) {
        for (worker, part) in listener.by_runtime() {
            let run = self.clone().run(part, Arc::clone(metrics));
            match worker {
                Some(worker) => tasks.spawn_on(run, &worker),
                None => tasks.spawn(run),
            };
        }
    }

    /// Begins the tasks that never end by themselves: the balance of the workers, timers, and figures under `$SYS`.
    fn begin_services(&self, metrics: &[Arc<ListenerMetrics>]) -> JoinSet<()> {
        let mut services = JoinSet::new();
        services.spawn(Arc::clone(&self.worker_pool).rebalance());
        let timers = Arc::clone(&self.hub);
        services.spawn(async move { timers.run_timers().await });
        if let Some(interval) = self.settings.sys_interval {
            let figures = FigurePublisher {
                hub: Arc::clone(&self.hub),
                listeners: metrics.to_vec(),
            };
            services.spawn(figures.run(interval));
        }
        services
    }

    /// Begins a bridge, on the first worker.
    fn begin_bridge(&self, bridge: BridgeTask, tasks: &mut JoinSet<()>) {
        let (hub, settings) = (Arc::clone(&self.hub), Arc::clone(&self.settings));
        let run = bridge.run(hub, settings, self.shutdown.clone());
        match self.worker_pool.handles().first() {
            Some(worker) => tasks.spawn_on(run, worker),
            None => tasks.spawn(run),
        };
    }

    /// Accepts until shutdown, then waits for the connections. It never waits for a peer: that is
    /// for the connection's own task.
    async fn run(mut self, mut listener: Listener, metrics: Arc<ListenerMetrics>) {
        let mut connections = JoinSet::new();
        let mut failures = LineLimit::new(1);
        loop {
            let incoming = tokio::select! {
                incoming = listener.accept() => incoming,
                _ = self.shutdown.changed() => break,
                Some(ended) = connections.join_next() => {
                    ended_or_going(ended, &mut connections);
                    continue;
                }
            };
            match incoming {
                Ok(incoming) => self.admit(incoming, &metrics, &mut connections),
                Err(error) => {
                    // Out of file descriptors, for one. Trying again at once would only spin.
                    if let Some(left_out) = failures.admit(clock::now()) {
                        warn!(
                            %error,
                            listener = %listener.local_address(),
                            left_out = (left_out > 0).then_some(left_out),
                            "cannot accept connection"
                        );
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        listener.close();
        while let Some(ended) = connections.join_next().await {
            ended_or_going(ended, &mut connections);
        }
        // The links have ended. Peers that miss their last packets learn of the end from the next
        // broker.
        let _ = tokio::time::timeout(QUIC_DRAIN_TIME, listener.drained()).await;
    }

    fn admit(
        &self,
        incoming: Incoming,
        metrics: &Arc<ListenerMetrics>,
        connections: &mut JoinSet<Option<MovableConnection>>,
    ) {
        let peer = incoming.peer_address();
        let must_prove_address =
            self.is_loaded() || self.networks.is_half_full(peer.map(|peer| peer.ip()));
        if must_prove_address && incoming.can_be_asked_for_its_address() {
            debug!(
                peer = peer.map(display),
                "address validation requested from client"
            );
            self.hub.metrics.retried.add(1);
            incoming.ask_for_its_address();
            return;
        }
        let refused = |reason| self.hub.refused_connection(peer, reason, clock::now());
        let place = if incoming.awaits_proxy_header() {
            // The client's address is not known yet.
            None
        } else {
            match self.place_for(peer) {
                Ok(place) => Some(place),
                Err(reason) => return refused(reason),
            }
        };
        let Ok(connection) = Arc::clone(&self.connections).try_acquire_owned() else {
            return refused("too many connections");
        };
        let Ok(handshake) = Arc::clone(&self.handshakes).try_acquire_owned() else {
            return refused("too many handshakes");
        };
        let metrics = Arc::clone(metrics);
        let worker_slot = self.worker_pool.place(incoming.runtime());
        let moves = worker_slot.is_some();
        // Boxed, so that its memory is free again once the link is open.
        let opened = self
            .clone()
            .open(incoming, place, moves, metrics, handshake);
        let opened = Box::pin(opened);
        let served = async move {
            if let Some((_counted, _place, wire)) = opened.await {
                conn::serve(wire).await;
            }
            drop(connection);
        };
        MovableConnection::new(served, worker_slot).spawn(connections);
    }

    /// Returns a place for a connection from this address, or the reason for which there is none.
    fn place_for(&self, peer: Option<SocketAddr>) -> Result<Place, &'static str> {
        if self.hub.bans.has_address(peer, clock::now()) {
            return Err("banned");
        }
        let place = self.networks.enter(peer.map(|peer| peer.ip()));
        place.ok_or("too many connections of its address")
    }

    /// Returns `true` if a quarter of all handshakes that may be under way are.
    fn is_loaded(&self) -> bool {
        let most = self.settings.max_handshakes;
        most - self.handshakes.available_permits().min(most) >= most.div_ceil(4)
    }

    /// Makes a link of what has come, and returns it with its place; `None` if that fails. Without a place yet, a PROXY header says
    /// for which address to take one.
    async fn open(
        self,
        incoming: Incoming,
        place: Option<Place>,
        moves: bool,
        metrics: Arc<ListenerMetrics>,
        _permit: OwnedSemaphorePermit,
    ) -> Option<(Counted, Place, Box<Wire>)> {
        let peer = incoming.peer_address();
        let hub = Arc::clone(&self.hub);
        let _under_way = UnderWay::new(&hub.metrics.handshakes);
        let incoming = if moves {
            incoming.move_here()
        } else {
            Ok(incoming)
        };
        let mut incoming = match incoming {
            Ok(incoming) => incoming,
            Err(error) => {
                debug!(peer = peer.map(display), %error, "cannot move socket to another worker");
                return None;
            }
        };
        let mut shutdown = self.shutdown.clone();
        // The client's address as far as it is known: behind a proxy, once the header has come.
        let (mut known_peer, mut is_proxys_own) = (peer, false);
        let handshake = async {
            let place = if let Some(place) = place {
                place
            } else {
                incoming.read_proxy_header().await?;
                known_peer = incoming.peer_address();
                is_proxys_own = incoming.is_proxys_own();
                self.place_for(known_peer).map_err(NotOpened::Refused)?
            };
            Ok((place, incoming.handshake().await?))
        };
        let open = tokio::time::timeout(self.settings.handshake_timeout, handshake);
        let open = tokio::select! {
            open = open => Some(open),
            // No client has connected yet, so there is nobody to say goodbye to.
            _ = shutdown.changed() => None,
        };
        let peer = known_peer;
        let failed = &metrics.handshakes_failed;
        let (place, link) = match open {
            Some(Ok(Ok(opened))) => opened,
            Some(Ok(Err(NotOpened::Refused(reason)))) => {
                self.hub.refused_connection(peer, reason, clock::now());
                return None;
            }
            Some(Ok(Err(NotOpened::Failed(error)))) if is_proxys_own => {
                debug!(peer = peer.map(display), %error, "proxy's health check ended");
                return None;
            }
            Some(Ok(Err(NotOpened::Failed(error)))) => {
                failed.add(1);
                let error = error.to_string();
                let details = RefusalDetails {
                    peer,
                    transport: Some(metrics.address.scheme),
                    error: Some(&error),
                    ..RefusalDetails::default()
                };
                self.hub
                    .refused_early(details, "handshake failed", clock::now());
                return None;
            }
            Some(Err(_)) => {
                failed.add(1);
                debug!(peer = peer.map(display), "handshake timed out");
                return None;
            }
            None => {
                debug!(peer = peer.map(display), "handshake aborted by shutdown");
                return None;
            }
        };
        metrics.accepted.add(1);
        let counted = Counted::new(Arc::clone(&self.hub), Arc::clone(&metrics));
        let wire = Wire::new(link, self.hub, metrics, self.settings, self.shutdown);
        Some((counted, place, Box::new(wire)))
    }
}

/// Reasons for which a connection is not opened.
enum NotOpened {
    /// The broker refuses the client, whose address stood in a PROXY header.
    Refused(&'static str),
    /// The handshake failed.
    Failed(mq_transport::Error),
}

impl From<mq_transport::Error> for NotOpened {
    fn from(error: mq_transport::Error) -> Self {
        Self::Failed(error)
    }
}

/// Counts a handshake for as long as it lives, whichever way it ends.
struct UnderWay<'a>(&'a Gauge);

impl<'a> UnderWay<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.add(1);
        Self(gauge)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

/// Counts a connection for as long as it lives, whichever way its task ends.
struct Counted {
    hub: Arc<Hub>,
    listener: Arc<ListenerMetrics>,
}

impl Counted {
    fn new(hub: Arc<Hub>, listener: Arc<ListenerMetrics>) -> Self {
        let counted = Self { hub, listener };
        counted.gauges().into_iter().for_each(|gauge| gauge.add(1));
        counted
    }

    fn gauges(&self) -> [&Gauge; 2] {
        [&self.hub.metrics.connections, &self.listener.connections]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauges().into_iter().for_each(|gauge| gauge.sub(1));
    }
}

/// Takes the end of a connection's task: a connection that goes to another worker gets a task there. A task that
/// panicked is a bug, and is logged; the other connections go on.
fn ended_or_going(
    ended: Result<Option<MovableConnection>, tokio::task::JoinError>,
    connections: &mut JoinSet<Option<MovableConnection>>,
) {
    match ended {
        Ok(Some(movable)) => movable.spawn(connections),
        Err(error) if error.is_panic() => {
            tracing::error!(%error, "connection task panicked");
        }
        Ok(None) | Err(_) => {}
    }
}

/// Sets the options that listeners have besides their settings.
#[cfg_attr(
    not(feature = "quic"),
    expect(unused_variables, reason = "windows are QUIC's")
)]
fn prepare(listen: &mut ListenOptions, worker_pool: &WorkerPool, hub: &Hub) {
    #[cfg(feature = "quic")]
    {
        listen.window_memory = Some(hub.window_memory());
    }
    listen.runtimes = worker_pool.handles();
    listen.hold_tickets = true;
    listen.quic.keep_alive_interval = listen.quic.keep_alive_below_idle();
}

/// Makes the state that all connections share, with the state that an earlier broker has kept.
/// Checks what no file has to be read for.
fn check(settings: &Settings) -> Result<(), Error> {
    if settings.listeners.is_empty() {
        return Err(Error::NoListener);
    }
    #[cfg(not(feature = "tls"))]
    if settings.ticket_file.is_some() {
        let scheme = mq_transport::Scheme::Tls;
        return Err(mq_transport::Error::NotBuiltIn { scheme }.into());
    }
    Ok(())
}

fn hub_of(
    settings: &Settings,
    persistence: &Persistence,
    kept: Snapshot,
    access_control: AccessControl,
    worker_channels: &Arc<WorkerChannels>,
    (bridges, mark): (&[BridgeTask], BrokerMark),
) -> Hub {
    let states = bridges.iter().filter_map(|one| one.bridge.state.as_ref());
    let states = states.map(|state| state.topic.clone());
    let store = persistence.store.clone();
    let can_spill = store.as_ref().is_some_and(|store| store.can_spill());
    let hub_settings = HubSettings {
        quotas: settings.quotas,
        take_over: settings.take_over,
        own_topics: OwnTopics::new(settings.sys_interval.is_some(), states),
        store_patience: settings.store_patience,
        mark,
        bridge_mailboxes: bridge::mailbox_rules(&settings.bridges, settings.quotas, can_spill),
    };
    let parts = HubParts {
        access_control,
        store,
        cluster: persistence.nodes(),
        worker_channels: Arc::clone(worker_channels),
        hooks: settings.hooks.clone(),
    };
    Hub::new(hub_settings, parts, kept)
}

async fn bind_all(settings: &Settings) -> Result<Vec<Listener>, Error> {
    let mut listeners = Vec::new();
    for address in &settings.listeners {
        listeners.push(Listener::bind(address, &settings.listen_at(address)).await?);
    }
    Ok(listeners)
}
