//! Orders to a worker's connections to move to another worker, and the counts that they rest on.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Rebalancing>>> = const { RefCell::new(None) };
}

/// The state of one worker that its connections and the pool share.
#[derive(Debug, Default)]
pub(crate) struct Rebalancing {
    /// Rounds in which the pool has looked at the worker.
    rounds: AtomicU32,
    /// Connections that could move and have done something in this round.
    active: AtomicUsize,
    /// Connections that are still to move.
    moves_left: AtomicUsize,
    /// The worker that they are to move to.
    move_to: AtomicUsize,
    is_busy: AtomicBool,
}

/// The last round for which a connection has been counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeenRound(u32);

impl Rebalancing {
    /// Makes it that of the calling thread.
    pub(super) fn set_current(self: &Arc<Self>) {
        CURRENT.with_borrow_mut(|current| *current = Some(Arc::clone(self)));
    }

    /// Counts a connection that could move and is about to wait. Returns the worker that it is to move to. Those that
    /// do most come here first.
    pub(crate) fn next_move(seen: &mut SeenRound) -> Option<usize> {
        CURRENT.with_borrow(|current| {
            let worker = current.as_deref()?;
            let round = worker.rounds.load(Ordering::Relaxed);
            if seen.0 != round {
                seen.0 = round;
                worker.active.fetch_add(1, Ordering::Relaxed);
            }
            let left = worker.moves_left.load(Ordering::Relaxed);
            if left == 0 {
                return None;
            }
            // The pool may have given another order meanwhile; then the next turn asks again.
            let (relaxed, less) = (Ordering::Relaxed, left - 1);
            let moves_left = &worker.moves_left;
            let taken = moves_left.compare_exchange(left, less, relaxed, relaxed);
            taken.ok().map(|_| worker.move_to.load(Ordering::Relaxed))
        })
    }

    /// Begins another round; an earlier order is over. Returns the number of connections that were active in the last
    /// one.
    pub(super) fn begin_round(&self) -> usize {
        self.moves_left.store(0, Ordering::Relaxed);
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.active.swap(0, Ordering::Relaxed)
    }

    /// Orders `count` connections to move.
    pub(super) fn order_moves(&self, to: usize, count: usize) {
        self.move_to.store(to, Ordering::Relaxed);
        self.moves_left.store(count, Ordering::Relaxed);
    }

    pub(super) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Returns `true` if its thread was busy for much of the last round.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed)
    }
}
