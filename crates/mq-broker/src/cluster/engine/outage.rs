//! Tries that fail one after the other, without a line in the log for each of them.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::EngineError;

/// Time without a failed try after which an outage that several callers see is over.
const QUIET_AFTER: Duration = Duration::from_secs(5);

/// The tries of one thing that fail: one line in the log at the first, and one with their number once it works again.
#[derive(Debug)]
pub(in crate::cluster) struct Outage {
    /// The thing that is tried, such as `log append`.
    what: &'static str,
    shard: Option<u16>,
    failures: Option<Failures>,
}

/// The failed tries since the last one that succeeded.
#[derive(Debug)]
struct Failures {
    count: u64,
    first: Instant,
    last: Instant,
}

impl Outage {
    pub(in crate::cluster) fn new(what: &'static str, shard: Option<u16>) -> Self {
        Self {
            what,
            shard,
            failures: None,
        }
    }

    /// Notes a try that has failed.
    pub(in crate::cluster) fn failed(&mut self, error: &EngineError) {
        let Self { what, shard, .. } = *self;
        let now = Instant::now();
        let failures = self.failures.get_or_insert_with(|| {
            warn!(shard, %error, "cluster: {what} failed, retrying");
            Failures {
                count: 0,
                first: now,
                last: now,
            }
        });
        failures.count += 1;
        failures.last = now;
    }

    /// Notes a try that has succeeded.
    pub(in crate::cluster) fn end(&mut self) {
        let Self { what, shard, .. } = *self;
        if let Some(Failures { count, first, last }) = self.failures.take() {
            let seconds = (last - first).as_secs();
            info!(
                shard,
                failures = count,
                seconds,
                "cluster: {what} works again"
            );
        }
    }

    /// Ends the outage if no try has failed for some seconds: while some callers succeed, others may fail.
    pub(in crate::cluster) fn end_if_quiet(&mut self) {
        let failures = self.failures.as_ref();
        if failures.is_some_and(|failures| failures.last.elapsed() >= QUIET_AFTER) {
            self.end();
        }
    }

    /// Returns `true` if the last try has failed.
    #[cfg(feature = "cluster")]
    pub(in crate::cluster) fn is_on(&self) -> bool {
        self.failures.is_some()
    }
}
