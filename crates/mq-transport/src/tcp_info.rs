//! Counters that the kernel keeps of a TCP connection: `TCP_INFO`.

use std::{os::fd::AsRawFd, time::Duration};

use crate::LinkStats;

/// The bit of `tcpi_options` for data in a SYN that was acknowledged (`TCPI_OPT_SYN_DATA` of linux/tcp.h).
const SYN_DATA: u8 = 32;

/// Reads the kernel's counters of a connection, where the kernel has them; the others are at their defaults.
pub(crate) fn of(stream: &impl AsRawFd) -> LinkStats {
    let Some(info) = read(stream.as_raw_fd()) else {
        return LinkStats::default();
    };
    // Offsets in `struct tcp_info` of linux/tcp.h; a kernel only ever appends to it.
    let rtt = info.u32(68);
    let window = info.u32(80).zip(info.u32(16));
    let options = info.field::<1>(5);
    LinkStats {
        rtt: rtt.map(|micros| Duration::from_micros(micros.into())),
        congestion_window: window.map(|(segments, size)| u64::from(segments) * u64::from(size)),
        packets_retransmitted: info.u32(100).map(u64::from),
        data_in_syn: options.map(|[bits]| bits & SYN_DATA != 0),
        wire_bytes_received: info.u64(128),
        packets_sent: info.u32(136).map(u64::from),
        packets_received: info.u32(140).map(u64::from),
        wire_bytes_sent: info.u64(200),
        ..LinkStats::default()
    }
}

/// Returns the bytes in the send buffer of a TCP socket that its peer has not acknowledged, sent or not; `None` where the
/// system does not say.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no safe crate wraps ioctl(TIOCOUTQ)")]
pub(crate) fn unacknowledged(stream: &impl AsRawFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ writes one int, to which the pointer leads; a bad descriptor makes it return an error.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    u64::try_from(bytes).ok().filter(|_| result == 0)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn unacknowledged(_stream: &impl AsRawFd) -> Option<u64> {
    None
}

/// The bytes of a `struct tcp_info`, as many as this kernel gives.
struct Info {
    bytes: [u8; 256],
    len: usize,
}

impl Info {
    fn field<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let bytes = self.bytes[..self.len].get(offset..offset + N)?;
        bytes.try_into().ok()
    }

    fn u32(&self, offset: usize) -> Option<u32> {
        self.field(offset).map(u32::from_ne_bytes)
    }

    fn u64(&self, offset: usize) -> Option<u64> {
        self.field(offset).map(u64::from_ne_bytes)
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no safe crate wraps getsockopt(TCP_INFO)")]
fn read(socket: std::os::fd::RawFd) -> Option<Info> {
    let mut bytes = [0; 256];
    let mut len = libc::socklen_t::try_from(bytes.len()).ok()?;
    // SAFETY: `bytes` is writable for the `len` bytes that the kernel is told of, both outlive the
    // call, and any bytes at all are a valid [u8; 256]. A bad descriptor makes it return an error.
    let result = unsafe {
        libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let len = usize::try_from(len).ok()?.min(bytes.len());
    (result == 0).then_some(Info { bytes, len })
}

#[cfg(not(target_os = "linux"))]
fn read(_socket: std::os::fd::RawFd) -> Option<Info> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn the_kernel_counts_what_was_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();

        let stats = of(&client);
        assert_eq!(stats.wire_bytes_sent, Some(1000));
        assert!(stats.packets_sent >= Some(2), "{stats:?}");
        assert!(
            stats.rtt.is_some() && stats.congestion_window > Some(1000),
            "{stats:?}"
        );
        assert_eq!(of(&server).wire_bytes_received, Some(1000));
    }

    #[test]
    fn a_socket_of_another_kind_tells_nothing() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(read(socket.as_raw_fd()).is_none());
    }
}
