//! Accepting clients.

use std::{io, net::SocketAddr, path::Path, sync::Arc};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

#[cfg(feature = "quic")]
use crate::quic::{IncomingConnections, QuicIncoming, Server};
#[cfg(feature = "ws")]
use crate::ws::{Gate, WsLink};
use crate::{
    Address, Error, Link, ListenOptions, ProxyProtocol, Scheme, SocketFile,
    link::Transport,
    mem::{MemLink, MemListener},
    proxy::{Proxied, check_over_tcp},
    registry,
    socket::{listen_error, listen_tcp, resolve},
    tcp::{TcpLink, UnixLink},
    unix::listen_unix,
};
#[cfg(feature = "tls")]
use crate::{
    ReloadHandle,
    tls::{TlsAcceptor, TlsLink},
};

/// Waits for clients at one address.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    acceptor: Acceptor,
    closed: bool,
}

#[derive(Debug)]
enum Acceptor {
    /// The socket until the listener is closed.
    Tcp(Option<TcpListener>, OverTcp),
    #[cfg(feature = "quic")]
    Quic(IncomingConnections),
    /// The socket and its file until the listener is closed.
    Unix(Option<(SocketFile, UnixListener)>),
    Mem(MemListener),
}

/// Protocols over an accepted TCP connection: TLS, WebSocket, both, or plain MQTT; behind a PROXY header if there is one.
#[derive(Clone, Debug)]
struct OverTcp {
    proxy: Option<Arc<ProxyProtocol>>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<TlsAcceptor>>,
    /// Requirements of the WebSocket handshake; `None` without WebSocket.
    #[cfg(feature = "ws")]
    gate: Option<Arc<Gate>>,
}

impl OverTcp {
    #[cfg_attr(
        not(any(feature = "tls", feature = "ws")),
        expect(unused_variables, reason = "plain MQTT asks for no address")
    )]
    fn new(address: &Address, options: &ListenOptions) -> Result<Self, Error> {
        Ok(Self {
            proxy: options.proxy_protocol.clone().map(Arc::new),
            #[cfg(feature = "tls")]
            tls: match address.scheme {
                scheme if scheme.is_encrypted() => {
                    Some(Arc::new(TlsAcceptor::new(scheme, options)?))
                }
                _ => None,
            },
            #[cfg(feature = "ws")]
            gate: match address.scheme {
                scheme if scheme.is_websocket() => Some(Arc::new(Gate::new(address, options)?)),
                _ => None,
            },
        })
    }

    async fn handshake(self, stream: TcpStream) -> Result<Link, Error> {
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(acceptor) = self.tls {
            let (config, held) = acceptor.config();
            let pool = acceptor.handshake_pool().clone();
            drop(acceptor);
            let link = pool.run(TlsLink::accept(stream, config)).await?;
            let above = Self { tls: None, ..self };
            let link = above.link(Transport::Tls(Box::new(link))).await?;
            return Ok(link.with_held_tickets(held));
        }
        self.link(Transport::Tcp(TcpLink::new(stream))).await
    }

    async fn link(self, stream: Transport) -> Result<Link, Error> {
        let stream = Link::new(stream);
        #[cfg(feature = "ws")]
        if let Some(gate) = self.gate {
            // Boxed, so that futures without WebSocket stay small.
            let link = Box::pin(WsLink::accept(stream, &gate)).await?;
            return Ok(Link::new(Transport::Ws(Box::new(link))));
        }
        Ok(stream)
    }
}

impl Listener {
    /// Listens at `address`; with port 0 the system chooses one, see
    /// [`local_address`](Self::local_address).
    ///
    /// # Errors
    /// [`Error::PortInUse`], [`Error::Listen`], [`Error::Resolve`], [`Error::NotBuiltIn`],
    /// [`Error::NoIdentity`], or what is wrong with the options and the files that they name.
    pub async fn bind(address: &Address, options: &ListenOptions) -> Result<Self, Error> {
        registry::check(address.scheme)?;
        let mut bound = address.clone();
        if options.proxy_protocol.is_some() {
            check_over_tcp(address, "at")?;
        }
        let acceptor = if address.scheme == Scheme::Mem {
            Acceptor::Mem(MemListener::bind(address, options.backlog)?)
        } else if address.scheme == Scheme::Unix {
            let opened = listen_unix(Path::new(&address.path), None);
            Acceptor::Unix(Some(
                opened.map_err(|source| listen_error(address, source))?,
            ))
        } else {
            let mut candidates = resolve(address).await?.into_iter();
            let mut result = Err(listen_error(
                address,
                io::ErrorKind::AddrNotAvailable.into(),
            ));
            while result.is_err()
                && let Some(local) = candidates.next()
            {
                result = Acceptor::open(address, local, options);
            }
            let (acceptor, local) = result?;
            bound.port = local.port();
            acceptor
        };
        tracing::info!(address = %bound, "listening");
        Ok(Self {
            address: bound,
            acceptor,
            closed: false,
        })
    }

    /// Returns the address that was bound: as asked for, with the port that the system chose.
    #[must_use]
    pub fn local_address(&self) -> Address {
        self.address.clone()
    }

    /// Waits for a client. Runs no handshake and does not wait for the client's bytes: run
    /// [`Incoming::handshake`] in the client's own task, so that a slow client holds up no other.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Closed`] after [`close`](Self::close); [`Error::Io`] when the system lacks
    /// something, mostly file descriptors: the caller should wait a little and go on.
    pub async fn accept(&mut self) -> Result<Incoming, Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        let mut awaits_header = false;
        let accepted = match &mut self.acceptor {
            Acceptor::Tcp(None, _) => return Err(Error::Closed),
            Acceptor::Tcp(Some(listener), over) => {
                let (stream, peer) = accept_tcp(listener).await?;
                let over = over.clone();
                let proxy = over.proxy.as_ref();
                awaits_header = proxy.is_some_and(|proxy| proxy.expects_header(peer.ip()));
                Accepted::Tcp(stream, peer, over)
            }
            #[cfg(feature = "quic")]
            Acceptor::Quic(connections) => Accepted::Quic(Box::new(connections.next().await?)),
            Acceptor::Unix(None) => return Err(Error::Closed),
            Acceptor::Unix(Some((_file, listener))) => {
                let (stream, _) = listener.accept().await.map_err(Error::Io)?;
                Accepted::Unix(stream)
            }
            Acceptor::Mem(listener) => Accepted::Mem(Box::new(
                listener.incoming.recv().await.ok_or(Error::Closed)?,
            )),
        };
        Ok(Incoming {
            accepted,
            awaits_header,
            proxied: Proxied::Direct,
        })
    }

    /// Splits the listener into parts: on QUIC one for each of [`ListenOptions::runtimes`], with the clients of that
    /// runtime's sockets. Accept the clients of a part on its runtime, so that a client wakes no other thread.
    /// Otherwise the listener is one part, for any runtime.
    ///
    /// [`close`](Self::close) of one part closes all.
    #[must_use]
    pub fn by_runtime(self) -> Vec<(Option<tokio::runtime::Handle>, Self)> {
        match self.acceptor {
            #[cfg(feature = "quic")]
            Acceptor::Quic(connections) => {
                let parts = connections.by_runtime().map(|(runtime, connections)| {
                    let part = Self {
                        address: self.address.clone(),
                        acceptor: Acceptor::Quic(connections),
                        closed: self.closed,
                    };
                    (runtime, part)
                });
                parts.collect()
            }
            acceptor => vec![(None, Self { acceptor, ..self })],
        }
    }

    /// Stops accepting: [`accept`](Self::accept) fails from now on. Links that were accepted go
    /// on; a QUIC listener's socket stays open until the last of them has ended.
    ///
    /// A TCP client is refused at once. The kernel would otherwise still take it in, and it would wait for an answer,
    /// its ticket used up, until the listener is dropped.
    pub fn close(&mut self) {
        self.closed = true;
        match &mut self.acceptor {
            #[cfg(feature = "quic")]
            Acceptor::Quic(connections) => connections.server().close(),
            Acceptor::Mem(listener) => listener.close(),
            Acceptor::Tcp(listener, _) => drop(listener.take()),
            Acceptor::Unix(listener) => drop(listener.take()),
        }
    }

    /// Returns a handle that gives this listener another certificate, other client authorities and revocation lists
    /// while it accepts; for code that does not have the listener itself.
    ///
    /// A QUIC listener derives the key of its stateless resets (RFC 9000 §10.3) from the private key
    /// that it was bound with, and keeps it over reloads. The next process resets the connections of
    /// this one only if it starts with *that* private key. Other connections notice the end by their
    /// keep-alive.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn reload_handle(&self) -> ReloadHandle {
        match &self.acceptor {
            Acceptor::Tcp(_, OverTcp { tls: Some(tls), .. }) => ReloadHandle::tls(tls),
            #[cfg(feature = "quic")]
            Acceptor::Quic(connections) => ReloadHandle::quic(connections.server()),
            Acceptor::Tcp(..) | Acceptor::Unix(_) | Acceptor::Mem(_) => ReloadHandle::plain(),
        }
    }

    /// Waits, after [`close`](Self::close), until the connections of a QUIC listener have ended: a
    /// closed connection answers late packets for three probe timeouts more (RFC 9000 §10.2), and for
    /// 10 s at most. On other transports the kernel does that, and this returns at once.
    pub async fn drained(&self) {
        #[cfg(feature = "quic")]
        if let Acceptor::Quic(connections) = &self.acceptor {
            connections.server().drained().await;
        }
    }
}

impl Acceptor {
    fn open(
        address: &Address,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> Result<(Self, SocketAddr), Error> {
        let (backlog, congestion, socket) = (options.backlog, options.congestion, &options.socket);
        #[cfg(feature = "quic")]
        if address.scheme == Scheme::Quic {
            let server = Server::bind(address, local, options)?;
            let bound = server.bound();
            return Ok((Self::Quic(IncomingConnections::new(server)), bound));
        }
        let over = OverTcp::new(address, options)?;
        let listener = listen_tcp(address, local, backlog, congestion, socket)?;
        let bound = listener.local_addr()?;
        Ok((Self::Tcp(Some(listener), over), bound))
    }
}

async fn accept_tcp(listener: &TcpListener) -> Result<(TcpStream, SocketAddr), Error> {
    loop {
        match listener.accept().await {
            Ok(accepted) => return Ok(accepted),
            // The client has gone again; the next may be there.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                ) => {}
            Err(error) => return Err(Error::Io(error)),
        }
    }
}

/// A client that has connected and not begun its handshake.
#[derive(Debug)]
pub struct Incoming {
    accepted: Accepted,
    /// `true` until the PROXY header has been read, where one is expected.
    awaits_header: bool,
    /// Kind of the connection, as its PROXY header says.
    proxied: Proxied,
}

#[derive(Debug)]
enum Accepted {
    Tcp(TcpStream, SocketAddr, OverTcp),
    #[cfg(feature = "quic")]
    Quic(Box<QuicIncoming>),
    Unix(UnixStream),
    Mem(Box<MemLink>),
}

impl Incoming {
    /// Returns the client's address; `None` on Unix sockets and mem. On QUIC it could be forged until the handshake ends. Behind a proxy it is
    /// the proxy's until [`read_proxy_header`](Self::read_proxy_header) has read the client's.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        if let Proxied::Client(told) = self.proxied {
            return Some(told);
        }
        match &self.accepted {
            Accepted::Tcp(_, peer, _) => Some(*peer),
            #[cfg(feature = "quic")]
            Accepted::Quic(incoming) => Some(incoming.peer_address()),
            Accepted::Unix(_) | Accepted::Mem(_) => None,
        }
    }

    /// Returns the runtime, of [`ListenOptions::runtimes`], that reads the client's socket: on QUIC, where all
    /// clients of a socket share a runtime. `None` where any runtime may serve the client.
    #[must_use]
    pub fn runtime(&self) -> Option<&tokio::runtime::Handle> {
        match &self.accepted {
            #[cfg(feature = "quic")]
            Accepted::Quic(incoming) => incoming.runtime(),
            Accepted::Tcp(..) | Accepted::Unix(_) | Accepted::Mem(_) => None,
        }
    }

    /// Has the runtime that calls this watch its socket, where it has one of its own: otherwise the runtime
    /// that accepted it does, and wakes this one for every packet.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn move_here(self) -> Result<Self, Error> {
        Ok(match self.accepted {
            Accepted::Tcp(stream, peer, over) => {
                let stream = TcpStream::from_std(stream.into_std()?)?;
                let accepted = Accepted::Tcp(stream, peer, over);
                Self { accepted, ..self }
            }
            Accepted::Unix(stream) => {
                let accepted = Accepted::Unix(UnixStream::from_std(stream.into_std()?)?);
                Self { accepted, ..self }
            }
            accepted => Self { accepted, ..self },
        })
    }

    /// Returns `true` while the client's address is not known yet, since it stands in a PROXY header that has not been read: see
    /// [`ListenOptions::proxy_protocol`].
    #[must_use]
    pub fn awaits_proxy_header(&self) -> bool {
        self.awaits_header
    }

    /// Reads the PROXY header of the connection, where one is expected; [`handshake`](Self::handshake) does so as well. The proxy
    /// decides how long it takes: put a timeout around it.
    ///
    /// # Errors
    /// [`Error::ProxyHeader`], [`Error::Reset`], [`Error::Io`].
    pub async fn read_proxy_header(&mut self) -> Result<(), Error> {
        if !core::mem::take(&mut self.awaits_header) {
            return Ok(());
        }
        if let Accepted::Tcp(stream, peer, over) = &mut self.accepted
            && let Some(proxy) = &over.proxy
        {
            self.proxied = proxy.read(stream, peer.ip()).await?;
        }
        Ok(())
    }

    /// Returns `true` if the connection is a proxy's own, such as a health check: its PROXY header names no client, or it ended
    /// before the first byte.
    #[must_use]
    pub fn is_proxys_own(&self) -> bool {
        self.proxied == Proxied::Own
    }

    /// Returns `true` if [`ask_for_its_address`](Self::ask_for_its_address) has an effect: on QUIC, while the
    /// client's address is not validated (RFC 9000 §8.1).
    #[must_use]
    pub fn can_be_asked_for_its_address(&self) -> bool {
        match &self.accepted {
            #[cfg(feature = "quic")]
            Accepted::Quic(incoming) => incoming.can_be_asked_for_its_address(),
            Accepted::Tcp(..) | Accepted::Unix(_) | Accepted::Mem(_) => false,
        }
    }

    /// Answers with a Retry packet (RFC 9000 §8.1.2): the client connects again at once, with a token that proves its
    /// address. This costs the client a round trip, and the server no memory. On other transports the client is
    /// refused.
    pub fn ask_for_its_address(self) {
        #[cfg(feature = "quic")]
        if let Accepted::Quic(incoming) = self.accepted {
            incoming.ask_for_its_address();
        }
    }

    /// Runs the handshake as far as reading and writing need it.
    ///
    /// Returns before the handshake ends where early data is accepted, see [`Link::is_early`]. On
    /// QUIC it also waits for the client's first stream, which a client opens by sending something.
    /// On WebSocket it also answers the HTTP request, or refuses it. A PROXY header is read first. The client decides how long all
    /// this takes: put a timeout around it. Dropping the future cuts the connection.
    ///
    /// # Errors
    /// [`Error::Handshake`], [`Error::CertificateRejected`], [`Error::Upgrade`], [`Error::Reset`], [`Error::ProxyHeader`].
    pub async fn handshake(mut self) -> Result<Link, Error> {
        self.read_proxy_header().await?;
        match self.accepted {
            Accepted::Tcp(stream, _, over) => {
                let link = over.handshake(stream).await?;
                Ok(match self.proxied {
                    Proxied::Client(told) => link.with_told_peer(told),
                    Proxied::Direct | Proxied::Own => link,
                })
            }
            #[cfg(feature = "quic")]
            Accepted::Quic(incoming) => {
                let (link, held) = incoming.handshake().await?;
                let link = Link::new(Transport::Quic(Box::new(link)));
                Ok(link.with_held_tickets(held))
            }
            Accepted::Unix(stream) => {
                let link = Box::new(UnixLink::new(stream));
                Ok(Link::new(Transport::Unix(link)))
            }
            Accepted::Mem(link) => Ok(Link::new(Transport::Mem(link))),
        }
    }
}
