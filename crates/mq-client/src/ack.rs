//! The outcome of a QoS 1 or 2 message, shared by its receipt and the driver.

use std::{
    sync::{Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use mq_codec::ReasonCode;

use crate::{Error, lock::lock};

/// The outcome of a QoS 1 or 2 message, shared by its receipt and the driver.
#[derive(Debug, Default)]
pub(crate) struct AckCell(Mutex<AckState>);

#[derive(Debug, Default)]
struct AckState {
    outcome: Option<Result<ReasonCode, Error>>,
    waker: Option<Waker>,
}

impl AckCell {
    fn lock(&self) -> MutexGuard<'_, AckState> {
        lock(&self.0)
    }

    pub(crate) fn resolve(&self, outcome: Result<ReasonCode, Error>) {
        let mut state = self.lock();
        state.outcome.get_or_insert(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn peek(&self) -> Option<Result<ReasonCode, Error>> {
        self.lock().outcome.clone()
    }

    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<ReasonCode, Error>> {
        let mut state = self.lock();
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(outcome.clone());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
