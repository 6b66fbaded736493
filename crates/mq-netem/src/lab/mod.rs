//! Hosts on one machine, and emulated links between them: network namespaces that end with the
//! process, however it ends.
//!
//! ```text
//!   host "pub"                 the process's own namespace               host "broker"
//!   10.77.0.1 mq0 ====veth==== w0 --[ Pipe up ]--> w1 ====veth==== mq0 10.77.0.2
//!                                 <-[ Pipe down ]--
//! ```
//!
//! Nothing of it has a name in the file system, so there is nothing to clean up: a namespace is gone
//! with the last process, socket and handle in it.

mod capture;
mod contain;
mod namespace;
mod packet;
mod wire;

use std::{
    io,
    net::Ipv4Addr,
    process::{Command, ExitStatus},
    time::Duration,
};

use crate::{Addresses, Error, Link, LinkReport};
pub use capture::Capture;
pub use namespace::Host;
use namespace::{Interface, make_veth};
use wire::Wire;

/// Hosts and the links between them.
#[derive(Debug, Default)]
pub struct Lab {
    wires: Vec<Wire>,
}

impl Lab {
    /// Moves this process into a network of its own, where it may make others; as an ordinary user
    /// with a user namespace of its own.
    ///
    /// Call it first in `main`: the system refuses it to a process that has threads.
    ///
    /// # Errors
    /// If the system forbids it; the error says which setting does.
    pub fn enter() -> Result<Self, Error> {
        namespace::enter()?;
        Ok(Self::default())
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
        let number = u8::try_from(self.wires.len()).map_err(|_| Error::Setup {
            step: "make more than 256 links",
            source: std::io::ErrorKind::InvalidInput.into(),
        })?;
        let ends = Addresses {
            near: Ipv4Addr::new(10, 77, number, 1),
            far: Ipv4Addr::new(10, 77, number, 2),
        };
        let near_end = Interface::new(number, 1, ends.near);
        let far_end = Interface::new(number, 2, ends.far);
        let near_wire = make_veth(near, &near_end, &far_end)?;
        let far_wire = make_veth(far, &far_end, &near_end)?;
        self.wires
            .push(Wire::start(near_wire, far_wire, link, seed)?);
        Ok(ends)
    }

    /// Runs a command to its end, in this lab's own network, where the links' inner ends are: it is
    /// root there. Whatever it starts ends with it, and it ends with this process, however that ends.
    ///
    /// The command is the first process of a process namespace, which the system protects from
    /// signals that it does not handle: let it start the program that is wanted.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run(&self, command: Command) -> io::Result<ExitStatus> {
        contain::run(command)
    }

    /// What happened on the links so far, in the order in which they were made.
    #[must_use]
    pub fn reports(&self) -> Vec<LinkReport> {
        self.wires.iter().map(Wire::report).collect()
    }

    /// CPU time that the emulator's own threads have used so far: not the work's under test.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        self.wires.iter().map(Wire::cpu_time).sum()
    }
}
