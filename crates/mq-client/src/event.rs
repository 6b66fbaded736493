//! The events of a client.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures_core::Stream;
use mq_codec::ConnAckProperties;
use mq_transport::{EarlyData, HandshakeKind, LinkInfo};

use crate::{Error, lock::lock};

/// Events that wait for a slow [`EventStream`]; then the oldest are dropped and counted.
const EVENT_CAPACITY: usize = 32;

/// A change of the connection's state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The server accepted the connection.
    Connected(Arc<Connected>),
    /// The connection was lost, or an attempt to connect failed.
    Disconnected {
        /// The error that ended the connection or the attempt.
        why: Error,
    },
    /// The client will connect again.
    Reconnecting {
        /// The number of the attempt since the last connection, from 1.
        attempt: u32,
        /// Backoff before the attempt.
        after: Duration,
    },
    /// Number of events that were dropped here, since the stream was read too slowly.
    Missed(u64),
}

/// A connection that the server accepted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Connected {
    /// Session Present of the CONNACK: `true` if the server resumes an earlier session.
    pub session_present: bool,
    /// The server's announcements (5.0).
    pub properties: ConnAckProperties,
    /// The ends of the link, and its TLS parameters.
    pub link: LinkInfo,
    /// The times of the attempt.
    pub times: ConnectTimes,
}

/// Times of an attempt to connect that succeeded, and its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectTimes {
    /// Start of the attempt, before the look-up of the host name.
    pub dialled_at: Instant,
    /// Time from which bytes could be written; with 0-RTT before the end of the handshake.
    pub link_at: Instant,
    /// Arrival of CONNACK.
    pub connack_at: Instant,
    /// State of the handshake at CONNACK.
    pub handshake: HandshakeKind,
    /// The outcome of early data, as known at CONNACK.
    pub early_data: EarlyData,
}

/// The events of a client since the call of [`Client::events`](crate::Client::events).
///
/// Up to 32 events wait; a stream that is read more slowly loses the oldest and gets
/// [`Event::Missed`] in their place.
#[derive(Debug)]
pub struct EventStream {
    queue: Arc<EventQueue>,
}

impl EventStream {
    /// Waits for the next event; `None` once the client has ended. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Polls for the next event, as [`recv`](Self::recv) awaits it.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.queue.poll_pop(cx)
    }
}

impl Stream for EventStream {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.get_mut().poll_recv(cx)
    }
}

/// All streams of events of one client.
#[derive(Debug, Default)]
pub(crate) struct EventStreams(Mutex<Vec<Weak<EventQueue>>>);

impl EventStreams {
    /// Adds a stream, which has ended if `is_over`, called under the lock, returns true.
    pub(crate) fn add(&self, is_over: impl FnOnce() -> bool) -> EventStream {
        let queue = Arc::new(EventQueue::default());
        let mut streams = lock(&self.0);
        if is_over() {
            queue.end();
        } else {
            streams.retain(|stream| stream.strong_count() > 0);
            streams.push(Arc::downgrade(&queue));
        }
        drop(streams);
        EventStream { queue }
    }

    /// Returns the streams that receive an event now.
    pub(crate) fn listening(&self) -> Listening {
        Listening(self.alive())
    }

    pub(crate) fn end_all(&self) {
        for queue in self.alive() {
            queue.end();
        }
    }

    /// Returns a copy of the list of queues, so that no waker runs under the list's lock.
    fn alive(&self) -> Vec<Arc<EventQueue>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }
}

/// Event streams that receive the next event: a copy of the list, so that their wakers do not run under its lock.
#[derive(Debug)]
pub(crate) struct Listening(Vec<Arc<EventQueue>>);

impl Listening {
    pub(crate) fn tell(self, event: &Event) {
        for queue in self.0 {
            queue.push(event.clone());
        }
    }
}

/// The bounded queue between the driver and one stream; the oldest event gives way.
#[derive(Debug, Default)]
struct EventQueue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    /// Number of older events that were dropped.
    missed: u64,
    ended: bool,
    waker: Option<Waker>,
}

impl EventQueue {
    fn push(&self, event: Event) {
        self.change(|waiting| {
            if waiting.events.len() == EVENT_CAPACITY {
                waiting.events.pop_front();
                waiting.missed += 1;
            }
            waiting.events.push_back(event);
        });
    }

    fn end(&self) {
        self.change(|waiting| waiting.ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = lock(&self.0);
        change(&mut waiting);
        let waker = waiting.waker.take();
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut waiting = lock(&self.0);
        if waiting.missed > 0 {
            let missed = core::mem::take(&mut waiting.missed);
            return Poll::Ready(Some(Event::Missed(missed)));
        }
        if let Some(event) = waiting.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if waiting.ended {
            return Poll::Ready(None);
        }
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_stream_loses_the_oldest_events_and_gets_their_number() {
        let streams = EventStreams::default();
        let mut slow = streams.add(|| false);
        let dropped = streams.add(|| false);
        drop(dropped);
        for attempt in 1..=40 {
            let after = Duration::ZERO;
            streams
                .listening()
                .tell(&Event::Reconnecting { attempt, after });
        }
        streams.end_all();
        let mut cx = Context::from_waker(Waker::noop());
        let mut next = || Pin::new(&mut slow).poll_next(&mut cx);
        assert!(matches!(next(), Poll::Ready(Some(Event::Missed(8)))));
        for expected in 9..=40 {
            let event = next();
            assert!(
                matches!(event, Poll::Ready(Some(Event::Reconnecting { attempt, .. })) if attempt == expected),
                "{event:?}"
            );
        }
        assert!(matches!(next(), Poll::Ready(None)));
    }

    #[test]
    fn a_stream_of_a_client_that_has_ended_ends_at_once() {
        let mut late = EventStreams::default().add(|| true);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(late.poll_recv(&mut cx), Poll::Ready(None)));
    }
}
