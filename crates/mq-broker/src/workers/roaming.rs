//! A connection's future, which may go from one worker to another.
//!
//! The future asks to go by [`go_to`]; its task then ends with the future, for its owner to spawn it on the other
//! worker. A socket and timers belong to a runtime: behind `go_to` the future takes new ones.

use std::{
    cell::Cell,
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::task::JoinSet;

use super::Seat;

thread_local! {
    static GOES: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A connection with its place. Its output is itself, where it goes to another worker.
pub(crate) struct Roaming {
    /// Taken while it is on its way.
    connection: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    seat: Option<Seat>,
}

/// Goes to another worker: what comes behind it runs there. Only within [`Roaming`], on a worker.
pub(crate) async fn go_to(worker: usize) {
    let mut has_gone = false;
    poll_fn(|_| {
        if has_gone {
            return Poll::Ready(());
        }
        has_gone = true;
        GOES.set(Some(worker));
        // Nothing wakes it but the other worker.
        Poll::Pending
    })
    .await;
}

impl Roaming {
    pub(crate) fn new(
        connection: impl Future<Output = ()> + Send + 'static,
        seat: Option<Seat>,
    ) -> Self {
        Self {
            connection: Some(Box::pin(connection)),
            seat,
        }
    }

    /// Runs it on the worker that it has its place on.
    pub(crate) fn spawn(self, tasks: &mut JoinSet<Option<Self>>) {
        match self.seat.as_ref().map(|seat| seat.handle().clone()) {
            Some(worker) => tasks.spawn_on(self, &worker),
            None => tasks.spawn(self),
        };
    }
}

impl Future for Roaming {
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
        let Some(worker) = GOES.take() else {
            return Poll::Pending;
        };
        let seat = self.seat.take().map(|seat| seat.on(worker));
        let connection = self.connection.take();
        Poll::Ready(Some(Self { connection, seat }))
    }
}

impl fmt::Debug for Roaming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seat = &self.seat;
        f.debug_struct("Roaming")
            .field("seat", seat)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::{here, workers::tests::crew};

    #[tokio::test]
    async fn a_future_goes_where_it_asks_to_go_and_keeps_what_it_has() {
        let crew = crew(3);
        let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
        let connection = async move {
            let mut been = Vec::new();
            for worker in [2, 2, 0, 1] {
                go_to(worker).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
                been.push(here::worker());
            }
            to.send(been).unwrap();
        };
        let mut tasks = JoinSet::new();
        Roaming::new(connection, crew.place(None)).spawn(&mut tasks);
        let mut moves = 0;
        while let Some(ended) = tasks.join_next().await {
            if let Some(roaming) = ended.unwrap() {
                moves += 1;
                roaming.spawn(&mut tasks);
            }
        }
        assert_eq!(moves, 4);
        let been = timeout(Duration::from_secs(10), from.recv()).await.unwrap();
        assert_eq!(been.unwrap(), [2, 2, 0, 1].map(Some));
        let seats = crew.workers.iter();
        let mut seats = seats.map(|worker| {
            worker
                .connections
                .load(std::sync::atomic::Ordering::Relaxed)
        });
        assert!(seats.all(|count| count == 0));
    }
}
