//! Sockets with their options, and host names.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::{Address, CongestionControl, Error, SocketOptions, stream_socket::StreamSocket};

/// Resolves the name of a host to all its addresses, in the resolver's order.
pub(crate) async fn resolve(address: &Address) -> Result<Vec<SocketAddr>, Error> {
    let unknown = |source| Error::Resolve {
        host: address.host.clone(),
        source,
    };
    let found = tokio::net::lookup_host((address.host.as_str(), address.port)).await;
    let found: Vec<_> = found.map_err(unknown)?.collect();
    if found.is_empty() {
        return Err(unknown(io::Error::other("the socket has no address")));
    }
    Ok(found)
}

/// Connects over TCP to one address of a host.
pub(crate) async fn connect_tcp(
    address: &Address,
    peer: SocketAddr,
    local: Option<IpAddr>,
    congestion: Option<CongestionControl>,
    options: &SocketOptions,
) -> Result<TcpStream, Error> {
    let unreachable = |source| Error::Unreachable {
        address: address.clone(),
        source,
    };
    if local.is_some_and(|local| local.is_ipv4() != peer.is_ipv4()) {
        let other = io::Error::other("the local address is of the other IP version");
        return Err(unreachable(other));
    }
    let socket = match new_tcp(peer, congestion, options) {
        // A system without this IP version may still reach another address of the host.
        Err(Error::Io(error)) if lacks_version(&error) => return Err(unreachable(error)),
        made => made?,
    };
    if options.tcp_fast_open {
        fast_open::connect(&socket)?;
    }
    if let Some(local) = local {
        socket.bind(&SocketAddr::new(local, 0).into())?;
    }
    let socket = tokio::net::TcpSocket::from_std_stream(socket.into());
    socket.connect(peer).await.map_err(unreachable)
}

/// Returns true if the system has no sockets of the IP version.
pub(crate) fn lacks_version(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Listens on TCP at the first of `addresses` that can be bound.
pub(crate) fn listen_tcp(
    address: &Address,
    local: SocketAddr,
    backlog: u32,
    congestion: Option<CongestionControl>,
    options: &SocketOptions,
) -> Result<TcpListener, Error> {
    // Accepted sockets inherit the options of the listening one.
    let socket = new_tcp(local, congestion, options)?;
    if options.tcp_fast_open {
        fast_open::listen(&socket, backlog)?;
    }
    let listen = || -> io::Result<TcpListener> {
        socket.set_reuse_address(true)?;
        socket.bind(&local.into())?;
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        TcpListener::from_std(socket.into())
    };
    listen().map_err(|error| listen_error(address, error))
}

/// Moves a connected socket to the runtime of the caller.
pub(crate) fn move_here<S: StreamSocket>(stream: &mut S) -> io::Result<()> {
    // A second descriptor, as the first belongs to the other runtime until it is closed.
    *stream = S::of_this_runtime(stream.as_fd().try_clone_to_owned()?)?;
    Ok(())
}

/// Binds a UDP socket for a QUIC endpoint.
pub(crate) fn bind_udp(
    local: SocketAddr,
    options: &SocketOptions,
) -> io::Result<std::net::UdpSocket> {
    let socket = new_udp(local, options)?;
    socket.bind(&local.into())?;
    Ok(socket.into())
}

pub(crate) fn new_udp(local: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
    let socket = new_socket(local, Type::DGRAM, Protocol::UDP, options)?;
    prepare(&socket, local, options)?;
    Ok(socket)
}

/// Binds a UDP socket that takes datagrams, and news of them, from `peer` alone. Sends nothing.
pub(crate) fn connect_udp(
    peer: SocketAddr,
    local: Option<IpAddr>,
    options: &SocketOptions,
) -> io::Result<std::net::UdpSocket> {
    let socket = bind_udp(local_for(peer, local), options)?;
    socket.connect(peer)?;
    Ok(socket)
}

/// Returns the local address on which to bind a socket for `peer`, with port 0: `local`, or the wildcard address
/// if `local` is of the other IP version.
pub(crate) fn local_for(peer: SocketAddr, local: Option<IpAddr>) -> SocketAddr {
    let wildcard = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let local = local.filter(|local| local.is_ipv4() == peer.is_ipv4());
    SocketAddr::new(local.unwrap_or(wildcard), 0)
}

pub(crate) fn listen_error(address: &Address, source: io::Error) -> Error {
    let address = address.clone();
    if source.kind() == io::ErrorKind::AddrInUse {
        Error::PortInUse { address }
    } else {
        Error::Listen { address, source }
    }
}

fn new_tcp(
    address: SocketAddr,
    congestion: Option<CongestionControl>,
    options: &SocketOptions,
) -> Result<Socket, Error> {
    let socket = new_socket(address, Type::STREAM, Protocol::TCP, options)?;
    prepare(&socket, address, options)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(name) = congestion {
        set_congestion(&socket, name)?;
    }
    Ok(socket)
}

fn new_socket(
    address: SocketAddr,
    kind: Type,
    protocol: Protocol,
    options: &SocketOptions,
) -> io::Result<Socket> {
    let new = || Socket::new(Domain::for_address(address), kind, Some(protocol));
    match &options.network_namespace {
        Some(path) => in_namespace(path, new),
        None => new(),
    }
}

/// Runs `work` in the network namespace at `path`, on a thread of its own: a thread may stand in another namespace than
/// its process, and a socket stays where it was made.
#[cfg(target_os = "linux")]
fn in_namespace<T: Send>(
    path: &std::path::Path,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let entered = || {
        let namespace = std::fs::File::open(path)?;
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)?;
        work()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, entered)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    })
}

#[cfg(not(target_os = "linux"))]
fn in_namespace<T: Send>(
    _path: &std::path::Path,
    _work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

fn prepare(socket: &Socket, address: SocketAddr, options: &SocketOptions) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // `::` answers IPv4 as well, whatever net.ipv6.bindv6only says.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(())
}

/// TCP Fast Open of a socket that is not connected and does not listen yet.
#[cfg(target_os = "linux")]
mod fast_open {
    use std::{io, os::fd::AsRawFd as _};

    use nix::sys::socket::{setsockopt, sockopt::TcpFastOpenConnect};
    use socket2::Socket;

    use super::no_fast_open;
    use crate::Error;

    /// Lets `connect` return at once where the kernel has a cookie of the server: the SYN leaves with the first write.
    pub(super) fn connect(socket: &Socket) -> Result<(), Error> {
        setsockopt(socket, TcpFastOpenConnect, &true).map_err(|error| no_fast_open(error.into()))
    }

    /// Lets `accept` return connections whose first bytes came with a SYN and its cookie; `most` of them may be without the
    /// end of their handshake at once.
    #[expect(unsafe_code, reason = "no safe crate wraps setsockopt(TCP_FASTOPEN)")]
    pub(super) fn listen(socket: &Socket, most: u32) -> Result<(), Error> {
        let most = libc::c_int::try_from(most).unwrap_or(libc::c_int::MAX);
        // SAFETY: the pointer leads to an int, of which the length is told, and both outlive the call.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_FASTOPEN,
                (&raw const most).cast(),
                libc::socklen_t::try_from(size_of_val(&most)).unwrap_or_default(),
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(no_fast_open(io::Error::last_os_error()))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod fast_open {
    use std::io;

    use socket2::Socket;

    use super::no_fast_open;
    use crate::Error;

    pub(super) fn connect(_socket: &Socket) -> Result<(), Error> {
        Err(no_fast_open(io::ErrorKind::Unsupported.into()))
    }

    pub(super) fn listen(_socket: &Socket, _most: u32) -> Result<(), Error> {
        Err(no_fast_open(io::ErrorKind::Unsupported.into()))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for use with map_err")]
fn no_fast_open(error: io::Error) -> Error {
    Error::InvalidOption {
        option: "tcp_fast_open",
        value: "used".into(),
        remedy: format!("this system has no TCP Fast Open ({error})"),
    }
}

impl CongestionControl {
    /// Returns `true` if this process may use the algorithm over TCP. Linux lists the algorithms that users without
    /// `CAP_NET_ADMIN` may use in `net.ipv4.tcp_allowed_congestion_control`: the kernel's default and `reno`, unless
    /// the operator adds others.
    #[must_use]
    pub fn is_allowed(self) -> bool {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
        socket.is_ok_and(|socket| set_congestion(&socket, self).is_ok())
    }
}

#[cfg(target_os = "linux")]
fn set_congestion(socket: &Socket, name: CongestionControl) -> Result<(), Error> {
    socket
        .set_tcp_congestion(name.to_string().as_bytes())
        .map_err(|error| {
            // The kernel may have the congestion control and reserve it for root.
            let which = match error.raw_os_error() {
                Some(libc::ENOENT) => "available",
                Some(libc::EPERM) => "allowed",
                _ => return Error::Io(error),
            };
            let list = format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control");
            let available = std::fs::read_to_string(list)
                .map_or_else(|_| "others".into(), |names| names.trim().to_owned());
            Error::NoCongestionControl { name, available }
        })
}

#[cfg(not(target_os = "linux"))]
fn set_congestion(_socket: &Socket, name: CongestionControl) -> Result<(), Error> {
    Err(Error::NoCongestionControl {
        name,
        available: "no choice on this system".into(),
    })
}
