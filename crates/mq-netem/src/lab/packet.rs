//! Whole frames from one interface and onto another: packet(7).

#![expect(
    unsafe_code,
    reason = "packet sockets are not in the standard library or nix"
)]

use std::{
    io, mem,
    os::fd::{AsFd as _, AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SetSockOpt as _, recvmsg, sockopt};

/// The header before each frame (`struct virtio_net_hdr`): whether the checksum is still to be computed, and
/// where it is.
pub(super) const HEADER: usize = 10;

/// More than any frame of the MTU, header included.
const FRAME: usize = 2048;

const NEEDS_CHECKSUM: u8 = 1;

/// The index that stands for every interface.
const ALL: u32 = 0;

/// A socket that reads and writes frames of one interface.
#[derive(Debug)]
pub(super) struct PacketSocket(OwnedFd);

/// A frame, and its header.
pub(super) type Frame = Box<[u8]>;

impl PacketSocket {
    /// Opens a socket for the emulator on the interface with this index. It reads arriving frames, and sends
    /// without a queue.
    pub(super) fn open(interface: u32) -> io::Result<Self> {
        let socket = Self::on(interface)?;
        socket.set(libc::PACKET_IGNORE_OUTGOING, 1)?;
        socket.set(libc::PACKET_QDISC_BYPASS, 1)?;
        socket.ask_for_room();
        Ok(socket)
    }

    /// Opens a socket that reads all frames in and out of all interfaces of this namespace.
    pub(super) fn listen() -> io::Result<Self> {
        let socket = Self::on(ALL)?;
        sockopt::ReceiveTimestampns.set(&socket.0, &true)?;
        socket.ask_for_room();
        Ok(socket)
    }

    /// Sets the size of the receive buffer. Root gets half a second of a fast link, other users as much as the
    /// system allows (`net.core.rmem_max`). Frames that do not fit are counted, see
    /// [`dropped`](Self::dropped).
    fn ask_for_room(&self) {
        const ROOM: usize = 64 << 20;
        if sockopt::RcvBufForce.set(&self.0, &ROOM).is_err() {
            let _ = sockopt::RcvBuf.set(&self.0, &ROOM);
        }
    }

    fn on(interface: u32) -> io::Result<Self> {
        let protocol = u16::try_from(libc::ETH_P_ALL)
            .map_err(io::Error::other)?
            .to_be();
        // SAFETY: no pointer is passed, and the descriptor has no other owner.
        let socket = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let fd = libc::socket(libc::AF_PACKET, kind, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Self(OwnedFd::from_raw_fd(fd))
        };
        socket.set(libc::PACKET_VNET_HDR, 1)?;
        // SAFETY: all zeros is a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
        address.sll_protocol = protocol;
        address.sll_ifindex = i32::try_from(interface).map_err(io::Error::other)?;
        // SAFETY: the pointer and the length are of one `sockaddr_ll` that outlives the call.
        let bound = unsafe {
            libc::bind(
                socket.0.as_raw_fd(),
                (&raw const address).cast(),
                socklen(size_of_val(&address)),
            )
        };
        check(bound)?;
        Ok(socket)
    }

    fn set(&self, option: i32, value: i32) -> io::Result<()> {
        // SAFETY: the pointer and the length are of one `i32` that outlives the call.
        let set = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                (&raw const value).cast(),
                socklen(size_of_val(&value)),
            )
        };
        check(set)
    }

    /// Reads the next frame; `None` if there is none now.
    pub(super) fn receive(&self) -> io::Result<Option<Frame>> {
        let mut buffer = [0; FRAME];
        match nix::unistd::read(&self.0, &mut buffer) {
            Ok(count) => Ok(Some(buffer[..count].into())),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::ENETDOWN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the next frame with the time at which the kernel saw it; `None` if there is none now.
    pub(super) fn receive_stamped(&self) -> io::Result<Option<(Duration, Frame)>> {
        let mut buffer = [0; FRAME];
        let mut space = nix::cmsg_space!(libc::timespec);
        let mut parts = [io::IoSliceMut::new(&mut buffer)];
        let fd = self.0.as_raw_fd();
        let message = match recvmsg::<()>(fd, &mut parts, Some(&mut space), MsgFlags::empty()) {
            Ok(message) => message,
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::ENETDOWN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stamp = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(at) => Some(at.into()),
            _ => None,
        });
        let bytes = message.bytes;
        let stamp = stamp.ok_or_else(|| io::Error::other("a frame has no time"))?;
        Ok(Some((stamp, buffer[..bytes].into())))
    }

    /// Returns the number of frames that came too fast and were not received, since the last call.
    pub(super) fn dropped(&self) -> io::Result<u32> {
        // SAFETY: all zeros is a valid `tpacket_stats`.
        let mut statistics: libc::tpacket_stats = unsafe { mem::zeroed() };
        let mut length = socklen(size_of_val(&statistics));
        // SAFETY: the pointers are to one `tpacket_stats` and to its length, and outlive the call.
        let got = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        check(got)?;
        Ok(statistics.tp_drops)
    }

    /// Sends a frame. It is lost if there is no room for it, as on any interface.
    pub(super) fn send(&self, frame: &Frame) -> io::Result<()> {
        match nix::unistd::write(&self.0, frame) {
            Ok(_) | Err(nix::errno::Errno::ENOBUFS | nix::errno::Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the descriptor to wait on for a frame.
    pub(super) fn readable(&self) -> PollFd<'_> {
        PollFd::new(self.0.as_fd(), PollFlags::POLLIN)
    }
}

/// Inverts one bit of the frame so that its receiver can notice it.
pub(super) fn corrupt(frame: &mut Frame, bit: u64) {
    complete(frame);
    let byte = usize::try_from(bit / 8).unwrap_or(0);
    if let Some(byte) = frame[HEADER..].get_mut(byte) {
        *byte ^= 1 << (bit % 8);
    }
}

/// Computes a checksum that was left to the network card.
pub(super) fn complete(frame: &mut Frame) {
    let (header, bytes) = frame.split_at_mut(HEADER);
    let field = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    if header[0] & NEEDS_CHECKSUM != 0 {
        let (start, offset) = (field(6), field(8));
        if let Some(covered) = bytes.get_mut(start..)
            && covered.len() >= offset + 2
        {
            // The field holds the sum of the pseudo header.
            let sum = checksum(covered);
            covered[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
        }
        header[0] &= !NEEDS_CHECKSUM;
    }
}

/// Computes the Internet checksum (RFC 1071); never 0, which means "none" in UDP.
fn checksum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    let words = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)));
    let mut sum = words.sum::<u32>() + last;
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    match u16::try_from(sum).map_or(0, |sum| !sum) {
        0 => 0xFFFF,
        sum => sum,
    }
}

fn socklen(size: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(size).expect("a few bytes")
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corrupted_frame_has_a_checksum_that_was_right_before() {
        // RFC 1071 §3's example, with room for the sum in front.
        let mut frame = vec![0; HEADER];
        frame[0] = NEEDS_CHECKSUM;
        frame.extend([0, 0, 0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7]);
        let mut frame: Frame = frame.into();
        corrupt(&mut frame, 80 - 1);
        assert_eq!(frame[0], 0);
        assert_eq!(frame[HEADER..HEADER + 2], (!0xDDF2_u16).to_be_bytes());
        assert_eq!(frame[HEADER + 9], 0xF7 ^ 0x80);
    }
}
