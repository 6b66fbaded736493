//! The network: where programs run, and under which addresses they reach each other.

use std::{
    io,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command},
};

use mq_netem::Error;
use mq_testkit::Uml;

use crate::{
    guests::Guests,
    links::Links,
    plan::{Condition, Process},
};

pub(crate) enum Net {
    Links(Links),
    Guests(Guests),
}

impl Net {
    /// Makes three machines with emulated links. This process is to have no threads yet.
    pub(crate) fn of_links(seed: u64) -> Result<Self, Error> {
        Links::enter(seed).map(Self::Links)
    }

    /// Makes NATS servers in guests, and all else in one network. This process is to have no threads yet.
    pub(crate) fn of_guests(uml: Uml) -> Result<Self, Error> {
        Guests::enter(uml).map(Self::Guests)
    }

    pub(crate) fn has_guests(&self) -> bool {
        matches!(self, Self::Guests(_))
    }

    /// Returns the address under which clients know a node.
    pub(crate) fn address(&self, node: usize) -> Ipv4Addr {
        match self {
            Self::Links(links) => links.address(node),
            Self::Guests(_) => Guests::node(node),
        }
    }

    /// Returns the address under which clients know a NATS server.
    pub(crate) fn server(&self, server: usize) -> Ipv4Addr {
        match self {
            Self::Links(links) => links.address(server),
            Self::Guests(_) => Guests::server(server),
        }
    }

    /// Returns the address under which another machine, or the same one, knows a machine's NATS server.
    pub(crate) fn server_from(&self, machine: usize, server: usize) -> Ipv4Addr {
        match self {
            Self::Links(links) => links.seen_from(machine, server),
            Self::Guests(_) => Guests::server(server),
        }
    }

    /// Makes a program known to guests, and returns where it is.
    pub(crate) fn stage(&self, program: PathBuf) -> PathBuf {
        match self {
            Self::Links(_) => program,
            Self::Guests(guests) => guests.uml.stage(&program),
        }
    }

    /// Makes a folder for a NATS server's files.
    pub(crate) fn make_store(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir(folder)?;
        if let Self::Guests(guests) = self {
            guests.uml.give(folder);
        }
        Ok(())
    }

    /// Returns the command that runs a NATS server with the files of that folder.
    pub(crate) fn serve(&self, server: usize, program: &Path, folder: &Path) -> Command {
        match self {
            Self::Links(_) => {
                let mut command = Command::new(program);
                let config = folder.join(format!("nats-{server}.conf"));
                command.arg("-c").arg(config);
                command
            }
            Self::Guests(guests) => guests.serve(server, program, folder),
        }
    }

    /// Starts a program where it belongs.
    pub(crate) fn start(&self, process: Process, command: &mut Command) -> io::Result<Child> {
        match (self, process) {
            (Self::Links(links), Process::Node(machine) | Process::Nats(machine)) => {
                links.start(machine, command)
            }
            (Self::Guests(_), Process::Node(_)) => command.spawn(),
            (Self::Guests(guests), Process::Nats(server)) => guests.start(server, command),
        }
    }

    /// Connects to a NATS server, whatever its links are like.
    pub(crate) fn connect(&self, server: usize, port: u16) -> io::Result<TcpStream> {
        match self {
            Self::Links(links) => links.connect(server, port),
            Self::Guests(_) => TcpStream::connect((Guests::server(server), port)),
        }
    }

    /// Lets a link be like this from now on, if there are links.
    pub(crate) fn set(&self, link: usize, condition: Condition) {
        if let Self::Links(links) = self {
            links.set(link, condition);
        }
    }
}
