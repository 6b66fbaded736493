//! A store in the memory of the process.

use std::{
    ops::RangeInclusive,
    sync::{Mutex, MutexGuard},
    time::SystemTime,
};

use mq_codec::ByteStr;
use tokio::sync::watch;

use super::{Change, Position, Snapshot, Store, StoreError, StoredMessage};
use crate::lock::lock;

/// A store in memory, apart from the broker: the next broker in the same process with the same
/// store continues where the last one ended.
///
/// For tests and for programs that embed a broker. Changes are settled at once.
#[derive(Debug, Default)]
pub struct MemoryStore {
    snapshot: Mutex<Snapshot>,
    settled: watch::Sender<Position>,
}

impl MemoryStore {
    /// Returns an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        lock(&self.snapshot)
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
        // The lock makes the positions follow the order of the changes.
        let position = Position(self.settled.borrow().0 + 1);
        self.settled.send_replace(position);
        position
    }

    fn settled(&self) -> watch::Receiver<Position> {
        self.settled.subscribe()
    }

    fn can_spill(&self) -> bool {
        true
    }

    fn queued(
        &self,
        client_id: &ByteStr,
        numbers: RangeInclusive<u64>,
        most: usize,
    ) -> Result<Vec<(u64, StoredMessage)>, StoreError> {
        let snapshot = self.lock();
        let queued = snapshot.sessions.get(client_id).map(|of| &of.queued);
        let rows = queued
            .into_iter()
            .flat_map(|queued| queued.range(numbers.clone()));
        let (mut bytes, mut count) = (0, 0);
        let until_full = rows.take_while(|(_, message)| {
            let has_room = bytes < most || count == 0;
            bytes += size_of::<StoredMessage>() + message.message.payload.len();
            count += 1;
            has_room
        });
        Ok(until_full
            .map(|(number, message)| (*number, message.clone()))
            .collect())
    }
}
