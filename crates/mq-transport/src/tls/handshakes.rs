//! The threads on which a crowd's handshakes compute, out of the way of connected clients.

use std::{
    cell::RefCell,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinSet,
};

/// The niceness of the pool's threads: where all threads want a processor, the kernel leaves the pool
/// about a tenth of it.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Time for which a thread sleeps after its job, so that each of the pool's threads gets one of the jobs.
const HELD: Duration = Duration::from_millis(1);

/// Threads on which the handshakes of a crowd compute, for all listeners that share it.
///
/// A handshake's signature and key exchange take a processor for a good part of a millisecond, many
/// times as long as a message. The handshakes of a crowd would fill the queues of all workers, and the
/// messages of connected clients would wait behind them. So while as many handshakes are under way as
/// the pool has threads, further ones compute on those threads; on QUIC with all that the connection
/// does until then. The threads have a lower priority (nice 10 on Linux), so a worker with something to
/// do interrupts them at once. The handshakes still use the caller's runtime: its timers, its sockets,
/// and the tasks that they spawn. A client that comes alone is served in place.
///
/// The first crowd starts the threads.
#[derive(Clone)]
pub struct HandshakePool(Arc<Pool>);

struct Pool {
    threads: usize,
    under_way: AtomicUsize,
    /// Runtime of the threads, once the first crowd has started it; the inner `None` if the system has no threads.
    runtime: OnceLock<Option<Runtime>>,
}

impl HandshakePool {
    /// Makes a pool of `threads` threads, at least one.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Pool {
            threads: threads.max(1),
            under_way: AtomicUsize::new(0),
            runtime: OnceLock::new(),
        }))
    }

    #[cfg(feature = "quic")]
    pub(crate) fn threads(&self) -> usize {
        self.0.threads
    }

    /// Runs `job` once on each thread, in the background; before the first crowd there is no thread.
    ///
    /// For what belongs to a thread, such as the memory that an allocator keeps for it. A thread that
    /// is busy for more than 1 ms may leave its turn to another, which then runs the job twice.
    pub fn run_on_each_thread(&self, job: impl Fn() + Clone + Send + 'static) {
        if let Some(runtime) = self.0.runtime.get().and_then(Option::as_ref) {
            for _ in 0..self.0.threads {
                let job = job.clone();
                runtime.spawn(async move {
                    job();
                    thread::sleep(HELD);
                });
            }
        }
    }

    /// Runs `handshake` in place, or on the pool's threads while others are under way.
    pub(crate) async fn run<F>(&self, handshake: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let under_way = UnderWay::new(&self.0.under_way);
        if under_way.others < self.0.threads {
            return handshake.await;
        }
        let (Ok(here), Some(runtime)) = (Handle::try_current(), self.runtime()) else {
            return handshake.await;
        };
        // A set of one task, which it ends when it is dropped.
        let mut task = JoinSet::new();
        task.spawn_on(Within::new(here, handshake), runtime.handle());
        match task.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(error)) => resume_unwind(error.into_panic()),
            None => unreachable!("one was spawned"),
        }
    }

    fn runtime(&self) -> Option<&Runtime> {
        let start = || {
            // Tokio panics where the system has no thread for it.
            let runtime = catch_unwind(AssertUnwindSafe(|| self.start()));
            let runtime = runtime.ok().and_then(Result::ok);
            if runtime.is_none() {
                tracing::warn!("tls: cannot start handshake threads; handshakes delay messages");
            }
            runtime
        };
        self.0.runtime.get_or_init(start).as_ref()
    }

    fn start(&self) -> io::Result<Runtime> {
        Builder::new_multi_thread()
            .thread_name("handshakes")
            .worker_threads(self.0.threads)
            .on_thread_start(step_back)
            .build()
    }
}

impl Default for HandshakePool {
    /// Makes a pool with a thread for every two processors.
    fn default() -> Self {
        let processors = thread::available_parallelism();
        Self::new(processors.map_or(1, |count| count.get() / 2))
    }
}

impl fmt::Debug for HandshakePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandshakePool")
            .field("threads", &self.0.threads)
            .field("under_way", &self.0.under_way.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Does not wait: the last user may be a task of another runtime, or one of these threads.
        if let Some(Some(runtime)) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the calling thread.
fn step_back() {
    #[cfg(target_os = "linux")]
    if let Err(error) = linux::step_back() {
        // The threads stay apart from the workers, with equal shares of the processor.
        tracing::debug!(%error, "tls: cannot lower the priority of handshake threads");
    }
}

#[cfg(target_os = "linux")]
mod linux {
    #![expect(unsafe_code, reason = "no crate here offers it")]

    use std::mem;

    use nix::errno::Errno;

    use super::NICENESS;

    /// The longest time slice that the kernel takes, 100 ms. A waking thread with a shorter slice
    /// interrupts this thread at once (since Linux 6.12); with an equal slice it could wait for a tick.
    const SLICE_NS: u64 = 100_000_000;

    pub(super) fn step_back() -> nix::Result<()> {
        // SAFETY: it takes numbers only. On Linux 0 is the calling thread, not its process.
        Errno::result(unsafe {
            let now = libc::getpriority(libc::PRIO_PROCESS, 0);
            libc::setpriority(libc::PRIO_PROCESS, 0, now.max(NICENESS))
        })?;
        let size = u32::try_from(mem::size_of::<libc::sched_attr>()).unwrap_or_default();
        // SAFETY: a structure of numbers; the kernel writes no more of it than `size`, and reads as much.
        unsafe {
            let mut attr: libc::sched_attr = mem::zeroed();
            let get = libc::SYS_sched_getattr;
            Errno::result(libc::syscall(get, 0, &raw mut attr, size, 0))?;
            attr.sched_runtime = SLICE_NS;
            let set = libc::SYS_sched_setattr;
            Errno::result(libc::syscall(set, 0, &raw const attr, 0)).map(drop)
        }
    }
}

/// A handshake that counts while it is under way.
struct UnderWay<'a> {
    count: &'a AtomicUsize,
    /// Number of handshakes that were under way before.
    others: usize,
}

impl<'a> UnderWay<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        let others = count.fetch_add(1, Ordering::Relaxed);
        Self { count, others }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A handshake that the pool polls within the caller's runtime, and the tasks that it has
/// [started](spawn).
struct Within<F> {
    runtime: Handle,
    handshake: Pin<Box<F>>,
    beside: Vec<Task>,
}

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// The tasks that the handshake on this thread has started during the current poll.
    static STARTED: RefCell<Option<Vec<Task>>> = const { RefCell::new(None) };
}

/// Runs a task in the background: as part of the handshake that calls it until that ends, then as a
/// task of the runtime. Where no pool runs the handshake, it is a task of the runtime at once.
#[cfg(feature = "quic")]
pub(crate) fn spawn(task: Task) {
    let alone = STARTED.with_borrow_mut(|started| match started {
        Some(started) => {
            started.push(task);
            None
        }
        None => Some(task),
    });
    if let Some(task) = alone {
        tokio::spawn(task);
    }
}

/// Runs a step. Also returns the tasks that it has [started](spawn), which do not run yet.
pub(crate) fn gather<T>(step: impl FnOnce() -> T) -> (T, Vec<Task>) {
    /// Restores the outer list, also after a panic: later tasks are not the step's.
    struct Before(Option<Vec<Task>>);
    impl Drop for Before {
        fn drop(&mut self) {
            STARTED.set(self.0.take());
        }
    }
    let _before = Before(STARTED.replace(Some(Vec::new())));
    let done = step();
    (done, STARTED.take().unwrap_or_default())
}

impl<F> Within<F> {
    fn new(runtime: Handle, handshake: F) -> Self {
        Self {
            runtime,
            handshake: Box::pin(handshake),
            beside: Vec::new(),
        }
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _inside = this.runtime.enter();
        let (done, started) = gather(|| this.handshake.as_mut().poll(cx));
        this.beside.extend(started);
        if done.is_pending() {
            this.beside
                .retain_mut(|task| task.as_mut().poll(cx).is_pending());
        }
        done
    }
}

impl<F> Drop for Within<F> {
    /// Ends the handshake, which is over or was given up; its tasks go on, to tell the peer.
    fn drop(&mut self) {
        for task in self.beside.drain(..) {
            self.runtime.spawn(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::oneshot, time::timeout};

    use super::*;

    /// Makes a pool of one thread with a handshake under way in place, until the sender is used or dropped.
    async fn busy() -> (HandshakePool, oneshot::Sender<()>) {
        let pool = HandshakePool::new(1);
        let (end, ended) = oneshot::channel();
        let busy = pool.clone();
        tokio::spawn(async move { busy.run(ended).await });
        tokio::task::yield_now().await;
        (pool, end)
    }

    fn name_of_thread() -> Option<String> {
        thread::current().name().map(str::to_owned)
    }

    #[tokio::test]
    async fn a_single_handshake_runs_in_place_and_a_crowd_on_the_pool() {
        let (pool, end) = busy().await;
        let name = pool.run(async { name_of_thread() }).await;
        assert_eq!(name.as_deref(), Some("handshakes"));
        end.send(()).unwrap();
        tokio::task::yield_now().await;
        assert_eq!(pool.run(async { name_of_thread() }).await, name_of_thread());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_crowd_computes_with_lower_priority() {
        /// Returns the niceness of the calling thread: field 19 of proc(5)'s `stat`.
        fn niceness() -> i32 {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, after_name) = stat.rsplit_once(')').unwrap();
            after_name
                .split_whitespace()
                .nth(16)
                .unwrap()
                .parse()
                .unwrap()
        }
        let (pool, _end) = busy().await;
        let here = niceness();
        let there = pool.run(async { niceness() }).await;
        assert_eq!(there, here.max(NICENESS));
        assert_eq!(niceness(), here);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_belongs_to_the_runtime_of_its_listener() {
        let (pool, _end) = busy().await;
        let long = Duration::from_hours(1);
        let (said, name) = oneshot::channel();
        let handshake = pool.run(async move {
            // Without the time of this runtime, which is none that passes, it would panic.
            tokio::time::sleep(long).await;
            tokio::spawn(async { said.send(name_of_thread()).unwrap() });
        });
        handshake.await;
        assert_eq!(name.await.unwrap(), name_of_thread());
    }

    #[cfg(feature = "quic")]
    #[tokio::test]
    async fn a_handshakes_tasks_run_with_it_and_go_on_after_it() {
        for given_up in [false, true] {
            let (pool, _end) = busy().await;
            let (said, mut names) = tokio::sync::mpsc::unbounded_channel();
            let (end, ended) = oneshot::channel::<()>();
            let (held, let_go) = oneshot::channel::<()>();
            let handshake = pool.run(async move {
                let _held = held;
                spawn(Box::pin(async move {
                    said.send(name_of_thread()).unwrap();
                    let _ = ended.await;
                    said.send(name_of_thread()).unwrap();
                }));
                // Until it has been polled, or longer.
                tokio::task::yield_now().await;
                if given_up {
                    std::future::pending::<()>().await;
                }
            });
            let first = tokio::select! {
                () = handshake => names.recv().await,
                name = names.recv(), if given_up => name,
            };
            assert_eq!(first.unwrap().as_deref(), Some("handshakes"));
            assert!(let_go.await.is_err());
            end.send(()).unwrap();
            assert_eq!(names.recv().await.unwrap(), name_of_thread());
        }
    }

    #[tokio::test]
    async fn a_handshake_that_is_given_up_ends() {
        let (pool, _end) = busy().await;
        let (held, let_go) = oneshot::channel::<()>();
        let waits = pool.run(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        assert!(timeout(Duration::from_millis(1), waits).await.is_err());
        assert!(let_go.await.is_err());
        assert_eq!(pool.0.under_way.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_job_runs_on_each_thread_once_there_are_threads() {
        let (said, mut names) = tokio::sync::mpsc::unbounded_channel();
        let (pool, _end) = busy().await;
        let job = move || said.send(name_of_thread()).unwrap();
        pool.run_on_each_thread(job.clone());
        assert!(names.try_recv().is_err(), "there is no thread yet");
        pool.run(async {}).await;
        for _ in 0..3 {
            pool.run_on_each_thread(job.clone());
            assert_eq!(names.recv().await.unwrap().as_deref(), Some("handshakes"));
        }
    }
}
