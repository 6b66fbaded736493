//! Connecting to servers.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::AsyncWriteExt as _,
    net::{UdpSocket, UnixStream},
};

#[cfg(feature = "quic")]
use crate::quic::ClientEndpoints;
#[cfg(feature = "ws")]
use crate::ws::WsLink;
use crate::{
    Address, ConnectOptions, Error, Link, ProxyHeader, ProxyVersion, Scheme,
    attempts::{first_to_connect, interleaved},
    link::Transport,
    mem, registry,
    socket::{connect_tcp, connect_udp, resolve},
    tcp::{TcpLink, UnixLink},
};
#[cfg(feature = "tls")]
use crate::{TicketCache, tls::ClientTls};

/// Opens links; cheap to clone.
///
/// Clones share tickets, verifier, client certificate and QUIC sockets. QUIC sockets belong to the tokio runtime that
/// connects, and are opened then. A connector that connects from another runtime opens others, so that connections do
/// not end with a runtime that is not theirs.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(crate) shared: Arc<Shared>,
    #[cfg(feature = "tls")]
    pub(crate) tickets: TicketCache,
    /// Bytes that each TCP connection begins with.
    pub(crate) proxy_header: Option<Bytes>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: ConnectOptions,
    #[cfg(feature = "tls")]
    pub(crate) tls: ClientTls,
    #[cfg(feature = "quic")]
    pub(crate) endpoints: ClientEndpoints,
}

/// Options of one connection: see [`Connector::connect_with`].
///
/// The default changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dial {
    /// Timeout of this connection in the place of [`ConnectOptions::connect_timeout`].
    pub timeout: Option<Duration>,
    /// `true` if the connector returns only after the handshake, even where early data is possible: nothing that the
    /// caller writes leaves before.
    pub without_early_data: bool,
    /// QUIC: send a packet after this much silence where
    /// [`QuicOptions::keep_alive_interval`](crate::QuicOptions::keep_alive_interval) says nothing.
    pub quic_keep_alive: Option<Duration>,
}

impl Connector {
    /// Makes a connector with these options.
    ///
    /// Reads the files that the options name (not the system's roots, which are read at the first
    /// TLS or QUIC connection).
    ///
    /// # Errors
    /// [`Error::InvalidOption`], [`Error::File`] or [`Error::InvalidFile`].
    pub fn new(options: ConnectOptions) -> Result<Self, Error> {
        Ok(Self {
            #[cfg(feature = "tls")]
            tickets: options.ticket_cache.clone().unwrap_or_default(),
            proxy_header: None,
            shared: Arc::new(Shared {
                #[cfg(feature = "tls")]
                tls: ClientTls::new(&options)?,
                #[cfg(feature = "quic")]
                endpoints: ClientEndpoints::default(),
                options,
            }),
        })
    }

    /// Returns this connector with a PROXY header in front of each connection over TCP, below TLS and WebSocket. Other
    /// connections fail, since they cannot carry one.
    #[must_use]
    pub fn with_proxy_header(&self, header: &ProxyHeader, version: ProxyVersion) -> Self {
        Self {
            proxy_header: Some(header.encode(version)),
            ..self.clone()
        }
    }

    /// Connects, and returns as soon as bytes can be written. Takes
    /// [`ConnectOptions::connect_timeout`] at most; dropping the future gives the attempt up.
    ///
    /// The addresses of the host are tried side by side (RFC 8305): the next one after 250 ms, or as soon as
    /// one fails, and the first that connects wins. Over QUIC that is the end of the handshake.
    ///
    /// With [`ConnectOptions::early_data`] and a ticket of this server it returns before the
    /// handshake ends, and what is written goes as early data. [`Link::progress`] then notices a
    /// missing server: on QUIC where the network reports a closed port, else only after the idle timeout, so
    /// bound the time until the first answer. Of a host with several QUIC addresses only the one that it
    /// connected to last gets early data.
    ///
    /// Over QUIC each attempt uses up a ticket, even if no server answers. So after an attempt that found the port
    /// closed, the next one sends a datagram first that any QUIC server answers (RFC 9000 §6), and uses a ticket once
    /// an answer has come, or after 250 ms without one.
    ///
    /// # Errors
    /// [`Error::NotBuiltIn`], [`Error::Resolve`], [`Error::Unreachable`],
    /// [`Error::ConnectTimeout`], [`Error::CertificateRejected`], [`Error::Handshake`],
    /// [`Error::Upgrade`], or what is wrong with the options.
    pub async fn connect(&self, address: &Address) -> Result<Link, Error> {
        self.connect_with(address, Dial::default()).await
    }

    /// Connects like [`connect`](Self::connect), with options of this one connection.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(&self, address: &Address, dial: Dial) -> Result<Link, Error> {
        registry::check(address.scheme)?;
        if self.proxy_header.is_some() {
            ProxyHeader::check_address(address)?;
        }
        let limit = dial.timeout.unwrap_or(self.shared.options.connect_timeout);
        let connecting = async {
            match address.scheme {
                Scheme::Mem => Ok(Transport::Mem(Box::new(mem::connect(address).await?))),
                Scheme::Unix => {
                    let connected = UnixStream::connect(&address.path).await;
                    let stream = connected.map_err(|source| Error::Unreachable {
                        address: address.clone(),
                        source,
                    })?;
                    Ok(Transport::Unix(Box::new(UnixLink::new(stream))))
                }
                Scheme::Tcp => Ok(Transport::Tcp(TcpLink::new(self.tcp(address).await?))),
                #[cfg(feature = "tls")]
                Scheme::Tls => Ok(Transport::Tls(self.tls(address, dial).await?)),
                #[cfg(feature = "quic")]
                Scheme::Quic => Ok(Transport::Quic(self.quic(address, dial).await?)),
                #[cfg(feature = "ws")]
                Scheme::Ws => {
                    let stream = Transport::Tcp(TcpLink::new(self.tcp(address).await?));
                    websocket(stream, address).await
                }
                #[cfg(all(feature = "tls", feature = "ws"))]
                Scheme::Wss => {
                    websocket(Transport::Tls(self.tls(address, dial).await?), address).await
                }
                #[cfg(not(all(feature = "quic", feature = "ws")))]
                scheme => Err(Error::NotBuiltIn { scheme }),
            }
        };
        match tokio::time::timeout(limit, connecting).await {
            Ok(connected) => connected.map(Link::new),
            Err(_) => Err(Error::ConnectTimeout {
                address: address.clone(),
                after: limit,
            }),
        }
    }

    /// Returns the options that the connector was made with.
    #[must_use]
    pub fn options(&self) -> &ConnectOptions {
        &self.shared.options
    }

    /// Returns the local addresses that the system would use towards `address`, one for each address of its host: they
    /// tell one network from another. The call sends nothing but the look-up of the host's name. Empty for Unix sockets and mem,
    /// and where there is no route to the host.
    ///
    /// Cancel-safe.
    pub async fn local_addresses(&self, address: &Address) -> Vec<IpAddr> {
        if matches!(address.scheme, Scheme::Unix | Scheme::Mem) {
            return Vec::new();
        }
        let peers = self.peers(address).await.unwrap_or_default();
        let ways = peers.into_iter().filter_map(|peer| {
            let options = &self.shared.options;
            let socket = connect_udp(peer, options.local_address, &options.socket).ok()?;
            Some(socket.local_addr().ok()?.ip())
        });
        ways.collect()
    }

    /// Resolves when the network reports, for each address of the host, that its UDP port cannot be
    /// reached. Never resolves where a server listens, or where no answer comes.
    ///
    /// quinn does not hear of such reports (ICMP answers reach connected sockets alone), so this call
    /// sends a datagram of one byte, which QUIC ignores, from a socket of its own. Anybody on the path
    /// can forge the answer: take it as a hint to try elsewhere.
    ///
    /// Cancel-safe.
    pub async fn udp_refused(&self, address: &Address) -> io::Error {
        let mut refusal = None;
        for peer in self.peers(address).await.unwrap_or_default() {
            refusal = Some(self.peer_refused(peer).await);
        }
        match refusal {
            Some(error) => error,
            // The attempt to connect reports a name without an address.
            None => std::future::pending().await,
        }
    }

    /// [`udp_refused`](Self::udp_refused) for one address of a host.
    pub(crate) async fn peer_refused(&self, peer: SocketAddr) -> io::Error {
        let options = &self.shared.options;
        let socket = connect_udp(peer, options.local_address, &options.socket);
        let socket = match socket.and_then(UdpSocket::from_std) {
            Ok(socket) => socket,
            Err(error) => return error,
        };
        if let Err(error) = socket.send(&[0]).await {
            return error;
        }
        let mut answer = [0; 16];
        loop {
            if let Err(error) = socket.recv(&mut answer).await {
                return error;
            }
        }
    }

    /// Returns all addresses of a host, in the order in which they are tried.
    pub(crate) async fn peers(&self, address: &Address) -> Result<Vec<SocketAddr>, Error> {
        let given = &self.shared.options.resolve;
        match given.iter().find(|(host, _)| *host == address.host) {
            Some((_, given)) if !given.is_empty() => {
                let with_port = |ip: &IpAddr| SocketAddr::new(*ip, address.port);
                Ok(given.iter().map(with_port).collect())
            }
            _ => Ok(interleaved(resolve(address).await?)),
        }
    }

    pub(crate) async fn tcp(&self, address: &Address) -> Result<tokio::net::TcpStream, Error> {
        let options = &self.shared.options;
        let peers = self.peers(address).await?;
        let (local, congestion) = (options.local_address, options.congestion);
        let mut socket = options.socket.clone();
        // With a cookie each address would win, whether or not anything listens there.
        socket.tcp_fast_open &= peers.len() == 1;
        let mut stream = first_to_connect(peers, |peer| {
            connect_tcp(address, peer, local, congestion, &socket)
        })
        .await?;
        if let Some(header) = &self.proxy_header {
            stream.write_all(header).await?;
        }
        Ok(stream)
    }
}

#[cfg(feature = "ws")]
async fn websocket(stream: Transport, address: &Address) -> Result<Transport, Error> {
    let link = WsLink::connect(Link::new(stream), address).await?;
    Ok(Transport::Ws(Box::new(link)))
}
