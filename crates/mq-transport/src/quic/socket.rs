//! UDP sockets for QUIC.

use std::{io, net::SocketAddr};

use socket2::SockRef;

use crate::{
    SocketOptions,
    socket::{bind_udp, new_udp},
};

/// Binds up to `count` sockets at one address, over which the kernel spreads the clients. At least one; no more where
/// the kernel does not spread them, and fewer where the system lacks something.
pub(crate) fn bind_udp_group(
    local: SocketAddr,
    options: &SocketOptions,
    count: usize,
) -> io::Result<Vec<std::net::UdpSocket>> {
    let first = bind_udp(local, options)?;
    let local = first.local_addr()?;
    let mut sockets = vec![first];
    // On other systems one socket would receive everything.
    #[cfg(target_os = "linux")]
    // Only after the bind: a port of another process that would share it is still in use.
    if SockRef::from(&sockets[0]).set_reuse_port(true).is_ok() {
        let more = || {
            let socket = new_udp(local, options)?;
            socket.set_reuse_port(true)?;
            socket.bind(&local.into())?;
            Ok::<_, io::Error>(socket.into())
        };
        sockets.extend((1..count).map_while(|_| more().ok()));
    }
    if options.receive_buffer.is_none() {
        for socket in &sockets {
            // The kernel gives as much as it allows; less is not an error.
            let _ = SockRef::from(socket).set_recv_buffer_size(SERVER_RECEIVE_BUFFER);
        }
    }
    Ok(sockets)
}

/// Bytes that a server's UDP socket should hold until they are read. The kernel's default holds some 90
/// datagrams: a crowd of new clients would fill it, and the datagrams of all others would be lost. Linux
/// allows up to `net.core.rmem_max`.
const SERVER_RECEIVE_BUFFER: usize = 4 << 20;

/// Turns off receive offload on a socket that quinn has turned it on for.
#[cfg(target_os = "linux")]
pub(crate) fn disable_udp_gro(socket: &std::net::UdpSocket) -> io::Result<()> {
    nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::UdpGroSegment, &false)
        .map_err(io::Error::from)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn disable_udp_gro(_socket: &std::net::UdpSocket) -> io::Result<()> {
    Ok(())
}
