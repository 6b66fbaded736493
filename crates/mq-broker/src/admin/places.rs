//! Places for HTTP connections: a bounded number, which silent connections cannot keep.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::lock::lock;

/// The places of one door. When all are taken, a new connection takes the place of the one that has
/// been silent for longest. Where none is silent it waits.
#[derive(Clone, Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    /// Connections whose request has not come yet, the oldest first.
    silent: Arc<Mutex<VecDeque<Arc<Notify>>>>,
}

/// A connection's place.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    leave: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            silent: Arc::default(),
        }
    }

    /// Waits for a place, after telling the oldest silent connection to leave. Cancel-safe.
    pub(super) async fn take(&self) -> Place {
        if self.free.available_permits() == 0 {
            let oldest = self.silent().pop_front();
            if let Some(oldest) = oldest {
                oldest.notify_one();
            }
        }
        let permit = Arc::clone(&self.free).acquire_owned().await;
        let leave = Arc::new(Notify::new());
        self.silent().push_back(Arc::clone(&leave));
        Place {
            places: self.clone(),
            leave,
            _permit: permit.expect("nobody closes the semaphore"),
        }
    }

    fn silent(&self) -> MutexGuard<'_, VecDeque<Arc<Notify>>> {
        lock(&self.silent)
    }
}

impl Place {
    /// The request has come: the connection keeps the place until it is answered.
    pub(super) fn keep(&self) {
        let mut silent = self.places.silent();
        silent.retain(|other| !Arc::ptr_eq(other, &self.leave));
    }

    /// Resolves when another connection needs the place. Cancel-safe.
    pub(super) async fn wanted(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.keep();
    }
}
