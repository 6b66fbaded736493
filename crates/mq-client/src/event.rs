//! What a client tells about its connections.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::ConnAckProperties;
use mq_transport::{EarlyData, HandshakeKind, LinkInfo};
use tokio::sync::broadcast;

use crate::Error;

/// Events that wait for a slow [`EventStream`]; then the oldest are dropped and counted.
pub(crate) const EVENT_CAPACITY: usize = 32;

/// Something that happened to the connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The server accepted.
    Connected(Arc<Connected>),
    /// The connection was lost, or an attempt to connect failed.
    Disconnected {
        /// Why.
        why: Error,
    },
    /// The client will connect again.
    Reconnecting {
        /// Which attempt since the last connection, from 1.
        attempt: u32,
        /// How long it waits first.
        after: Duration,
    },
    /// This stream was read too slowly: so many events are missing here.
    Missed(u64),
}

/// A connection that the server accepted.
#[derive(Clone, Debug)]
pub struct Connected {
    /// Whether the server goes on with an earlier session.
    pub session_present: bool,
    /// What the server announced (5.0).
    pub properties: ConnAckProperties,
    /// Who is at the ends of the link and how it is secured.
    pub link: LinkInfo,
    /// When it happened.
    pub times: ConnectTimes,
}

/// How long connecting took, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectTimes {
    /// When this attempt to connect began: host name look-up, TCP or QUIC come after it.
    pub dialled_at: Instant,
    /// When bytes could be written: with 0-RTT before the handshake was over.
    pub link_at: Instant,
    /// When CONNACK arrived.
    pub connack_at: Instant,
    /// How the handshake went, as known at CONNACK.
    pub handshake: HandshakeKind,
    /// What became of early data, as known at CONNACK.
    pub early_data: EarlyData,
}

/// The events of a client from when [`Client::events`](crate::Client::events) was called.
///
/// Up to 32 events wait; a stream that is read more slowly loses the oldest and gets
/// [`Event::Missed`] in their place.
#[derive(Debug)]
pub struct EventStream {
    pub(crate) receiver: broadcast::Receiver<Event>,
}

impl EventStream {
    /// The next event; `None` once the client has ended. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Event> {
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Event::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
