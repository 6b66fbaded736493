//! Turns: handshakes that compute one after another instead of all at once.

use std::{
    fmt,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many handshakes may compute at a time, for all listeners that share it.
///
/// A handshake's signature and key exchange take a worker for a good part of a millisecond, many
/// times what a message takes. Clients that come in a crowd would fill the queues of all workers
/// with them, and the messages of those who are there would wait behind. So handshakes queue up
/// among themselves: a worker has at most one ahead of a message, and half of the workers have none.
/// Waiting for the peer takes no turn, and after each the processor is offered to others.
#[derive(Clone)]
pub struct HandshakeTurns(Arc<Semaphore>);

impl HandshakeTurns {
    /// As many as that at a time, at least one.
    #[must_use]
    pub fn new(at_a_time: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_a_time.max(1))))
    }

    /// Runs `work`, each step of it when it is its turn.
    pub(crate) async fn take<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        let mut turn = Turn {
            turns: Arc::clone(&self.0),
            waiting: None,
        };
        std::future::poll_fn(|cx| {
            let mine = ready!(turn.poll(cx));
            let done = work.as_mut().poll(cx);
            drop(mine);
            // Whoever waits for this processor, or for a lock that was held, comes first: the kernel
            // would let a worker with a queue of handshakes compute for milliseconds on end.
            std::thread::yield_now();
            done
        })
        .await
    }
}

impl Default for HandshakeTurns {
    /// One for every two processors.
    fn default() -> Self {
        let processors = std::thread::available_parallelism();
        Self::new(processors.map_or(1, |count| count.get() / 2))
    }
}

impl fmt::Debug for HandshakeTurns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.0.available_permits();
        f.debug_struct("HandshakeTurns")
            .field("free", &free)
            .finish_non_exhaustive()
    }
}

type Acquiring = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send + Sync>>;

struct Turn {
    turns: Arc<Semaphore>,
    /// The place in the queue.
    waiting: Option<Acquiring>,
}

impl Turn {
    /// `None` cannot be had: nobody closes the semaphore.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<OwnedSemaphorePermit>> {
        if self.waiting.is_none()
            && let Ok(mine) = Arc::clone(&self.turns).try_acquire_owned()
        {
            return Poll::Ready(Some(mine));
        }
        let turns = &self.turns;
        let waiting = self.waiting.get_or_insert_with(|| {
            let turns = Arc::clone(turns);
            Box::pin(async move { turns.acquire_owned().await.ok() })
        });
        let mine = ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(mine)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_more_compute_at_a_time_than_may() {
        static COMPUTING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let turns = HandshakeTurns::new(2);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let turns = turns.clone();
            tasks.spawn(async move {
                let mut steps = 0;
                turns
                    .take(std::future::poll_fn(|cx| {
                        let now = COMPUTING.fetch_add(1, Ordering::SeqCst) + 1;
                        MOST.fetch_max(now, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_micros(200));
                        COMPUTING.fetch_sub(1, Ordering::SeqCst);
                        steps += 1;
                        cx.waker().wake_by_ref();
                        if steps < 5 {
                            Poll::Pending
                        } else {
                            Poll::Ready(())
                        }
                    }))
                    .await;
            });
        }
        assert_eq!(tasks.join_all().await.len(), 40);
        assert_eq!(MOST.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_peer_takes_nobodys_turn() {
        let turns = HandshakeTurns::new(1);
        let slow = turns.take(tokio::time::sleep(Duration::from_secs(10)));
        let quick = async {
            let began = tokio::time::Instant::now();
            turns.take(tokio::time::sleep(Duration::from_secs(1))).await;
            began.elapsed()
        };
        let ((), took) = tokio::join!(slow, quick);
        assert_eq!(took.as_secs(), 1);
    }

    #[tokio::test]
    async fn one_that_gives_up_leaves_its_turn_to_the_next() {
        let turns = HandshakeTurns::new(1);
        let held = Arc::clone(&turns.0).try_acquire_owned().unwrap();
        let gone = tokio::time::timeout(Duration::ZERO, turns.take(async {})).await;
        assert!(gone.is_err());
        drop(held);
        turns.take(async {}).await;
        assert_eq!(turns.0.available_permits(), 1);
    }
}
