//! A link between two hosts: an emulator for each direction.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    emulator::{Clock, Emulation, Emulator},
    packet::{Frame, HEADER, PacketSocket, corrupt},
    pcap::PcapFile,
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
    orders: Arc<Orders>,
}

/// Changes that begin with the next packet.
#[derive(Debug, Default)]
struct Orders(Mutex<Order>);

#[derive(Debug, Default)]
struct Order {
    /// Direction that replaces the present one; `None` if it stays.
    direction: Option<Direction>,
    /// File for the packets that are lost from now on; `None` if nothing changes.
    losses: Option<PcapFile>,
}

impl Orders {
    fn get(&self) -> MutexGuard<'_, Order> {
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
            let orders: Arc<Orders> = Arc::default();
            let mover = Mover {
                from: Arc::clone(from),
                to: Arc::clone(to),
                pipe: Pipe::new(direction.clone(), seed),
                orders: Arc::clone(&orders),
                losses: None,
                leaving: VecDeque::new(),
            };
            let emulator = Emulator::start(name, mover)?;
            Ok(OneWay { emulator, orders })
        };
        Ok(Self {
            up: start("link-up", &near, &far, &link.up, seed)?,
            // Another seed, so that the directions do not lose the same packets.
            down: start("link-down", &far, &near, &link.down, !seed)?,
        })
    }

    /// Becomes another link for the packets that come from now on.
    pub(super) fn become_link(&self, link: &Link) {
        self.up.orders.get().direction = Some(link.up.clone());
        self.down.orders.get().direction = Some(link.down.clone());
    }

    /// Begins a file for each direction, with the packets that do not arrive as they were sent from now on.
    pub(super) fn record_losses(&self, up: &Path, down: &Path) -> Result<(), Error> {
        for (one_way, path) in [(&self.up, up), (&self.down, down)] {
            let file = PcapFile::create(path).map_err(|source| Error::Capture {
                file: path.to_owned(),
                source,
            })?;
            one_way.orders.get().losses = Some(file);
        }
        Ok(())
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
    orders: Arc<Orders>,
    /// File for the packets that do not arrive as they were sent, if they are recorded.
    losses: Option<PcapFile>,
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
        let order = std::mem::take(&mut *self.orders.get());
        if let Some(direction) = order.direction {
            self.pipe.become_direction(direction, now);
        }
        self.losses = order.losses.or(self.losses.take());
        let bytes = (frame.len() - HEADER) as u64;
        let fate = self.pipe.arrive(now, bytes);
        let intact = matches!(
            fate,
            Fate::Delivered {
                wrong_bit: None,
                ..
            }
        );
        if !intact && let Some(file) = &mut self.losses {
            let at = SystemTime::now().duration_since(UNIX_EPOCH);
            // The link goes on without its record.
            if let Err(error) = file.add(at.unwrap_or_default(), frame.clone()) {
                tracing::error!(%error, "lost packets can no longer be recorded");
                self.losses = None;
            }
        }
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
