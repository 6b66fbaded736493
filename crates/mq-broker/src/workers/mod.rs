//! Threads that serve connections, each with a runtime of its own.
//!
//! What a message does within one thread needs no other thread to wake up. The [channel](WorkerChannels) of another
//! thread wakes the readers there, once for all readers of a publisher's turn.
//!
//! As few threads work as the load needs: a [watch](Crew::watch) has connections [go](roaming) from a thread that is
//! busy to one that is not, and together on one while all of them have little to do. Over QUIC a connection stays
//! where its endpoint is.

mod channels;
mod desk;
mod loads;
mod roaming;

use std::{
    fmt, io,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    time::{MissedTickBehavior, interval},
};
use tracing::debug;

use crate::here;
pub(crate) use channels::WorkerChannels;
pub(crate) use desk::{Desk, Look};
use loads::{Load, Loads, Order};
pub(crate) use roaming::{Roaming, go_to};

/// How often the watch looks at the workers.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The same for tests.
const RESTLESS: Duration = Duration::from_millis(5);

/// So many connections between two looks all begin on the first worker, if that is not busy: more are a crowd, whose
/// handshakes are shared by all.
const FEW: usize = 32;

/// How many threads a broker starts for its connections, and what they do when they are idle.
#[derive(Clone)]
pub struct Workers {
    /// How many.
    pub count: NonZeroUsize,
    /// On which of them connections are.
    pub placement: Placement,
    /// Called by a thread before it waits for something to do; it must not block.
    pub before_idle: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// On which threads connections are. Over QUIC they stay where the kernel's choice of a socket has put them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Placement {
    /// On as few as the load needs: they go from a thread that is busy to one that is not, and back when there is
    /// little to do.
    #[default]
    Gathered,
    /// Each stays where the fewest were when it came.
    Spread,
    /// They go around without end, for tests.
    #[doc(hidden)]
    Restless,
}

impl Workers {
    /// So many threads.
    #[must_use]
    pub fn new(count: NonZeroUsize) -> Self {
        Self {
            count,
            placement: Placement::default(),
            before_idle: None,
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("count", &self.count)
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

/// The threads of one broker. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    workers: Box<[Worker]>,
    placement: Placement,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    desk: Arc<Desk>,
    connections: AtomicUsize,
    /// Connections that have begun here since the last look.
    begun: AtomicUsize,
    /// Ends the thread when it is dropped.
    _stop: oneshot::Sender<()>,
}

impl Crew {
    /// Starts the threads; without `workers` there are none, and the caller's runtime serves everybody.
    pub(crate) fn start(
        workers: Option<&Workers>,
        worker_channels: &Arc<WorkerChannels>,
    ) -> io::Result<Self> {
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
            let worker_channels = Arc::clone(worker_channels);
            let desk = Arc::new(Desk::default());
            let own = Arc::clone(&desk);
            thread::Builder::new()
                .name(format!("connections-{number}"))
                .spawn(move || {
                    here::set(number);
                    own.set_here();
                    runtime.block_on(async {
                        tokio::select! {
                            _ = stopped => {}
                            () = worker_channels.run(number) => {}
                        }
                    });
                    // What still waits for a disk must not hold up the end.
                    runtime.shutdown_background();
                })?;
            Ok(Worker {
                handle,
                desk,
                connections: AtomicUsize::new(0),
                begun: AtomicUsize::new(0),
                _stop: stop,
            })
        });
        Ok(Self {
            workers: all.collect::<io::Result<_>>()?,
            placement: workers.placement,
        })
    }

    /// The runtimes, in order.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        let handles = self.workers.iter().map(|worker| worker.handle.clone());
        handles.collect()
    }

    /// A place for one more connection: on the runtime that its socket belongs to, else where it is in nobody's way.
    /// `None` without threads.
    pub(crate) fn place(self: &Arc<Self>, own: Option<&Handle>) -> Option<Seat> {
        let of = |handle: &Handle| {
            let mut all = self.workers.iter();
            all.position(|worker| worker.handle.id() == handle.id())
        };
        let number = own.and_then(of).or_else(|| self.beginners())?;
        Some(self.seat(number))
    }

    /// The worker for a connection that begins.
    fn beginners(&self) -> Option<usize> {
        let all = self.workers.iter().enumerate();
        if self.placement != Placement::Gathered {
            let count = |worker: &Worker| worker.connections.load(Ordering::Relaxed);
            return Some(all.min_by_key(|(_, worker)| count(worker))?.0);
        }
        let begun = |worker: &Worker| worker.begun.load(Ordering::Relaxed);
        let first = self.workers.first()?;
        if begun(first) < FEW && !first.desk.is_busy() {
            return Some(0);
        }
        Some(
            all.min_by_key(|(_, worker)| (worker.desk.is_busy(), begun(worker)))?
                .0,
        )
    }

    fn seat(self: &Arc<Self>, number: usize) -> Seat {
        let worker = &self.workers[number];
        worker.connections.fetch_add(1, Ordering::Relaxed);
        worker.begun.fetch_add(1, Ordering::Relaxed);
        Seat {
            crew: Arc::clone(self),
            number,
        }
    }

    /// Looks at the workers from time to time, and has connections go from one to another. Ends where there is
    /// nothing to look at.
    pub(crate) async fn watch(self: Arc<Self>) {
        let count = self.workers.len();
        let every = match self.placement {
            _ if count < 2 => return,
            Placement::Spread => return,
            Placement::Gathered => LOOK_EVERY,
            Placement::Restless => RESTLESS,
        };
        let mut looks = interval(every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut loads = Loads::default();
        loop {
            looks.tick().await;
            if self.placement == Placement::Restless {
                for (number, worker) in self.workers.iter().enumerate() {
                    worker.desk.send_away((number + 1) % count, usize::MAX);
                }
            } else {
                self.look(&mut loads);
            }
        }
    }

    fn look(&self, loads: &mut Loads) {
        let now = self.workers.iter();
        let now = now.map(|worker| Load {
            busy: worker.handle.metrics().worker_total_busy_duration(0),
            active: worker.desk.looked_at(),
        });
        let order = loads.look(&now.collect::<Vec<_>>());
        for (worker, is_busy) in self.workers.iter().zip(loads.busy()) {
            worker.begun.store(0, Ordering::Relaxed);
            worker.desk.set_busy(is_busy);
        }
        if let Some(Order { from, to, count }) = order {
            debug!(from, to, count, "connections go to another thread");
            self.workers[from].desk.send_away(to, count);
        }
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

    /// The same on another worker.
    fn on(self, number: usize) -> Self {
        self.crew.seat(number)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let worker = &self.crew.workers[self.number];
        worker.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn crew(count: usize) -> Arc<Crew> {
        crew_by(count, Placement::default())
    }

    fn crew_by(count: usize, placement: Placement) -> Arc<Crew> {
        let mut workers = Workers::new(NonZeroUsize::new(count).unwrap());
        workers.placement = placement;
        let worker_channels = Arc::new(WorkerChannels::new(Some(&workers)));
        Arc::new(Crew::start(Some(&workers), &worker_channels).unwrap())
    }

    #[test]
    fn a_few_connections_share_a_worker_and_more_are_spread() {
        let crew = crew(3);
        let mut seats: Vec<_> = (0..FEW).map(|_| crew.place(None).unwrap()).collect();
        assert!(seats.iter().all(|seat| seat.number == 0));
        seats.extend((0..2 * FEW).map(|_| crew.place(None).unwrap()));
        for worker in &crew.workers {
            assert_eq!(worker.connections.load(Ordering::Relaxed), FEW);
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
    fn where_connections_stay_they_are_spread_from_the_first_one() {
        let crew = crew_by(3, Placement::Spread);
        let seats: Vec<_> = (0..6).map(|_| crew.place(None).unwrap()).collect();
        let numbers: Vec<_> = seats.iter().map(|seat| seat.number).collect();
        assert_eq!(numbers, [0, 1, 2, 0, 1, 2]);
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
