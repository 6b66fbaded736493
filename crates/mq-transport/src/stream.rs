//! TCP, or TLS over it: a link by itself, or below the frames of WebSocket.

#[cfg(feature = "tls")]
use crate::tls::TlsLink;
use crate::{link::Transport, tcp::TcpLink};

/// A byte stream over TCP, as it is or within TLS.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpLink),
    #[cfg(feature = "tls")]
    Tls(Box<TlsLink>),
}

impl Stream {
    /// The stream as a link of its own, without WebSocket above it.
    pub(crate) fn into_transport(self) -> Transport {
        match self {
            Self::Tcp(link) => Transport::Tcp(link),
            #[cfg(feature = "tls")]
            Self::Tls(link) => Transport::Tls(link),
        }
    }
}
