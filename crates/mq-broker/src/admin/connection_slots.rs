//! Slots for HTTP connections: a bounded number, which silent connections cannot keep.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::lock::lock;

/// The slots of one listener. When all are taken, a new connection takes the slot of the one that has
/// been silent for longest. Where none is silent it waits.
#[derive(Clone, Debug)]
pub(super) struct ConnectionSlots {
    free: Arc<Semaphore>,
    /// Connections whose peer has to send the rest of its request or to take the answer, the first to wait first.
    silent: Arc<Mutex<VecDeque<Arc<Notify>>>>,
}

/// A connection's slot.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    slots: ConnectionSlots,
    /// `true` while the broker works on the request.
    is_at_work: AtomicBool,
    leave: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlots {
    pub(super) fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            silent: Arc::default(),
        }
    }

    /// Waits for a slot, after telling the oldest silent connection to leave. Cancel-safe.
    pub(super) async fn take(&self) -> ConnectionSlot {
        if self.free.available_permits() == 0 {
            let oldest = self.silent().pop_front();
            if let Some(oldest) = oldest {
                oldest.notify_one();
            }
        }
        let permit = Arc::clone(&self.free).acquire_owned().await;
        let leave = Arc::new(Notify::new());
        self.silent().push_back(Arc::clone(&leave));
        ConnectionSlot {
            slots: self.clone(),
            is_at_work: AtomicBool::new(false),
            leave,
            _permit: permit.expect("nobody closes the semaphore"),
        }
    }

    fn silent(&self) -> MutexGuard<'_, VecDeque<Arc<Notify>>> {
        lock(&self.silent)
    }
}

impl ConnectionSlot {
    /// Keeps the slot for the connection: the request has come whole, or the peer takes the answer.
    pub(super) fn keep(&self) {
        let mut silent = self.slots.silent();
        silent.retain(|other| !Arc::ptr_eq(other, &self.leave));
    }

    /// Notes whether the broker works on the request, which may take as long as a disk needs.
    pub(super) fn set_at_work(&self, is_at_work: bool) {
        self.is_at_work.store(is_at_work, Ordering::Relaxed);
    }

    /// Returns `true` while the broker works on the request.
    pub(super) fn is_at_work(&self) -> bool {
        self.is_at_work.load(Ordering::Relaxed)
    }

    /// Marks the connection as silent, since the peer does not take the answer: another connection may need the slot
    /// meanwhile.
    pub(super) fn waits_for_peer(&self) {
        let mut silent = self.slots.silent();
        if !silent.iter().any(|other| Arc::ptr_eq(other, &self.leave)) {
            silent.push_back(Arc::clone(&self.leave));
        }
    }

    /// Resolves when another connection needs the slot. Cancel-safe.
    pub(super) async fn wanted(&self) {
        self.leave.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.keep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_waits_for_its_peer_gives_its_slot_up_to_a_new_one() {
        let slots = ConnectionSlots::new(2);
        let (reads, works) = (slots.take().await, slots.take().await);
        reads.keep();
        works.keep();
        let new = slots.clone();
        let new = tokio::spawn(async move { new.take().await });
        tokio::task::yield_now().await;
        assert!(!new.is_finished(), "both are at work");
        new.abort();
        reads.waits_for_peer();
        reads.waits_for_peer();
        let new = slots.clone();
        let new = tokio::spawn(async move { new.take().await });
        reads.wanted().await;
        drop(reads);
        let _new = new.await.unwrap();
        assert_eq!(slots.silent().len(), 1, "the new one alone");
        drop(works);
    }
}
