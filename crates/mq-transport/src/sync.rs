//! Locks that a panic elsewhere does not shut, tasks that wait, and futures that are polled once.

#[cfg(feature = "quic")]
use std::{
    pin::pin,
    task::{Context, Poll},
};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
};

/// Locks the mutex, also after a panic: no code here leaves the value half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a task if one waits.
pub(crate) fn wake(waiting: Option<Waker>) {
    if let Some(waiting) = waiting {
        waiting.wake();
    }
}

/// Returns the output of a future that is ready, without waiting.
#[cfg(feature = "quic")]
pub(crate) fn ready_output<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}
