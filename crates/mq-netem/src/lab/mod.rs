//! Hosts on one machine, and emulated links between them: network namespaces that end with the
//! process, however it ends.
//!
//! ```text
//!   host "pub"                 the process's own namespace               host "broker"
//!   10.77.0.1 mq0 ====veth==== w0 --[ Pipe up ]--> w1 ====veth==== mq0 10.77.0.2
//!                                 <-[ Pipe down ]--
//! ```
//!
//! A lab has no names in the file system, so there is nothing to clean up: a namespace is gone with the last
//! process, socket and handle in it.

mod awake;
mod capture;
mod contain;
mod emulator;
mod namespace;
mod packet;
mod pcap;
mod priority;
mod radio;
mod signal;
mod wire;

use std::{
    fs::File,
    io,
    path::Path,
    process::{Command, ExitStatus},
    time::Duration,
};

use crate::{Addresses, Error, Link, LinkReport, Medium, MediumReport};
pub use capture::Capture;
pub use namespace::Host;
use namespace::{Interface, make_veth};
pub use priority::run_early;
use radio::Radio;
use wire::Wire;

/// Hosts and the links between them.
#[derive(Debug, Default)]
pub struct Lab {
    wires: Vec<(Addresses, Wire)>,
    airs: Vec<Radio>,
    _awake: Option<File>,
}

impl Lab {
    /// Moves this process into a network of its own, where it may make others. An ordinary user gets a user
    /// namespace, too.
    ///
    /// Call it first in `main`: the system refuses a process that has threads. Where it is permitted,
    /// processors stay awake as long as the lab lives.
    ///
    /// # Errors
    /// If the system forbids it; the error says which setting does.
    pub fn enter() -> Result<Self, Error> {
        let awake = awake::stay_awake();
        namespace::enter()?;
        Ok(Self {
            _awake: awake,
            ..Self::default()
        })
    }

    /// Connects two hosts by a link whose chances are drawn from `seed`. The `near` host is the one
    /// that [`Link::up`] leads away from.
    ///
    /// # Errors
    /// If an interface cannot be made.
    pub fn connect(
        &mut self,
        near: &Host,
        far: &Host,
        link: &Link,
        seed: u64,
    ) -> Result<Addresses, Error> {
        let number = self.next_network()?;
        let ends = [(near, 1), (far, 2)].map(|(host, end)| (host, Interface::new(number, end)));
        let [near_wire, far_wire] = [0, 1].map(|end| make_veth(&ends, end));
        let wire = Wire::start(near_wire?, far_wire?, link, seed)?;
        let addresses = Addresses {
            near: ends[0].1.address,
            far: ends[1].1.address,
        };
        self.wires.push((addresses, wire));
        Ok(addresses)
    }

    /// Makes another link of the one with these addresses, for packets that come from now on: an outage, a partition in
    /// one direction, a longer way. Packets that are under way still arrive. The times of
    /// [`Direction::changes`](crate::Direction::changes) count from when the hosts were connected.
    ///
    /// # Errors
    /// If this lab has no link with these addresses.
    pub fn change(&self, addresses: Addresses, link: &Link) -> Result<(), Error> {
        let step = "change a link that this lab has not made";
        self.wire(addresses, step)?.become_link(link);
        Ok(())
    }

    /// Begins a pcap file for each direction of the link with these addresses, with the packets that do not arrive as they
    /// were sent from now on, each at the time at which the link lost it. What the link duplicates or reorders arrives.
    ///
    /// # Errors
    /// If this lab has no link with these addresses, or a file cannot be created.
    pub fn record_losses(&self, addresses: Addresses, up: &Path, down: &Path) -> Result<(), Error> {
        let step = "record the losses of a link that this lab has not made";
        self.wire(addresses, step)?.record_losses(up, down)
    }

    fn wire(&self, addresses: Addresses, step: &'static str) -> Result<&Wire, Error> {
        let mut wires = self.wires.iter();
        let wire = wires.find(|(of, _)| *of == addresses);
        wire.map(|(_, wire)| wire).ok_or(Error::Setup {
            step,
            source: io::ErrorKind::NotFound.into(),
        })
    }

    /// Lets `host` reach the far end of its link `from` through its link `to` from now on, under its address there. Its
    /// address on `from` is gone, as when a phone leaves one access point for another network.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn hand_over(host: &Host, from: Addresses, to: Addresses) -> Result<(), Error> {
        namespace::hand_over(host, from, to).map_err(|source| Error::Setup {
            step: "hand a host over to another link",
            source,
        })
    }

    /// Lets the first and the last of `hosts` reach each other through those between them, which pass packets on
    /// (IPv4 forwarding). `legs` are the links between neighbours: the first host is the near end of the first leg, the
    /// second host its far end and the near end of the second leg, and so on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn pass_on(hosts: &[&Host], legs: &[Addresses]) -> Result<(), Error> {
        let (Some(first), Some(last)) = (legs.first(), legs.last()) else {
            return Ok(());
        };
        for (place, host) in hosts.iter().enumerate() {
            // The last leg and the first one lead straight to their ends.
            let ahead = legs.get(place).filter(|leg| leg.far != last.far);
            let ahead = ahead.map(|leg| (last.far, leg.far));
            let before = place.checked_sub(1).and_then(|before| legs.get(before));
            let back = before.filter(|leg| leg.near != first.near);
            let back = back.map(|leg| (first.near, leg.near));
            let ways: Vec<_> = ahead.into_iter().chain(back).collect();
            let is_between = (1..legs.len()).contains(&place);
            let set = namespace::route(host, &ways, is_between);
            set.map_err(|source| Error::Setup {
                step: "let hosts pass packets on",
                source,
            })?;
        }
        Ok(())
    }

    /// Connects stations and an access point by one radio channel whose chances are drawn from
    /// `seed`; returns each station's address with the access point's.
    ///
    /// # Errors
    /// If an interface cannot be made, or there are more than 253 stations.
    pub fn share(
        &mut self,
        stations: &[&Host],
        access_point: &Host,
        medium: &Medium,
        seed: u64,
    ) -> Result<Vec<Addresses>, Error> {
        let number = self.next_network()?;
        let hosts = stations.iter().copied().chain([access_point]);
        let ends: Vec<_> = hosts
            .zip(1..=254)
            .map(|(host, end)| (host, Interface::new(number, end)))
            .collect();
        if ends.len() <= stations.len() {
            return Err(too_many("put more than 253 stations on one channel"));
        }
        let antennas = (0..ends.len())
            .map(|end| Ok((make_veth(&ends, end)?, ends[end].1.mac)))
            .collect::<Result<Vec<_>, Error>>()?;
        self.airs.push(Radio::start(&antennas, medium, seed)?);
        let far = ends[stations.len()].1.address;
        let near = ends[..stations.len()].iter().map(|(_, end)| end.address);
        Ok(near.map(|near| Addresses { near, far }).collect())
    }

    fn next_network(&self) -> Result<u8, Error> {
        u8::try_from(self.wires.len() + self.airs.len())
            .map_err(|_| too_many("make more than 256 links"))
    }

    /// Runs a command to its end in this lab's own network, where the links' inner ends are. The command is root
    /// there. All that it starts ends with it, and it ends with this process, however this process ends.
    ///
    /// The command is the first process of a process namespace, which the system protects from signals that it
    /// does not handle: let it start the wanted program.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn run(&self, command: Command) -> io::Result<ExitStatus> {
        contain::run(command)
    }

    /// Returns the report of each link so far, in the order in which the links were made.
    #[must_use]
    pub fn reports(&self) -> Vec<LinkReport> {
        self.wires.iter().map(|(_, wire)| wire.report()).collect()
    }

    /// Returns the report of each shared medium so far, in the order in which the media were made.
    #[must_use]
    pub fn medium_reports(&self) -> Vec<MediumReport> {
        self.airs.iter().map(Radio::report).collect()
    }

    /// Returns the CPU time of the emulator's own threads so far, without the work under test.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let wires = self.wires.iter().map(|(_, wire)| wire.cpu_time());
        wires.chain(self.airs.iter().map(Radio::cpu_time)).sum()
    }
}

fn too_many(step: &'static str) -> Error {
    Error::Setup {
        step,
        source: io::ErrorKind::InvalidInput.into(),
    }
}
