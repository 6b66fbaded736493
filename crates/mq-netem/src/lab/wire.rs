//! The emulator at work: one thread a direction, which waits for the kernel and spins at the end.
//!
//! An async timer is most of a millisecond late, and a plain wait a tenth; spinning through the last
//! stretch keeps the lateness to tens of microseconds for a few percent of a core.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
    time::{ClockId, clock_gettime},
};

use super::packet::{Frame, HEADER, PacketSocket, corrupt, run_first};
use crate::{Direction, DirectionReport, Error, Fate, Link, LinkReport, Pipe, units::nanoseconds};

/// Before a departure the thread spins for this long, since the kernel wakes it late.
const SPIN: Duration = Duration::from_micros(200);

/// How often a thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// The largest lateness that is told apart, nanoseconds.
const LATEST: u64 = 60_000_000_000;

/// Both directions of one link.
#[derive(Debug)]
pub(super) struct Wire {
    stop: Arc<AtomicBool>,
    directions: [(Arc<Shared>, Option<JoinHandle<()>>); 2],
}

/// What a direction's thread tells.
#[derive(Debug)]
struct Shared {
    report: Mutex<(crate::Counts, Histogram<u64>)>,
    cpu_ns: AtomicU64,
}

impl Wire {
    /// Moves frames between two interfaces of this namespace, as the link says.
    pub(super) fn start(near: u32, far: u32, link: &Link, seed: u64) -> Result<Self, Error> {
        let setup = |source| Error::Setup {
            step: "open an interface for the emulator",
            source,
        };
        let near = Arc::new(PacketSocket::open(near).map_err(setup)?);
        let far = Arc::new(PacketSocket::open(far).map_err(setup)?);
        let stop = Arc::new(AtomicBool::new(false));
        let start = |name: &str, from: &Arc<_>, to: &Arc<_>, direction: &Direction, seed| {
            let lateness = Histogram::new_with_max(LATEST, 3).expect("valid bounds");
            let shared = Arc::new(Shared {
                report: Mutex::new((crate::Counts::default(), lateness)),
                cpu_ns: AtomicU64::new(0),
            });
            let mut mover = Mover {
                from: Arc::clone(from),
                to: Arc::clone(to),
                pipe: Pipe::new(direction.clone(), seed),
                began: Instant::now(),
                leaving: VecDeque::new(),
                late_ns: Vec::new(),
                shared: Arc::clone(&shared),
            };
            let stop = Arc::clone(&stop);
            let thread = std::thread::Builder::new().name(name.to_owned());
            let thread = thread
                .spawn(move || {
                    if !run_first() {
                        tracing::debug!("the emulator runs without real-time priority");
                    }
                    while !stop.load(Ordering::Relaxed) {
                        if let Err(error) = mover.turn() {
                            tracing::error!(%error, "the emulated link has failed");
                            return;
                        }
                    }
                })
                .map_err(setup)?;
            Ok::<_, Error>((shared, Some(thread)))
        };
        let up = start("link-up", &near, &far, &link.up, seed)?;
        // Another seed, so that the directions do not lose the same packets.
        let down = start("link-down", &far, &near, &link.down, !seed)?;
        Ok(Self {
            stop,
            directions: [up, down],
        })
    }

    pub(super) fn report(&self) -> LinkReport {
        let [up, down] = &self.directions;
        LinkReport {
            up: up.0.report(),
            down: down.0.report(),
        }
    }

    pub(super) fn cpu_time(&self) -> Duration {
        let used = self.directions.iter();
        used.map(|(shared, _)| Duration::from_nanos(shared.cpu_ns.load(Ordering::Relaxed)))
            .sum()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for (_, thread) in &mut self.directions {
            if let Some(thread) = thread.take() {
                // It has said why it ended, if it ended badly.
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn report(&self) -> DirectionReport {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let (counts, lateness) = &*report;
        let quantile = |q| Duration::from_nanos(lateness.value_at_quantile(q));
        DirectionReport {
            counts: *counts,
            lateness: (!lateness.is_empty()).then(|| (quantile(0.5), quantile(0.99))),
        }
    }
}

/// One direction's work.
struct Mover {
    from: Arc<PacketSocket>,
    to: Arc<PacketSocket>,
    pipe: Pipe,
    began: Instant,
    /// Frames by departure.
    leaving: VecDeque<(u64, Frame)>,
    /// Not in the shared histogram yet.
    late_ns: Vec<u64>,
    shared: Arc<Shared>,
}

impl Mover {
    /// Takes what has come, sends what is due, and waits for either.
    fn turn(&mut self) -> io::Result<()> {
        while let Some(frame) = self.from.receive()? {
            self.take(frame);
        }
        let mut now = self.now();
        while let Some((at, frame)) = self.leaving.pop_front_if(|(at, _)| *at <= now) {
            self.to.send(&frame)?;
            now = self.now();
            self.late_ns.push(now - at);
        }
        let left = self
            .leaving
            .front()
            .map(|(at, _)| Duration::from_nanos(at - now));
        match left {
            Some(left) => match left.checked_sub(SPIN) {
                Some(left) => self.wait(left.min(LOOK))?,
                None => std::hint::spin_loop(),
            },
            None => self.wait(LOOK)?,
        }
        Ok(())
    }

    fn take(&mut self, mut frame: Frame) {
        let bytes = (frame.len() - HEADER) as u64;
        let fate = self.pipe.arrive(self.now(), bytes);
        if let Fate::Delivered {
            at,
            twice,
            wrong_bit,
        } = fate
        {
            // At the end, but for a packet that overtakes.
            let place = self.leaving.partition_point(|(other, _)| *other <= at);
            if twice {
                self.leaving.insert(place, (at, frame.clone()));
            }
            if let Some(bit) = wrong_bit {
                corrupt(&mut frame, bit);
            }
            self.leaving.insert(place, (at, frame));
        }
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        self.tell();
        let mut readable = [PollFd::new(self.from.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut readable, Some(TimeSpec::from_duration(at_most)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes known what happened since the last time, while there is nothing to do.
    fn tell(&mut self) {
        let report = self.shared.report.lock();
        let mut report = report.unwrap_or_else(PoisonError::into_inner);
        let (counts, lateness) = &mut *report;
        *counts = self.pipe.counts;
        for late in self.late_ns.drain(..) {
            lateness.saturating_record(late);
        }
        drop(report);
        if let Ok(used) = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID) {
            let used = nanoseconds(used.into());
            self.shared.cpu_ns.store(used, Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }
}
