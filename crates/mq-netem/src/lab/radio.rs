//! A radio channel that hosts share: one emulator for all of them.

use std::{
    io,
    time::{Duration, Instant},
};

use super::{
    emulator::{Clock, Emulation, Emulator},
    packet::{Frame, HEADER, PacketSocket},
};
use crate::{Channel, Error, Medium, MediumReport, StationCounts};

/// A shared medium at work.
#[derive(Debug)]
pub(super) struct Radio {
    emulator: Emulator<Counts>,
    began: Instant,
}

/// Numbers of frames by station and fate, and the time for which transmissions kept the channel.
#[derive(Clone, Debug)]
struct Counts {
    stations: Vec<StationCounts>,
    in_use: Duration,
}

impl Radio {
    /// Moves frames between these interfaces of this namespace as the medium says. Each interface comes with its
    /// host's hardware address.
    pub(super) fn start(
        stations: &[(u32, [u8; 6])],
        medium: &Medium,
        seed: u64,
    ) -> Result<Self, Error> {
        let antenna = |&(interface, address): &(u32, [u8; 6])| {
            let socket = PacketSocket::open(interface).map_err(Error::no_emulator)?;
            Ok(Antenna { socket, address })
        };
        let shared = Shared {
            channel: Channel::new(medium.clone(), stations.len(), seed),
            antennas: stations.iter().map(antenna).collect::<Result<_, Error>>()?,
        };
        Ok(Self {
            emulator: Emulator::start("medium", shared)?,
            began: Instant::now(),
        })
    }

    pub(super) fn report(&self) -> MediumReport {
        let (Counts { stations, in_use }, timing) = self.emulator.report();
        MediumReport {
            stations,
            in_use,
            elapsed: self.began.elapsed(),
            timing,
        }
    }

    pub(super) fn cpu_time(&self) -> Duration {
        self.emulator.cpu_time()
    }
}

struct Shared {
    /// The radio channel that all stations share; it carries frames, each with the station that gets it.
    channel: Channel<(usize, Frame)>,
    antennas: Vec<Antenna>,
}

struct Antenna {
    socket: PacketSocket,
    address: [u8; 6],
}

impl Emulation for Shared {
    type Counts = Counts;

    fn receive(&mut self, clock: &Clock) -> io::Result<()> {
        for from in 0..self.antennas.len() {
            while let Some(frame) = self.antennas[from].socket.receive()? {
                let receiver = frame.get(HEADER..HEADER + 6);
                let to = receiver.and_then(|receiver| {
                    self.antennas
                        .iter()
                        .position(|antenna| antenna.address == receiver)
                });
                // Hosts know one another's addresses: no broadcast has to arrive.
                if let Some(to) = to {
                    let bytes = (frame.len() - HEADER) as u64;
                    self.channel.arrive(clock.now(), from, bytes, (to, frame));
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, clock: &Clock, mut late: impl FnMut(u64)) -> io::Result<()> {
        let mut sent = Ok(());
        let antennas = &self.antennas;
        self.channel.advance(clock.now(), |at, (to, frame)| {
            if sent.is_ok() {
                sent = antennas[to].socket.send(&frame);
                late(clock.now() - at);
            }
        });
        sent
    }

    fn next(&self) -> Option<u64> {
        self.channel.next()
    }

    fn inputs(&self) -> impl Iterator<Item = &PacketSocket> {
        self.antennas.iter().map(|antenna| &antenna.socket)
    }

    fn counts(&self) -> Counts {
        let stations = 0..self.antennas.len();
        let counts = |station| self.channel.counts(station);
        Counts {
            stations: stations.map(counts).collect(),
            in_use: self.channel.in_use(),
        }
    }
}
