//! A signal that ends threads which wait for packets.

use std::{
    io,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
    },
};

use super::packet::PacketSocket;

/// Tells a thread to end, also while it waits. Clones are the same signal.
#[derive(Clone, Debug)]
pub(super) struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    told: AtomicBool,
    /// The descriptor is readable once the signal was given.
    wake: EventFd,
}

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(Arc::new(Inner {
            told: AtomicBool::new(false),
            wake,
        })))
    }

    pub(super) fn tell(&self) {
        self.0.told.store(true, Ordering::Relaxed);
        // The write fails only if the signal was given very often, and the descriptor is readable then.
        let _ = self.0.wake.write(1);
    }

    pub(super) fn is_told(&self) -> bool {
        self.0.told.load(Ordering::Relaxed)
    }

    /// Waits for a packet or for the signal, at most for the given time; `None` is for ever. Returns how late the
    /// kernel woke the thread, if the whole time passed.
    pub(super) fn wait<'a>(
        &'a self,
        inputs: impl Iterator<Item = &'a PacketSocket>,
        at_most: Option<Duration>,
    ) -> io::Result<Option<Duration>> {
        let stop = PollFd::new(self.0.wake.as_fd(), PollFlags::POLLIN);
        let inputs = inputs.map(PacketSocket::readable);
        let mut inputs: Vec<_> = inputs.chain([stop]).collect();
        let began = Instant::now();
        let time = at_most.map(TimeSpec::from_duration);
        match (ppoll(&mut inputs, time, None), at_most) {
            (Ok(0), Some(at_most)) => Ok(Some(began.elapsed().saturating_sub(at_most))),
            (Ok(_) | Err(Errno::EINTR), _) => Ok(None),
            (Err(error), _) => Err(error.into()),
        }
    }
}
