//! The messages that wait in one stream.

use std::{
    collections::VecDeque,
    sync::Mutex,
    task::{Context, Poll, Waker},
};

use mq_codec::ReasonCode;

use crate::{Incoming, lock::lock};

/// The stream was dropped.
#[derive(Debug)]
pub(crate) struct Abandoned;

/// The bounded queue between the driver and one stream.
#[derive(Debug)]
pub(crate) struct Inbox {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Incoming>,
    waker: Option<Waker>,
    /// `true` once the driver adds no further messages.
    ended: bool,
    /// `true` once the stream was dropped: no message is taken out any more.
    abandoned: bool,
    /// `true` while the driver waits for room.
    wanted: bool,
}

impl Inbox {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            state: Mutex::default(),
        }
    }

    /// Driver: moves `staged` into the stream while there is room; returns true if there was room for all. If the
    /// stream is full, it wakes the driver once there is room again.
    pub(crate) fn fill<T>(
        &self,
        staged: &mut VecDeque<T>,
        mut convert: impl FnMut(T) -> Incoming,
    ) -> Result<bool, Abandoned> {
        let mut state = lock(&self.state);
        if state.abandoned {
            return Err(Abandoned);
        }
        let before = state.waiting.len();
        while state.waiting.len() < self.capacity
            && let Some(message) = staged.pop_front()
        {
            state.waiting.push_back(convert(message));
        }
        state.wanted = !staged.is_empty();
        let waker = if state.waiting.len() > before {
            state.waker.take()
        } else {
            None
        };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(staged.is_empty())
    }

    /// Driver: ends the stream after the messages that wait.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn pop(&self, wake_driver: impl FnOnce()) -> Option<Incoming> {
        let mut state = lock(&self.state);
        self.take(&mut state, wake_driver)
    }

    pub(crate) fn poll_pop(
        &self,
        wake_driver: impl FnOnce(),
        cx: &mut Context<'_>,
    ) -> Poll<Option<Incoming>> {
        let mut state = lock(&self.state);
        if let Some(message) = self.take(&mut state, wake_driver) {
            return Poll::Ready(Some(message));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn take(&self, state: &mut State, wake_driver: impl FnOnce()) -> Option<Incoming> {
        let message = state.waiting.pop_front()?;
        // Woken when half empty, and not for each message.
        if state.wanted && state.waiting.len() <= self.capacity / 2 {
            state.wanted = false;
            wake_driver();
        }
        Some(message)
    }

    /// Abandons a dropped stream; returns true if the driver still served it.
    pub(crate) fn abandon(&self) -> bool {
        let mut state = lock(&self.state);
        state.abandoned = true;
        let waiting = core::mem::take(&mut state.waiting);
        let was_open = !state.ended;
        drop(state);
        for mut message in waiting {
            // With manual acknowledgement these messages would hold up all later ones. A client that has
            // ended has nothing to acknowledge.
            let _ = message.acknowledge(ReasonCode::Success);
        }
        was_open
    }
}
