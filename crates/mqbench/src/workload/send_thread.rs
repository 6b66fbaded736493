//! Sending on time: a plain thread that sleeps, and spins at the end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;

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

/// A thread that publishes. A drop stops it.
#[derive(Debug)]
pub(super) struct SendThread<T> {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<anyhow::Result<T>>,
}

impl<T: Send + 'static> SendThread<T> {
    /// Starts `work`, which asks whether it is to stop.
    pub(super) fn start(
        work: impl FnOnce(&AtomicBool) -> anyhow::Result<T> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::task::spawn_blocking(move || work(&stopped));
        Self { stop, task }
    }

    /// Waits until the thread ends by itself. Cancel-safe.
    pub(super) async fn ended(&mut self) -> anyhow::Result<T> {
        (&mut self.task)
            .await
            .context("the sending thread failed")?
    }

    /// Tells the thread to stop and waits for it.
    pub(super) async fn finish(mut self) -> anyhow::Result<T> {
        self.stop.store(true, Ordering::Relaxed);
        self.ended().await
    }
}

impl<T> Drop for SendThread<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
