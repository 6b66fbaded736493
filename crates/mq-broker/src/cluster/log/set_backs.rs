//! The state of one log that may have been [set back](super::set_back).

use std::{
    ops::RangeInclusive,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::{lock::lock, store::At};

/// The set-backs of one log, as a node has seen them.
#[derive(Debug)]
pub(in crate::cluster) struct SetBacks {
    /// Counts them.
    count: AtomicU64,
    lost_entries: AtomicU64,
    /// `true` while the log is being filled.
    is_filling: watch::Sender<bool>,
    /// Places of the log that have other entries than this node has read.
    replaced: Mutex<Option<RangeInclusive<u64>>>,
    sync_asked_at: Mutex<Option<Instant>>,
    /// The log's last entry when this node began.
    end_at_start: AtomicU64,
}

impl SetBacks {
    pub(super) fn new() -> Self {
        Self {
            count: AtomicU64::default(),
            lost_entries: AtomicU64::default(),
            is_filling: watch::Sender::new(false),
            replaced: Mutex::default(),
            sync_asked_at: Mutex::default(),
            end_at_start: AtomicU64::default(),
        }
    }

    /// Begins to fill the log, of which these entries were lost; others have their places. Returns `false` if that is being done
    /// already.
    pub(super) fn begin(&self, lost: RangeInclusive<u64>) -> bool {
        let begins = !self.is_filling.send_replace(true);
        if begins {
            self.note_lost(&lost);
            self.count.fetch_add(1, Ordering::AcqRel);
            let mut replaced = lock(&self.replaced);
            *replaced = Some(match replaced.take() {
                Some(known) => *lost.start().min(known.start())..=*lost.end().max(known.end()),
                None => lost,
            });
        }
        begins
    }

    /// Counts entries that were lost.
    pub(super) fn note_lost(&self, lost: &RangeInclusive<u64>) {
        let entries = 1 + lost.end().saturating_sub(*lost.start());
        self.lost_entries.fetch_add(entries, Ordering::Relaxed);
    }

    /// Takes the places of the log that have other entries than this node has read.
    pub(super) fn take_replaced(&self) -> Option<RangeInclusive<u64>> {
        lock(&self.replaced).take()
    }

    /// Returns `true` if this node may ask for one view of the log, and notes that it does: not while the log is being
    /// filled, and not twice within `interval`.
    pub(super) fn may_sync(&self, now: Instant, interval: Duration) -> bool {
        let mut last = lock(&self.sync_asked_at);
        let may = !*self.is_filling.borrow()
            && last.is_none_or(|last| now.duration_since(last) >= interval);
        if may {
            *last = Some(now);
        }
        may
    }

    /// Notes that the log has new places.
    pub(super) fn end(&self) {
        self.is_filling.send_replace(false);
    }

    /// Returns the number of set-backs, which is a part of the identifiers of entries: those of before it may stand at
    /// places that are read no more.
    pub(in crate::cluster) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns the number of entries that were lost.
    pub(in crate::cluster) fn lost_entries(&self) -> u64 {
        self.lost_entries.load(Ordering::Relaxed)
    }

    /// Waits until the log has new places.
    pub(in crate::cluster) async fn until_filled(&self) {
        let mut is_filling = self.is_filling.subscribe();
        // The sender is here.
        let _ = is_filling.wait_for(|is_filling| !is_filling).await;
    }

    pub(super) fn note_start(&self, end: u64) {
        self.end_at_start.store(end, Ordering::Relaxed);
    }

    /// Returns the first place that no life before this node's present one can have looked at.
    pub(in crate::cluster) fn first_of_this_life(&self) -> At {
        At::end_of(self.end_at_start.load(Ordering::Relaxed)).next()
    }
}
