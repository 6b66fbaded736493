//! Locks that a panic elsewhere does not shut.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is behind it stays usable: nothing here leaves it half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
