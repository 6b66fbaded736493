//! Which worker the calling thread is.

use std::cell::Cell;

thread_local! {
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// This thread is that worker from now on.
pub(crate) fn set(worker: usize) {
    HERE.set(Some(worker));
}

/// The worker that this thread is; `None` on a thread of another runtime.
pub(crate) fn worker() -> Option<usize> {
    HERE.get()
}
