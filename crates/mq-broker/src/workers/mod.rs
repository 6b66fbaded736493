//! Threads that serve connections, each with a runtime of its own.
//!
//! A message within one thread wakes no other thread. The [channel](WorkerChannels) of another
//! thread wakes the readers there, once for all readers of a publisher's turn.
//!
//! The fewest threads work that the load needs: the [pool](WorkerPool::rebalance) has connections [move](movable) from a thread that is
//! busy to one that is not, and together on one while all of them have little to do. Over QUIC a connection stays
//! where its endpoint is.

mod channels;
mod loads;
mod movable;
mod rebalancing;

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

use crate::worker_thread;
pub(crate) use channels::WorkerChannels;
use loads::{MoveOrder, WorkerLoad, WorkerLoads};
pub(crate) use movable::{MovableConnection, move_to_worker};
pub(crate) use rebalancing::{Rebalancing, SeenRound};

/// Interval at which the load of the workers is looked at.
const REBALANCE_INTERVAL: Duration = Duration::from_millis(500);

/// The interval at which connections go around, for tests.
const RESTLESS_INTERVAL: Duration = Duration::from_millis(5);

/// Connections between two looks that all begin on the first worker, if that is not busy: more are a crowd, whose
/// handshakes are shared by all.
const GATHERED_BURST: usize = 32;

/// The threads that a broker starts for its connections, and their work when they are idle.
#[derive(Clone)]
#[non_exhaustive]
pub struct Workers {
    /// The number of threads.
    pub count: NonZeroUsize,
    /// Choice of the thread for each connection.
    pub placement: Placement,
    /// Called by a thread before it waits for something to do; it must not block.
    pub before_idle: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Choice of the thread for each connection. Over QUIC connections stay where the kernel's choice of a socket has put
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Connections are on as few threads as the load needs: they go from a thread that is busy to one that is not, and
    /// back when there is little to do.
    #[default]
    Gathered,
    /// Each connection stays on the thread that had the fewest when it came.
    Spread,
    /// Connections go around without end, for tests.
    #[doc(hidden)]
    Restless,
}

impl Workers {
    /// Makes settings for so many threads.
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
pub(crate) struct WorkerPool {
    workers: Box<[Worker]>,
    placement: Placement,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    rebalancing: Arc<Rebalancing>,
    connections: AtomicUsize,
    /// Connections that have begun here since the last look.
    begun: AtomicUsize,
    /// Ends the thread when it is dropped.
    _stop: oneshot::Sender<()>,
}

impl WorkerPool {
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
            let rebalancing = Arc::new(Rebalancing::default());
            let own = Arc::clone(&rebalancing);
            thread::Builder::new()
                .name(format!("connections-{number}"))
                .spawn(move || {
                    worker_thread::set_current(number);
                    own.set_current();
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
                rebalancing,
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

    /// Returns the handles of the runtimes, in order.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        let handles = self.workers.iter().map(|worker| worker.handle.clone());
        handles.collect()
    }

    /// Finds a place for one more connection: on the runtime that its socket belongs to, else where it is in nobody's
    /// way. `None` without threads.
    pub(crate) fn place(self: &Arc<Self>, own: Option<&Handle>) -> Option<WorkerSlot> {
        let of = |handle: &Handle| {
            let mut all = self.workers.iter();
            all.position(|worker| worker.handle.id() == handle.id())
        };
        let number = own
            .and_then(of)
            .or_else(|| self.worker_for_new_connection())?;
        Some(self.worker_slot(number))
    }

    /// Chooses the worker for a connection that begins.
    fn worker_for_new_connection(&self) -> Option<usize> {
        let all = self.workers.iter().enumerate();
        if self.placement != Placement::Gathered {
            let count = |worker: &Worker| worker.connections.load(Ordering::Relaxed);
            return Some(all.min_by_key(|(_, worker)| count(worker))?.0);
        }
        let begun = |worker: &Worker| worker.begun.load(Ordering::Relaxed);
        let first = self.workers.first()?;
        if begun(first) < GATHERED_BURST && !first.rebalancing.is_busy() {
            return Some(0);
        }
        Some(
            all.min_by_key(|(_, worker)| (worker.rebalancing.is_busy(), begun(worker)))?
                .0,
        )
    }

    fn worker_slot(self: &Arc<Self>, number: usize) -> WorkerSlot {
        let worker = &self.workers[number];
        worker.connections.fetch_add(1, Ordering::Relaxed);
        worker.begun.fetch_add(1, Ordering::Relaxed);
        WorkerSlot {
            worker_pool: Arc::clone(self),
            number,
        }
    }

    /// Looks at the workers from time to time, and has connections go from one to another. Ends where there is
    /// nothing to look at.
    pub(crate) async fn rebalance(self: Arc<Self>) {
        let count = self.workers.len();
        let every = match self.placement {
            _ if count < 2 => return,
            Placement::Spread => return,
            Placement::Gathered => REBALANCE_INTERVAL,
            Placement::Restless => RESTLESS_INTERVAL,
        };
        let mut rounds = interval(every);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut loads = WorkerLoads::default();
        loop {
            rounds.tick().await;
            if self.placement == Placement::Restless {
                for (number, worker) in self.workers.iter().enumerate() {
                    worker
                        .rebalancing
                        .order_moves((number + 1) % count, usize::MAX);
                }
            } else {
                self.order_moves(&mut loads);
            }
        }
    }

    fn order_moves(&self, loads: &mut WorkerLoads) {
        let now = self.workers.iter();
        let now = now.map(|worker| WorkerLoad {
            busy: worker.handle.metrics().worker_total_busy_duration(0),
            active: worker.rebalancing.begin_round(),
        });
        let order = loads.look(&now.collect::<Vec<_>>());
        for (worker, is_busy) in self.workers.iter().zip(loads.busy()) {
            worker.begun.store(0, Ordering::Relaxed);
            worker.rebalancing.set_busy(is_busy);
        }
        if let Some(MoveOrder { from, to, count }) = order {
            debug!(from, to, count, "moving connections to another worker");
            self.workers[from].rebalancing.order_moves(to, count);
        }
    }
}

/// A connection's place on a worker, until it is dropped.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    worker_pool: Arc<WorkerPool>,
    number: usize,
}

impl WorkerSlot {
    pub(crate) fn handle(&self) -> &Handle {
        &self.worker_pool.workers[self.number].handle
    }

    /// Takes a place on another worker in the place of this one.
    fn on(self, number: usize) -> Self {
        self.worker_pool.worker_slot(number)
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        let worker = &self.worker_pool.workers[self.number];
        worker.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn worker_pool(count: usize) -> Arc<WorkerPool> {
        crew_by(count, Placement::default())
    }

    fn crew_by(count: usize, placement: Placement) -> Arc<WorkerPool> {
        let mut workers = Workers::new(NonZeroUsize::new(count).unwrap());
        workers.placement = placement;
        let worker_channels = Arc::new(WorkerChannels::new(Some(&workers)));
        Arc::new(WorkerPool::start(Some(&workers), &worker_channels).unwrap())
    }

    #[test]
    fn a_few_connections_share_a_worker_and_more_are_spread() {
        let worker_pool = worker_pool(3);
        let mut worker_slots: Vec<_> = (0..GATHERED_BURST)
            .map(|_| worker_pool.place(None).unwrap())
            .collect();
        assert!(
            worker_slots
                .iter()
                .all(|worker_slot| worker_slot.number == 0)
        );
        worker_slots.extend((0..2 * GATHERED_BURST).map(|_| worker_pool.place(None).unwrap()));
        for worker in &worker_pool.workers {
            assert_eq!(worker.connections.load(Ordering::Relaxed), GATHERED_BURST);
        }
        drop(worker_slots);
        let last = worker_pool.handles().pop().unwrap();
        let worker_slot = worker_pool.place(Some(&last)).unwrap();
        assert_eq!(worker_slot.number, 2, "where its socket is");
        drop(worker_slot);
        for worker in &worker_pool.workers {
            assert_eq!(worker.connections.load(Ordering::Relaxed), 0);
        }
        assert!(Arc::new(WorkerPool::default()).place(None).is_none());
    }

    #[test]
    fn where_connections_stay_they_are_spread_from_the_first_one() {
        let worker_pool = crew_by(3, Placement::Spread);
        let worker_slots: Vec<_> = (0..6).map(|_| worker_pool.place(None).unwrap()).collect();
        let numbers: Vec<_> = worker_slots
            .iter()
            .map(|worker_slot| worker_slot.number)
            .collect();
        assert_eq!(numbers, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn threads_know_who_they_are_and_end_with_the_crew() {
        let worker_pool = worker_pool(2);
        let (to, from) = std::sync::mpsc::channel();
        for handle in worker_pool.handles() {
            let to = to.clone();
            handle.spawn(async move {
                to.send(worker_thread::current()).unwrap();
                // Ends with the runtime.
                std::future::pending::<()>().await;
            });
        }
        drop(to);
        let mut numbers = [from.recv().unwrap(), from.recv().unwrap()];
        numbers.sort_unstable();
        assert_eq!(numbers, [Some(0), Some(1)]);
        assert_eq!(worker_thread::current(), None);
        drop(worker_pool);
        assert!(from.recv().is_err(), "the tasks have ended");
    }
}
