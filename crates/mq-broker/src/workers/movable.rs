//! A connection's future, which may go from one worker to another.
//!
//! The future asks to go by [`move_to_worker`]; its task then ends with the future, for its owner to spawn it on the other
//! worker. A socket and timers belong to a runtime: behind `move_to_worker` the future takes new ones.

use std::{
    cell::Cell,
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::task::JoinSet;

use super::WorkerSlot;

thread_local! {
    static MOVE_TARGET: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A connection with its place on a worker. The future resolves to itself when it moves to another worker.
pub(crate) struct MovableConnection {
    /// Taken while it is on its way.
    connection: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    worker_slot: Option<WorkerSlot>,
}

/// Moves the calling connection to another worker: the code after the call runs there. Only within [`MovableConnection`], on a worker.
pub(crate) async fn move_to_worker(worker: usize) {
    let mut has_gone = false;
    poll_fn(|_| {
        if has_gone {
            return Poll::Ready(());
        }
        has_gone = true;
        MOVE_TARGET.set(Some(worker));
        // Nothing wakes it but the other worker.
        Poll::Pending
    })
    .await;
}

impl MovableConnection {
    pub(crate) fn new(
        connection: impl Future<Output = ()> + Send + 'static,
        worker_slot: Option<WorkerSlot>,
    ) -> Self {
        Self {
            connection: Some(Box::pin(connection)),
            worker_slot,
        }
    }

    /// Runs it on the worker that it has its place on.
    pub(crate) fn spawn(self, tasks: &mut JoinSet<Option<Self>>) {
        match self
            .worker_slot
            .as_ref()
            .map(|worker_slot| worker_slot.handle().clone())
        {
            Some(worker) => tasks.spawn_on(self, &worker),
            None => tasks.spawn(self),
        };
    }
}

impl Future for MovableConnection {
    type Output = Option<Self>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(None);
        };
        if connection.as_mut().poll(cx).is_ready() {
            // Here, where its memory comes from.
            self.connection = None;
            return Poll::Ready(None);
        }
        let Some(worker) = MOVE_TARGET.take() else {
            return Poll::Pending;
        };
        let worker_slot = self
            .worker_slot
            .take()
            .map(|worker_slot| worker_slot.on(worker));
        let connection = self.connection.take();
        Poll::Ready(Some(Self {
            connection,
            worker_slot,
        }))
    }
}

impl fmt::Debug for MovableConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worker_slot = &self.worker_slot;
        f.debug_struct("MovableConnection")
            .field("worker_slot", worker_slot)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::{worker_thread, workers::tests::worker_pool};

    #[tokio::test]
    async fn a_future_goes_where_it_asks_to_go_and_keeps_what_it_has() {
        let worker_pool = worker_pool(3);
        let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
        let connection = async move {
            let mut been = Vec::new();
            for worker in [2, 2, 0, 1] {
                move_to_worker(worker).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
                been.push(worker_thread::current());
            }
            to.send(been).unwrap();
        };
        let mut tasks = JoinSet::new();
        MovableConnection::new(connection, worker_pool.place(None)).spawn(&mut tasks);
        let mut moves = 0;
        while let Some(ended) = tasks.join_next().await {
            if let Some(movable) = ended.unwrap() {
                moves += 1;
                movable.spawn(&mut tasks);
            }
        }
        assert_eq!(moves, 4);
        let been = timeout(Duration::from_secs(10), from.recv()).await.unwrap();
        assert_eq!(been.unwrap(), [2, 2, 0, 1].map(Some));
        let worker_slots = worker_pool.workers.iter();
        let mut worker_slots = worker_slots.map(|worker| {
            worker
                .connections
                .load(std::sync::atomic::Ordering::Relaxed)
        });
        assert!(worker_slots.all(|count| count == 0));
    }
}
