//! Locks that a panic elsewhere does not shut.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The locked value stays usable after a panic: no code here leaves it half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
