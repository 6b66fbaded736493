//! Options of connectors and listeners; each default says its reason.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

#[cfg(feature = "quic")]
use crate::Qlog;
use crate::{
    AllowedOrigins, CryptoOptions, Error, KeyExchangeGroup, ProxyProtocol, Repeat, ServerIdentity,
    Trust, crypto::names,
};
#[cfg(feature = "tls")]
use crate::{HandshakePool, TicketCache, TicketStore};

/// The application protocol of MQTT, as registered with IANA.
const MQTT: &[u8] = b"mqtt";

/// The application protocol of MQTT over several QUIC streams that begin with the heads of flows (the draft of
/// 5 March 2024).
#[cfg(feature = "mqtt-next")]
pub const MQTT_NEXT: &[u8] = b"MQTT-next";

/// Congestion control algorithm. QUIC and TCP have one setting, so that both can run the same algorithm.
///
/// As text: `reno`, `cubic`, `bbr`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CongestionControl {
    /// `NewReno`.
    Reno,
    /// CUBIC, the default of QUIC here and of most kernels.
    Cubic,
    /// BBR: experimental in quinn, version 1 in Linux.
    Bbr,
}

names!(
    CongestionControl,
    "congestion control",
    Reno = "reno",
    Cubic = "cubic",
    Bbr = "bbr",
);

/// Early data (0-RTT) that a server accepts, by packet type. As text: `off`, `connect`, `full`.
///
/// A [`Listener`](crate::Listener) treats `Connect` and `Full` alike: it hands over all early data, and the
/// reader of the packets, such as the broker, holds back the packets that have to wait
/// ([`Link::is_early`](crate::Link::is_early)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EarlyDataPolicy {
    /// None: tickets still save the certificates. The default, as early data is for an application
    /// to ask for (RFC 8446 appendix E.5).
    #[default]
    Off,
    /// CONNECT alone; later packets wait for the end of the handshake.
    Connect,
    /// All packets but PUBLISH of QoS 2 and acknowledgements, which may not be acted on twice and
    /// wait for the end of the handshake.
    Full,
}

names!(
    EarlyDataPolicy,
    "early data policy",
    Off = "off",
    Connect = "connect",
    Full = "full",
);

/// Options of a [`Connector`](crate::Connector).
///
/// ```
/// use mq_transport::{ClientIdentity, ConnectOptions, Trust};
///
/// let options = ConnectOptions::new()
///     .trust(Trust::ca_file("ca.pem"))
///     .identity(ClientIdentity::new("sensor-7.pem", "sensor-7.key"))
///     .early_data(true);
/// ```
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Bound on name look-up, connection and handshake together. Default: 20 s, in which the kernel
    /// sends a TCP SYN five times (again after 1, 3, 7 and 15 s), so that connecting succeeds even where
    /// half of the packets are lost. `mq-client` bounds the wait for CONNACK by
    /// it as well.
    pub connect_timeout: Duration,
    /// Server certificates that the client accepts. Default: those under the system's roots.
    pub trust: Trust,
    /// The server name to send (SNI) and to verify in the certificate, if it is not the address's host. Default:
    /// none.
    pub server_name: Option<String>,
    /// The client's own certificate, for servers that ask for one. Default: none.
    pub identity: Option<ClientIdentity>,
    /// Ciphers, groups, versions. Default: see [`CryptoOptions`].
    pub crypto: CryptoOptions,
    /// Application protocols to offer (ALPN, RFC 7301), over TLS as over QUIC, the preferred one
    /// first; names of 1 to 255 bytes. A TLS server without ALPN chooses none of them, which is
    /// allowed. Default: `mqtt`, the name that IANA has for it. Empty: none is offered,
    /// which QUIC does not allow (RFC 9001 §8.1). WebSocket over TLS offers `http/1.1` in the place
    /// of these, as a WebSocket begins with HTTP. With the feature `mqtt-next`, `MQTT-next` is for QUIC alone, which then
    /// offers nothing else: a client has to know what it speaks before it has the server's choice.
    pub alpn: Vec<Vec<u8>>,
    /// Resume earlier TLS sessions by their tickets (RFC 8446 §2.2). Default: yes, it saves
    /// certificates each time.
    pub resumption: bool,
    /// Send what is written before the handshake ends as early data, where a ticket allows it.
    /// Needs `resumption`. On WebSocket over TLS early data is the HTTP request alone, which saves its
    /// round trip: no packet may leave before the answer (RFC 6455 §4.1). Default: no, as an attacker
    /// can make a server take early data twice, and a server without single-use tickets any number of
    /// times (RFC 8446 §8): before the handshake is complete, write only what is safe to repeat.
    pub early_data: bool,
    /// Bytes that are kept to be sent again should early data be rejected; beyond them writes wait
    /// for the handshake. The server's own limit counts as well, and over TLS the limit is 8 KiB
    /// (a rustls server cannot skip more when it rejects early data). Default: 64 KiB, more than
    /// one round trip's worth of CONNECT, SUBSCRIBE and first PUBLISH packets.
    pub early_data_limit: usize,
    /// Cache of session tickets. Default: none; the connector then has a cache of its own.
    #[cfg(feature = "tls")]
    pub ticket_cache: Option<TicketCache>,
    /// Congestion control of TCP and QUIC. Default: none, which is CUBIC on QUIC and the kernel's
    /// default on TCP: set it where the two are compared.
    pub congestion: Option<CongestionControl>,
    /// Options of QUIC.
    pub quic: QuicOptions,
    /// Options of sockets.
    pub socket: SocketOptions,
    /// The address to connect from; picks one of several interfaces. Default: none.
    pub local_address: Option<IpAddr>,
    /// Hosts whose addresses are given here instead of looked up, each with its addresses, the preferred one first:
    /// for a name that the resolver does not know (yet). Default: none.
    pub resolve: Vec<(String, Vec<IpAddr>)>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(20),
            trust: Trust::default(),
            server_name: None,
            identity: None,
            crypto: CryptoOptions::default(),
            alpn: vec![MQTT.to_vec()],
            resumption: true,
            early_data: false,
            early_data_limit: 64 * 1024,
            #[cfg(feature = "tls")]
            ticket_cache: None,
            congestion: None,
            quic: QuicOptions::default(),
            socket: SocketOptions::default(),
            local_address: None,
            resolve: Vec::new(),
        }
    }
}

/// Each method sets the field of its name. The field's page says what it means, and its default with the
/// reason.
impl ConnectOptions {
    /// Makes options with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bounds name look-up, connection and handshake together: [`connect_timeout`](field@Self::connect_timeout).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the server certificates that are accepted: [`trust`](field@Self::trust).
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Sends this server name (SNI) and verifies it in the certificate, in the place of the address's host:
    /// [`server_name`](field@Self::server_name).
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Shows this certificate to servers that ask for one: [`identity`](field@Self::identity).
    #[must_use]
    pub fn identity(mut self, identity: ClientIdentity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Chooses ciphers, groups and versions: [`crypto`](field@Self::crypto).
    #[must_use]
    pub fn crypto(mut self, crypto: CryptoOptions) -> Self {
        self.crypto = crypto;
        self
    }

    /// Offers these application protocols: [`alpn`](field@Self::alpn).
    #[must_use]
    pub fn alpn(mut self, protocols: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Self {
        self.alpn = protocols.into_iter().map(Into::into).collect();
        self
    }

    /// Resumes earlier TLS sessions, or does not: [`resumption`](field@Self::resumption).
    #[must_use]
    pub fn resumption(mut self, resume: bool) -> Self {
        self.resumption = resume;
        self
    }

    /// Sends what is written before the handshake ends as early data, or does not: [`early_data`](field@Self::early_data).
    #[must_use]
    pub fn early_data(mut self, send: bool) -> Self {
        self.early_data = send;
        self
    }

    /// Bounds the early data that is kept to be sent again: [`early_data_limit`](field@Self::early_data_limit).
    #[must_use]
    pub fn early_data_limit(mut self, bytes: usize) -> Self {
        self.early_data_limit = bytes;
        self
    }

    /// Keeps session tickets in this cache: [`ticket_cache`](field@Self::ticket_cache).
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn ticket_cache(mut self, cache: TicketCache) -> Self {
        self.ticket_cache = Some(cache);
        self
    }

    /// Sets the congestion control of TCP and QUIC: [`congestion`](field@Self::congestion).
    #[must_use]
    pub fn congestion(mut self, control: CongestionControl) -> Self {
        self.congestion = Some(control);
        self
    }

    /// Sets the options of QUIC: [`quic`](field@Self::quic).
    #[must_use]
    pub fn quic(mut self, options: QuicOptions) -> Self {
        self.quic = options;
        self
    }

    /// Sets the options of sockets: [`socket`](field@Self::socket).
    #[must_use]
    pub fn socket(mut self, options: SocketOptions) -> Self {
        self.socket = options;
        self
    }

    /// Connects from this address: [`local_address`](field@Self::local_address).
    #[must_use]
    pub fn local_address(mut self, address: IpAddr) -> Self {
        self.local_address = Some(address);
        self
    }

    /// Connects to these addresses where the host has this name: [`resolve`](field@Self::resolve).
    #[must_use]
    pub fn resolve(
        mut self,
        host: impl Into<String>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        self.resolve
            .push((host.into(), addresses.into_iter().collect()));
        self
    }
}

/// PEM files of a client's certificate chain and private key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientIdentity {
    /// The chain, the client's own certificate first.
    pub certificates: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl ClientIdentity {
    /// Names the files of the certificates and of the key, which are read when a connector is made.
    #[must_use]
    pub fn new(certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            certificates: certificates.into(),
            key: key.into(),
        }
    }
}

/// Options of a [`Listener`](crate::Listener).
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The server's certificate and key; TLS, QUIC and WebSocket over TLS need it. Default: none.
    pub identity: Option<ServerIdentity>,
    /// Client certificates that the listener asks for (mutual TLS). Default: off.
    pub client_auth: ClientAuth,
    /// Files of certificate revocation lists (RFC 5280 §5) for clients' certificates: PEM with any
    /// number of lists, or one list in DER form. Default: none, and nothing counts as revoked.
    ///
    /// With any list, each certificate from the client's own up to its CA in
    /// [`client_auth`](Self::client_auth) must be on no list *and* its issuer must have one. A client
    /// whose issuer has no list is refused, as OpenSSL does it, since its status is not
    /// known. Delta and indirect lists are not supported, and refused when they are loaded.
    pub client_crls: Vec<PathBuf>,
    /// `true` if a revocation list past its `nextUpdate` makes the listener refuse every client of its issuer.
    /// Default: no. An expired list still revokes the certificates on it, and a failed delivery of the next list must
    /// not lock a whole fleet out.
    pub enforce_crl_expiry: bool,
    /// Ciphers, groups, versions. Default: that of [`CryptoOptions`], and behind X25519 the group P-256, which is all that
    /// the TLS of some small devices has. A client that prefers X25519 gets it.
    pub crypto: CryptoOptions,
    /// Application protocols that clients may offer (ALPN, RFC 7301), over TLS as over QUIC; the
    /// first of these that a client offers is taken.
    ///
    /// A TLS client that offers none gets in, as most MQTT clients offer none; a QUIC client has to
    /// (RFC 9001 §8.1). A client that offers only others is refused with the alert
    /// `no_application_protocol` (RFC 7301 §3.2): otherwise one protocol could be used to attack
    /// another. Default: with the feature `mqtt-next` `MQTT-next` over QUIC alone, `mqtt`, the name that IANA has
    /// for it, and `x-amzn-mqtt-ca`, which devices made for AWS offer and which means MQTT as well.
    /// Empty: TLS takes every client whatever it offers, and QUIC cannot listen. WebSocket over TLS
    /// takes `http/1.1` in the place of these.
    pub alpn: Vec<Vec<u8>>,
    /// WebSocket: which web pages may connect. Default: all, as MQTT's own authentication does not
    /// rest on what a browser sends by itself. Where clients need no authentication, see
    /// [`AllowedOrigins::SameHost`].
    pub allowed_origins: AllowedOrigins,
    /// PROXY headers that are read in front of a connection, over TCP and what runs over it. Default: none; a header is then
    /// a client's first bytes, and malformed.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Early data (0-RTT) that is accepted. Default: off.
    pub early_data: EarlyDataPolicy,
    /// Bytes of early data that a TLS client may send before the handshake ends; QUIC bounds them
    /// by its flow-control windows instead. Default: 64 KiB, eight times what this crate's client
    /// sends: rejected early data counts several times, see [`ConnectOptions::early_data_limit`].
    pub early_data_limit: u32,
    /// The most bytes of data in a TLS record that the listener sends, from 512 to 16,384, in the handshake as well. A
    /// peer holds a whole record before it reads any of it, so a device with buffers of 1 or 2 KB needs small ones. Each
    /// record costs 22 bytes, or 29 with TLS 1.2. The listener does not negotiate the limit (RFC 6066 §4); QUIC has no
    /// records. Default: 16,384, the most that TLS allows (RFC 8446 §5.1).
    pub max_record_size: u16,
    /// Store of session tickets; share one among listeners if a client may reconnect to another of them. Default: a
    /// store of its own for each `ListenOptions::default()`.
    #[cfg(feature = "tls")]
    pub ticket_store: TicketStore,
    /// Tickets given to each TLS 1.3 client. Default: 2, so that one failed attempt to reconnect
    /// does not cost the next its ticket.
    pub tickets_per_connection: usize,
    /// `true` if tickets become valid only after the application has admitted the client by
    /// [`Link::let_in`](crate::Link::let_in). Otherwise any peer that completes a handshake takes a place in the
    /// store, and a crowd of such peers evicts all other tickets. Default: no.
    pub hold_tickets: bool,
    /// Memory budget for the flow-control windows of QUIC connections. With a budget each connection begins with
    /// 16 KiB to receive and 16 KiB to send. The windows grow once the application has
    /// [admitted the peer](crate::Link::let_in), up to those of [`quic`](Self::quic), as far as the budget allows.
    /// Default: none; windows have their full size from the start.
    #[cfg(feature = "quic")]
    pub window_memory: Option<std::sync::Arc<dyn crate::WindowMemory>>,
    /// Threads that compute the handshakes of a crowd; share one pool among listeners. Default: a thread for every
    /// two processors.
    #[cfg(feature = "tls")]
    pub handshake_pool: HandshakePool,
    /// The runtimes over which a QUIC listener spreads its sockets: each is read, and its connections' packets
    /// are sent, by the tasks of one. Serve a client on [`Incoming::runtime`](crate::Incoming::runtime). Default:
    /// none; the runtime that binds has them all.
    pub runtimes: Vec<tokio::runtime::Handle>,
    /// Connections that may wait to be accepted; further ones are ignored until there is room. On QUIC a
    /// sixteenth of them may come from one address and port. Default: 1,024, a burst of reconnecting
    /// clients.
    pub backlog: u32,
    /// Congestion control of TCP and QUIC; see [`ConnectOptions::congestion`].
    pub congestion: Option<CongestionControl>,
    /// Options of QUIC.
    pub quic: QuicOptions,
    /// Options of sockets.
    pub socket: SocketOptions,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            identity: None,
            client_auth: ClientAuth::Off,
            client_crls: Vec::new(),
            enforce_crl_expiry: false,
            crypto: CryptoOptions {
                key_exchange_groups: vec![KeyExchangeGroup::X25519, KeyExchangeGroup::Secp256r1],
                ..CryptoOptions::default()
            },
            alpn: vec![
                #[cfg(feature = "mqtt-next")]
                MQTT_NEXT.to_vec(),
                MQTT.to_vec(),
                b"x-amzn-mqtt-ca".to_vec(),
            ],
            allowed_origins: AllowedOrigins::All,
            proxy_protocol: None,
            early_data: EarlyDataPolicy::Off,
            early_data_limit: 64 * 1024,
            max_record_size: 16_384,
            #[cfg(feature = "tls")]
            ticket_store: TicketStore::default(),
            tickets_per_connection: 2,
            hold_tickets: false,
            #[cfg(feature = "quic")]
            window_memory: None,
            #[cfg(feature = "tls")]
            handshake_pool: HandshakePool::default(),
            runtimes: Vec::new(),
            backlog: 1024,
            congestion: None,
            quic: QuicOptions::default(),
            socket: SocketOptions::default(),
        }
    }
}

/// Client certificates (mutual TLS). The PEM file holds the CAs that sign them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ClientAuth {
    /// No client is asked for a certificate.
    #[default]
    Off,
    /// Clients are asked for a certificate; those without one are accepted.
    Optional(PathBuf),
    /// Clients are asked for a certificate; those without one are refused.
    Required(PathBuf),
}

/// Options of QUIC; the same on client and server.
#[derive(Clone, Debug)]
pub struct QuicOptions {
    /// The round-trip time that is assumed until one is measured: the first packet is sent again
    /// after three times this value (RFC 9002 §6.2.2). Default: the RFC's 333 ms, as in quinn and msquic. A lost first
    /// packet then costs 1 s, as a lost SYN costs TCP (RFC 6298 §2). With 100 ms it costs 0.3 s, which suits LTE, Wi-Fi
    /// and most wide-area paths. Where the round trip takes longer than three times the value, packets that were not lost
    /// are sent again.
    pub initial_rtt: Duration,
    /// Silence after which the connection is closed (`max_idle_timeout`, RFC 9000 §10.1). The smaller value of both
    /// ends counts; `None` is no limit. Default: 5 min, well above 1.5 times MQTT's usual keep-alives (those find
    /// dead peers sooner).
    pub idle_timeout: Option<Duration>,
    /// Silence on this side after which it sends a PING frame. Default: none, as MQTT has its own keep-alive, which
    /// tests the peer's application as well.
    pub keep_alive_interval: Option<Duration>,
    /// Ask the peer to acknowledge more or less often. Default: none, every other packet and after 25 ms.
    pub ack_frequency: Option<AckFrequency>,
    /// Packets of 1,200 bytes that may be under way before the first acknowledgement. Default: none, which is 10
    /// (RFC 9002 §7.2), and 200 of BBR.
    pub initial_window: Option<u32>,
    /// A packet counts as lost when one that was sent so many packets later is acknowledged. Default: 3
    /// (RFC 9002 §6.1.1).
    pub packet_threshold: u32,
    /// A packet counts as lost when a later one is acknowledged and it is older than the round-trip time by this
    /// factor. Default: 1.125 (RFC 9002 §6.1.2).
    pub time_threshold: f32,
    /// The largest UDP payload that path MTU discovery tries, in bytes. If it is at most 253 bytes above
    /// `initial_udp_payload`, discovery tries it at once, else by halves. On a path with a smaller MTU,
    /// discovery ends up to 250 bytes below that. Default: 1,452, which fits Ethernet with IPv6.
    pub max_udp_payload: u16,
    /// The UDP payload to start with, in bytes. Default: 1,200, which every QUIC path carries.
    pub initial_udp_payload: u16,
    /// Probe for a larger path MTU (RFC 8899), on this side of the connection. Default: no. Quinn probes at once, before
    /// there is anything large to send: a device that connects for one message then sends 4.2 kB in the place of
    /// 2.7 kB, and receives as much more if its server probes. What large messages lose without it: with packets of
    /// 1,200 bytes and not 1,452 they take 1.2 % more bytes on an Ethernet, in 21 % more packets.
    pub mtu_discovery: bool,
    /// Bytes that a peer may have under way on one stream before they are read. Default: 512 KiB,
    /// 40 Mbit/s at 100 ms. Unread data stays in memory: clients can make a server hold this much for
    /// each connection.
    pub stream_receive_window: u32,
    /// Bytes that a peer may have under way on all streams of one connection. Default: 1 MiB. A server's connections begin with less where
    /// [`ListenOptions::window_memory`] bounds them.
    pub receive_window: u32,
    /// Bytes that this side keeps for sending again until they are acknowledged; then writes
    /// wait. Default: 1 MiB for each connection.
    pub send_window: u64,
    /// Bidirectional streams that the peer may have open at a time; on a server the control lane is one of
    /// them. Default: 64, of which the peer is granted 10 until it has opened a second stream. With
    /// [`ListenOptions::window_memory`] the number grows by half whenever three quarters are open, where 40 KiB for each
    /// further stream find room. A stream that is open and idle takes some 2 KiB; its unread bytes count against
    /// [`receive_window`](Self::receive_window), however many streams there are.
    pub max_bidi_streams: u32,
    /// Unidirectional streams that the peer may have open at a time. Default: 64, of which it is granted 4 at first.
    pub max_uni_streams: u32,
    /// Bytes of received datagrams (RFC 9221) that may wait to be read; beyond this bound the oldest are dropped. 0
    /// accepts none, and announces this to the peer. Default: 64 KiB.
    pub datagram_buffer: usize,
    /// Small datagrams that are sent again before anything shows that they were lost. Default: none.
    pub repeat: Repeat,
    /// Let the kernel split and join datagrams (GSO, GRO). Default: yes. Off to see each packet
    /// on a link emulator or a capture.
    pub segmentation_offload: bool,
    /// Trace (qlog) of connections, and its directory. Default: none.
    #[cfg(feature = "quic")]
    pub qlog: Option<Qlog>,
}

impl QuicOptions {
    /// Returns the interval of PING frames that keeps the idle timeout from ending a connection while MQTT is silent:
    /// [`keep_alive_interval`](Self::keep_alive_interval), or else half of the idle timeout. MQTT's keep-alive alone
    /// then detects a dead peer; where it is off (0), silence has no limit (MQTT 5.0 §3.1.2.10).
    #[must_use]
    pub fn keep_alive_below_idle(&self) -> Option<Duration> {
        let half = self.idle_timeout.map(|idle| idle / 2);
        self.keep_alive_interval.or(half)
    }
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            initial_rtt: Duration::from_millis(333),
            idle_timeout: Some(Duration::from_mins(5)),
            keep_alive_interval: None,
            ack_frequency: None,
            initial_window: None,
            packet_threshold: 3,
            time_threshold: 9.0 / 8.0,
            max_udp_payload: 1452,
            initial_udp_payload: 1200,
            mtu_discovery: false,
            stream_receive_window: 512 * 1024,
            receive_window: 1024 * 1024,
            send_window: 1024 * 1024,
            max_bidi_streams: 64,
            max_uni_streams: 64,
            datagram_buffer: 64 * 1024,
            repeat: Repeat::Off,
            segmentation_offload: true,
            #[cfg(feature = "quic")]
            qlog: None,
        }
    }
}

/// A request to the peer by QUIC's acknowledgement frequency extension
/// (draft-ietf-quic-ack-frequency-04).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckFrequency {
    /// Packets that the peer may receive without acknowledging at once.
    pub threshold: u32,
    /// Longest delay of an acknowledgement; `None` leaves the peer's own `max_ack_delay` (25 ms by default).
    pub max_delay: Option<Duration>,
    /// Reordering, in packets, at which the peer acknowledges at once: 1 at any reordering, 0 at none.
    pub reordering_threshold: u32,
}

impl AckFrequency {
    /// Asks for an acknowledgement of every packet within this time, and of reordered packets at once.
    #[must_use]
    pub fn within(max_delay: Duration) -> Self {
        Self {
            threshold: 1,
            max_delay: Some(max_delay),
            reordering_threshold: 1,
        }
    }
}

/// Options of sockets. `TCP_NODELAY` is always on: links write whole batches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SocketOptions {
    /// Bytes of the kernel's send buffer. Default: none, the kernel sizes it.
    pub send_buffer: Option<usize>,
    /// Bytes of the kernel's receive buffer. Default: none, the kernel sizes it; a QUIC server's is
    /// 4 MiB, or what `net.core.rmem_max` allows.
    pub receive_buffer: Option<usize>,
    /// Linux: the network namespace in which sockets are made and stay, such as `/run/netns/blue` or
    /// `/proc/1234/ns/net`. Default: none, the namespace of the calling thread.
    /// Entering a namespace needs `CAP_SYS_ADMIN` in it.
    pub network_namespace: Option<PathBuf>,
    /// Linux: TCP Fast Open (RFC 7413) of TCP and what runs over it. A client's first bytes then go with its SYN to a server
    /// of which the kernel has a cookie, and a server reads them before the handshake ends; the first connection to
    /// a server brings the cookie. A client with a cookie learns only from its first bytes that nothing listens, and of a
    /// host with several addresses connects as without. The sysctl `net.ipv4.tcp_fastopen` has to allow it: 1, the
    /// usual value, is for clients alone, 2 for servers and 3 for both. Default: no, as a copied SYN makes a server
    /// read its data twice (RFC 7413 §2.1), and as some networks drop a SYN with data: the kernel then sends it again
    /// without, a second later.
    pub tcp_fast_open: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for name in ["reno", "cubic", "bbr"] {
            assert_eq!(name.parse::<CongestionControl>().unwrap().to_string(), name);
        }
        for name in ["off", "connect", "full"] {
            assert_eq!(name.parse::<EarlyDataPolicy>().unwrap().to_string(), name);
        }
        let error = "vegas".parse::<CongestionControl>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "congestion control cannot be `vegas`: use one of reno, cubic, bbr"
        );
    }
}
