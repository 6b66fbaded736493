//! Gives memory back to the system after a crowd has left.
//!
//! mimalloc frees a thread's memory when that thread calls it again, and an idle worker does not. So
//! after the number of connections, of subscriptions or of retained messages has fallen by half, each idle worker
//! calls it once. Cryptography is C
//! and uses the C library's allocator; glibc's keeps free memory until `malloc_trim`. The process runs
//! without huge pages: one byte in use would keep 2 MiB.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mq_broker::Broker;
use mq_transport::HandshakePool;

/// Interval at which connections are counted. A crowd that comes and goes within it is not seen.
const EVERY: Duration = Duration::from_secs(2);

/// The fewest connections that count as a crowd: for fewer the work is not worth it.
const CROWD: usize = 100;

/// Number of subscriptions or of retained messages, some hundred bytes each, from which on memory is returned.
const MANY: usize = 10_000;

/// Number of further times that workers tidy up after a crowd: for a minute. Abandoned handshakes end by their
/// timeout, and connections over QUIC stay for up to 10 s more.
const ONCE_MORE: u64 = 60 / EVERY.as_secs();

thread_local! {
    static DONE: Cell<usize> = const { Cell::new(0) };
}

/// Watcher that has idle workers give memory back to the system after many connections, subscriptions or retained
/// messages have gone. Holds the number of times that the workers were asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct GiveBack(Arc<AtomicUsize>);

impl GiveBack {
    /// Frees memory that other threads have given back, if [`watch`](Self::watch) has asked for it since the worker's
    /// last time. A worker calls it before it sleeps.
    pub(crate) fn on_idle(&self) {
        let asked = self.0.load(Ordering::Relaxed);
        if DONE.replace(asked) != asked {
            #[expect(unsafe_code, reason = "the allocator is C")]
            // SAFETY: any thread may call it at any time.
            unsafe {
                libmimalloc_sys::mi_collect(true);
            }
        }
    }

    /// Asks the workers to tidy up whenever many connections, subscriptions or retained messages have gone. Never
    /// returns.
    pub(crate) async fn watch(&self, broker: &Broker, handshakes: &HandshakePool) {
        let (mut clients, mut subscriptions, mut retained) =
            (Crowd::of(CROWD), Crowd::of(MANY), Crowd::of(MANY));
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            let metrics = broker.metrics();
            // Each of the three counts what it sees.
            let have_left = [
                clients.has_left(metrics.connections.get() + metrics.handshakes.get()),
                subscriptions.has_left(metrics.subscriptions.get()),
                retained.has_left(metrics.retained.get()),
            ];
            if have_left.contains(&true) {
                self.0.fetch_add(1, Ordering::Relaxed);
                // A thread that has run something is idle afterwards.
                broker.run_on_each_worker(|| {});
                let idle = self.clone();
                handshakes.run_on_each_thread(move || idle.on_idle());
                trim();
            }
        }
    }
}

/// Gives the free memory of the C library's allocator back to the system.
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the C library's")]
    // SAFETY: it takes only a number, and any thread may call it at any time.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Turns transparent huge pages off for this process.
pub(crate) fn refuse_huge_pages() {
    #[cfg(target_os = "linux")]
    // A kernel without huge pages returns an error, which needs no handling.
    let _ = nix::sys::prctl::set_thp_disable(true);
}

/// The largest number of connections, or the like, since the last time that workers tidied up.
#[derive(Debug)]
struct Crowd {
    /// The fewest that are worth it.
    least: usize,
    most: usize,
    /// Number of further times that workers are to tidy up.
    once_more: u64,
}

impl Crowd {
    fn of(least: usize) -> Self {
        Self {
            least,
            most: 0,
            once_more: 0,
        }
    }

    /// Returns `true` if the number of clients fell by half within the last minute: time to return memory to the system.
    fn has_left(&mut self, now: usize) -> bool {
        self.most = self.most.max(now);
        if self.most >= self.least && now <= self.most / 2 {
            self.most = now;
            self.once_more = ONCE_MORE;
            return true;
        }
        let more = self.once_more > 0;
        self.once_more = self.once_more.saturating_sub(1);
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_has_left_is_tidied_up_after_for_a_minute() {
        let mut crowd = Crowd::of(CROWD);
        let coming = [10, 50, 2, 1000, 900, 600];
        assert!(!coming.into_iter().any(|now| crowd.has_left(now)));
        for _ in 0..=ONCE_MORE {
            assert!(crowd.has_left(400));
        }
        assert!(!crowd.has_left(400));
        assert!(!crowd.has_left(900));
        assert!(crowd.has_left(5));
    }

    #[test]
    fn fewer_than_are_worth_it_are_no_crowd() {
        let mut many = Crowd::of(MANY);
        assert!(![MANY - 1, 0].into_iter().any(|now| many.has_left(now)));
        assert!(!many.has_left(MANY));
        assert!(many.has_left(MANY / 2));
    }

    #[test]
    fn each_worker_does_it_once_each_time_it_is_asked() {
        let give_back = GiveBack::default();
        give_back.on_idle();
        give_back.0.fetch_add(1, Ordering::Relaxed);
        give_back.on_idle();
        assert_eq!(DONE.get(), 1);
    }
}
