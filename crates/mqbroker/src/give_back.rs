//! Gives memory back to the system after a crowd has left.
//!
//! The allocator frees what a thread had handed out when that thread comes to it again, and a worker
//! with nothing to do does not. So each is sent there once, when it is idle, after the number of
//! connections has fallen by much. Cryptography, which is C, has the allocator of the C library, and glibc's
//! keeps what it is not asked for. Huge pages are not used: one byte that stays keeps 2 MiB.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use mq_broker::Broker;
use mq_transport::HandshakePool;
use tokio::runtime::Handle;

/// How often connections are counted: a crowd that comes and goes between is not seen.
const EVERY: Duration = Duration::from_secs(2);

/// How long a worker is kept from its sleep so that the others wake up as well.
const NUDGE: Duration = Duration::from_millis(1);

/// Fewer that have left are not worth it.
const CROWD: usize = 100;

/// How many times more it is tidied up after a crowd: for a minute. Handshakes that were left have
/// their timeout, and connections over QUIC stay for up to 10 s more.
const ONCE_MORE: u64 = 60 / EVERY.as_secs();

thread_local! {
    static DONE: Cell<usize> = const { Cell::new(0) };
}

/// How often workers were asked to tidy up.
#[derive(Clone, Debug, Default)]
pub(crate) struct GiveBack(Arc<AtomicUsize>);

impl GiveBack {
    /// For a worker that is about to sleep: frees what others have given back, if it was asked to
    /// since it did last.
    pub(crate) fn on_idle(&self) {
        let asked = self.0.load(Ordering::Relaxed);
        if DONE.replace(asked) != asked {
            #[expect(unsafe_code, reason = "the allocator is C")]
            // SAFETY: it may be called by any thread at any time.
            unsafe {
                libmimalloc_sys::mi_collect(true);
            }
        }
    }

    /// Asks the workers whenever many connections have gone. Never returns.
    pub(crate) async fn watch(&self, broker: &Broker, handshakes: &HandshakePool) {
        let mut crowd = Crowd::default();
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            let metrics = broker.metrics();
            if crowd.has_left(metrics.connections.get() + metrics.handshakes.get()) {
                self.0.fetch_add(1, Ordering::Relaxed);
                wake_workers(&Handle::current());
                let idle = self.clone();
                handshakes.run_on_each_thread(move || idle.on_idle());
                trim();
            }
        }
    }
}

/// Has each worker of a runtime run and fall asleep again: as many tasks as there are workers, each of
/// which takes a worker for itself.
fn wake_workers(runtime: &Handle) {
    for _ in 0..runtime.metrics().num_workers() {
        runtime.spawn(async { thread::sleep(NUDGE) });
    }
}

/// Frees what the C library's allocator keeps.
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the C library's")]
    // SAFETY: it takes a number only, and may be called by any thread at any time.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Makes the process one without transparent huge pages.
pub(crate) fn refuse_huge_pages() {
    #[cfg(target_os = "linux")]
    // A kernel without them says so; there is nothing to refuse then.
    let _ = nix::sys::prctl::set_thp_disable(true);
}

/// The most connections that there were since it was tidied last.
#[derive(Debug, Default)]
struct Crowd {
    most: usize,
    /// How often it is to be tidied up still.
    once_more: u64,
}

impl Crowd {
    /// Whether half of it has gone, or had within the last minute.
    fn has_left(&mut self, now: usize) -> bool {
        self.most = self.most.max(now);
        if self.most >= CROWD && now <= self.most / 2 {
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
        let mut crowd = Crowd::default();
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
    fn each_worker_does_it_once_each_time_it_is_asked() {
        let give_back = GiveBack::default();
        give_back.on_idle();
        give_back.0.fetch_add(1, Ordering::Relaxed);
        give_back.on_idle();
        assert_eq!(DONE.get(), 1);
    }
}
