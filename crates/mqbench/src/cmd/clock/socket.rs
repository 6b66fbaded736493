//! Datagrams with their times of arrival.

use std::{io, net::SocketAddr};

use tokio::{io::Interest, net::UdpSocket};

use crate::clock::WallClock;

/// A socket that stamps arriving datagrams. On Linux the stamp is the kernel's (`SO_TIMESTAMPNS`), which does not
/// depend on when this program is scheduled; elsewhere it is the time of reading.
pub(super) struct Stamped {
    socket: UdpSocket,
    clock: WallClock,
}

/// A received datagram.
pub(super) struct Arrival {
    pub(super) length: usize,
    pub(super) from: SocketAddr,
    /// Time of arrival by this process's clock, in nanoseconds since 1970.
    pub(super) at_ns: u64,
}

impl Stamped {
    pub(super) fn new(socket: UdpSocket, clock: WallClock) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        nix::sys::socket::setsockopt(
            &socket,
            nix::sys::socket::sockopt::ReceiveTimestampns,
            &true,
        )?;
        Ok(Self { socket, clock })
    }

    /// Returns the socket, to send with.
    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Waits for the next datagram. Cancel-safe.
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Arrival> {
        let (length, from, system_ns) = self
            .socket
            .async_io(Interest::READABLE, || receive(&self.socket, buffer))
            .await?;
        Ok(Arrival {
            length,
            from,
            at_ns: self.clock.at(system_ns),
        })
    }
}

/// Reads the next datagram and the system's time of its arrival; `WouldBlock` if none has arrived.
#[cfg(target_os = "linux")]
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, u64)> {
    use std::os::fd::AsRawFd as _;

    use nix::sys::{
        socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg},
        time::TimeSpec,
    };

    use crate::clock::{nanoseconds, system_ns};

    let mut space = nix::cmsg_space!(TimeSpec);
    let mut parts = [io::IoSliceMut::new(buffer)];
    let fd = socket.as_raw_fd();
    let message = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut space), MsgFlags::empty())?;
    let stamp = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(at) => Some(nanoseconds(at.into())),
        _ => None,
    });
    let from = message.address.and_then(|address| {
        let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from(*v4));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::from(*v6)))
    });
    let from = from.ok_or_else(|| io::Error::other("a datagram has no sender"))?;
    // The kernel stamps only datagrams that arrive after the request; an earlier one has the time of reading.
    Ok((message.bytes, from, stamp.unwrap_or_else(system_ns)))
}

/// Reads the next datagram and the system's time of its arrival; `WouldBlock` if none has arrived.
#[cfg(not(target_os = "linux"))]
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, u64)> {
    let (length, from) = socket.try_recv_from(buffer)?;
    Ok((length, from, crate::clock::system_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_datagram_is_stamped_between_its_sending_and_its_reading() {
        let bind = || UdpSocket::bind("127.0.0.1:0");
        let receiver = Stamped::new(bind().await.unwrap(), WallClock::default()).unwrap();
        let sender = bind().await.unwrap();
        let to = receiver.socket().local_addr().unwrap();
        let before = receiver.now_ns();
        sender.send_to(b"time?", to).await.unwrap();
        let mut buffer = [0; 16];
        let arrival = receiver.receive(&mut buffer).await.unwrap();
        let after = receiver.now_ns();
        assert_eq!(&buffer[..arrival.length], b"time?");
        assert_eq!(arrival.from, sender.local_addr().unwrap());
        assert!(
            (before..=after).contains(&arrival.at_ns),
            "{before} {after}"
        );
    }
}
