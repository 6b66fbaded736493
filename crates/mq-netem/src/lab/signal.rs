//! Threads that wait for packets, and end when they are told to.

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

/// Tells a thread to end, also while it waits; clones are of the same one.
#[derive(Clone, Debug)]
pub(super) struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    told: AtomicBool,
    /// Readable once it was told.
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
        // It can only fail when it was told very often, and is readable then.
        let _ = self.0.wake.write(1);
    }

    pub(super) fn is_told(&self) -> bool {
        self.0.told.load(Ordering::Relaxed)
    }

    /// Waits until there is a packet, or this was told, or for so long; `None` is for ever. How late
    /// the kernel woke the thread, if it waited to the end.
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
