//! Properties and counters of a link: its ends, its TLS parameters, its handshake.

use std::{net::SocketAddr, time::Duration};

use crate::{Certificate, Scheme, TlsVersion};

/// State of a link's handshake, and its kind once complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HandshakeKind {
    /// The link has no handshake: plain TCP, WebSocket over it, and mem.
    #[default]
    None,
    /// The handshake has not ended yet.
    Pending,
    /// A full handshake with certificates; no earlier session was resumed.
    Full,
    /// A resumed session: the ticket of an earlier connection, without certificates (RFC 8446 §2.2).
    Resumed,
}

/// The outcome of early data (0-RTT).
///
/// ```text
/// client: NotOffered | Pending -> Accepted | Rejected
/// server: NotOffered | Accepted
/// ```
///
/// A server's TLS stack does not say that early data was offered and refused: that is
/// [`EarlyData::NotOffered`] there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EarlyData {
    /// The client offered no early data.
    #[default]
    NotOffered,
    /// Early data was offered, and the server has not answered yet.
    Pending,
    /// The server accepted the early data.
    Accepted,
    /// The server rejected the early data; the link has sent it again after the handshake.
    Rejected,
}

/// Counters of one link, of the same shape for every transport.
///
/// A counter that a transport does not have is `None`. Reading them costs a system call on TCP, TLS
/// and WebSocket (`TCP_INFO`, Linux only) and a lock on QUIC: fine once a second, not once a packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LinkStats {
    /// Application bytes handed to the kernel or the QUIC stack; early data that is sent again
    /// counts once.
    pub bytes_sent: u64,
    /// Application bytes received.
    pub bytes_received: u64,
    /// Bytes sent below the application: TCP payload with retransmissions, or UDP payload.
    pub wire_bytes_sent: Option<u64>,
    /// Bytes received below the application: TCP payload, or UDP payload.
    pub wire_bytes_received: Option<u64>,
    /// TCP segments or UDP datagrams sent.
    pub packets_sent: Option<u64>,
    /// UDP datagrams among those that were [sent again](crate::Repeat) before anything showed that they were
    /// lost.
    pub packets_repeated: Option<u64>,
    /// System calls that sent UDP datagrams: fewer than the datagrams where the kernel splits what
    /// one call hands it (GSO).
    pub send_calls: Option<u64>,
    /// TCP segments or UDP datagrams received.
    pub packets_received: Option<u64>,
    /// QUIC packets declared lost, path MTU probes left out.
    pub packets_lost: Option<u64>,
    /// Messages sent as QUIC datagrams (RFC 9221).
    pub messages_as_datagrams: Option<u64>,
    /// `STREAMS_BLOCKED` frames received: times that the peer waited for permission to open more streams
    /// (RFC 9000 §19.14).
    pub streams_blocked: Option<u64>,
    /// TCP segments sent again.
    pub packets_retransmitted: Option<u64>,
    /// `true` if the peer took data that came with the SYN, by [TCP Fast Open](crate::SocketOptions::tcp_fast_open).
    pub data_in_syn: Option<bool>,
    /// The smoothed round-trip time, as the kernel or the QUIC stack estimates it.
    pub rtt: Option<Duration>,
    /// The congestion window in bytes.
    pub congestion_window: Option<u64>,
    /// State of the handshake.
    pub handshake: HandshakeKind,
    /// The outcome of early data.
    pub early_data: EarlyData,
}

/// The addresses of a link's two ends, and its TLS parameters and certificates.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LinkInfo {
    /// The transport of the link.
    pub scheme: Scheme,
    /// The peer's address; `None` on mem.
    pub peer_address: Option<SocketAddr>,
    /// This side's address, where the system gives it.
    pub local_address: Option<SocketAddr>,
    /// TLS parameters; `None` without encryption (TCP, WebSocket over it, mem), and before the negotiation.
    pub tls: Option<TlsInfo>,
    /// The peer's certificate and the chain above it; empty if the peer showed none.
    pub peer_certificates: Vec<Certificate>,
}

/// The negotiated parameters of TLS, or of the TLS within QUIC.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TlsInfo {
    /// The protocol version.
    pub version: TlsVersion,
    /// The cipher suite, by its IANA name.
    pub cipher_suite: String,
    /// The key-exchange group, by its IANA name; `None` where no key exchange took place.
    pub key_exchange_group: Option<String>,
    /// The application protocol, if any was negotiated.
    pub alpn: Option<String>,
    /// The server name that the client asked for.
    pub server_name: Option<String>,
}
