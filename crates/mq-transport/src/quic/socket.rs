//! What QUIC asks of its UDP sockets.

use std::{io, net::SocketAddr};

use socket2::SockRef;

use crate::{
    SocketOptions,
    socket::{bind_udp, new_udp},
};

/// Sockets for as many endpoints at one address, among which the kernel shares out the clients; fewer where
/// it does not or lacks something, at least one.
pub(crate) fn bind_udp_group(
    local: SocketAddr,
    options: &SocketOptions,
    count: usize,
) -> io::Result<Vec<std::net::UdpSocket>> {
    let first = bind_udp(local, options)?;
    let local = first.local_addr()?;
    let mut sockets = vec![first];
    // Elsewhere all that comes would go to one of them.
    #[cfg(target_os = "linux")]
    // Only now that it is bound: a port that another process would share is in use all the same.
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
            hold_more(socket);
        }
    }
    Ok(sockets)
}

/// What a server's UDP socket is to hold until it is read.
const SERVER_RECEIVE_BUFFER: usize = 4 << 20;

/// Has a server's UDP socket hold more than the kernel's default, some 90 datagrams: what a crowd of new
/// clients sends would fill it, and what all others send would be lost. The kernel gives what it
/// allows, `net.core.rmem_max` on Linux; less is no mistake.
fn hold_more(socket: &std::net::UdpSocket) {
    let _ = SockRef::from(socket).set_recv_buffer_size(SERVER_RECEIVE_BUFFER);
}

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
