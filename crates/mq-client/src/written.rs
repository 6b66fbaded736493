//! The number of the last written message, instead of a flag for each message.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::{Error, lock::lock};

/// Failures that are kept for later receipts; for one more, the oldest two become one range.
const KEPT_FAILURES: usize = 256;

/// The watermark of written messages, which are written in the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct Written {
    up_to: AtomicU64,
    /// QoS 0 messages below the watermark that were not written after all.
    failures: Mutex<VecDeque<Failure>>,
    /// Notified when the watermark has moved or the client has ended.
    pub(crate) changed: Notify,
}

#[derive(Clone, Debug)]
struct Failure {
    first: u64,
    last: u64,
    error: Error,
}

impl Written {
    /// Records that the link has taken all messages up to `seq`.
    pub(crate) fn advance(&self, seq: u64) {
        if self.up_to.fetch_max(seq, Ordering::AcqRel) < seq {
            self.changed.notify_waiters();
        }
    }

    /// Records that the QoS 0 messages from `first` to `last` will not be written.
    pub(crate) fn fail(&self, first: u64, last: u64, error: Error) {
        let mut failures = lock(&self.failures);
        failures.push_back(Failure { first, last, error });
        if failures.len() > KEPT_FAILURES
            && let Some(oldest) = failures.pop_front()
            && let Some(next) = failures.front_mut()
        {
            // Messages between the two count as failed: a receipt that asks so late gets the worse of
            // the two outcomes.
            next.first = oldest.first;
        }
    }

    pub(crate) fn up_to(&self) -> u64 {
        self.up_to.load(Ordering::Acquire)
    }

    /// Returns the outcome of message `seq`; `None` while it waits.
    pub(crate) fn of(&self, seq: u64, qos_0: bool) -> Option<Result<(), Error>> {
        if self.up_to() < seq {
            return None;
        }
        if !qos_0 {
            return Some(Ok(()));
        }
        let failures = lock(&self.failures);
        let failed = failures
            .iter()
            .find(|failure| (failure.first..=failure.last).contains(&seq));
        Some(failed.map_or(Ok(()), |failure| Err(failure.error.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_below_the_watermark_are_reported() {
        let written = Written::default();
        assert!(written.of(1, true).is_none());
        written.fail(2, 3, Error::LostUnsent);
        written.advance(4);
        assert!(matches!(written.of(1, true), Some(Ok(()))));
        assert!(matches!(written.of(2, true), Some(Err(Error::LostUnsent))));
        assert!(matches!(written.of(3, false), Some(Ok(()))));
        assert!(matches!(written.of(4, true), Some(Ok(()))));
        assert!(written.of(5, true).is_none());
    }

    #[test]
    fn old_failures_are_merged_never_forgotten() {
        let written = Written::default();
        for seq in 0..1000 {
            written.fail(2 * seq, 2 * seq, Error::Expired);
        }
        written.advance(2000);
        assert!((0..1000).all(|seq| matches!(written.of(2 * seq, true), Some(Err(_)))));
        assert!(matches!(written.of(1999, true), Some(Ok(()))));
    }
}
