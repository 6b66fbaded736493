//! The queue from handles to the driver: bounded, in order, one lock for a whole batch.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mq_codec::QoS;
use mq_proto::Delivery;
use tokio::sync::Notify;

use crate::{
    Error, Outgoing,
    ack::AckCell,
    control::{Control, Request},
    lock::lock,
};

/// Bounds on the messages, and on the bytes of topics and payloads, that wait to be sent.
///
/// [`Client::send`](crate::Client::send) waits for room, [`Client::try_send`](crate::Client::try_send)
/// fails with [`Error::QueueFull`]. A message that is larger than `bytes` is taken when
/// nothing else waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// Bound on the messages. Default: 10,000, some seconds of a busy device.
    pub messages: usize,
    /// Bound on the bytes of topics and payloads. Default: 16 MiB, which a small device can still spare.
    pub bytes: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            messages: 10_000,
            bytes: 16 * 1024 * 1024,
        }
    }
}

/// SUBSCRIBE and UNSUBSCRIBE requests that may wait for their answers; then callers wait.
const REQUEST_LIMIT: usize = 1024;

/// A message that waits to be sent.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) seq: u64,
    pub(crate) cost: usize,
    pub(crate) delivery: Delivery,
    /// `true` if the message may leave before the link's handshake is complete.
    pub(crate) early: bool,
    /// `true` if the message is sent as a QUIC datagram where it can be.
    pub(crate) datagram: bool,
    pub(crate) cell: Option<Arc<AckCell>>,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// Notified when there is room again, or never will be.
    room: Notify,
    /// Wakes the driver.
    driver: Notify,
}

#[derive(Debug, Default)]
struct State {
    limits: QueueLimits,
    waiting: VecDeque<Queued>,
    /// The messages that count against the limits: `waiting`, and those that the driver took and has not
    /// sent.
    messages: usize,
    bytes: usize,
    last_seq: u64,
    control: Control,
    /// `true` once no further messages are accepted.
    ending: bool,
    closed: Option<Error>,
}

/// The outcome of an attempt to queue.
pub(crate) enum Push<T> {
    Queued(u64, Option<Arc<AckCell>>),
    Full(T),
}

impl Queue {
    pub(crate) fn set_limits(&self, limits: QueueLimits) {
        lock(&self.state).limits = limits;
    }

    /// Queues as many of `messages` as there is room for, under one lock, and calls `queued` for each;
    /// the rest stays.
    pub(crate) fn push_all(
        &self,
        messages: &mut VecDeque<Outgoing>,
        mut queued: impl FnMut(u64, Option<Arc<AckCell>>),
    ) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let was_empty = state.waiting.is_empty();
        let mut result = Ok(());
        while let Some(next) = messages.pop_front() {
            match state.push(next) {
                Ok(Push::Queued(seq, cell)) => queued(seq, cell),
                Ok(Push::Full(back)) => {
                    messages.push_front(back);
                    break;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let wake = was_empty && !state.waiting.is_empty();
        drop(state);
        if wake {
            self.driver.notify_one();
        }
        result
    }

    pub(crate) fn push(&self, message: Outgoing) -> Result<Push<Outgoing>, Error> {
        let mut state = lock(&self.state);
        // A driver that left messages behind comes back by itself.
        let was_empty = state.waiting.is_empty();
        let pushed = state.push(message)?;
        drop(state);
        if was_empty && matches!(pushed, Push::Queued(..)) {
            self.driver.notify_one();
        }
        Ok(pushed)
    }

    /// Queues, waiting for room. Cancel-safe: an unqueued message is dropped with the future.
    pub(crate) async fn push_waiting(
        &self,
        mut message: Outgoing,
    ) -> Result<(u64, Option<Arc<AckCell>>), Error> {
        match self.push(message)? {
            Push::Queued(seq, cell) => return Ok((seq, cell)),
            Push::Full(back) => message = back,
        }
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            match self.push(message)? {
                Push::Queued(seq, cell) => return Ok((seq, cell)),
                Push::Full(back) => message = back,
            }
            room.await;
        }
    }

    /// Resolves when something has left the queue since the call began. See [`Notify`].
    pub(crate) fn room(&self) -> tokio::sync::futures::Notified<'_> {
        self.room.notified()
    }

    /// Queues a request, waiting while there are too many.
    pub(crate) async fn request(&self, request: Request) -> Result<(), Error> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let mut state = lock(&self.state);
                state.check_open()?;
                if state.control.requests.len() < REQUEST_LIMIT {
                    state.control.requests.push_back(request);
                    break;
                }
            }
            room.await;
        }
        self.driver.notify_one();
        Ok(())
    }

    /// Changes the requests to the driver and wakes it.
    pub(crate) fn control(&self, change: impl FnOnce(&mut Control)) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        change(&mut state.control);
        drop(state);
        self.driver.notify_one();
        Ok(())
    }

    /// Accepts no further messages; the driver ends within `deadline`.
    pub(crate) fn end(&self, deadline: Duration) {
        let mut state = lock(&self.state);
        state.ending = true;
        state.control.end.get_or_insert(deadline);
        drop(state);
        self.driver.notify_one();
        self.room.notify_waiters();
    }

    /// Returns the error of every call, once the client has ended.
    pub(crate) fn closed(&self) -> Option<Error> {
        lock(&self.state).closed.clone()
    }

    /// Wakes the driver.
    pub(crate) fn wake_driver(&self) {
        self.driver.notify_one();
    }

    /// Driver: waits to be woken. Cancel-safe.
    pub(crate) async fn woken(&self) {
        self.driver.notified().await;
    }

    /// Driver: takes the requests.
    pub(crate) fn take_control(&self) -> Control {
        let control = core::mem::take(&mut lock(&self.state).control);
        if control.requests.len() >= REQUEST_LIMIT {
            self.room.notify_waiters();
        }
        control
    }

    /// Driver: moves messages of up to `bytes` to `batch`; returns true if there were any. They count until they are
    /// [`sent`](Self::sent).
    pub(crate) fn take(&self, batch: &mut VecDeque<Queued>, bytes: usize) -> bool {
        let mut state = lock(&self.state);
        let mut taken = 0;
        while taken < bytes {
            let Some(next) = state.waiting.pop_front() else {
                break;
            };
            // About 8 bytes of a packet beside topic and payload.
            taken += next.cost + 8;
            batch.push_back(next);
        }
        taken > 0
    }

    /// Driver: subtracts messages and bytes that were sent, or given up, from those that wait.
    pub(crate) fn sent(&self, messages: usize, bytes: usize) {
        let mut state = lock(&self.state);
        state.messages -= messages;
        state.bytes -= bytes;
        drop(state);
        self.room.notify_waiters();
    }

    /// Returns the number of messages that wait, those that the driver holds included.
    pub(crate) fn len(&self) -> usize {
        lock(&self.state).messages
    }

    /// Driver: closes the queue; returns the messages and requests that waited.
    pub(crate) fn close(&self, error: Error) -> (VecDeque<Queued>, Control) {
        let mut state = lock(&self.state);
        state.closed.get_or_insert(error);
        let waiting = core::mem::take(&mut state.waiting);
        let control = core::mem::take(&mut state.control);
        drop(state);
        self.room.notify_waiters();
        (waiting, control)
    }
}

impl State {
    fn check_open(&self) -> Result<(), Error> {
        match &self.closed {
            Some(error) => Err(error.clone()),
            None if self.ending => Err(Error::Closed),
            None => Ok(()),
        }
    }

    fn push(&mut self, message: Outgoing) -> Result<Push<Outgoing>, Error> {
        self.check_open()?;
        let cost = message.cost();
        let full = self.messages >= self.limits.messages
            || (self.messages > 0 && self.bytes + cost > self.limits.bytes);
        if full {
            return Ok(Push::Full(message));
        }
        self.messages += 1;
        self.bytes += cost;
        self.last_seq += 1;
        let seq = self.last_seq;
        let Outgoing {
            message,
            qos,
            retain,
            early,
            datagram,
        } = message;
        let cell = (qos > QoS::AtMostOnce).then(Arc::<AckCell>::default);
        let expiry = message.properties.message_expiry_interval;
        let mut delivery = Delivery::new(message, qos);
        delivery.retain = retain;
        delivery.expires_at = expiry.and_then(|seconds| {
            let now: Instant = tokio::time::Instant::now().into_std();
            now.checked_add(Duration::from_secs(seconds.into()))
        });
        self.waiting.push_back(Queued {
            seq,
            cost,
            delivery,
            early: early && qos < QoS::ExactlyOnce,
            datagram,
            cell: cell.clone(),
        });
        Ok(Push::Queued(seq, cell))
    }
}
