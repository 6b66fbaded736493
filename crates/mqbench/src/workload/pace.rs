//! Sending on time: a plain thread that sleeps, then spins the last stretch.

use std::time::{Duration, Instant};

/// The part of a wait that is spun instead of slept: a sleeping thread wakes up to 0.1 ms late, and
/// a timer of tokio's up to a millisecond.
const SPIN: Duration = Duration::from_micros(150);

/// Blocks the thread until `at`. Not for a thread that runs async tasks.
pub(crate) fn wait_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    if let Some(sleep) = left.checked_sub(SPIN) {
        std::thread::sleep(sleep);
    }
    while Instant::now() < at {
        std::hint::spin_loop();
    }
}
