//! The time, by the clock that timers run on.

use std::time::Instant;

/// Reads tokio's clock, so that tests can pause it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
