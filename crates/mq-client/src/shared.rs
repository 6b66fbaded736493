//! The state that handles, streams, receipts and the driver share.

use std::sync::{Arc, Mutex, atomic::AtomicU64};

use tokio::{sync::watch, task::JoinHandle};

use crate::{
    Error, EventStream,
    event::{Connected, Event, EventStreams},
    inbox::Inbox,
    queue::Queue,
    written::Written,
};

/// The state of the connection.
#[derive(Clone, Debug, Default)]
pub(crate) enum Status {
    /// Before CONNACK, or after the connection was lost.
    #[default]
    Connecting,
    Connected(Arc<Connected>),
    /// The client has ended, with this error.
    Ended(Error),
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) queue: Queue,
    pub(crate) written: Written,
    pub(crate) status: watch::Sender<Status>,
    /// The last connection that the server accepted.
    pub(crate) last: Mutex<Option<Arc<Connected>>>,
    events: EventStreams,
    /// The stream for messages that match no subscription.
    pub(crate) catch_all: Mutex<Option<Arc<Inbox>>>,
    /// Messages that matched no subscription and were dropped.
    pub(crate) unmatched: AtomicU64,
    /// The driver, so that [`Client::disconnect`](crate::Client::disconnect) can wait for its end.
    pub(crate) task: Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    pub(crate) fn events(&self) -> EventStream {
        self.events.add(|| self.queue.closed().is_some())
    }

    pub(crate) fn tell(&self, event: &Event) {
        self.events.tell(event);
    }

    /// Ends all event streams; the queue is closed.
    pub(crate) fn end_events(&self) {
        self.events.end_all();
    }
}
