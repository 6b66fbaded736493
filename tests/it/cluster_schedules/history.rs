//! The history of a run: what clients and nodes have seen, by virtual time.

use std::{
    fmt,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use mq_client::QoS;
use tokio::time::Instant;

use super::schedule::client_name;

/// The step from which on nothing disturbs the cluster.
pub(super) const ALL_IS_WELL: &str = "all is well";

/// Something that a client has seen, or that was done to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A step of the schedule.
    Step(String),
    /// A node begins, or could not.
    NodeBegan {
        node: usize,
        has_begun: bool,
    },
    /// CONNACK came. The number of the client's connection is that of its will.
    Connected {
        client: usize,
        connection: usize,
        session_present: bool,
    },
    /// CONNECT was sent on a new connection.
    Connecting {
        client: usize,
        connection: usize,
    },
    /// A connection has ended, in order or not.
    Disconnected {
        client: usize,
        connection: usize,
        in_order: bool,
    },
    Subscribed {
        client: usize,
    },
    /// The application gave a message to its client.
    Published {
        number: usize,
        publisher: usize,
        topic: usize,
        qos: QoS,
    },
    /// PUBACK or PUBREC came.
    Acknowledged {
        number: usize,
    },
    /// A negative PUBACK or PUBREC came.
    Refused {
        number: usize,
    },
    /// Messages of a publisher were in flight when the cluster did not know its session.
    SessionLost {
        client: usize,
    },
    Received {
        client: usize,
        topic: String,
        payload: String,
        qos: QoS,
        is_retained: bool,
    },
}

/// All events, with the time since the beginning.
#[derive(Debug)]
pub(super) struct History {
    began: Instant,
    events: Mutex<Vec<(Duration, Event)>>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            events: Mutex::default(),
        }
    }

    pub(super) fn note(&self, event: Event) {
        let at = self.began.elapsed();
        self.events().push((at, event));
    }

    pub(super) fn events(&self) -> MutexGuard<'_, Vec<(Duration, Event)>> {
        self.events.lock().unwrap()
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "- {step}"),
            Self::Connected {
                client,
                connection,
                session_present,
            } => write!(
                f,
                "{} connected ({connection}), session present: {session_present}",
                client_name(*client)
            ),
            Self::Disconnected {
                client,
                connection,
                in_order,
            } => write!(
                f,
                "{} disconnected ({connection}), in order: {in_order}",
                client_name(*client)
            ),
            Self::Received {
                client,
                topic,
                payload,
                ..
            } => write!(f, "{} received {payload} of {topic}", client_name(*client)),
            other => write!(f, "{other:?}"),
        }
    }
}
