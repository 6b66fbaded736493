//! A link between two hosts: an emulator for each direction.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    emulator::{Clock, Emulation, Emulator},
    packet::{Frame, HEADER, PacketSocket, corrupt},
};
use crate::{Counts, Direction, DirectionReport, Error, Fate, Link, LinkReport, Pipe};

/// Both directions of one link.
#[derive(Debug)]
pub(super) struct Wire {
    up: OneWay,
    down: OneWay,
}

#[derive(Debug)]
struct OneWay {
    emulator: Emulator<Counts>,
    next: Arc<Next>,
}

/// Direction that replaces the present one at the next packet; `None` if it stays.
#[derive(Debug, Default)]
struct Next(Mutex<Option<Direction>>);

impl Next {
    fn get(&self) -> MutexGuard<'_, Option<Direction>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire {
    /// Moves frames between two interfaces of this namespace, as the link says.
    pub(super) fn start(near: u32, far: u32, link: &Link, seed: u64) -> Result<Self, Error> {
        let near = PacketSocket::open(near).map_err(Error::no_emulator)?;
        let far = PacketSocket::open(far).map_err(Error::no_emulator)?;
        let (near, far) = (Arc::new(near), Arc::new(far));
        let start = |name, from: &Arc<_>, to: &Arc<_>, direction: &Direction, seed| {
            let next: Arc<Next> = Arc::default();
            let mover = Mover {
                from: Arc::clone(from),
                to: Arc::clone(to),
                pipe: Pipe::new(direction.clone(), seed),
                next: Arc::clone(&next),
                leaving: VecDeque::new(),
            };
            let emulator = Emulator::start(name, mover)?;
            Ok(OneWay { emulator, next })
        };
        Ok(Self {
            up: start("link-up", &near, &far, &link.up, seed)?,
            // Another seed, so that the directions do not lose the same packets.
            down: start("link-down", &far, &near, &link.down, !seed)?,
        })
    }

    /// Becomes another link for the packets that come from now on.
    pub(super) fn become_link(&self, link: &Link) {
        *self.up.next.get() = Some(link.up.clone());
        *self.down.next.get() = Some(link.down.clone());
    }

    pub(super) fn report(&self) -> LinkReport {
        let direction = |one_way: &OneWay| {
            let (counts, timing) = one_way.emulator.report();
            DirectionReport { counts, timing }
        };
        LinkReport {
            up: direction(&self.up),
            down: direction(&self.down),
        }
    }

    pub(super) fn cpu_time(&self) -> Duration {
        self.up.emulator.cpu_time() + self.down.emulator.cpu_time()
    }
}

/// Emulation of one direction: receives frames at one interface and sends them at the other.
struct Mover {
    from: Arc<PacketSocket>,
    to: Arc<PacketSocket>,
    pipe: Pipe,
    next: Arc<Next>,
    /// Frames by departure.
    leaving: VecDeque<(u64, Frame)>,
}

impl Emulation for Mover {
    type Counts = Counts;

    fn receive(&mut self, clock: &Clock) -> io::Result<()> {
        while let Some(frame) = self.from.receive()? {
            self.take(clock.now(), frame);
        }
        Ok(())
    }

    fn send(&mut self, clock: &Clock, mut late: impl FnMut(u64)) -> io::Result<()> {
        let mut now = clock.now();
        while let Some((at, frame)) = self.leaving.pop_front_if(|(at, _)| *at <= now) {
            self.to.send(&frame)?;
            now = clock.now();
            late(now - at);
        }
        Ok(())
    }

    fn next(&self) -> Option<u64> {
        self.leaving.front().map(|(at, _)| *at)
    }

    fn inputs(&self) -> impl Iterator<Item = &PacketSocket> {
        std::iter::once(&*self.from)
    }

    fn counts(&self) -> Counts {
        self.pipe.counts
    }
}

impl Mover {
    fn take(&mut self, now: u64, mut frame: Frame) {
        let next = self.next.get().take();
        if let Some(direction) = next {
            self.pipe.become_direction(direction, now);
        }
        let bytes = (frame.len() - HEADER) as u64;
        let fate = self.pipe.arrive(now, bytes);
        if let Fate::Delivered {
            at,
            twice,
            wrong_bit,
        } = fate
        {
            // The place is at the end, unless the packet overtakes.
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
}
