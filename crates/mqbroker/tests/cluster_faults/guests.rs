//! A network for nodes and clients, and three NATS servers with clocks of their own, each in a guest: a kernel of
//! User-Mode Linux.
//!
//! ```text
//!   nodes 10.77.0.1, .2, .3      bridge mq        a namespace     the guest's kernel
//!   clients                      guest0 ====veth==== eth0 ---------- vec0 10.77.0.11
//!                                guest1 ====veth==== eth0 ---------- vec0 10.77.0.12
//!                                guest2 ====veth==== eth0 ---------- vec0 10.77.0.13
//! ```
//!
//! A guest's kernel takes the frames of an interface from a packet socket (`CAP_NET_RAW`). So it needs no /dev/net/tun,
//! which some systems keep for root. The interface is in a namespace without an address, which answers nothing itself.

use std::{
    io::{self, Write as _},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use mq_netem::{Error, Host, Lab};
use mq_testkit::Uml;

use crate::guest::{FOLDER, GUEST, PROGRAM};

/// The system's program, and not Busybox's.
const IP: &str = "/usr/sbin/ip";

/// Guests, and the network of all others.
pub(crate) struct Guests {
    _lab: Lab,
    pub(crate) uml: Uml,
    init: PathBuf,
    hosts: [Host; 3],
}

impl Guests {
    /// Makes the network, and puts this process into it. It is to have no threads yet.
    pub(crate) fn enter(uml: Uml) -> Result<Self, Error> {
        let lab = Lab::enter()?;
        let hosts = [Host::new()?, Host::new()?, Host::new()?];
        let setup = |source| Error::Setup {
            step: "make a bridge",
            source,
        };
        let nodes = (0..3).map(|node| format!("address add {}/24 dev mq\n", Self::node(node)));
        let nodes: String = nodes.collect();
        batch(&format!("link add mq type bridge\nlink set mq up\n{nodes}")).map_err(setup)?;
        for (n, host) in hosts.iter().enumerate() {
            let namespace = host.path().display().to_string();
            batch(&format!(
                "link add guest{n} type veth peer name eth0 netns {namespace}\n\
                 link set guest{n} master mq up\n"
            ))
            .map_err(setup)?;
            host.run(|| batch("link set eth0 up\n")).map_err(setup)?;
        }
        let own = std::env::current_exe().map_err(setup)?;
        Ok(Self {
            _lab: lab,
            init: uml.stage(&own),
            uml,
            hosts,
        })
    }

    pub(crate) fn node(node: usize) -> Ipv4Addr {
        address(1 + node)
    }

    pub(crate) fn server(server: usize) -> Ipv4Addr {
        address(11 + server)
    }

    /// Makes the command of the kernel of a guest that serves.
    pub(crate) fn serve(&self, server: usize, program: &Path, folder: &Path) -> Command {
        let mut command = self.uml.command(&self.init, &["net_raw"]);
        command
            // Frames come in bundles, as other kernels send them.
            .arg("vec0:transport=raw,ifname=eth0,gro=1")
            .arg(format!("{GUEST}={server}"))
            .arg(format!("{PROGRAM}={}", program.display()))
            .arg(format!("{FOLDER}={}", folder.display()));
        command
    }

    pub(crate) fn start(&self, server: usize, command: &mut Command) -> io::Result<Child> {
        self.hosts[server].run(|| command.spawn())
    }
}

fn address(number: usize) -> Ipv4Addr {
    let number = u8::try_from(number).expect("there are three of each");
    Ipv4Addr::new(10, 77, 0, number)
}

/// Commands of `ip`.
pub(crate) fn batch(commands: &str) -> io::Result<()> {
    let mut command = Command::new(IP);
    command.args(["-batch", "-"]).stdin(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(commands.as_bytes())?;
    }
    let status = child.wait()?;
    let failed = || io::Error::other(format!("ip: {status}"));
    status.success().then_some(()).ok_or_else(failed)
}
