//! The listener's side of QUIC: its endpoints, and the configuration of new connections.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, Weak},
    task::Poll,
    time::Duration,
};

use quinn::{
    Endpoint, EndpointConfig, ServerConfig, TransportConfig, ValidationTokenConfig,
    crypto::rustls::QuicServerConfig,
};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SetOnce, mpsc},
    task::JoinSet,
    time::sleep,
};

use super::{
    config::{endpoint_config, no_initial_cipher_suite, socket, transport_config},
    initial_keys::InitialKeys,
    link::{BegunConnection, QuicLink},
    qlog::Notes,
    repeater::Repeater,
    reset::ResetKey,
    runtime::{DrainTimeoutGuard, PooledRuntime, begin_guarded},
    shard::ShardSocket,
    socket::bind_udp_group,
    watched_tls::WatchedServer,
    windows::ConnectionLimits,
};
use crate::{
    Address, Error, ListenOptions, Scheme,
    socket::listen_error,
    sync::{lock, ready_output},
    tls::{HeldTickets, Scope, ServerTls, server_config, with_held_tickets},
};

/// Number of a listener's [shards](super::shard), where the kernel spreads clients over sockets.
const SHARDS: usize = 16;

/// Simultaneous clients of one shard that count as a crowd. After a crowd, the tables of the endpoint are too
/// large to keep.
const CROWD_CLIENTS: usize = 64;

/// Time without a client after which a shard's crowd counts as gone.
const CROWD_GONE_AFTER: Duration = Duration::from_secs(10);

/// Bytes that all unanswered clients together may have sent.
const MAX_UNANSWERED_BYTES: u64 = 100 << 20;

/// A listener's endpoints.
#[derive(Debug)]
pub(crate) struct Server {
    shards: Box<[Mutex<Arc<Shard>>]>,
    /// Configuration that all endpoints share.
    endpoints: EndpointConfig,
    bound: SocketAddr,
    /// Options with which the listener was bound; a reload replaces `current` alone.
    options: ListenOptions,
    current: Mutex<CurrentConfig>,
    initial_keys: Arc<InitialKeys>,
    /// Held by the thread that [answers](Self::answer).
    answering: Semaphore,
}

/// An endpoint with its socket, until a new endpoint replaces it.
#[derive(Debug)]
struct Shard {
    endpoint: Endpoint,
    socket: Arc<ShardSocket>,
    /// Held by the client that is [answered](Server::answer).
    answering: tokio::sync::Mutex<()>,
    /// Shared by all clients that wait for an answer: its strong count, less one, is their number.
    unanswered: Arc<()>,
    /// A crowd has been here.
    crowded: SetOnce<()>,
    /// Runtime that reads the socket; `None` is the runtime that bound it.
    runtime: Option<Handle>,
}

/// The configuration of new connections.
#[derive(Debug)]
struct CurrentConfig {
    config: Arc<ServerConfig>,
    /// The TLS configuration within `config`.
    tls: rustls::ServerConfig,
    scope: Scope,
    closed: bool,
}

/// A server's TLS configuration, checked and not yet in force.
pub(crate) struct PreparedQuic {
    crypto: Arc<WatchedServer>,
    /// The configuration from which `crypto` was made.
    tls: rustls::ServerConfig,
    scope: Scope,
}

impl fmt::Debug for PreparedQuic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedQuic").finish_non_exhaustive()
    }
}

impl PreparedQuic {
    fn new(options: &ListenOptions, initial_keys: &Arc<InitialKeys>) -> Result<Self, Error> {
        let ServerTls { config, scope } = server_config(Scheme::Quic, options)?;
        Ok(Self {
            crypto: crypto(config.clone(), initial_keys)?,
            tls: config,
            scope,
        })
    }
}

fn crypto(
    tls: rustls::ServerConfig,
    initial_keys: &Arc<InitialKeys>,
) -> Result<Arc<WatchedServer>, Error> {
    let crypto = QuicServerConfig::try_from(tls).map_err(no_initial_cipher_suite)?;
    Ok(Arc::new(WatchedServer {
        inner: Arc::new(crypto),
        initial_keys: initial_keys.clone(),
    }))
}

impl Server {
    pub(crate) fn bind(
        address: &Address,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self, Error> {
        let initial_keys = Arc::<InitialKeys>::default();
        let PreparedQuic { crypto, tls, scope } = PreparedQuic::new(options, &initial_keys)?;
        let sockets = bind_udp_group(local, &options.socket, SHARDS)
            .map_err(|error| listen_error(address, error))?;
        let bound = sockets[0].local_addr()?;
        let sockets = sockets.into_iter().enumerate();
        let sockets = sockets.map(|(number, bound)| {
            let _there = runtime_of(options, number).map(Handle::enter);
            socket(bound, &options.quic)
        });
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        let shards = sockets.len();

        let mut config = ServerConfig::with_crypto(crypto);
        // Quinn ignores further clients at once. Let in, they would wait here, at the cost of all others.
        let backlog = usize::try_from(options.backlog).unwrap_or(usize::MAX);
        config.max_incoming(backlog.div_ceil(shards));
        config.incoming_buffer_size_total(MAX_UNANSWERED_BYTES / shards as u64);
        // Each saves a later Retry, and sealing one costs as much as a packet. A client that uses its token gets the
        // next one.
        let mut tokens = ValidationTokenConfig::default();
        tokens.sent(1);
        config.validation_token_config(tokens);
        let transport = transport_config(&options.first_quic(), options.congestion)?;
        config.transport_config(Arc::new(transport));

        let mut endpoints = endpoint_config(&options.quic)?;
        let reset = ResetKey::of(options.identity_for(Scheme::Quic)?);
        let sockets = ShardSocket::each(sockets, reset.connection_ids());
        endpoints.reset_key(Arc::new(reset));
        let shards = sockets.into_iter().enumerate();
        let shards = shards.map(|(number, socket)| {
            let runtime = runtime_of(options, number);
            Shard::new(&endpoints, socket, &config, runtime).map(Mutex::new)
        });
        Ok(Self {
            shards: shards.collect::<io::Result<_>>()?,
            endpoints,
            bound,
            options: options.clone(),
            current: Mutex::new(CurrentConfig {
                config: Arc::new(config),
                tls,
                scope,
                closed: false,
            }),
            initial_keys,
            answering: Semaphore::new(options.handshake_pool.threads().min(Semaphore::MAX_PERMITS)),
        })
    }

    /// Returns the bound address; its IP address may be the wildcard.
    pub(crate) fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Makes the transport configuration, with its trace file, of a connection that is traced; `None` if it is not.
    fn traced(&self) -> Result<Option<Traced>, Error> {
        let ListenOptions {
            quic, congestion, ..
        } = &self.options;
        let Some(qlog) = &quic.qlog else {
            return Ok(None);
        };
        let Some(trace) = qlog.begin("server")? else {
            return Ok(None);
        };
        let mut transport = transport_config(&self.options.first_quic(), *congestion)?;
        transport.qlog_stream(Some(trace.stream));
        Ok(Some(Traced {
            transport: Arc::new(transport),
            notes: trace.notes,
        }))
    }

    /// Returns the configuration of a handshake that begins now, and its tickets where they are held back.
    fn config(
        &self,
        traced: Option<Arc<TransportConfig>>,
    ) -> Result<(Arc<ServerConfig>, Option<Arc<HeldTickets>>), Error> {
        let current = lock(&self.current);
        let held = self
            .options
            .hold_tickets
            .then(|| with_held_tickets(&current.tls, &self.options, current.scope));
        let mut config = current.config.clone();
        drop(current);
        if let Some(transport) = traced {
            Arc::make_mut(&mut config).transport_config(transport);
        }
        let Some((tls, tickets)) = held else {
            return Ok((config, None));
        };
        Arc::make_mut(&mut config).crypto = crypto(tls, &self.initial_keys)?;
        Ok((config, Some(tickets)))
    }

    fn incoming(
        self: &Arc<Self>,
        incoming: quinn::Incoming,
        shard: Arc<Shard>,
    ) -> Result<QuicIncoming, Error> {
        Ok(QuicIncoming {
            incoming,
            unanswered: shard.unanswered.clone(),
            shard,
            traced: self.traced()?,
            server: self.clone(),
        })
    }

    /// Begins a connection.
    ///
    /// Quinn computes the answer under the endpoint's lock. A client that waits for the lock waits here,
    /// and blocks no thread. The pool's number of threads bounds how many clients of a crowd are answered
    /// at a time: the longest waiting first, after the next steps of all handshakes under way. A waiting
    /// client takes hardly any memory.
    async fn answer(
        &self,
        shard: &Shard,
        incoming: quinn::Incoming,
        config: Arc<ServerConfig>,
        repeater: Option<Arc<Repeater>>,
    ) -> Result<(BegunConnection, DrainTimeoutGuard), Error> {
        let _turn_at_shard = shard.answering.lock().await;
        let _turn = self.answering.acquire().await;
        let (connecting, guard) = begin_guarded(repeater.as_ref(), || incoming.accept_with(config));
        // Counting the connections takes the lock again.
        if !shard.crowded.initialized() && shard.endpoint.open_connections() >= CROWD_CLIENTS {
            let _ = shard.crowded.set(());
        }
        let connecting = connecting.map_err(Error::quic)?;
        let memory = self.options.window_memory.as_ref();
        let begun = BegunConnection {
            connecting,
            repeater,
            limits: ConnectionLimits::new(&self.options.quic, memory),
        };
        Ok((begun, guard))
    }

    pub(crate) fn prepare(&self, options: &ListenOptions) -> Result<PreparedQuic, Error> {
        PreparedQuic::new(
            &self.options.with_certificates_of(options),
            &self.initial_keys,
        )
    }

    /// Changes the TLS of new connections and nothing else: the key of the address validation
    /// tokens (RFC 9000 §8.1.3) stays, as does that of stateless resets, which is the endpoint's.
    pub(crate) fn install(&self, PreparedQuic { crypto, tls, scope }: PreparedQuic) {
        let mut current = lock(&self.current);
        let mut config = (*current.config).clone();
        config.crypto = crypto;
        if !current.closed {
            self.give(Some(&config));
        }
        current.config = Arc::new(config);
        current.tls = tls;
        let before = std::mem::replace(&mut current.scope, scope);
        drop(current);
        if before != scope {
            self.options.ticket_store.forget(&before);
        }
    }

    /// Leaves new clients without an answer from now on, whatever is installed later.
    pub(crate) fn close(&self) {
        let mut current = lock(&self.current);
        current.closed = true;
        self.give(None);
    }

    /// Sets the configuration of new clients at all endpoints; with `None` they get no answer.
    fn give(&self, config: Option<&ServerConfig>) {
        for shard in self.shards() {
            shard.endpoint.set_server_config(config.cloned());
        }
    }

    /// Waits until all connections have ended.
    pub(crate) async fn drained(&self) {
        idle(self.shards().collect()).await;
    }

    /// Replaces an endpoint that no client uses by a new one. Otherwise returns the client that has
    /// come meanwhile, if there is one.
    fn renew(&self, number: usize) -> Option<quinn::Incoming> {
        // Under this lock no configuration is installed, and the server is not closed.
        let current = lock(&self.current);
        if current.closed {
            return None;
        }
        let mut place = lock(&self.shards[number]);
        place.socket.retire();
        // A client counts as a connection before it ceases to count as unanswered. Connections are counted
        // under the endpoint's lock, under which it also receives: nothing comes after that.
        let used =
            Arc::strong_count(&place.unanswered) > 1 || place.endpoint.open_connections() > 0;
        let came = ready_output(place.endpoint.accept()).flatten();
        if !used && came.is_none() {
            let (socket, runtime) = (place.socket.successor(), place.runtime.as_ref());
            match Shard::new(&self.endpoints, socket, &current.config, runtime) {
                Ok(fresh) => {
                    *place = fresh;
                    return None;
                }
                Err(error) => tracing::debug!(%error, "quic: cannot replace idle endpoint"),
            }
        }
        place.socket.resume();
        came
    }

    fn shard(&self, number: usize) -> Arc<Shard> {
        lock(&self.shards[number]).clone()
    }

    fn shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        (0..self.shards.len()).map(|number| self.shard(number))
    }
}

impl Drop for Server {
    /// Closes the server. The kernel goes on spreading datagrams over all sockets, so each is read while any endpoint
    /// has a connection.
    fn drop(&mut self) {
        self.close();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(idle(self.shards().collect()));
        }
    }
}

/// Returns the runtime of a shard; `None` if the options name none.
fn runtime_of(options: &ListenOptions, shard: usize) -> Option<&Handle> {
    let count = options.runtimes.len();
    options.runtimes.get(shard.checked_rem(count)?)
}

async fn idle(shards: Vec<Arc<Shard>>) {
    // Handshakes may begin at one while it waits for the next.
    while shards
        .iter()
        .any(|shard| ready_output(shard.endpoint.wait_idle()).is_none())
    {
        for shard in &shards {
            shard.endpoint.wait_idle().await;
        }
    }
}

impl Shard {
    fn new(
        endpoints: &EndpointConfig,
        socket: Arc<ShardSocket>,
        config: &ServerConfig,
        runtime: Option<&Handle>,
    ) -> io::Result<Arc<Self>> {
        let _there = runtime.map(Handle::enter);
        let mut endpoint = endpoints.clone();
        let ids = socket.clone();
        endpoint.cid_generator(move || ids.connection_ids());
        let config = Some(config.clone());
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint,
            config,
            socket.clone(),
            Arc::new(PooledRuntime),
        )?;
        Ok(Arc::new(Self {
            endpoint,
            socket,
            answering: tokio::sync::Mutex::default(),
            unanswered: Arc::default(),
            crowded: SetOnce::new(),
            runtime: runtime.cloned(),
        }))
    }

    /// Waits until a crowd of clients has connected to the shard, and all have disconnected.
    async fn deserted(&self) {
        self.crowded.wait().await;
        loop {
            self.endpoint.wait_idle().await;
            sleep(CROWD_GONE_AFTER).await;
            if self.endpoint.open_connections() == 0 {
                return;
            }
        }
    }
}

/// The new connections of a server, or of some of its shards.
#[derive(Debug)]
pub(crate) struct IncomingConnections {
    server: Arc<Server>,
    /// A queue for each runtime.
    queues: Vec<AcceptQueue>,
    /// Index in `queues` of the queue that was polled last: the next poll begins with the one behind it, so that each
    /// has its turn.
    turn: usize,
}

/// The queue of new connections of one runtime's shards.
#[derive(Debug)]
struct AcceptQueue {
    runtime: Option<Handle>,
    incoming: mpsc::Receiver<Result<QuicIncoming, Error>>,
    /// Tasks that accept on each shard; dropping the queue aborts them.
    _accept_tasks: JoinSet<()>,
}

impl AcceptQueue {
    fn new(server: &Arc<Server>, first: usize, every: usize) -> Self {
        let shards: Vec<_> = (first..server.shards.len()).step_by(every).collect();
        // One place for each shard. Further clients stay in quinn, which bounds them.
        let (sender, incoming) = mpsc::channel(shards.len());
        let runtime = runtime_of(&server.options, first).cloned();
        let mut accept_tasks = JoinSet::new();
        for number in shards {
            let task = accept_on_shard(Arc::downgrade(server), number, sender.clone());
            // With the shard's endpoint, which wakes it.
            match &runtime {
                Some(runtime) => accept_tasks.spawn_on(task, runtime),
                None => accept_tasks.spawn(task),
            };
        }
        Self {
            runtime,
            incoming,
            _accept_tasks: accept_tasks,
        }
    }
}

impl IncomingConnections {
    pub(crate) fn new(server: Server) -> Self {
        let server = Arc::new(server);
        let count = server.options.runtimes.len();
        let count = count.clamp(1, server.shards.len());
        Self {
            queues: (0..count)
                .map(|first| AcceptQueue::new(&server, first, count))
                .collect(),
            server,
            turn: 0,
        }
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Splits the queues, one for each runtime.
    pub(crate) fn by_runtime(self) -> impl Iterator<Item = (Option<Handle>, Self)> {
        let Self { server, queues, .. } = self;
        queues.into_iter().map(move |queue| {
            let runtime = queue.runtime.clone();
            let (server, queues) = (server.clone(), vec![queue]);
            let turn = 0;
            let connections = Self {
                server,
                queues,
                turn,
            };
            (runtime, connections)
        })
    }

    /// Waits for the next new connection. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<QuicIncoming, Error> {
        poll_fn(|cx| {
            for _ in 0..self.queues.len() {
                self.turn = (self.turn + 1) % self.queues.len();
                if let Poll::Ready(incoming) = self.queues[self.turn].incoming.poll_recv(cx) {
                    return Poll::Ready(incoming.unwrap_or(Err(Error::Closed)));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Accepts the new connections of one shard, and replaces its endpoint after a crowd.
async fn accept_on_shard(
    server: Weak<Server>,
    number: usize,
    sender: mpsc::Sender<Result<QuicIncoming, Error>>,
) {
    while let Ok(permit) = sender.reserve().await
        && let Some(shard) = server.upgrade().map(|server| server.shard(number))
    {
        let came = tokio::select! {
            incoming = shard.endpoint.accept() => Some(incoming),
            () = shard.deserted() => None,
        };
        let Some(server) = server.upgrade() else {
            return;
        };
        let Some(came) = came.or_else(|| server.renew(number).map(Some)) else {
            continue;
        };
        // Without its driver the endpoint is closed for good, and every call says so.
        let accepted = came.ok_or(Error::Closed);
        permit.send(accepted.and_then(|incoming| server.incoming(incoming, shard)));
    }
}

/// A new connection: a client's first packet, which waits for an answer.
#[derive(Debug)]
pub(crate) struct QuicIncoming {
    incoming: quinn::Incoming,
    shard: Arc<Shard>,
    unanswered: Arc<()>,
    traced: Option<Traced>,
    server: Arc<Server>,
}

/// The transport configuration of one connection alone, which is traced.
#[derive(Debug)]
struct Traced {
    transport: Arc<TransportConfig>,
    notes: Notes,
}

impl QuicIncoming {
    pub(crate) fn peer_address(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    pub(crate) fn runtime(&self) -> Option<&Handle> {
        self.shard.runtime.as_ref()
    }

    pub(crate) fn can_be_asked_for_its_address(&self) -> bool {
        self.incoming.may_retry() && !self.incoming.remote_address_validated()
    }

    pub(crate) fn ask_for_its_address(self) {
        if let Err(error) = self.incoming.retry() {
            // A client with a token is refused by dropping it.
            drop(error);
        }
    }

    /// Runs the handshake; returns the connection, and the client's tickets if they are held back.
    pub(crate) async fn handshake(self) -> Result<(QuicLink, Option<Arc<HeldTickets>>), Error> {
        let pool = self.server.options.handshake_pool.clone();
        let handshake = async move {
            // Without this, the configuration would be that of its first packet's arrival.
            let (transport, notes) = self
                .traced
                .map(|traced| (traced.transport, traced.notes))
                .unzip();
            let (config, held) = self.server.config(transport)?;
            let bound = Some(self.server.bound);
            let validated = self.incoming.remote_address_validated();
            let repeater = Repeater::of_server(&self.server.options.quic, validated, notes);
            let answer = self
                .server
                .answer(&self.shard, self.incoming, config, repeater);
            let answered = answer.await;
            drop((self.server, self.shard, self.unanswered));
            let (begun, guard) = answered?;
            let link = QuicLink::accept(begun, guard).await?;
            Ok((link.with_bound(bound).with_validated(validated), held))
        };
        pool.run(handshake).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConnectOptions, Connector, HandshakePool, Link, ServerIdentity, Trust};

    /// Makes a connector, which has a UDP socket of its own.
    fn connector() -> Connector {
        let options = ConnectOptions {
            trust: Trust::Insecure,
            ..ConnectOptions::default()
        };
        Connector::new(options).unwrap()
    }

    struct Bound {
        connections: IncomingConnections,
        address: Address,
        connector: Connector,
        handshakes: JoinSet<()>,
    }

    impl Bound {
        fn new() -> Self {
            Self::on(Vec::new())
        }

        /// Binds a listener with its sockets on these runtimes.
        fn on(runtimes: Vec<Handle>) -> Self {
            let identity = ServerIdentity::self_signed().unwrap();
            let options = ListenOptions {
                identity: Some(identity),
                // They are given up with the test's runtime, which no other thread must need then.
                handshake_pool: HandshakePool::new(usize::MAX),
                runtimes,
                ..ListenOptions::default()
            };
            let mut address = Address::new(Scheme::Quic, "127.0.0.1", 0);
            let server = Server::bind(&address, ([127, 0, 0, 1], 0).into(), &options).unwrap();
            address.port = server.bound().port();
            Self {
                connections: IncomingConnections::new(server),
                address,
                connector: connector(),
                handshakes: JoinSet::new(),
            }
        }

        fn shards(&self) -> Vec<Arc<Shard>> {
            self.connections.server.shards().collect()
        }

        async fn connect(&mut self) -> Link {
            let connecting = async {
                let mut link = self.connector.connect(&self.address).await.unwrap();
                link.handshake_complete().await.unwrap();
                link
            };
            let answering = async {
                let incoming = self.connections.next().await.unwrap();
                self.handshakes
                    .spawn(async { drop(incoming.handshake().await) });
            };
            tokio::join!(connecting, answering).0
        }
    }

    /// Returns the number of shards that were replaced.
    fn replaced(before: &[Arc<Shard>], after: &[Arc<Shard>]) -> usize {
        before
            .iter()
            .zip(after)
            .filter(|(a, b)| !Arc::ptr_eq(a, b))
            .count()
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn clients_are_spread_over_endpoints() {
        let mut bound = Bound::new();
        assert_eq!(bound.shards().len(), SHARDS);
        let mut links = Vec::new();
        for _ in 0..64 {
            bound.connector = connector();
            links.push(bound.connect().await);
        }
        let shards = bound.shards();
        let used = shards
            .iter()
            .filter(|shard| shard.endpoint.open_connections() > 0);
        assert!(used.count() > SHARDS / 2);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn each_runtime_lets_in_the_clients_of_its_own_sockets() {
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
        };
        let runtimes = [(); 3].map(|()| runtime().unwrap());
        let handles = runtimes.each_ref().map(|runtime| runtime.handle().clone());
        let Bound {
            connections,
            address,
            ..
        } = Bound::on(handles.to_vec());
        let (said, mut heard) = mpsc::unbounded_channel();
        let mut parts = JoinSet::new();
        for (runtime, mut part) in connections.by_runtime() {
            let (runtime, said) = (runtime.unwrap(), said.clone());
            let letting_in = async move {
                while let Ok(incoming) = part.next().await {
                    let own = incoming.runtime().unwrap().id();
                    said.send((Handle::current().id(), own)).unwrap();
                    tokio::spawn(async { drop(incoming.handshake().await) });
                }
            };
            parts.spawn_on(letting_in, &runtime);
        }
        let mut used = std::collections::HashSet::new();
        for _ in 0..64 {
            let mut link = connector().connect(&address).await.unwrap();
            link.handshake_complete().await.unwrap();
            let (on, own) = heard.recv().await.unwrap();
            assert_eq!(on, own);
            used.insert(on.to_string());
        }
        assert_eq!(used.len(), runtimes.len());
        parts.shutdown().await;
        for runtime in runtimes {
            runtime.shutdown_background();
        }
    }

    #[tokio::test]
    async fn an_endpoint_makes_way_after_a_crowd() {
        for (clients, expected) in [(CROWD_CLIENTS - 1, 0), (CROWD_CLIENTS, 1)] {
            let mut bound = Bound::new();
            let before = bound.shards();
            // All from one socket, and so with one shard.
            let mut crowd = Vec::new();
            for _ in 0..clients {
                crowd.push(bound.connect().await);
            }
            let stays = crowd.pop();
            drop(crowd);
            tokio::time::pause();
            sleep(Duration::from_mins(1)).await;
            assert_eq!(replaced(&before, &bound.shards()), 0, "somebody is there");
            drop(stays);
            sleep(Duration::from_mins(1)).await;
            assert_eq!(replaced(&before, &bound.shards()), expected);
            tokio::time::resume();
            bound.connect().await;
        }
    }

    #[tokio::test]
    async fn an_endpoint_does_not_make_way_for_nothing() {
        let mut bound = Bound::new();
        let _link = bound.connect().await;
        let before = bound.shards();
        for number in 0..before.len() {
            assert!(bound.connections.server.renew(number).is_none());
        }
        // One of all has a connection.
        assert_eq!(replaced(&before, &bound.shards()), before.len() - 1);
        bound.connect().await;
        bound.connections.server.close();
        let before = bound.shards();
        for number in 0..before.len() {
            assert!(bound.connections.server.renew(number).is_none());
        }
        assert_eq!(replaced(&before, &bound.shards()), 0);
    }
}
