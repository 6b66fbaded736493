//! The threads that move packets: one for each direction of a link or for each shared medium. A thread waits in
//! the kernel until shortly before a departure, and spins from there.
//!
//! An async timer is up to a millisecond late, a plain wait a tenth of that. Spinning keeps the lateness to
//! tens of microseconds, for a few percent of a core. A thread learns how long it has to spin: the kernel wakes
//! it sooner on busy processors than on sleeping ones. Threads with real-time priority let each other pass while
//! they spin, so that dozens of links on two processors do not wait for one another.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};

use super::{packet::PacketSocket, priority::run_first, signal::Stop};
use crate::{Error, Lateness, Timing, units::nanoseconds};

/// The shortest and the longest time that a thread spins before a departure.
const SPIN: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(200));

/// Interval at which a thread that never waits publishes its counts. A thread that waits reads the kernel's count of
/// missed packets at most that often, and before each longer wait.
const LOOK: Duration = Duration::from_millis(50);

/// The largest lateness that the histogram holds, in nanoseconds.
const LATEST: u64 = 60_000_000_000;

/// Work of an emulator's thread. Times are nanoseconds since the emulator began.
pub(super) trait Emulation: Send + 'static {
    /// Type of the emulation's counts: numbers of packets so far, by fate.
    type Counts: Clone + Send;

    /// Receives every packet that waits in the sockets.
    fn receive(&mut self, clock: &Clock) -> io::Result<()>;

    /// Sends every packet that is due, and calls `late` with the lateness of each, in nanoseconds.
    fn send(&mut self, clock: &Clock, late: impl FnMut(u64)) -> io::Result<()>;

    /// Returns the time at which the next packet is due; `None` if none is.
    fn next(&self) -> Option<u64>;

    /// Returns the sockets from which packets are received.
    fn inputs(&self) -> impl Iterator<Item = &PacketSocket>;

    /// Returns the counts so far.
    fn counts(&self) -> Self::Counts;
}

/// Clock of an emulator: time since the emulator began, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn now(&self) -> u64 {
        nanoseconds(self.0.elapsed())
    }
}

/// Handle of a thread that emulates a link or a medium; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Emulator<C> {
    stop: Stop,
    shared: Arc<Shared<C>>,
    thread: Option<JoinHandle<()>>,
}

/// State that an emulator's thread publishes for reports.
#[derive(Debug)]
struct Shared<C> {
    /// The counts, and the lateness of the packets that left, in nanoseconds.
    report: Mutex<(C, Histogram<u64>)>,
    /// Frames that came too fast and were not received, as far as the kernel counts them.
    missed: AtomicU64,
    /// CPU time of the thread so far, in nanoseconds.
    cpu_ns: AtomicU64,
}

impl<C: Clone + Send + 'static> Emulator<C> {
    pub(super) fn start(name: &str, emulation: impl Emulation<Counts = C>) -> Result<Self, Error> {
        let lateness = Histogram::new_with_max(LATEST, 3).expect("valid bounds");
        let shared = Arc::new(Shared {
            report: Mutex::new((emulation.counts(), lateness)),
            missed: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
        });
        let setup = |step| move |source| Error::Setup { step, source };
        let stop = Stop::new().map_err(setup("make an event of the emulator"))?;
        let mut worker = Worker {
            emulation,
            clock: Clock(Instant::now()),
            first: false,
            spin: Spin::new(),
            looked: Instant::now(),
            told: Instant::now(),
            late_ns: Vec::new(),
            shared: Arc::clone(&shared),
            stop: stop.clone(),
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            worker.first = run_first();
            if !worker.first {
                tracing::debug!("emulator runs without real-time priority");
            }
            while !worker.stop.is_told() {
                if let Err(error) = worker.turn() {
                    tracing::error!(%error, "emulated link failed");
                    return;
                }
            }
        });
        let thread = thread.map_err(setup("start a thread of the emulator"))?;
        Ok(Self {
            stop,
            shared,
            thread: Some(thread),
        })
    }

    /// Returns the packet counts last published, and the lateness of the packets that left.
    pub(super) fn report(&self) -> (C, Timing) {
        let report = self.shared.report.lock();
        let report = report.unwrap_or_else(PoisonError::into_inner);
        let (counts, lateness) = &*report;
        let quantile = |q| Duration::from_nanos(lateness.value_at_quantile(q));
        let too_late = lateness.next_non_equivalent(nanoseconds(Lateness::LIMIT));
        let lateness = (!lateness.is_empty()).then(|| Lateness {
            p50: quantile(0.5),
            p99: quantile(0.99),
            max: Duration::from_nanos(lateness.max()),
            packets: lateness.len(),
            late: lateness.count_between(too_late, LATEST),
        });
        let missed = self.shared.missed.load(Ordering::Relaxed);
        (counts.clone(), Timing { lateness, missed })
    }

    pub(super) fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.shared.cpu_ns.load(Ordering::Relaxed))
    }
}

impl<C> Drop for Emulator<C> {
    fn drop(&mut self) {
        self.stop.tell();
        if let Some(thread) = self.thread.take() {
            // A thread that failed has said why.
            let _ = thread.join();
        }
    }
}

/// State of an emulator's thread, of which other threads see `shared` and `stop` alone.
struct Worker<E: Emulation> {
    emulation: E,
    clock: Clock,
    /// `true` if the thread has real-time priority.
    first: bool,
    spin: Spin,
    /// Time at which the thread last read the kernel's count of missed packets and its own CPU time.
    looked: Instant,
    /// Time at which the thread last published its counts.
    told: Instant,
    /// Lateness of packets that is not in the shared histogram yet, in nanoseconds.
    late_ns: Vec<u64>,
    shared: Arc<Shared<E::Counts>>,
    stop: Stop,
}

impl<E: Emulation> Worker<E> {
    /// Receives the packets that wait, sends the packets that are due, and waits until there is more to do.
    fn turn(&mut self) -> io::Result<()> {
        self.emulation.receive(&self.clock)?;
        let late_ns = &mut self.late_ns;
        self.emulation
            .send(&self.clock, |late| late_ns.push(late))?;
        // A thread whose packets are always due soon never waits.
        if self.told.elapsed() >= LOOK {
            self.tell();
        }
        let next = self.emulation.next();
        let left = next.map(|at| Duration::from_nanos(at.saturating_sub(self.clock.now())));
        match left.map(|left| left.checked_sub(self.spin.time())) {
            Some(Some(left)) => self.wait(Some(left)),
            Some(None) if self.first => {
                // Yield only among real-time threads, so that none of them waits until this one stops spinning.
                std::thread::yield_now();
                Ok(())
            }
            Some(None) => {
                std::hint::spin_loop();
                Ok(())
            }
            None => self.wait(None),
        }
    }

    /// Publishes the counts, and waits for a packet or the signal to stop, at most for the given time; `None` is for
    /// ever.
    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        self.tell();
        if self.looked.elapsed() >= LOOK || at_most.is_none_or(|wait| wait > LOOK) {
            self.look();
        }
        if let Some(late) = self.stop.wait(self.emulation.inputs(), at_most)? {
            self.spin.woken(late);
        }
        Ok(())
    }

    /// Publishes the counts, and the lateness of the packets sent since the last call. Called before each wait, and
    /// every [`LOOK`] by a thread that never waits.
    fn tell(&mut self) {
        self.told = Instant::now();
        let report = self.shared.report.lock();
        let mut report = report.unwrap_or_else(PoisonError::into_inner);
        let (counts, lateness) = &mut *report;
        *counts = self.emulation.counts();
        for late in self.late_ns.drain(..) {
            lateness.saturating_record(late);
        }
    }

    /// Reads from the kernel the frames that the sockets have missed and the CPU time of this thread.
    fn look(&mut self) {
        self.looked = Instant::now();
        let dropped = self.emulation.inputs().map(PacketSocket::dropped);
        // Where the kernel does not tell, nothing is known.
        let missed: u64 = dropped.flatten().map(u64::from).sum();
        self.shared.missed.fetch_add(missed, Ordering::Relaxed);
        if let Ok(used) = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID) {
            let used = nanoseconds(used.into());
            self.shared.cpu_ns.store(used, Ordering::Relaxed);
        }
    }
}

/// Time to spin before a departure: twice the usual lateness of the kernel's wake-ups, within [`SPIN`]. Spinning for
/// the occasional longer lateness would keep busy processors busier.
#[derive(Clone, Copy, Debug)]
struct Spin {
    /// Estimate of the median lateness of the kernel's wake-ups.
    usual: Duration,
}

impl Spin {
    /// Step by which the estimate moves at each wake-up, up or down.
    const STEP: Duration = Duration::from_micros(1);

    fn new() -> Self {
        Self { usual: SPIN.1 / 2 }
    }

    /// Returns the time to spin before a departure.
    fn time(self) -> Duration {
        self.usual * 2
    }

    /// Updates the estimate by one wake-up, which was `late`.
    fn woken(&mut self, late: Duration) {
        let usual = if late > self.usual {
            self.usual + Self::STEP
        } else {
            self.usual.saturating_sub(Self::STEP)
        };
        self.usual = usual.clamp(SPIN.0 / 2, SPIN.1 / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_lasts_twice_as_long_as_the_usual_waking_is_late() {
        let mut spin = Spin::new();
        assert_eq!(spin.time(), SPIN.1);
        for number in 0..2000 {
            let late = if number % 5 == 0 { 3000 } else { 40 };
            spin.woken(Duration::from_micros(late));
        }
        let learned = spin.time().as_micros();
        assert!((78..=84).contains(&learned), "{learned}");
        for _ in 0..200 {
            spin.woken(Duration::ZERO);
        }
        assert_eq!(spin.time(), SPIN.0);
        for _ in 0..200 {
            spin.woken(Duration::from_secs(1));
        }
        assert_eq!(spin.time(), SPIN.1);
    }
}
