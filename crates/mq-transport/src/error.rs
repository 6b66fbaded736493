//! Errors of links.

use std::{io, path::PathBuf, time::Duration};

use crate::{Address, AddressError, CongestionControl, Scheme};

/// What went wrong; its text is one line that says what is wrong and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be read.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The transport was left out of this build.
    #[error("{scheme} is not built in: build with `--features {}`", scheme.features())]
    NotBuiltIn {
        /// The transport.
        scheme: Scheme,
    },
    /// The host has no address.
    #[error("cannot find host `{host}`: {source}")]
    Resolve {
        /// The host.
        host: String,
        /// The resolver's answer.
        source: io::Error,
    },
    /// The address does not answer.
    #[error("cannot reach {address}: {source}; is a broker listening there?")]
    Unreachable {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The connection was not made in time.
    #[error("cannot reach {address}: no answer within {after:?}; is a broker listening there?")]
    ConnectTimeout {
        /// The address.
        address: Address,
        /// How long the connector waited.
        after: Duration,
    },
    /// Another program listens there.
    #[error("cannot listen on {address}: the port is in use; choose another or stop its user")]
    PortInUse {
        /// The address.
        address: Address,
    },
    /// The system does not allow listening there.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read the {what} file `{}`: {source}", path.display())]
    File {
        /// The kind of file.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file was read and does not hold what it should.
    #[error("the {what} file `{}` is not valid: {reason}", path.display())]
    InvalidFile {
        /// The kind of file.
        what: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// What is wrong, and the right form.
        reason: String,
    },
    /// An option's value cannot be used.
    #[error("{option} cannot be {value}: {remedy}")]
    InvalidOption {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The remedy.
        remedy: String,
    },
    /// A listener for TLS, QUIC or WebSocket over TLS has no certificate.
    #[error(
        "{scheme} needs a server certificate: give a certificate and key file, or ask for a self-signed one"
    )]
    NoIdentity {
        /// The transport.
        scheme: Scheme,
    },
    /// The kernel has no such congestion control for TCP, or keeps it for root.
    #[error("this kernel has no TCP congestion control `{name}` for this user: it has {available}")]
    NoCongestionControl {
        /// The requested congestion control.
        name: CongestionControl,
        /// The available ones.
        available: String,
    },
    /// The peer's certificate is not accepted.
    #[error("the peer's certificate is not accepted: {reason}; {remedy}")]
    CertificateRejected {
        /// What is wrong with the certificate.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The TLS handshake failed for another reason.
    #[error("the TLS handshake failed: {reason}")]
    Handshake {
        /// What happened.
        reason: String,
    },
    /// The server did not grant the HTTP request for a WebSocket, or the request cannot be made.
    #[error("the WebSocket handshake failed: {reason}")]
    Upgrade {
        /// The HTTP status of the server's answer; `None` if the answer is not HTTP.
        status: Option<u16>,
        /// What happened.
        reason: String,
    },
    /// The peer broke the connection off.
    #[error("the peer reset the connection{}", detail(reason))]
    Reset {
        /// The peer's reason; empty if it gave none.
        reason: String,
    },
    /// The peer was silent for QUIC's idle timeout, or for as long as the kernel retransmits a TCP
    /// segment.
    #[error("the connection timed out: nothing was heard of the peer")]
    TimedOut,
    /// The listener or link was closed on this side.
    #[error("closed on this side")]
    Closed,
    /// The peer broke a rule of TLS, QUIC or WebSocket.
    #[error("the peer broke the protocol: {reason}")]
    Protocol {
        /// How.
        reason: String,
    },
    /// Another failure of the system.
    #[error("input or output failed: {0}")]
    Io(io::Error),
}

fn detail(reason: &str) -> String {
    if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    }
}

impl Error {
    pub(crate) fn reset(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Reset { reason }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::reset(""),
            io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Io(error),
        }
    }
}
