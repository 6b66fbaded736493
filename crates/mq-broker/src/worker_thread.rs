//! The worker that the calling thread is.

use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Makes this thread that worker.
pub(crate) fn set_current(worker: usize) {
    CURRENT.set(Some(worker));
}

/// Returns the worker that this thread is; `None` on a thread of another runtime.
pub(crate) fn current() -> Option<usize> {
    CURRENT.get()
}
