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
    /// No connection: before CONNACK, or after a connection was lost.
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
    /// Stream of the messages that match no subscription.
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
        self.events.listening().tell(event);
    }

    /// Changes the status and tells the streams of it; `change` returns whether the waiting handles are woken.
    ///
    /// A stream that began before the change gets its event. A stream that begins once a handle has seen the new
    /// status does not.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Status) -> bool, event: &Event) {
        let mut listening = None;
        self.status.send_if_modified(|status| {
            listening = Some(self.events.listening());
            change(status)
        });
        if let Some(listening) = listening {
            listening.tell(event);
        }
    }

    /// Ends all event streams; the queue is closed.
    pub(crate) fn end_events(&self) {
        self.events.end_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Wake, Waker},
    };

    use super::*;
    use crate::lock::lock;

    /// Begins a stream at the moment at which a waiting handle is woken.
    #[derive(Default)]
    struct BeginsWhenWoken {
        shared: Arc<Shared>,
        begun: Mutex<Option<EventStream>>,
    }

    impl Wake for BeginsWhenWoken {
        fn wake(self: Arc<Self>) {
            *lock(&self.begun) = Some(self.shared.events());
        }
    }

    #[test]
    fn a_stream_that_begins_after_a_change_is_seen_does_not_get_its_event() {
        let woken = Arc::new(BeginsWhenWoken::default());
        let mut before = woken.shared.events();
        let mut status = woken.shared.status.subscribe();
        let mut changed = pin!(status.changed());
        let waker = Waker::from(woken.clone());
        assert!(
            changed
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let ended = |status: &mut Status| {
            *status = Status::Ended(Error::Closed);
            true
        };
        let why = Error::Closed;
        woken.shared.change(ended, &Event::Disconnected { why });
        let mut cx = Context::from_waker(Waker::noop());
        let mut after = lock(&woken.begun).take().expect("the change wakes");
        let Poll::Ready(Some(Event::Disconnected { .. })) = before.poll_recv(&mut cx) else {
            panic!("the stream that began before lacks the event");
        };
        let late = after.poll_recv(&mut cx);
        assert!(late.is_pending(), "{late:?}");
    }
}
