//! A store that settles and fails on demand, and forgets everything unsettled.

use std::{
    collections::VecDeque,
    ops::RangeInclusive,
    sync::{Mutex, MutexGuard, PoisonError},
};

use mq_broker::{
    Store,
    store::{Change, Position, Snapshot, StoreError, StoredMessage},
};
use mq_codec::ByteStr;
use tokio::sync::watch;

/// A store in memory whose changes settle only when the test says so; unsettled ones are lost when the broker ends.
#[derive(Debug)]
pub struct SlowStore {
    kept: Mutex<Kept>,
    settled: watch::Receiver<Position>,
    can_spill: bool,
}

#[derive(Debug)]
struct Kept {
    snapshot: Snapshot,
    pending: VecDeque<Vec<Change>>,
    recorded: u64,
    fails_at: Option<u64>,
    /// `None` once it has failed.
    sender: Option<watch::Sender<Position>>,
}

impl Default for SlowStore {
    fn default() -> Self {
        Self::of(Snapshot::default())
    }
}

impl SlowStore {
    fn of(snapshot: Snapshot) -> Self {
        let (sender, settled) = watch::channel(Position::default());
        let kept = Kept {
            snapshot,
            pending: VecDeque::new(),
            recorded: 0,
            fails_at: None,
            sender: Some(sender),
        };
        Self {
            kept: Mutex::new(kept),
            settled,
            can_spill: false,
        }
    }

    /// Makes the store take queued messages beyond those that memory holds. Messages are read one at a time.
    #[must_use]
    pub fn spilling(self) -> Self {
        Self {
            can_spill: true,
            ..self
        }
    }

    /// Checks that no message waits or is under way in any session.
    ///
    /// # Panics
    /// If a message waits or is under way.
    pub fn assert_nothing_is_under_way(&self) {
        for (client, session) in &self.lock().snapshot.sessions {
            assert!(session.queued.is_empty(), "{client}: {session:?}");
            assert!(session.in_flight.is_empty(), "{client}: {session:?}");
            assert!(session.received.is_empty(), "{client}: {session:?}");
        }
    }

    /// Makes the store fail for good at this call of `record`, counted from 1: neither this call nor pending ones
    /// are ever settled.
    #[must_use]
    pub fn failing_at(self, call: u64) -> Self {
        self.lock().fails_at = Some(call);
        self
    }

    /// Returns `true` if the store has failed.
    pub fn has_failed(&self) -> bool {
        self.lock().sender.is_none()
    }

    /// Settles the first `count` pending calls.
    pub fn settle(&self, count: usize) {
        let mut kept = self.lock();
        let count = count.min(kept.pending.len());
        for _ in 0..count {
            for change in kept.pending.pop_front().into_iter().flatten() {
                kept.snapshot.apply(change);
            }
        }
        if let Some(sender) = &kept.sender {
            let settled = sender.borrow().0 + count as u64;
            sender.send_replace(Position(settled));
        }
    }

    /// Returns the number of unsettled calls of `record`.
    pub fn pending(&self) -> usize {
        self.lock().pending.len()
    }

    /// Simulates a power failure: returns a store with the settled changes.
    #[must_use]
    pub fn cut_off(&self) -> Self {
        Self {
            can_spill: self.can_spill,
            ..Self::of(self.lock().snapshot.clone())
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for SlowStore {
    fn load(&self) -> Result<Snapshot, StoreError> {
        Ok(self.lock().snapshot.clone())
    }

    fn record(&self, changes: Vec<Change>) -> Position {
        let mut kept = self.lock();
        kept.recorded += 1;
        if kept.fails_at == Some(kept.recorded) {
            kept.sender = None;
            kept.pending.clear();
        }
        if kept.sender.is_some() {
            kept.pending.push_back(changes);
        }
        Position(kept.recorded)
    }

    fn settled(&self) -> watch::Receiver<Position> {
        self.settled.clone()
    }

    fn can_spill(&self) -> bool {
        self.can_spill
    }

    fn queued(
        &self,
        client_id: &ByteStr,
        numbers: RangeInclusive<u64>,
        _most: usize,
    ) -> Result<Vec<(u64, StoredMessage)>, StoreError> {
        let kept = self.lock();
        let session = kept.snapshot.sessions.get(client_id);
        let first = session.and_then(|session| session.queued.range(numbers).next());
        Ok(first
            .map(|(number, message)| (*number, message.clone()))
            .into_iter()
            .collect())
    }
}
