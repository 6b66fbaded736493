//! The relay: its listeners, and a task for each client.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    ops::AddAssign,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use mq_codec::{ReasonCode, Version};
use mq_transport::{
    Address, EarlyData, Error, HandshakeKind, Incoming, Link, ListenOptions, Listener, network_of,
};
#[cfg(feature = "tls")]
use mq_transport::{PreparedReload, ReloadHandle};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use crate::{
    RelayOptions, clock,
    first_packet::{self, FirstPacket, NoConnect},
    lock::lock,
    log_lines::{Line, LogLines},
    pipe::{End, Pipe, Side, Traffic},
    upstream::{Unreached, Upstream},
};

/// Time in which clients that are still there at the end are told so, and their last bytes are written.
const PARTING: Duration = Duration::from_secs(1);

/// Number of handshakes under way from which on QUIC clients have to prove their address first.
const UNPROVEN: usize = 256;

/// A relay that listens. [`serve`](Self::serve) passes its clients on.
#[derive(Debug)]
pub struct Relay {
    listeners: Vec<Listener>,
    shared: Arc<Shared>,
}

/// Handle on a relay that serves; cheap to clone.
#[derive(Clone, Debug)]
pub struct RelayHandle {
    shared: Arc<Shared>,
}

/// A change of a relay's options whose files were read. Nothing changes if it is dropped.
#[derive(Debug)]
#[must_use = "nothing changes before it is applied"]
pub struct PreparedChange {
    shared: Arc<Shared>,
    route: Option<Arc<Route>>,
    #[cfg(feature = "tls")]
    certificates: Vec<PreparedReload>,
}

impl PreparedChange {
    /// Makes the change. It cannot fail.
    pub fn apply(self) {
        #[cfg(feature = "tls")]
        self.certificates
            .into_iter()
            .for_each(PreparedReload::apply);
        if let Some(route) = self.route {
            *lock(&self.shared.route) = route;
        }
    }
}

/// Counters of a relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RelayStats {
    /// Clients now.
    pub clients: u64,
    /// Clients whose CONNECT was passed on.
    pub passed_on: u64,
    /// Clients that were refused or left before that: too many clients, no CONNECT, or no broker.
    pub refused: u64,
    /// Connections on which the broker has answered, with a full handshake or without any.
    pub full: u64,
    /// Connections on which the broker has answered that resumed a session.
    pub resumed: u64,
    /// Connections on which the broker has answered that had early data accepted; they count as resumed too.
    pub early_accepted: u64,
    /// Connections on which the broker has answered that had early data rejected and sent again.
    pub early_rejected: u64,
    /// Connections to another address of the broker than the first.
    pub fallbacks: u64,
    /// Attempts to connect to the broker that failed at each address.
    pub failed: u64,
    /// Clients that were refused without an attempt, in the pause after a failure.
    pub paused: u64,
    /// Clients that had no connection to the broker within the connect timeout: the attempt, or the wait for its turn, took longer.
    pub timed_out: u64,
    /// Connections that the broker has ended, or let wait, without an answer to CONNECT.
    pub unanswered: u64,
    /// Bytes from clients to the broker.
    pub bytes_to_broker: u64,
    /// Bytes from the broker to clients.
    pub bytes_to_clients: u64,
    /// Smoothed round-trip time of the connection on which the broker has answered last.
    pub rtt: Option<Duration>,
}

/// Adds the counters of another relay, or of the same one before a restart. [`rtt`](Self::rtt) is the other's where it has one.
impl AddAssign for RelayStats {
    fn add_assign(&mut self, other: Self) {
        // A field that is new has to be here as well.
        let Self {
            clients,
            passed_on,
            refused,
            full,
            resumed,
            early_accepted,
            early_rejected,
            fallbacks,
            failed,
            paused,
            timed_out,
            unanswered,
            bytes_to_broker,
            bytes_to_clients,
            rtt,
        } = other;
        self.clients += clients;
        self.passed_on += passed_on;
        self.refused += refused;
        self.full += full;
        self.resumed += resumed;
        self.early_accepted += early_accepted;
        self.early_rejected += early_rejected;
        self.fallbacks += fallbacks;
        self.failed += failed;
        self.paused += paused;
        self.timed_out += timed_out;
        self.unanswered += unanswered;
        self.bytes_to_broker += bytes_to_broker;
        self.bytes_to_clients += bytes_to_clients;
        self.rtt = rtt.or(self.rtt);
    }
}

/// Options of a relay, and the broker that they name. A reload replaces both.
#[derive(Debug)]
struct Route {
    options: Arc<RelayOptions>,
    upstream: Upstream,
}

/// Phases of a relay, each behind the one before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    /// Clients are accepted.
    Serving,
    /// No client is accepted any more.
    Draining,
    /// The clients that are still there have to go.
    Parting,
}

#[derive(Debug)]
struct Shared {
    /// Route of clients that come from now on.
    route: Mutex<Arc<Route>>,
    /// The counters, but the bytes.
    stats: watch::Sender<RelayStats>,
    traffic: Traffic,
    by_address: Mutex<HashMap<IpAddr, usize>>,
    /// Places for clients that have not proven their address by a handshake: while none is free, QUIC clients are asked for a token
    /// first (RFC 9000 §8.1), since a packet with a false source takes a place in the relay.
    arriving: Semaphore,
    phase: watch::Sender<Phase>,
    log_lines: Arc<LogLines>,
    #[cfg(feature = "tls")]
    certificates: Vec<ReloadHandle>,
}

impl Relay {
    /// Listens at the addresses of the options. Opens no connection to the broker before the first client comes.
    ///
    /// # Errors
    /// If an address cannot be bound, or what is wrong with the options and the files that they name.
    pub async fn bind(options: RelayOptions) -> Result<Self, Error> {
        let front = options.front();
        let addresses = options.listen.clone();
        let route = Route::new(options)?;
        let mut listeners = Vec::new();
        for address in &addresses {
            listeners.push(Listener::bind(address, &front).await?);
        }
        let shared = Shared {
            #[cfg(feature = "tls")]
            certificates: listeners.iter().map(Listener::reload_handle).collect(),
            route: Mutex::new(Arc::new(route)),
            stats: watch::Sender::default(),
            traffic: Traffic::default(),
            by_address: Mutex::default(),
            arriving: Semaphore::new(UNPROVEN),
            phase: watch::Sender::new(Phase::Serving),
            log_lines: Arc::default(),
        };
        Ok(Self {
            listeners,
            shared: Arc::new(shared),
        })
    }

    /// Returns the addresses that were bound, with the ports that the system chose.
    #[must_use]
    pub fn local_addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(Listener::local_address).collect()
    }

    /// Returns a handle by which other tasks read the counters and end the relay.
    #[must_use]
    pub fn handle(&self) -> RelayHandle {
        RelayHandle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Passes clients on until [`RelayHandle::drain`] ends the relay.
    pub async fn serve(self) {
        let mut accepting = tokio::task::JoinSet::new();
        for listener in self.listeners {
            accepting.spawn(accept(listener, Arc::clone(&self.shared)));
        }
        accepting.join_all().await;
        self.shared.reached(Phase::Draining).await;
    }
}

impl RelayHandle {
    /// Reads the counters.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        let Traffic {
            to_broker,
            to_clients,
        } = &self.shared.traffic;
        RelayStats {
            bytes_to_broker: to_broker.load(Ordering::Relaxed),
            bytes_to_clients: to_clients.load(Ordering::Relaxed),
            ..*self.shared.stats.borrow()
        }
    }

    /// Prepares other options for clients that come from now on; [`PreparedChange::apply`] makes the change. Those present stay as they
    /// are.
    ///
    /// The listeners stay, with their addresses and their options but certificates, client authorities and revocation lists: see
    /// [`prepare_certificates`](Self::prepare_certificates).
    ///
    /// # Errors
    /// If an option or a file that it names cannot be used.
    pub fn prepare(&self, options: RelayOptions) -> Result<PreparedChange, Error> {
        let front = options.front();
        let route = Route::new(options)?;
        Ok(PreparedChange {
            route: Some(Arc::new(route)),
            ..self.prepare_certificates(&front)?
        })
    }

    /// Prepares other certificates for the listeners: see [`ReloadHandle::prepare`](mq_transport::ReloadHandle::prepare). Connections
    /// that are open go on.
    ///
    /// # Errors
    /// If a file that the options name cannot be used.
    #[cfg_attr(
        not(feature = "tls"),
        expect(
            unused_variables,
            clippy::unnecessary_wraps,
            reason = "there are no certificates"
        )
    )]
    pub fn prepare_certificates(&self, options: &ListenOptions) -> Result<PreparedChange, Error> {
        #[cfg(feature = "tls")]
        let certificates = {
            let handles = self.shared.certificates.iter();
            handles
                .map(|handle| handle.prepare(options))
                .collect::<Result<_, _>>()?
        };
        Ok(PreparedChange {
            shared: Arc::clone(&self.shared),
            route: None,
            #[cfg(feature = "tls")]
            certificates,
        })
    }

    /// Accepts no further client, and waits until those present have gone, or for `patience` at most. Returns the number of clients that
    /// were still there; they stay until [`cut`](Self::cut) ends them.
    pub async fn drain(&self, patience: Duration) -> u64 {
        self.shared.enter(Phase::Draining);
        self.gone(patience).await
    }

    /// Accepts no further client, and ends the connections of those present in order: what waits is written, and the broker publishes the
    /// wills of clients that have sent no DISCONNECT. Takes a second or so; then the runtime may end.
    pub async fn cut(&self) {
        self.shared.enter(Phase::Parting);
        // A little longer than each of them.
        self.gone(PARTING * 2).await;
    }

    /// Waits until no client is there, or for `patience` at most. Returns the number of clients that are.
    async fn gone(&self, patience: Duration) -> u64 {
        let mut stats = self.shared.stats.subscribe();
        let gone = stats.wait_for(|stats| stats.clients == 0);
        match tokio::time::timeout(patience, gone).await {
            Ok(_) => 0,
            Err(_) => self.stats().clients,
        }
    }
}

/// Accepts a listener's clients until the relay is drained.
async fn accept(mut listener: Listener, shared: Arc<Shared>) {
    /// Pause after an error of the system, mostly for want of file descriptors.
    const PAUSE: Duration = Duration::from_millis(100);
    loop {
        let incoming = tokio::select! {
            incoming = listener.accept() => incoming,
            () = shared.reached(Phase::Draining) => break,
        };
        match incoming {
            Ok(incoming) => {
                let is_crowded = shared.arriving.available_permits() == 0
                    || shared.is_half_taken(incoming.peer_address());
                if is_crowded && incoming.can_be_asked_for_its_address() {
                    incoming.ask_for_its_address();
                } else if let Some(place) = Place::take_for(&shared, &incoming) {
                    tokio::spawn(serve(incoming, place));
                } else {
                    shared.count(|stats| stats.refused += 1);
                    tracing::debug!(peer = ?incoming.peer_address(), "refused: too many clients");
                }
            }
            Err(Error::Closed) => return,
            Err(error) => {
                let write = |left_out, words: &str| tracing::warn!(%error, left_out, "{words}");
                shared.log_lines.write(Line::CannotAccept, write);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    listener.close();
    listener.drained().await;
}

/// A client's place among those that the relay allows; given back when it is dropped.
struct Place {
    shared: Arc<Shared>,
    /// Address of the client, where clients are counted by it.
    address: Option<IpAddr>,
}

impl Place {
    /// Takes a place for a client, and counts it for the client's address if that is known without a PROXY header.
    fn take_for(shared: &Arc<Shared>, client: &Incoming) -> Option<Self> {
        let mut place = Self::take(shared)?;
        let address = client.peer_address().map(|peer| peer.ip());
        let is_counted = client.awaits_proxy_header() || place.count_for(address);
        is_counted.then_some(place)
    }

    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let most = shared.route().options.connections as u64;
        let is_taken = shared.stats.send_if_modified(|stats| {
            let has_room = stats.clients < most;
            stats.clients += u64::from(has_room);
            has_room
        });
        is_taken.then(|| Self {
            shared: Arc::clone(shared),
            address: None,
        })
    }

    /// Counts the place for an address, where clients are counted by it. Returns `false` if the address has all that it may.
    fn count_for(&mut self, address: Option<IpAddr>) -> bool {
        let most = self.shared.route().options.connections_per_address;
        let (Some(address), Some(most)) = (address, most) else {
            return true;
        };
        let address = network_of(address);
        let mut by_address = lock(&self.shared.by_address);
        let present = by_address.entry(address).or_default();
        let has_room = *present < most.get();
        if has_room {
            *present += 1;
            self.address = Some(address);
        }
        has_room
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.count(|stats| stats.clients -= 1);
        let Some(address) = self.address else {
            return;
        };
        let mut by_address = lock(&self.shared.by_address);
        if let Some(present) = by_address.get_mut(&address) {
            *present -= 1;
            if *present == 0 {
                by_address.remove(&address);
            }
        }
    }
}

/// Serves one client to its end.
async fn serve(mut incoming: Incoming, mut place: Place) {
    let shared = Arc::clone(&place.shared);
    let route = shared.route();
    let peer = incoming.peer_address();
    let arrived = tokio::time::timeout(route.options.connect_time, async {
        let arriving = shared.arriving.try_acquire();
        if incoming.awaits_proxy_header() {
            incoming
                .read_proxy_header()
                .await
                .map_err(NoConnect::from)?;
            let peer = incoming.peer_address();
            if !place.count_for(peer.map(|peer| peer.ip())) {
                return Err(NoConnect::TooMany);
            }
        }
        let mut link = incoming.handshake().await.map_err(NoConnect::from)?;
        drop(arriving);
        match first_packet::read(&mut link).await {
            Ok(first) => {
                if route.options.proxy_protocol.is_some() && !link.is_peer_address_proved() {
                    // The broker is told the address, and may act on it.
                    let proved = link.handshake_complete().await;
                    proved.map_err(NoConnect::from)?;
                }
                Ok((link, first))
            }
            Err(error) => {
                if let NoConnect::Malformed { error, version } = &error
                    && let Some(version) = error.reason_code().malformed_connect_version(*version)
                {
                    refuse(Side::new(link), error.reason_code(), version).await;
                }
                Err(error)
            }
        }
    });
    let arrived = tokio::select! {
        arrived = arrived => arrived,
        () = shared.reached(Phase::Parting) => return,
    };
    let (client, first) = match arrived {
        Ok(Ok(arrived)) => arrived,
        Ok(Err(error)) => {
            shared.count(|stats| stats.refused += 1);
            tracing::debug!(?peer, %error, "no CONNECT");
            return;
        }
        Err(_) => {
            shared.count(|stats| stats.refused += 1);
            tracing::debug!(?peer, "no CONNECT in time");
            return;
        }
    };
    pass_on(&shared, &route, client, first).await;
}

/// Connects to the broker and passes the client's connection on until it ends.
async fn pass_on(shared: &Shared, route: &Route, client: Link, first: FirstPacket) {
    let id = first.shown_id();
    let version = first.version;
    let unavailable = |client| refuse(client, ReasonCode::ServerUnavailable, version);
    let began = clock::now();
    let answer_by = Instant::now() + route.options.answer_time();
    let mut client = Side::new(client);
    let connector = route.upstream.connector_for(&client.link);
    let connecting = route.upstream.connect(&first, connector, answer_by);
    let connected = tokio::select! {
        biased;
        // It may be here again by now: the CONNECT of a client that has left would take its session from it.
        left = client.left() => {
            shared.count(|stats| stats.refused += 1);
            let end = End::Client(left);
            tracing::debug!(client = %id, %end, "left while the broker was dialled");
            return;
        }
        connected = connecting => connected,
        () = shared.reached(Phase::Parting) => return,
    };
    let connected = match connected {
        Ok(connected) => connected,
        Err(error) => {
            shared.count(|stats| {
                stats.refused += 1;
                match error {
                    Unreached::Failed(_) => stats.failed += 1,
                    Unreached::Paused(_) => stats.paused += 1,
                    Unreached::TooLate | Unreached::NoTurn => stats.timed_out += 1,
                }
            });
            if let Unreached::Paused(_) = error {
                // The attempt that failed has its line.
                tracing::debug!(client = %id, %error, "refused without an attempt");
            } else {
                let write = |left_out, words: &str| tracing::warn!(client = %id, %error, left_out, "{words}");
                shared.log_lines.write(Line::Unreachable, write);
            }
            unavailable(client).await;
            return;
        }
    };
    client.link.let_in();
    shared.count(|stats| {
        stats.passed_on += 1;
        stats.fallbacks += u64::from(connected.is_fallback);
    });
    let size = first.bytes.len() as u64;
    shared.traffic.to_broker.fetch_add(size, Ordering::Relaxed);
    // CONNECT, with its password, is in memory until it is written.
    drop(first);
    let mut pipe = Pipe {
        client,
        broker: connected.broker,
        is_clients_turn: false,
        front: route.options.listen_options.early_data,
        back: route.options.early,
        traffic: &shared.traffic,
    };
    let answered = tokio::select! {
        answered = pipe.until_answered(answer_by) => answered,
        () = shared.reached(Phase::Parting) => return part(pipe).await,
    };
    let was_answered = answered.is_ok();
    let end = match answered {
        Ok(()) => {
            route.upstream.reached();
            shared.count(|stats| stats.answered(&pipe.broker.link));
            tokio::select! {
                end = pipe.until_end() => end,
                () = shared.reached(Phase::Parting) => return part(pipe).await,
            }
        }
        Err(end) => end,
    };
    tracing::debug!(client = %id, %end, "ended");
    match end {
        // The broker gets what the client has sent, and without a DISCONNECT among it sends the will.
        End::Client(ended) => pipe.finish_broker(ended.is_ok()).await,
        End::Broker(_) if was_answered => pipe.client.finish().await,
        // Its answer to this CONNECT is none, such as to one that breaks the protocol of 3.1.1 (`[MQTT-3.1.4-1]`).
        End::Broker(Ok(())) if pipe.broker.link.handshake() != HandshakeKind::Pending => {
            shared.count(|stats| stats.unanswered += 1);
            pipe.client.finish().await;
        }
        End::Broker(_) | End::NoAnswer => {
            let Pipe { client, broker, .. } = pipe;
            // Early data was sent, and nobody was there. A broker that was there and ended the connection is not down: one client's
            // CONNECT must not keep others out.
            if broker.link.handshake() == HandshakeKind::Pending {
                route.upstream.failed(began);
            }
            shared.count(|stats| stats.unanswered += 1);
            let write =
                |left_out, words: &str| tracing::warn!(client = %id, %end, left_out, "{words}");
            shared.log_lines.write(Line::Unanswered, write);
            // What has not left yet stays here: the client may be let in elsewhere, and would be taken over.
            drop(broker);
            unavailable(client).await;
        }
    }
}

/// Ends both connections in order: what waits is written.
async fn part(pipe: Pipe<'_>) {
    let Pipe { client, broker, .. } = pipe;
    let both = async { tokio::join!(client.finish(), broker.finish()) };
    // A peer that takes no more loses the rest.
    let _ = tokio::time::timeout(PARTING, both).await;
}

/// Refuses the client in a CONNACK, and ends its connection.
async fn refuse(mut client: Side, reason: ReasonCode, version: Version) {
    first_packet::put_refusal(reason, version, &mut client.outbox);
    client.finish().await;
}

impl Route {
    fn new(options: RelayOptions) -> Result<Self, Error> {
        options.check()?;
        let options = Arc::new(options);
        Ok(Self {
            upstream: Upstream::new(Arc::clone(&options))?,
            options,
        })
    }
}

impl Shared {
    fn route(&self) -> Arc<Route> {
        Arc::clone(&lock(&self.route))
    }

    /// Returns `true` if half of the clients that an address may have are there. Further ones over QUIC have to prove it
    /// first: packets with a false source must not take all of its places.
    fn is_half_taken(&self, peer: Option<SocketAddr>) -> bool {
        let most = self.route().options.connections_per_address;
        let (Some(peer), Some(most)) = (peer, most) else {
            return false;
        };
        let by_address = lock(&self.by_address);
        let present = by_address.get(&network_of(peer.ip())).copied();
        present.unwrap_or_default() >= most.get() / 2
    }

    /// Enters a phase, unless the relay is in a later one.
    fn enter(&self, phase: Phase) {
        self.phase
            .send_modify(|present| *present = phase.max(*present));
    }

    /// Resolves when the relay is in a phase, or in a later one.
    async fn reached(&self, phase: Phase) {
        let mut present = self.phase.subscribe();
        // The sender lives as long as this.
        let _ = present.wait_for(|present| *present >= phase).await;
    }

    fn count(&self, change: impl FnOnce(&mut RelayStats)) {
        self.stats.send_modify(change);
    }
}

impl RelayStats {
    /// Adds a connection on which the broker has answered.
    fn answered(&mut self, broker: &Link) {
        match broker.handshake() {
            HandshakeKind::Resumed => self.resumed += 1,
            HandshakeKind::None | HandshakeKind::Full => self.full += 1,
            HandshakeKind::Pending => {}
        }
        let stats = broker.stats();
        self.rtt = stats.rtt.or(self.rtt);
        match stats.early_data {
            EarlyData::Accepted => self.early_accepted += 1,
            EarlyData::Rejected => self.early_rejected += 1,
            EarlyData::NotOffered | EarlyData::Pending => {}
        }
    }
}
