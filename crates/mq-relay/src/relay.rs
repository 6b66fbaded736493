//! The relay: its listeners, and a task for each client.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use mq_codec::{ReasonCode, Version};
use mq_transport::{Address, EarlyData, Error, HandshakeKind, Incoming, Link, Listener};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use crate::{
    RelayOptions,
    first_packet::{self, FirstPacket, NoConnect},
    lock::lock,
    pipe::{End, Pipe, Side},
    upstream::{Unreached, Upstream},
};

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
    /// Connections to the broker with a full handshake, or without one, that have ended.
    pub full: u64,
    /// Connections to the broker that resumed a session, and have ended.
    pub resumed: u64,
    /// Connections to the broker whose early data was accepted, and that have ended; they count as resumed too.
    pub early_accepted: u64,
    /// Connections to the broker whose early data was rejected and sent again, and that have ended.
    pub early_rejected: u64,
    /// Connections to another address of the broker than the first.
    pub fallbacks: u64,
    /// Connections to the broker that failed before it had answered.
    pub unreached: u64,
    /// Bytes from clients to the broker, of clients that have ended.
    pub bytes_to_broker: u64,
    /// Bytes from the broker to clients, of clients that have ended.
    pub bytes_to_clients: u64,
}

#[derive(Debug)]
struct Shared {
    options: Arc<RelayOptions>,
    upstream: Upstream,
    stats: watch::Sender<RelayStats>,
    by_address: Mutex<HashMap<IpAddr, usize>>,
    /// Places for clients that have not proven their address by a handshake: while none is free, QUIC clients are asked for a token
    /// first (RFC 9000 §8.1), since a packet with a false source takes a place in the relay.
    arriving: Semaphore,
    /// Becomes `true` when the relay stops to accept clients.
    draining: watch::Sender<bool>,
}

impl Relay {
    /// Listens at the addresses of the options. Opens no connection to the broker before the first client comes.
    ///
    /// # Errors
    /// If an address cannot be bound, or what is wrong with the options and the files that they name.
    pub async fn bind(options: RelayOptions) -> Result<Self, Error> {
        let front = options.front();
        let mut listeners = Vec::new();
        for address in &options.listen {
            listeners.push(Listener::bind(address, &front).await?);
        }
        let options = Arc::new(options);
        let shared = Shared {
            upstream: Upstream::new(Arc::clone(&options))?,
            options,
            stats: watch::Sender::default(),
            by_address: Mutex::default(),
            arriving: Semaphore::new(UNPROVEN),
            draining: watch::Sender::new(false),
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
        let mut draining = self.shared.draining.subscribe();
        // The sender lives as long as this.
        let _ = draining.wait_for(|draining| *draining).await;
    }
}

impl RelayHandle {
    /// Reads the counters.
    #[must_use]
    pub fn stats(&self) -> RelayStats {
        *self.shared.stats.borrow()
    }

    /// Accepts no further client, and waits until those present have gone, or for `patience` at most. Returns the number of clients that
    /// are still there; they are cut when the runtime ends.
    pub async fn drain(&self, patience: Duration) -> u64 {
        self.shared.draining.send_replace(true);
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
    let mut draining = shared.draining.subscribe();
    loop {
        let incoming = tokio::select! {
            incoming = listener.accept() => incoming,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        match incoming {
            Ok(incoming) => {
                let is_crowded = shared.arriving.available_permits() == 0;
                if is_crowded && incoming.can_be_asked_for_its_address() {
                    incoming.ask_for_its_address();
                } else if let Some(place) = Place::take(&shared, &incoming) {
                    tokio::spawn(serve(incoming, place));
                } else {
                    shared.count(|stats| stats.refused += 1);
                    tracing::debug!(peer = ?incoming.peer_address(), "refused: too many clients");
                }
            }
            Err(Error::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot accept clients for a moment");
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
    fn take(shared: &Arc<Shared>, incoming: &Incoming) -> Option<Self> {
        let options = &shared.options;
        let is_taken = shared.stats.send_if_modified(|stats| {
            let has_room = stats.clients < options.connections as u64;
            stats.clients += u64::from(has_room);
            has_room
        });
        if !is_taken {
            return None;
        }
        let mut place = Self {
            shared: Arc::clone(shared),
            address: None,
        };
        let address = incoming.peer_address().map(|peer| peer.ip());
        if let (Some(address), Some(most)) = (address, options.connections_per_address) {
            let mut by_address = lock(&shared.by_address);
            let present = by_address.entry(address).or_default();
            if *present >= most.get() {
                return None;
            }
            *present += 1;
            place.address = Some(address);
        }
        Some(place)
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
async fn serve(incoming: Incoming, place: Place) {
    let shared = Arc::clone(&place.shared);
    let (options, peer) = (&shared.options, incoming.peer_address());
    let arrived = tokio::time::timeout(options.connect_time, async {
        let arriving = shared.arriving.try_acquire();
        let mut link = incoming.handshake().await.map_err(NoConnect::from)?;
        drop(arriving);
        match first_packet::read(&mut link).await {
            Ok(first) => Ok((link, first)),
            Err(error) => {
                if let NoConnect::Malformed {
                    error,
                    version: Some(version),
                } = &error
                {
                    refuse(Side::new(link), error.reason_code(), *version).await;
                }
                Err(error)
            }
        }
    });
    let (client, first) = match arrived.await {
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
    pass_on(&shared, client, &first).await;
}

/// Connects to the broker and passes the client's connection on until it ends.
async fn pass_on(shared: &Shared, client: Link, first: &FirstPacket) {
    let id = &first.client_id;
    let unavailable = |client| refuse(client, ReasonCode::ServerUnavailable, first.version);
    let answer_by = Instant::now() + shared.options.connect_options.connect_timeout;
    let mut client = Side::new(client);
    let connected = tokio::time::timeout_at(answer_by, shared.upstream.connect(first)).await;
    let connected = connected.unwrap_or_else(|_| {
        shared.upstream.failed();
        Err(Unreached::TooLate)
    });
    let connected = match connected {
        Ok(connected) => connected,
        Err(error) => {
            shared.count(|stats| {
                stats.unreached += 1;
                stats.refused += 1;
            });
            if let Unreached::Paused(_) = error {
                // The attempt that failed has its line.
                tracing::debug!(client = %id, %error, "refused without an attempt");
            } else {
                tracing::warn!(client = %id, %error, "broker unreachable");
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
    let mut pipe = Pipe {
        client,
        broker: connected.broker,
        front: shared.options.listen_options.early_data,
        back: shared.options.early,
        answer_by,
    };
    let end = pipe.run().await;
    let Pipe { client, broker, .. } = pipe;
    shared.count(|stats| stats.add(&client, &broker));
    let was_answered = broker.received > 0;
    tracing::debug!(client = %id, %end, "ended");
    match end {
        // The broker gets what the client has sent, and without a DISCONNECT among it sends the will.
        End::Client(_) => broker.finish().await,
        End::Broker(_) if was_answered => client.finish().await,
        End::Broker(_) | End::NoAnswer => {
            // Early data was sent, and nobody was there. A broker that was there and ended the connection is not down: one client's
            // CONNECT must not keep others out.
            if broker.link.handshake() == HandshakeKind::Pending {
                shared.upstream.failed();
            }
            shared.count(|stats| stats.unreached += 1);
            tracing::warn!(client = %id, %end, "CONNECT unanswered");
            unavailable(client).await;
        }
    }
}

/// Refuses the client in a CONNACK, and ends its connection.
async fn refuse(mut client: Side, reason: ReasonCode, version: Version) {
    first_packet::put_refusal(reason, version, &mut client.outbox);
    client.finish().await;
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut RelayStats)) {
        self.stats.send_modify(change);
    }
}

impl RelayStats {
    /// Adds a client that has ended, and its connection to the broker.
    fn add(&mut self, client: &Side, broker: &Side) {
        self.bytes_to_broker += client.received;
        self.bytes_to_clients += broker.received;
        match broker.link.handshake() {
            HandshakeKind::Resumed => self.resumed += 1,
            HandshakeKind::None | HandshakeKind::Full => self.full += 1,
            HandshakeKind::Pending => {}
        }
        match broker.link.stats().early_data {
            EarlyData::Accepted => self.early_accepted += 1,
            EarlyData::Rejected => self.early_rejected += 1,
            EarlyData::NotOffered | EarlyData::Pending => {}
        }
    }
}
