//! What the connections of a worker and the watch tell each other.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

thread_local! {
    static HERE: RefCell<Option<Arc<Desk>>> = const { RefCell::new(None) };
}

/// One worker's.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// How often the watch has looked.
    looks: AtomicU32,
    /// Connections that could go and have done something since.
    active: AtomicUsize,
    /// How many of them are to go, and where to.
    wanted: AtomicUsize,
    to: AtomicUsize,
    is_busy: AtomicBool,
}

/// The last look of the watch that a connection has been counted for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look(u32);

impl Desk {
    /// That of the calling thread from now on.
    pub(super) fn set_here(self: &Arc<Self>) {
        HERE.with_borrow_mut(|here| *here = Some(Arc::clone(self)));
    }

    /// A connection that could go is about to wait: counts it, and tells which worker it is to go to. Those that do
    /// most come here first.
    pub(crate) fn ask(last: &mut Look) -> Option<usize> {
        HERE.with_borrow(|here| {
            let desk = here.as_deref()?;
            let look = desk.looks.load(Ordering::Relaxed);
            if last.0 != look {
                last.0 = look;
                desk.active.fetch_add(1, Ordering::Relaxed);
            }
            let wanted = desk.wanted.load(Ordering::Relaxed);
            if wanted == 0 {
                return None;
            }
            // The watch may have given another order meanwhile; then the next turn asks again.
            let (relaxed, less) = (Ordering::Relaxed, wanted - 1);
            let taken = desk.wanted.compare_exchange(wanted, less, relaxed, relaxed);
            taken.ok().map(|_| desk.to.load(Ordering::Relaxed))
        })
    }

    /// The watch has looked; returns how many connections were active. An earlier order is over.
    pub(super) fn looked_at(&self) -> usize {
        self.wanted.store(0, Ordering::Relaxed);
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.active.swap(0, Ordering::Relaxed)
    }

    /// So many connections are to go.
    pub(super) fn send_away(&self, to: usize, count: usize) {
        self.to.store(to, Ordering::Relaxed);
        self.wanted.store(count, Ordering::Relaxed);
    }

    pub(super) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Whether its thread was busy for much of the time when the watch looked last.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }
}
