//! The progress of a node in its logs.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::At;

/// The progress of a node in one log. No place goes back, even if the log was [set back](super::set_back).
#[derive(Debug, Default)]
pub(in crate::cluster) struct Progress {
    begun: AtomicU64,
    finished: AtomicU64,
}

impl Progress {
    /// Notes that the node begins with the message at `at`. Called within the lock under which the node finds the
    /// receivers.
    pub(in crate::cluster) fn begin(&self, at: At) {
        self.begun.fetch_max(at.0, Ordering::Release);
    }

    /// Notes that a message, and all before, have been queued for their receivers.
    pub(in crate::cluster) fn finish(&self, at: At) {
        self.begun.fetch_max(at.0, Ordering::Release);
        self.finished.fetch_max(at.0, Ordering::Release);
    }

    /// Returns the place of the last message that the node has begun with. A subscription that is made while no
    /// receivers are being found gets all messages after it.
    pub(in crate::cluster) fn begun(&self) -> At {
        At(self.begun.load(Ordering::Acquire))
    }

    pub(in crate::cluster) fn finished(&self) -> At {
        At(self.finished.load(Ordering::Acquire))
    }
}
