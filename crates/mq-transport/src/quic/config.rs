//! quinn configurations and endpoints.

use std::{
    fmt,
    fs::File,
    io::BufWriter,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use quinn::{
    AckFrequencyConfig, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, QlogConfig,
    QlogStream, ServerConfig, TokenMemoryCache, TransportConfig, VarInt, congestion,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use quinn_proto::HashedConnectionIdGenerator;

use super::{
    reset::ResetKey,
    runtime::{Leash, PooledRuntime, on_leash},
    session::{WatchedClient, WatchedServer},
};
use crate::{
    Address, CongestionControl, ConnectOptions, Error, HandshakePool, ListenOptions, QuicOptions,
    Scheme, SocketOptions, handshakes,
    socket::{bind_udp, disable_udp_gro, hold_more, listen_error, unspecified},
    ticket::{HeldTickets, Scope},
    tls::{ServerTls, server_config, with_held_tickets},
};

/// The sockets that a client's connections share, one for each IP version, bound when needed.
#[derive(Debug)]
pub(crate) struct ClientEndpoints {
    v4: Mutex<Option<Endpoint>>,
    v6: Mutex<Option<Endpoint>>,
    /// Address validation tokens: they save the round trip of a Retry.
    tokens: Arc<TokenMemoryCache>,
}

impl ClientEndpoints {
    pub(crate) fn new() -> Self {
        Self {
            v4: Mutex::new(None),
            v6: Mutex::new(None),
            tokens: Arc::default(),
        }
    }

    /// Starts connecting; sends the first packet.
    pub(crate) fn connect(
        &self,
        address: &Address,
        peer: SocketAddr,
        server_name: &str,
        tls: rustls::ClientConfig,
        options: &ConnectOptions,
        keep_alive: Option<Duration>,
    ) -> Result<quinn::Connecting, Error> {
        let crypto = QuicClientConfig::try_from(tls).map_err(|error| Error::InvalidOption {
            option: "cipher suites",
            value: "without aes128-gcm".into(),
            remedy: error.to_string(),
        })?;
        let crypto = Arc::new(WatchedClient(Arc::new(crypto)));
        let mut config = quinn::ClientConfig::new(crypto);
        config.token_store(self.tokens.clone());
        let mut transport = transport_config(&options.quic, options.congestion)?;
        transport.keep_alive_interval(options.quic.keep_alive_interval.or(keep_alive));
        transport.qlog_stream(qlog(&options.quic, "client")?);
        config.transport_config(Arc::new(transport));

        let endpoint = self.endpoint(peer, options)?;
        endpoint
            .connect_with(config, peer, server_name)
            .map_err(|error| Error::Unreachable {
                address: address.clone(),
                source: std::io::Error::other(error),
            })
    }

    /// Where connections to `peer` come from.
    pub(crate) fn bound(&self, peer: SocketAddr) -> Option<SocketAddr> {
        let slot = if peer.is_ipv4() { &self.v4 } else { &self.v6 };
        let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref()?.local_addr().ok()
    }

    fn endpoint(&self, peer: SocketAddr, options: &ConnectOptions) -> Result<Endpoint, Error> {
        let slot = if peer.is_ipv4() { &self.v4 } else { &self.v6 };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = &*slot {
            return Ok(endpoint.clone());
        }
        let local = match options.local_address {
            Some(IpAddr::V4(ip)) if peer.is_ipv4() => SocketAddr::new(ip.into(), 0),
            Some(IpAddr::V6(ip)) if peer.is_ipv6() => SocketAddr::new(ip.into(), 0),
            _ => unspecified(peer),
        };
        let made = endpoint(local, None, &options.quic, &options.socket)?;
        Ok(slot.insert(made).clone())
    }
}

/// A listening endpoint.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    /// As bound.
    options: ListenOptions,
    current: Mutex<Current>,
    /// Held by whoever [answers](Self::answer).
    answering: tokio::sync::Mutex<()>,
}

/// What new connections get.
#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// The TLS in it.
    tls: rustls::ServerConfig,
    scope: Scope,
    closed: bool,
}

/// TLS for a server, checked and not in force.
pub(crate) struct PreparedQuic {
    crypto: Arc<WatchedServer>,
    /// What `crypto` was made of.
    tls: rustls::ServerConfig,
    scope: Scope,
}

impl fmt::Debug for PreparedQuic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedQuic").finish_non_exhaustive()
    }
}

impl PreparedQuic {
    fn new(options: &ListenOptions) -> Result<Self, Error> {
        let ServerTls { config, scope } = server_config(Scheme::Quic, options)?;
        Ok(Self {
            crypto: crypto(config.clone())?,
            tls: config,
            scope,
        })
    }
}

/// Fails if the Initial packets' cipher suite (RFC 9001 §5.2) is not among those of `tls`.
fn crypto(tls: rustls::ServerConfig) -> Result<Arc<WatchedServer>, Error> {
    let crypto = QuicServerConfig::try_from(tls).map_err(|error| Error::InvalidOption {
        option: "cipher suites",
        value: "without aes128-gcm".into(),
        remedy: error.to_string(),
    })?;
    Ok(Arc::new(WatchedServer(Arc::new(crypto))))
}

impl Server {
    pub(crate) fn bind(
        address: &Address,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> Result<Self, Error> {
        let PreparedQuic { crypto, tls, scope } = PreparedQuic::new(options)?;
        let mut config = ServerConfig::with_crypto(crypto);
        config.max_incoming(usize::try_from(options.backlog).unwrap_or(usize::MAX));
        let transport = transport_config(&options.quic, options.congestion)?;
        config.transport_config(Arc::new(transport));
        let reset = options.identity.as_ref().map(ResetKey::of);
        let server = Some((config.clone(), reset));
        let endpoint = endpoint(local, server, &options.quic, &options.socket).map_err(
            |error| match error {
                Error::Io(source) => listen_error(address, source),
                other => other,
            },
        )?;
        Ok(Self {
            endpoint,
            options: options.clone(),
            current: Mutex::new(Current {
                config: Arc::new(config),
                tls,
                scope,
                closed: false,
            }),
            answering: tokio::sync::Mutex::default(),
        })
    }

    /// Where connections are traced, a transport configuration with a file for one of them.
    pub(crate) fn traced(&self) -> Result<Option<Arc<TransportConfig>>, Error> {
        let ListenOptions {
            quic, congestion, ..
        } = &self.options;
        if quic.qlog_directory.is_none() {
            return Ok(None);
        }
        let mut transport = transport_config(quic, *congestion)?;
        transport.qlog_stream(qlog(quic, "server")?);
        Ok(Some(Arc::new(transport)))
    }

    /// For a handshake that begins now, and the tickets that it will be given where they are held
    /// back.
    pub(crate) fn config(
        &self,
        traced: Option<Arc<TransportConfig>>,
    ) -> Result<(Arc<ServerConfig>, Option<Arc<HeldTickets>>), Error> {
        let current = self.lock();
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
        Arc::make_mut(&mut config).crypto = crypto(tls)?;
        Ok((config, Some(tickets)))
    }

    /// Begins a connection.
    ///
    /// Quinn computes the answer to a `ClientHello` under the lock under which it takes all datagrams in.
    /// So a crowd is answered one after another, and after each the lock is left alone for longer than
    /// that took.
    pub(crate) async fn answer(
        &self,
        incoming: quinn::Incoming,
        config: Arc<ServerConfig>,
    ) -> Result<(quinn::Connecting, Leash), Error> {
        let _turn = self.answering.lock().await;
        let began = Instant::now();
        let (connecting, leash) = on_leash(|| incoming.accept_with(config));
        handshakes::rest(began.elapsed() * 3 / 2);
        Ok((connecting?, leash))
    }

    pub(crate) fn handshake_pool(&self) -> &HandshakePool {
        &self.options.handshake_pool
    }

    pub(crate) fn prepare(&self, options: &ListenOptions) -> Result<PreparedQuic, Error> {
        PreparedQuic::new(&self.options.with_certificates_of(options))
    }

    /// Changes the TLS of new connections and nothing else: the key of the address validation
    /// tokens (RFC 9000 §8.1.3) stays, as does that of stateless resets, which is the endpoint's.
    pub(crate) fn install(&self, PreparedQuic { crypto, tls, scope }: PreparedQuic) {
        let mut current = self.lock();
        let mut config = (*current.config).clone();
        config.crypto = crypto;
        if !current.closed {
            self.endpoint.set_server_config(Some(config.clone()));
        }
        current.config = Arc::new(config);
        current.tls = tls;
        let before = std::mem::replace(&mut current.scope, scope);
        drop(current);
        if before != scope {
            self.options.ticket_store.forget(&before);
        }
    }

    /// New clients get no answer from now on, whatever is installed later.
    pub(crate) fn close(&self) {
        let mut current = self.lock();
        current.closed = true;
        self.endpoint.set_server_config(None);
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn endpoint(
    local: SocketAddr,
    server: Option<(ServerConfig, Option<ResetKey>)>,
    quic: &QuicOptions,
    options: &SocketOptions,
) -> Result<Endpoint, Error> {
    let socket = bind_udp(local, options)?;
    if server.is_some() && options.receive_buffer.is_none() {
        hold_more(&socket);
    }
    let mut config = EndpointConfig::default();
    let (server, reset) = server.unzip();
    if let Some(reset) = reset.flatten() {
        let key = reset.connection_ids();
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(key)));
        config.reset_key(Arc::new(reset));
    }
    let payload = quic.max_udp_payload.max(1472);
    config
        .max_udp_payload_size(payload)
        .map_err(|error| Error::InvalidOption {
            option: "maximum UDP payload",
            value: payload.to_string(),
            remedy: error.to_string(),
        })?;
    let same_socket = (!quic.segmentation_offload)
        .then(|| socket.try_clone())
        .transpose()?;
    let endpoint = Endpoint::new(config, server, socket, Arc::new(PooledRuntime))?;
    if let Some(socket) = same_socket {
        disable_udp_gro(&socket)?;
    }
    Ok(endpoint)
}

fn transport_config(
    quic: &QuicOptions,
    congestion: Option<CongestionControl>,
) -> Result<TransportConfig, Error> {
    let mut config = TransportConfig::default();
    match congestion.unwrap_or(CongestionControl::Cubic) {
        CongestionControl::Reno => {
            config.congestion_controller_factory(Arc::new(congestion::NewRenoConfig::default()));
        }
        CongestionControl::Cubic => {
            config.congestion_controller_factory(Arc::new(congestion::CubicConfig::default()));
        }
        CongestionControl::Bbr => {
            config.congestion_controller_factory(Arc::new(congestion::BbrConfig::default()));
        }
    }
    let idle_timeout = quic.idle_timeout.map(IdleTimeout::try_from).transpose();
    config.max_idle_timeout(idle_timeout.map_err(|_| Error::InvalidOption {
        option: "QUIC idle timeout",
        value: format!("{:?}", quic.idle_timeout.unwrap_or_default()),
        remedy: "it is too long; none at all is possible".into(),
    })?);
    if quic.max_udp_payload < quic.initial_udp_payload || quic.initial_udp_payload < 1200 {
        return Err(Error::InvalidOption {
            option: "UDP payload",
            value: format!("{} to {}", quic.initial_udp_payload, quic.max_udp_payload),
            remedy: "start with 1200 or more, and not above the maximum".into(),
        });
    }
    let discovery = quic.mtu_discovery.then(|| {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(quic.max_udp_payload);
        discovery
    });
    let ack_frequency = quic.ack_frequency.map(|wanted| {
        let mut ack_frequency = AckFrequencyConfig::default();
        ack_frequency
            .ack_eliciting_threshold(wanted.threshold.into())
            .max_ack_delay(wanted.max_delay);
        ack_frequency
    });
    config
        .initial_rtt(quic.initial_rtt)
        .keep_alive_interval(quic.keep_alive_interval)
        .ack_frequency_config(ack_frequency)
        .initial_mtu(quic.initial_udp_payload)
        .mtu_discovery_config(discovery)
        .stream_receive_window(quic.stream_receive_window.into())
        .receive_window(quic.receive_window.into())
        .send_window(quic.send_window)
        .max_concurrent_bidi_streams(quic.max_bidi_streams.into())
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .enable_segmentation_offload(quic.segmentation_offload);
    Ok(config)
}

/// A new qlog file: `PROCESS-SIDE-NUMBER.qlog`.
fn qlog(quic: &QuicOptions, side: &str) -> Result<Option<QlogStream>, Error> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let Some(directory) = quic.qlog_directory.as_deref().map(Path::new) else {
        return Ok(None);
    };
    std::fs::create_dir_all(directory).map_err(|source| Error::File {
        what: "qlog directory",
        path: directory.to_owned(),
        source,
    })?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("{}-{side}-{number}.qlog", std::process::id()));
    let file = File::create(&path).map_err(|source| Error::File {
        what: "qlog",
        path,
        source,
    })?;
    let mut config = QlogConfig::default();
    config.writer(Box::new(BufWriter::new(file)));
    config.title(Some(format!("mq {side} {number}")));
    Ok(config.into_stream())
}
