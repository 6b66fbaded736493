//! Namespaces, and the interfaces in them.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::{
    Handle, LinkUnspec, LinkVeth, RouteMessageBuilder, new_connection,
    packet_route::{
        address::{AddressAttribute, AddressMessage},
        link::LinkAttribute,
        neighbour::NeighbourState,
    },
};

use super::Capture;
use crate::{Addresses, Error};

const MTU: u32 = 1500;

/// A host: a network namespace that ends with this value and with all processes and sockets in it.
#[derive(Debug)]
pub struct Host {
    namespace: File,
}

impl Host {
    /// Makes a host with a loopback interface and nothing else.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Self, Error> {
        let namespace = in_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            prepare()?;
            File::open("/proc/thread-self/ns/net")
        });
        let namespace = namespace.map_err(|source| Error::Setup {
            step: "make a network namespace",
            source,
        })?;
        Ok(Self { namespace })
    }

    /// Runs `work` in a thread in this host's network: sockets that `work` makes and processes that it starts
    /// belong to the host.
    ///
    /// # Errors
    /// If the thread cannot enter the network; else the error of `work`.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        in_thread(|| {
            setns(&self.namespace, CloneFlags::CLONE_NEWNET)?;
            work()
        })
    }

    /// Begins a pcap file with every packet that this host sends and receives.
    ///
    /// # Errors
    /// If the file cannot be made, or the system refuses.
    pub fn capture(&self, file: &Path) -> Result<Capture, Error> {
        Capture::start(self, file)
    }

    /// Moves this process to the host with this [`path`](Self::path). The [`Lab`](super::Lab) of the host may be
    /// in another process.
    ///
    /// Call it before there are threads: only the calling thread moves.
    ///
    /// # Errors
    /// If the system refuses, or there is no such host any more.
    pub fn move_into(path: &Path) -> io::Result<()> {
        setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
        Ok(())
    }

    /// Returns the path of the namespace for other processes of this machine; it is valid as long as this value lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let process = std::process::id();
        PathBuf::from(format!("/proc/{process}/fd/{}", self.namespace.as_raw_fd()))
    }
}

/// Runs `work` in a thread of its own, which may change its namespace without others noticing.
pub(super) fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    })
}

/// See [`Lab::enter`](super::Lab::enter).
pub(super) fn enter() -> Result<(), Error> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    if user.is_root() {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| forbidden(&error.into()))?;
    } else {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
            .map_err(|error| forbidden(&error.into()))?;
        // Root in this namespace alone: programs that are started here may do with its network what root
        // may, and files that they write belong to the user as before.
        let map = |file: &str, text: String| {
            std::fs::write(format!("/proc/self/{file}"), text).map_err(|error| forbidden(&error))
        };
        map("setgroups", "deny".to_owned())?;
        map("uid_map", format!("0 {user} 1"))?;
        map("gid_map", format!("0 {group} 1"))?;
    }
    prepare().map_err(|source| Error::Setup {
        step: "prepare the network namespace",
        source,
    })
}

/// Makes the error of a namespace that cannot be made, with the setting of the system that forbids it.
fn forbidden(error: &io::Error) -> Error {
    let is = |setting: &str, value: &str| {
        let path = format!("/proc/sys/{}", setting.replace('.', "/"));
        std::fs::read_to_string(path).is_ok_and(|found| found.trim() == value)
    };
    let allow = |setting: &str, value: &str| {
        format!(
            "this system keeps ordinary users from making namespaces: `sysctl -w \
             {setting}={value}` as root allows it, and as root this program works too"
        )
    };
    let problem = if is("kernel.apparmor_restrict_unprivileged_userns", "1") {
        allow("kernel.apparmor_restrict_unprivileged_userns", "0")
    } else if is("kernel.unprivileged_userns_clone", "0") {
        allow("kernel.unprivileged_userns_clone", "1")
    } else if is("user.max_user_namespaces", "0") {
        allow("user.max_user_namespaces", "10000")
    } else {
        format!("this system does not let the program make namespaces ({error}); as root it may")
    };
    Error::Namespaces { problem }
}

/// Sets the loopback up and switches IPv6 off: its neighbour discovery would add packets of its own.
fn prepare() -> io::Result<()> {
    // A kernel without IPv6 has nothing to switch off.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    netlink(async |handle| {
        let index = index_of(&handle, "lo").await?;
        let up = LinkUnspec::new_with_index(index).up().build();
        handle.link().set(up).execute().await?;
        Ok(())
    })
}

/// End of a network at one host: names and addresses of the interface pair.
#[derive(Debug)]
pub(super) struct Interface {
    name: String,
    wire: String,
    pub(super) address: Ipv4Addr,
    pub(super) mac: [u8; 6],
}

impl Interface {
    /// Makes the interface at an end of a network, whose ends are numbered from 1.
    pub(super) fn new(network: u8, end: u8) -> Self {
        Self {
            name: format!("mq{network}"),
            wire: format!("w{network}-{end}"),
            address: Ipv4Addr::new(10, 77, network, end),
            // Locally administered.
            mac: [0x02, 0x4D, 0x51, 0, network, end],
        }
    }
}

/// Makes the pair of interfaces between the host at `own` and the emulator in this namespace; returns the
/// index of the emulator's end.
pub(super) fn make_veth(ends: &[(&Host, Interface)], own: usize) -> Result<u32, Error> {
    let (host, end) = &ends[own];
    let setup = |step| move |source| Error::Setup { step, source };
    let moved = format!("{}-host", end.wire);
    let index = in_thread(|| {
        netlink(async |handle| {
            let pair = LinkVeth::new(&end.wire, &moved).mtu(MTU).build();
            handle.link().add(pair).execute().await?;
            let wire = index_of(&handle, &end.wire).await?;
            let up = LinkUnspec::new_with_index(wire).mtu(MTU).up().build();
            handle.link().set(up).execute().await?;
            let peer = index_of(&handle, &moved).await?;
            // No bundles: the kernel would build large ones for a network card to split.
            let peer = LinkUnspec::new_with_index(peer)
                .name(&end.name)
                .mtu(MTU)
                .address(end.mac.to_vec())
                .append_extra_attribute(LinkAttribute::GsoMaxSegs(1))
                .setns_by_fd(host.namespace.as_fd().as_raw_fd())
                .build();
            handle.link().set(peer).execute().await?;
            Ok(wire)
        })
    })
    .map_err(setup("make a pair of interfaces"))?;
    host.run(|| {
        netlink(async |handle| {
            let own = index_of(&handle, &end.name).await?;
            let up = LinkUnspec::new_with_index(own).up().build();
            handle.link().set(up).execute().await?;
            handle
                .address()
                .add(own, IpAddr::V4(end.address), 24)
                .execute()
                .await?;
            // The neighbour is known from the start: a lost ARP packet would cost a second.
            for (_, other) in ends.iter().filter(|(_, other)| other.mac != end.mac) {
                handle
                    .neighbours()
                    .add(own, IpAddr::V4(other.address))
                    .link_layer_address(&other.mac)
                    .state(NeighbourState::Permanent)
                    .execute()
                    .await?;
            }
            Ok(())
        })
    })
    .map_err(setup("set up a host's interface"))?;
    Ok(index)
}

/// See [`Lab::hand_over`](super::Lab::hand_over).
pub(super) fn hand_over(host: &Host, from: Addresses, to: Addresses) -> io::Result<()> {
    host.run(|| {
        netlink(async |handle| {
            let addresses = addresses(&handle).await?;
            let holds = |wanted| {
                let found = addresses.iter().find(|(address, _)| *address == wanted);
                found.ok_or_else(|| format!("the host has no address {wanted}"))
            };
            let (_, old) = holds(from.near)?;
            let (_, new) = holds(to.near)?;
            let way = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(from.far, 32)
                .gateway(to.far)
                .output_interface(new.header.index)
                .build();
            handle.route().add(way).execute().await?;
            handle.address().del(old.clone()).execute().await?;
            Ok(())
        })
    })
}

/// Leads the host to each destination by a neighbour's address, and lets it pass on what is for others; see
/// [`Lab::pass_on`](super::Lab::pass_on).
pub(super) fn route(host: &Host, ways: &[(Ipv4Addr, Ipv4Addr)], passes_on: bool) -> io::Result<()> {
    host.run(|| {
        if passes_on {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        }
        netlink(async |handle| {
            for (destination, neighbour) in ways {
                let way = RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(*destination, 32)
                    .gateway(*neighbour)
                    .build();
                handle.route().add(way).execute().await?;
            }
            Ok(())
        })
    })
}

/// Lists the IPv4 addresses of this namespace, with the kernel's messages.
async fn addresses(handle: &Handle) -> Result<Vec<(Ipv4Addr, AddressMessage)>, Refused> {
    use futures_util::TryStreamExt as _;

    let found = handle.address().get().execute();
    let messages: Vec<AddressMessage> = found.try_collect().await?;
    let address = |message: AddressMessage| {
        let address = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
                _ => None,
            });
        Some((address?, message))
    };
    Ok(messages.into_iter().filter_map(address).collect())
}

/// Error of a request to the kernel, with its reason.
type Refused = Box<dyn std::error::Error + Send + Sync>;

async fn index_of(handle: &Handle, name: &str) -> Result<u32, Refused> {
    use futures_util::TryStreamExt as _;

    let mut found = handle.link().get().match_name(name.to_owned()).execute();
    let link = found.try_next().await?;
    link.map(|link| link.header.index)
        .ok_or_else(|| format!("there is no interface {name}").into())
}

/// Talks to the kernel from this thread's network namespace.
fn netlink<T>(work: impl AsyncFnOnce(Handle) -> Result<T, Refused>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let (connection, handle, _) = new_connection()?;
        let connection = tokio::spawn(connection);
        let result = work(handle).await;
        connection.abort();
        result.map_err(io::Error::other)
    })
}
