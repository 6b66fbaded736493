//! Locks that a panic elsewhere does not shut, and tasks that wait.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
};

/// The locked value stays usable after a panic: no code here leaves it half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a task if one waits.
pub(crate) fn wake(waiting: Option<Waker>) {
    if let Some(waiting) = waiting {
        waiting.wake();
    }
}
