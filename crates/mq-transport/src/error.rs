//! Errors of links.

use std::{io, path::PathBuf, time::Duration};

use crate::{Address, AddressError, CongestionControl, Scheme};

/// Error of a link, connector or listener. Its text is one line that names the fault and, where there is one, the
/// remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be read.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The transport was left out of this build.
    #[error("{scheme} is not built in: build with `--features {}`", scheme.features())]
    NotBuiltIn {
        /// The transport that is missing.
        scheme: Scheme,
    },
    /// The host has no address.
    #[error("cannot find host `{host}`: {source}")]
    Resolve {
        /// The host's name.
        host: String,
        /// The resolver's answer.
        source: io::Error,
    },
    /// The address does not answer: the system reports an error, such as a refused connection.
    #[error("cannot reach {address}: {source}; is a broker listening there?")]
    Unreachable {
        /// The address that was not reached.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The connection was not made in time.
    #[error("cannot reach {address}: no answer within {after:?}; is a broker listening there?")]
    ConnectTimeout {
        /// The address that did not answer in time.
        address: Address,
        /// The timeout, which [`connect_timeout`](crate::ConnectOptions::connect_timeout) sets.
        after: Duration,
    },
    /// Another program listens at this port.
    #[error("cannot listen on {address}: the port is in use; choose another or stop its user")]
    PortInUse {
        /// The address whose port is in use.
        address: Address,
    },
    /// The system does not allow listening at this address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address that could not be listened at.
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
        /// The fault, and the right form.
        reason: String,
    },
    /// An option's value cannot be used.
    #[error("{option} cannot be {value}: {remedy}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// The remedy, such as the values that can be used.
        remedy: String,
    },
    /// A listener for TLS, QUIC or WebSocket over TLS has no certificate.
    #[error(
        "{scheme} needs a server certificate: give a certificate and key file, or ask for a self-signed one"
    )]
    NoIdentity {
        /// The transport that needs a certificate.
        scheme: Scheme,
    },
    /// The kernel has no such congestion control for TCP, or keeps it for root.
    #[error(
        "this kernel has no TCP congestion control `{name}` for this user: available are {available}"
    )]
    NoCongestionControl {
        /// The requested congestion control.
        name: CongestionControl,
        /// The available ones.
        available: String,
    },
    /// The peer's certificate is not accepted.
    #[error("the peer's certificate is not accepted: {reason}; {remedy}")]
    CertificateRejected {
        /// The fault of the certificate.
        reason: String,
        /// Advice to the operator.
        remedy: &'static str,
    },
    /// The TLS handshake failed for another reason.
    #[error("the TLS handshake failed: {reason}")]
    Handshake {
        /// The alert or error of the TLS stack.
        reason: String,
    },
    /// A connection's PROXY header is missing or malformed, or comes from an address that is not trusted.
    #[error("the PROXY header is not accepted: {reason}")]
    ProxyHeader {
        /// The fault of the header.
        reason: String,
    },
    /// The server did not grant the HTTP request for a WebSocket, or the request cannot be made.
    #[error("the WebSocket handshake failed: {reason}")]
    Upgrade {
        /// The HTTP status of the server's answer; `None` if the answer is not HTTP.
        status: Option<u16>,
        /// The fault of the request or the answer.
        reason: String,
    },
    /// The peer reset or aborted the connection.
    #[error("the peer reset the connection{}", detail(reason))]
    Reset {
        /// The peer's reason; empty if it gave none.
        reason: String,
    },
    /// The peer was silent for QUIC's idle timeout, or for as long as the kernel retransmits a TCP
    /// segment.
    #[error("the connection timed out: nothing was received from the peer")]
    TimedOut,
    /// The listener or link was closed on this side.
    #[error("closed on this side")]
    Closed,
    /// The peer broke a rule of TLS, QUIC or WebSocket.
    #[error("the peer broke the protocol: {reason}")]
    Protocol {
        /// The broken rule, as the protocol's stack describes it.
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
