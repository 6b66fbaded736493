//! The client's side of QUIC: the sockets and tokens that its connections share.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use quinn::{ConnectError, Endpoint, TokenMemoryCache, crypto::rustls::QuicClientConfig};
use tokio::runtime::{self, Handle};

use super::{
    config::{endpoint_config, no_initial_cipher_suite, socket, transport_config},
    link::BegunConnection,
    repeater::Repeater,
    runtime::{PooledRuntime, begin},
    watched_tls::WatchedClient,
    windows::ConnectionLimits,
};
use crate::{
    Address, ConnectOptions, Error,
    socket::{bind_udp, local_for},
    sync::lock,
};

/// The sockets that a client's connections share, one for each IP version, bound when needed.
#[derive(Debug, Default)]
pub(crate) struct ClientEndpoints {
    v4: Mutex<Option<Kept>>,
    v6: Mutex<Option<Kept>>,
    /// Address validation tokens, which save the round trip of a Retry.
    tokens: Arc<TokenMemoryCache>,
    /// The address of each host that its last handshake was completed with.
    last_peers: Mutex<HashMap<Address, SocketAddr>>,
    /// The addresses whose port was closed at the last attempt.
    closed: Mutex<HashSet<SocketAddr>>,
}

/// An endpoint for further connections, and the runtime that drives it.
#[derive(Debug)]
struct Kept {
    endpoint: Endpoint,
    runtime: runtime::Id,
}

/// Hosts whose address a connector remembers, and closed ports, as many as hosts in a ticket cache; for one more it
/// forgets all.
const MAX_HOSTS: usize = 256;

impl ClientEndpoints {
    /// Starts connecting; sends the first packet.
    pub(crate) fn connect(
        &self,
        address: &Address,
        peer: SocketAddr,
        server_name: &str,
        tls: rustls::ClientConfig,
        options: &ConnectOptions,
        keep_alive: Option<Duration>,
    ) -> Result<BegunConnection, Error> {
        let crypto = QuicClientConfig::try_from(tls).map_err(no_initial_cipher_suite)?;
        let crypto = Arc::new(WatchedClient(Arc::new(crypto)));
        let mut config = quinn::ClientConfig::new(crypto);
        config.token_store(self.tokens.clone());
        let mut transport = transport_config(&options.quic, options.congestion)?;
        transport.keep_alive_interval(options.quic.keep_alive_interval.or(keep_alive));
        let qlog = options.quic.qlog.as_ref();
        let notes = match qlog.map(|qlog| qlog.begin("client")).transpose()?.flatten() {
            Some(trace) => {
                transport.qlog_stream(Some(trace.stream));
                Some(trace.notes)
            }
            None => None,
        };
        config.transport_config(Arc::new(transport));

        let repeater = Repeater::of_client(&options.quic, notes);
        let begin_at = |endpoint: &Endpoint| {
            begin(repeater.as_ref(), || {
                endpoint.connect_with(config.clone(), peer, server_name)
            })
        };
        let mut connecting = begin_at(&self.endpoint(peer, options)?);
        if let Err(ConnectError::EndpointStopping) = connecting {
            // Its socket has failed, or its runtime is ending.
            *self.slot(peer) = None;
            connecting = begin_at(&self.endpoint(peer, options)?);
        }
        let connecting = connecting.map_err(|error| Error::Unreachable {
            address: address.clone(),
            source: std::io::Error::other(error),
        })?;
        Ok(BegunConnection {
            connecting,
            repeater,
            limits: ConnectionLimits::new(&options.quic, None),
        })
    }

    /// Returns the local address for connections to `peer`; `None` if no socket is bound yet.
    pub(crate) fn bound(&self, peer: SocketAddr) -> Option<SocketAddr> {
        self.slot(peer).as_ref()?.endpoint.local_addr().ok()
    }

    /// Returns the address that the host's last handshake was completed with.
    pub(super) fn last_peer(&self, host: &Address) -> Option<SocketAddr> {
        lock(&self.last_peers).get(host).copied()
    }

    /// Records that a handshake with the host was completed at this address.
    pub(super) fn connected(&self, host: &Address, peer: SocketAddr) {
        let mut peers = lock(&self.last_peers);
        if peers.len() >= MAX_HOSTS && !peers.contains_key(host) {
            peers.clear();
        }
        peers.insert(host.clone(), peer);
    }

    /// Returns `true` if the port was closed at the last attempt.
    pub(super) fn was_closed(&self, peer: SocketAddr) -> bool {
        lock(&self.closed).contains(&peer)
    }

    /// Records whether the port is closed.
    pub(super) fn set_closed(&self, peer: SocketAddr, closed: bool) {
        let mut ports = lock(&self.closed);
        if !closed {
            ports.remove(&peer);
            return;
        }
        if ports.len() >= MAX_HOSTS {
            ports.clear();
        }
        ports.insert(peer);
    }

    /// Locks the slot of the endpoint for connections to `peer`.
    fn slot(&self, peer: SocketAddr) -> MutexGuard<'_, Option<Kept>> {
        lock(if peer.is_ipv4() { &self.v4 } else { &self.v6 })
    }

    /// Returns the endpoint of the caller's runtime, which is made if another runtime has connected last. Connections
    /// end with the runtime that drives their endpoint.
    fn endpoint(&self, peer: SocketAddr, options: &ConnectOptions) -> Result<Endpoint, Error> {
        let runtime = Handle::current().id();
        let mut slot = self.slot(peer);
        if let Some(kept) = &*slot
            && kept.runtime == runtime
        {
            return Ok(kept.endpoint.clone());
        }
        let local = local_for(peer, options.local_address);
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config(&options.quic)?,
            None,
            socket(bind_udp(local, &options.socket)?, &options.quic)?,
            Arc::new(PooledRuntime),
        )?;
        let kept = slot.insert(Kept { endpoint, runtime });
        Ok(kept.endpoint.clone())
    }
}
