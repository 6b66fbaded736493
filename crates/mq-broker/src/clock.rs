//! The time, by the clock that timers run on.

use std::time::Instant;

/// Returns the time by tokio's clock: a test that pauses it pauses connections as well.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
