//! Threads that serve connections, each with a runtime of its own.
//!
//! A connection stays on its thread: its socket, its timers and its task, and over QUIC the endpoint that it came
//! to. What a message does within one thread needs no other thread to wake up. The
//! [courier](Couriers) of another thread wakes the readers there, once for all readers of a publisher's turn.

use std::{
    cell::RefCell,
    fmt, io,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::{Notify, oneshot},
};

use crate::{here, lock::lock, session::Session};

/// Connections that all share the first thread: fewer do not keep two threads busy, and would wake each other.
const TOGETHER: usize = 8;

thread_local! {
    /// Readers on other workers that have to be told, by worker; empty between two turns.
    static ELSEWHERE: RefCell<Vec<Vec<Arc<Session>>>> = const { RefCell::new(Vec::new()) };
}

/// How many threads a broker starts for its connections, and what they do when they are idle.
#[derive(Clone)]
pub struct Workers {
    /// How many.
    pub count: NonZeroUsize,
    /// Called by a thread before it waits for something to do; it must not block.
    pub before_idle: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Workers {
    /// So many threads.
    #[must_use]
    pub fn new(count: NonZeroUsize) -> Self {
        Self {
            count,
            before_idle: None,
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// The threads of one broker. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    workers: Box<[Worker]>,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    connections: AtomicUsize,
    /// Ends the thread when it is dropped.
    _stop: oneshot::Sender<()>,
}

impl Crew {
    /// Starts the threads; without `workers` there are none, and the caller's runtime serves everybody.
    pub(crate) fn start(workers: Option<&Workers>, couriers: &Arc<Couriers>) -> io::Result<Self> {
        let Some(workers) = workers else {
            return Ok(Self::default());
        };
        let all = (0..workers.count.get()).map(|number| {
            let mut builder = Builder::new_current_thread();
            builder.enable_all();
            if let Some(idle) = workers.before_idle.clone() {
                builder.on_thread_park(move || idle());
            }
            let runtime = builder.build()?;
            let handle = runtime.handle().clone();
            let (stop, stopped) = oneshot::channel::<()>();
            let couriers = Arc::clone(couriers);
            thread::Builder::new()
                .name(format!("connections-{number}"))
                .spawn(move || {
                    here::set(number);
                    runtime.block_on(async {
                        tokio::select! {
                            _ = stopped => {}
                            () = couriers.run(number) => {}
                        }
                    });
                    // What still waits for a disk must not hold up the end.
                    runtime.shutdown_background();
                })?;
            Ok(Worker {
                handle,
                connections: AtomicUsize::new(0),
                _stop: stop,
            })
        });
        Ok(Self {
            workers: all.collect::<io::Result<_>>()?,
        })
    }

    /// The runtimes, in order.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        let handles = self.workers.iter().map(|worker| worker.handle.clone());
        handles.collect()
    }

    /// A place for one more connection: on the runtime that its socket belongs to, else where the fewest are.
    /// `None` without threads.
    pub(crate) fn place(self: &Arc<Self>, own: Option<&Handle>) -> Option<Seat> {
        let of = |handle: &Handle| {
            let mut all = self.workers.iter();
            all.position(|worker| worker.handle.id() == handle.id())
        };
        let count = |number: usize| self.workers[number].connections.load(Ordering::Relaxed);
        let number = match own.and_then(of) {
            Some(number) => number,
            None if self.workers.is_empty() => return None,
            None if count(0) < TOGETHER => 0,
            None => (0..self.workers.len()).min_by_key(|number| count(*number))?,
        };
        self.workers[number]
            .connections
            .fetch_add(1, Ordering::Relaxed);
        Some(Seat {
            crew: Arc::clone(self),
            number,
        })
    }
}

/// A connection's place on a worker, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    crew: Arc<Crew>,
    number: usize,
}

impl Seat {
    pub(crate) fn handle(&self) -> &Handle {
        &self.crew.workers[self.number].handle
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let worker = &self.crew.workers[self.number];
        worker.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells readers that something waits for them. Each worker has a courier, so that a message for many readers
/// of another worker wakes that once.
#[derive(Debug, Default)]
pub(crate) struct Couriers(Box<[Courier]>);

#[derive(Debug, Default)]
struct Courier {
    told: Mutex<Vec<Arc<Session>>>,
    comes: Notify,
}

impl Couriers {
    pub(crate) fn new(workers: Option<&Workers>) -> Self {
        let count = workers.map_or(0, |workers| workers.count.get());
        Self((0..count).map(|_| Courier::default()).collect())
    }

    /// Wakes these readers: those of this worker at once, the others by their couriers.
    pub(crate) fn tell(&self, sessions: impl Iterator<Item = Arc<Session>>) {
        if self.0.is_empty() {
            return sessions.for_each(|session| session.mailbox.tell());
        }
        let here = here::worker();
        ELSEWHERE.with_borrow_mut(|elsewhere| {
            let mut any = false;
            for session in sessions {
                match session.worker().filter(|worker| Some(*worker) != here) {
                    Some(worker) if worker < self.0.len() => {
                        any = true;
                        elsewhere.resize_with(self.0.len().max(elsewhere.len()), Vec::new);
                        elsewhere[worker].push(session);
                    }
                    _ => session.mailbox.tell(),
                }
            }
            if !any {
                return;
            }
            for (courier, sessions) in self.0.iter().zip(elsewhere) {
                if !sessions.is_empty() {
                    let mut told = lock(&courier.told);
                    let was_idle = told.is_empty();
                    told.append(sessions);
                    drop(told);
                    if was_idle {
                        courier.comes.notify_one();
                    }
                }
            }
        });
    }

    /// A worker's courier. Never ends.
    async fn run(&self, number: usize) {
        let courier = &self.0[number];
        let mut sessions = Vec::new();
        loop {
            courier.comes.notified().await;
            core::mem::swap(&mut *lock(&courier.told), &mut sessions);
            for session in sessions.drain(..) {
                session.mailbox.tell();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew(count: usize) -> Arc<Crew> {
        let workers = Workers::new(NonZeroUsize::new(count).unwrap());
        let couriers = Arc::new(Couriers::new(Some(&workers)));
        Arc::new(Crew::start(Some(&workers), &couriers).unwrap())
    }

    #[test]
    fn a_few_connections_share_a_worker_and_more_are_spread() {
        let crew = crew(3);
        let mut seats: Vec<_> = (0..TOGETHER).map(|_| crew.place(None).unwrap()).collect();
        assert!(seats.iter().all(|seat| seat.number == 0));
        seats.extend((0..2 * TOGETHER).map(|_| crew.place(None).unwrap()));
        for worker in &crew.workers {
            assert_eq!(worker.connections.load(Ordering::Relaxed), TOGETHER);
        }
        drop(seats);
        let last = crew.handles().pop().unwrap();
        let seat = crew.place(Some(&last)).unwrap();
        assert_eq!(seat.number, 2, "where its socket is");
        drop(seat);
        for worker in &crew.workers {
            assert_eq!(worker.connections.load(Ordering::Relaxed), 0);
        }
        assert!(Arc::new(Crew::default()).place(None).is_none());
    }

    #[test]
    fn threads_know_who_they_are_and_end_with_the_crew() {
        let crew = crew(2);
        let (to, from) = std::sync::mpsc::channel();
        for handle in crew.handles() {
            let to = to.clone();
            handle.spawn(async move {
                to.send(here::worker()).unwrap();
                // Ends with the runtime.
                std::future::pending::<()>().await;
            });
        }
        drop(to);
        let mut numbers = [from.recv().unwrap(), from.recv().unwrap()];
        numbers.sort_unstable();
        assert_eq!(numbers, [Some(0), Some(1)]);
        assert_eq!(here::worker(), None);
        drop(crew);
        assert!(from.recv().is_err(), "the tasks have ended");
    }
}
