//! The store that lives as long as the process.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use tokio::sync::watch;

use super::{Change, Position, Snapshot, Store, StoreError};

/// Keeps everything in memory, apart from the broker: a broker that is started again in the same
/// process with the same store goes on where the last one ended.
///
/// For tests and for programs that embed a broker. Changes are settled at once.
#[derive(Debug, Default)]
pub struct MemoryStore {
    snapshot: Mutex<Snapshot>,
    settled: watch::Sender<Position>,
}

impl MemoryStore {
    /// A store that has nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn load(&self) -> Result<Snapshot, StoreError> {
        let mut snapshot = self.lock();
        snapshot.expire(SystemTime::now());
        Ok(snapshot.clone())
    }

    fn record(&self, changes: Vec<Change>) -> Position {
        let mut snapshot = self.lock();
        for change in changes {
            snapshot.apply(change);
        }
        // Within the lock, so that positions are in the order of the changes.
        let position = Position(self.settled.borrow().0 + 1);
        self.settled.send_replace(position);
        position
    }

    fn settled(&self) -> watch::Receiver<Position> {
        self.settled.subscribe()
    }
}
