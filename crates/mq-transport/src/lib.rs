//! Byte links for MQTT: TCP, TLS, QUIC, WebSocket, Unix sockets and in-memory, with real 0-RTT.
//!
//! A *link* is one connection, whatever carries it. A [`Connector`] opens [`Link`]s; a [`Listener`]
//! accepts clients as [`Incoming`]. [`Incoming::handshake`] gives a [`Link`] as soon as the link can
//! read and write. A link moves bytes and knows nothing of MQTT: its owner
//! drives [`Link::progress`], takes packets off the front of [`Link::received`] and puts packets
//! into an [`Outbox`].
//!
//! ```text
//! Address --Connector::connect--> Link <--Incoming::handshake-- Listener::accept
//!                                  |  progress(outbox, want_read) -> Received | Flushed | Closed
//!                                  |  received(lane) -> &mut BytesMut
//!                                  |  stats() info() close(deadline)
//! ```
//!
//! A PINGREQ over QUIC, from one end to the other:
//!
//! ```
//! use mq_transport::{ConnectOptions, Connector, Error, LaneId, ListenOptions, Listener, Outbox};
//! use mq_transport::{ServerIdentity, Trust};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let identity = ServerIdentity::self_signed()?;
//! let trust = Trust::Fingerprint(identity.fingerprint());
//! let listen = ListenOptions { identity: Some(identity), ..Default::default() };
//! let mut listener = Listener::bind(&"quic://127.0.0.1:0".parse()?, &listen).await?;
//! let address = listener.local_address();
//! let connector = Connector::new(ConnectOptions { trust, ..Default::default() })?;
//!
//! let client = async {
//!     let mut link = connector.connect(&address).await?;
//!     let mut outbox = Outbox::new();
//!     outbox.put_body(LaneId::CONTROL, &vec![0xC0, 0x00].into());
//!     link.progress(&mut outbox, true).await?; // Flushed
//!     Ok::<_, Error>(link)
//! };
//! let server = async {
//!     let mut link = listener.accept().await?.handshake().await?;
//!     link.progress(&mut Outbox::new(), true).await?; // Received(LaneId::CONTROL)
//!     assert_eq!(link.received(LaneId::CONTROL)[..], [0xC0, 0x00]);
//!     Ok(link)
//! };
//! let (_client, _server) = tokio::try_join!(client, server)?;
//! # Ok(())
//! # }
//! ```
//!
//! Early data (0-RTT; RFC 8446 §2.3, RFC 9001 §4.6) works on both ends: the client's bytes leave
//! with its first flight, and the server reads and answers them before the handshake ends, over TLS
//! as over QUIC. Early data is off by default: see [`ConnectOptions::early_data`] and
//! [`ListenOptions::early_data`]. It needs a *ticket* of an earlier connection, which a
//! [`TicketCache`] keeps for the client and a [`TicketStore`] for the server. When a server rejects
//! early data, the link sends it again by itself, once and in order.
//!
//! Over WebSocket, `ws` on TCP and `wss` on TLS, a link still moves bytes: packets and frames need not
//! begin or end together (`[MQTT-6.0.0-2]`). `wss` has all that `tls` has: trust, certificates,
//! ciphers, resumption. Its early data is the HTTP request alone.
//!
//! Proxies name their clients in PROXY headers. A listener over TCP reads them with [`ListenOptions::proxy_protocol`], a connector sends
//! them with [`Connector::with_proxy_header`].
//!
//! A [`race`] connects to a server that has several addresses, such as one of QUIC and one of TLS.
//!
//! [`Listener::reload_handle`] gives a running listener another certificate, other client
//! authorities and other revocation lists.
//!
//! A link has one lane, the control lane. Over QUIC it may have data lanes as well, a stream each.
//!
//! # Cargo features
//!
//! | feature | builds | by default |
//! |---|---|---|
//! | `tcp` | `tcp://`, `unix://` | on |
//! | `tls` | `tls://`, and the types for certificates and tickets | on |
//! | `quic` | `quic://` and qlog traces; brings `tls` | on |
//! | `ws` | `ws://`, and with `tls` also `wss://` | on |
//! | `aws-lc-rs` | cryptography by aws-lc-rs, which wins where `ring` is on too | on |
//! | `ring` | cryptography by ring | off |
//! | `mqtt-next` | the application protocol `MQTT-next` of the draft of 5 March 2024, over QUIC | off |
//!
//! `tls` and `quic` need one of the last two. The transport `mem`, within one process, is always built.
//! An address whose transport is not built is refused with [`Error::NotBuiltIn`].

mod address;
mod attempts;
mod buffer;
mod certificate;
mod connector;
mod crypto;
mod error;
mod files;
mod info;
mod line_limit;
mod link;
mod listener;
mod mem;
mod network;
#[cfg(not(feature = "tls"))]
mod no_tls;
mod options;
mod origins;
mod proxy;
#[cfg(feature = "quic")]
mod quic;
pub mod race;
mod registry;
#[cfg(feature = "tls")]
mod reload;
mod repeat;
mod send_progress;
mod socket;
mod stream_socket;
mod sync;
mod tcp;
mod tcp_info;
#[cfg(feature = "tls")]
mod tls;
mod trust;
mod unix;
#[cfg(feature = "ws")]
mod ws;

pub use address::{Address, AddressError, Scheme};
pub use certificate::Certificate;
pub use connector::{Connector, Dial};
pub use crypto::{CipherSuite, CryptoOptions, KeyExchangeGroup, TlsVersion};
pub use error::Error;
pub use files::{open_regular_file, read_regular_file};
pub use info::{EarlyData, HandshakeKind, LinkInfo, LinkStats, TlsInfo};
pub use ipnet::IpNet;
pub use line_limit::LineLimit;
pub use link::{LaneClosed, Link, Progress};
pub use listener::{Incoming, Listener};
pub use mq_lane::{LaneEnd, LaneId, Outbox};
pub use network::network_of;
#[cfg(not(feature = "tls"))]
pub use no_tls::ServerIdentity;
#[cfg(feature = "mqtt-next")]
pub use options::MQTT_NEXT;
pub use options::{
    AckFrequency, ClientAuth, ClientIdentity, CongestionControl, ConnectOptions, EarlyDataPolicy,
    ListenOptions, QuicOptions, SocketOptions,
};

pub use origins::AllowedOrigins;
pub use proxy::{ProxyHeader, ProxyProtocol, ProxyVersion};
#[cfg(feature = "quic")]
pub use quic::{Qlog, QlogLimits, WindowMemory};
#[cfg(feature = "tls")]
pub use reload::{PreparedReload, ReloadHandle};
pub use repeat::{Gap, Repeat};
pub use send_progress::SendProgress;
#[cfg(feature = "tls")]
pub use tls::{HandshakePool, ServerIdentity, TicketCache, TicketStore};
pub use trust::Trust;
pub use unix::{SocketFile, listen_unix};
