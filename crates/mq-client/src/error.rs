//! Errors of a client.

use std::{convert::Infallible, sync::Arc, time::Duration};

use mq_codec::{ReasonCode, StringError, TopicError};
use mq_proto::{CloseReason, CommandError};
use mq_transport::{
    Address, AddressError,
    race::{self, Failures},
};

/// Error of a client. Its text is one line.
///
/// An error can be cloned, since the end of a connection reaches every waiting call.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL cannot be read.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The text is not a topic name or topic filter.
    #[error("not a topic: {0}")]
    Topic(#[from] TopicError),
    /// The text cannot be an MQTT string.
    #[error("not an MQTT string: {0}")]
    Text(#[from] StringError),
    /// The link could not be made, or broke. In an [`Arc`], as that error cannot be cloned.
    #[error(transparent)]
    Transport(Arc<mq_transport::Error>),
    /// The server refused the client in its CONNACK.
    #[error("the server refused the connection: {reason}")]
    Refused {
        /// Reason code of the CONNACK.
        reason: ReasonCode,
    },
    /// The connection ended: the server disconnected, was silent for too long, or broke the protocol.
    #[error("the connection ended: {0}")]
    Ended(CloseReason),
    /// None of several addresses could be reached.
    #[error("no address can be reached: {}", race::one_line(failures))]
    NoAddress {
        /// Each address that was tried, with its error.
        failures: Arc<[(Address, Error)]>,
    },
    /// The list mixes encrypted and plaintext addresses.
    #[error(
        "{plaintext} is plaintext and would stand in for {encrypted}: leave it out, or ask for it with \
         `allow_plaintext_fallback`"
    )]
    PlaintextFallback {
        /// The first plaintext address.
        plaintext: Address,
        /// The first encrypted address.
        encrypted: Address,
    },
    /// The connection could not be made in time.
    #[error("the server did not accept the connection within {after:?}")]
    ConnectTimeout {
        /// The timeout that passed.
        after: Duration,
    },
    /// The enhanced authentication cannot begin or go on, or the server failed to prove itself.
    #[error("the authentication failed: {0}")]
    Auth(#[from] crate::AuthError),
    /// The queue of messages to send is full; only [`Client::try_send`](crate::Client::try_send)
    /// and the builder's early messages do not wait for room.
    #[error("the queue of messages to send is full")]
    QueueFull,
    /// The server's limits do not allow the message or request, or it cannot be encoded.
    #[error("the message or request cannot be sent: {0}")]
    NotSent(#[from] CommandError),
    /// The message's expiry interval passed before it could be sent.
    #[error("the message expired before it could be sent")]
    Expired,
    /// The link was lost before a QoS 0 message was written; it is not sent again.
    #[error("the link was lost before the message was written")]
    LostUnsent,
    /// The server received the message and refused it.
    #[error("the server refused the message: {reason}")]
    PublishRefused {
        /// Reason code of the PUBACK, PUBREC or PUBCOMP.
        reason: ReasonCode,
    },
    /// The server granted none of the subscriptions.
    #[error("the server refused the subscription: {reason}")]
    SubscribeRefused {
        /// Reason code of the first filter in the SUBACK.
        reason: ReasonCode,
    },
    /// The server did not end the subscription.
    #[error("the server did not end the subscription: {reason}")]
    UnsubscribeRefused {
        /// Reason code of the UNSUBACK.
        reason: ReasonCode,
    },
    /// The call needs MQTT 5.0, and the connection has an earlier version.
    #[error("{what} needs MQTT 5.0")]
    NeedsVersion5 {
        /// The call or feature that needs version 5.0.
        what: &'static str,
    },
    /// A request was not answered in time.
    #[error("no response within {after:?}")]
    NoResponse {
        /// The timeout that passed.
        after: Duration,
    },
    /// The server reported that the topic of a request has no subscriber.
    #[error("no response is possible: the topic has no subscriber")]
    NoResponder,
    /// The message has no response topic, so no answer is expected.
    #[error("the message asks for no response")]
    NotARequest,
    /// The payload has another form than the call expects.
    #[error("the payload is not {expected}: {reason}")]
    Payload {
        /// The expected form.
        expected: &'static str,
        /// The fault of the payload.
        reason: String,
    },
    /// The application asked for another connection, by [`Client::reconnect`](crate::Client::reconnect).
    #[error("the application asked for another connection")]
    ReconnectAsked,
    /// The client has no connection now.
    #[error("not connected")]
    NotConnected,
    /// The client was closed before all was sent and acknowledged.
    #[error("closed with {unsent} messages not sent and {unacknowledged} not acknowledged")]
    Undelivered {
        /// Messages that were never written.
        unsent: usize,
        /// QoS 1 and 2 messages whose acknowledgement did not come.
        unacknowledged: usize,
    },
    /// The client was closed on this side.
    #[error("the client is closed")]
    Closed,
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<mq_transport::Error> for Error {
    fn from(error: mq_transport::Error) -> Self {
        match error {
            mq_transport::Error::Address(error) => Self::Address(error),
            error => Self::Transport(Arc::new(error)),
        }
    }
}

impl From<CloseReason> for Error {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::Refused(ack) => Self::Refused { reason: ack.reason },
            CloseReason::Local(_) => Self::Closed,
            reason => Self::Ended(reason),
        }
    }
}

impl Error {
    /// Makes the error of a race that all addresses have lost.
    pub(crate) fn unreached(mut failures: Failures<Self>) -> Self {
        match failures.len() {
            0 => Self::NotConnected,
            1 => failures.remove(0).1,
            _ => Self::NoAddress {
                failures: failures.into(),
            },
        }
    }

    #[cfg(feature = "json")]
    #[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
    pub(crate) fn json(error: serde_json::Error) -> Self {
        Self::Payload {
            expected: "the JSON that is wanted",
            reason: error.to_string(),
        }
    }

    /// Returns `true` if another attempt to connect may succeed.
    ///
    /// No attempt helps if the server refuses this client (credentials, client identifier, version, will), if another
    /// client took the session over, or if the server reports that the client broke a rule, except for Receive
    /// Maximum: messages that were sent before CONNACK may exceed a maximum that the client does not know yet. Nor
    /// does an attempt help if the server's certificate is not trusted, if the server rejects the WebSocket request
    /// as wrong, or if this side's options cannot be used.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Transport(error) => match **error {
                mq_transport::Error::Address(_)
                | mq_transport::Error::NotBuiltIn { .. }
                | mq_transport::Error::File { .. }
                | mq_transport::Error::InvalidFile { .. }
                | mq_transport::Error::InvalidOption { .. }
                | mq_transport::Error::NoCongestionControl { .. }
                | mq_transport::Error::CertificateRejected { .. } => false,
                mq_transport::Error::Upgrade { status, .. } => {
                    status.is_none_or(upgrade_status_passes)
                }
                _ => true,
            },
            Self::NoAddress { failures } => failures.iter().any(|(_, error)| error.is_temporary()),
            Self::Refused { reason } => reason_passes(*reason),
            Self::Ended(CloseReason::ByPeer(disconnect)) => reason_passes(disconnect.reason),
            Self::Ended(_) | Self::ConnectTimeout { .. } | Self::ReconnectAsked => true,
            _ => false,
        }
    }
}

/// Returns `true` if the cause of an HTTP status other than 101 may pass with time. Of the statuses for a wrong
/// request, 408, 425 and 429 are about its time.
fn upgrade_status_passes(status: u16) -> bool {
    !(300..500).contains(&status) || matches!(status, 408 | 425 | 429)
}

/// Returns `true` if the cause of the server's reason code may pass with time.
fn reason_passes(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::Success
            | ReasonCode::UnspecifiedError
            | ReasonCode::ImplementationSpecificError
            | ReasonCode::ServerUnavailable
            | ReasonCode::ServerBusy
            | ReasonCode::ServerShuttingDown
            | ReasonCode::KeepAliveTimeout
            | ReasonCode::ReceiveMaximumExceeded
            | ReasonCode::MessageRateTooHigh
            | ReasonCode::QuotaExceeded
            | ReasonCode::AdministrativeAction
            | ReasonCode::ConnectionRateExceeded
            | ReasonCode::MaximumConnectTime
            // About one message, which the next connection refuses by what its CONNACK says.
            | ReasonCode::QosNotSupported
            | ReasonCode::RetainNotSupported
    )
}
