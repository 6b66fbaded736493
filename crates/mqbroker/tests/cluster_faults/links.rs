//! A machine for each node with its NATS server, one for all clients, and emulated links between them.

use std::{
    io,
    net::{Ipv4Addr, TcpStream},
    process::{Child, Command},
};

use mq_netem::{Addresses, Direction, Error, Host, Lab, Link, Loss, Probability};

use crate::plan::{Condition, LINKS, PAIRS};

/// Three machines, and their links.
pub(crate) struct Links {
    lab: Lab,
    machines: [Host; 3],
    /// Addresses of both ends of each link, in the order of [`LINKS`].
    addresses: [Addresses; LINKS],
}

impl Links {
    /// Makes it, and puts this process where the clients are. It is to have no threads yet.
    pub(crate) fn enter(seed: u64) -> Result<Self, Error> {
        let mut lab = Lab::enter()?;
        let machines = [Host::new()?, Host::new()?, Host::new()?];
        let clients = Host::new()?;
        let [a, b, c] = &machines;
        let ends = [
            (a, b),
            (a, c),
            (b, c),
            (&clients, a),
            (&clients, b),
            (&clients, c),
        ];
        let mut links = Vec::new();
        for (n, (near, far)) in (0..).zip(ends) {
            links.push(lab.connect(near, far, &Link::default(), seed.wrapping_add(n))?);
        }
        let inside = Host::move_into(&clients.path());
        inside.map_err(|source| Error::Setup {
            step: "go where the clients are",
            source,
        })?;
        Ok(Self {
            lab,
            machines,
            addresses: links.try_into().expect("a link for each pair of ends"),
        })
    }

    /// Returns the address under which clients know a machine.
    pub(crate) fn address(&self, machine: usize) -> Ipv4Addr {
        self.addresses[PAIRS.len() + machine].far
    }

    /// Returns the address under which another machine, or the same one, knows a machine.
    pub(crate) fn seen_from(&self, other: usize, machine: usize) -> Ipv4Addr {
        let ends = (other.min(machine), other.max(machine));
        match PAIRS.iter().position(|pair| *pair == ends) {
            None => Ipv4Addr::LOCALHOST,
            Some(link) if machine < other => self.addresses[link].near,
            Some(link) => self.addresses[link].far,
        }
    }

    /// Starts a program on a machine.
    pub(crate) fn start(&self, machine: usize, command: &mut Command) -> io::Result<Child> {
        self.machines[machine].run(|| command.spawn())
    }

    /// Connects within a machine.
    pub(crate) fn connect(&self, machine: usize, port: u16) -> io::Result<TcpStream> {
        self.machines[machine].run(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)))
    }

    /// Lets a link be like this from now on.
    pub(crate) fn set(&self, link: usize, condition: Condition) {
        let lost = |percent: u8| Direction {
            loss: Loss::Bernoulli(Probability::new(f64::from(percent) / 100.0).unwrap()),
            ..Direction::default()
        };
        let [up, down] = match condition {
            Condition::Well => [0, 0].map(lost),
            Condition::Cut { up, down } => [up, down].map(|cut| lost(if cut { 100 } else { 0 })),
            Condition::Bad { loss, delay } => [(); 2].map(|()| Direction {
                delay,
                jitter: delay / 4,
                ..lost(loss)
            }),
        };
        let link_then = Link {
            up,
            down,
            ..Link::default()
        };
        self.lab.change(self.addresses[link], &link_then).unwrap();
    }
}
