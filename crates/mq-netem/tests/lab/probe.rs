//! Probes between two hosts, with a clock of their own.

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use mq_netem::{Addresses, Host, Lab, Link};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SetSockOpt as _, recvmsg, sockopt};

/// Ethernet, IPv4 and UDP headers.
pub(crate) const HEADERS: usize = 14 + 20 + 8;

/// Two hosts, each with a socket that is connected to the other's.
pub(crate) struct Pair {
    pub(crate) near: UdpSocket,
    pub(crate) far: UdpSocket,
    pub(crate) hosts: [Host; 2],
    pub(crate) addresses: Addresses,
    /// Read timeout of the receiver: its wait after the last packet.
    patience: Duration,
}

impl Pair {
    pub(crate) fn new(lab: &mut Lab, link: &Link, seed: u64) -> Self {
        let (near, far) = (Host::new().unwrap(), Host::new().unwrap());
        let addresses = lab.connect(&near, &far, link, seed).unwrap();
        let socket = |host: &Host, own: Ipv4Addr, other: Ipv4Addr| {
            let bound = host.run(|| UdpSocket::bind((own, 5000))).unwrap();
            bound.connect((other, 5000)).unwrap();
            bound
        };
        let slower = link.up.delay.max(link.down.delay);
        Self {
            near: socket(&near, addresses.near, addresses.far),
            far: socket(&far, addresses.far, addresses.near),
            hosts: [near, far],
            addresses,
            patience: slower + Duration::from_millis(300),
        }
    }

    /// Sends `count` packets of `size` bytes from near to far, `interval` apart. Returns the time of each packet
    /// that arrived, by its number.
    pub(crate) fn probe(
        &self,
        count: u32,
        size: usize,
        interval: Duration,
    ) -> Vec<(u32, Duration)> {
        probe(
            &self.near,
            &self.far,
            self.patience,
            count,
            interval,
            |_| size,
        )
    }

    /// Sends packets as [`probe`](Self::probe) does, from far to near.
    pub(crate) fn probe_back(
        &self,
        count: u32,
        size: usize,
        interval: Duration,
    ) -> Vec<(u32, Duration)> {
        probe(
            &self.far,
            &self.near,
            self.patience,
            count,
            interval,
            |_| size,
        )
    }

    /// Sends packets as [`probe`](Self::probe) does, with a size for each packet's number.
    pub(crate) fn probe_sizes(
        &self,
        count: u32,
        size: impl Fn(u32) -> usize,
        interval: Duration,
    ) -> Vec<(u32, Duration)> {
        probe(&self.near, &self.far, self.patience, count, interval, size)
    }
}

fn probe(
    from: &UdpSocket,
    to: &UdpSocket,
    patience: Duration,
    count: u32,
    interval: Duration,
    size: impl Fn(u32) -> usize,
) -> Vec<(u32, Duration)> {
    let done = Arc::new(AtomicBool::new(false));
    let receiver = to.try_clone().unwrap();
    receiver.set_read_timeout(Some(patience)).unwrap();
    // When the kernel got a packet, not when this thread woke up.
    sockopt::ReceiveTimestampns.set(&receiver, &true).unwrap();
    let sent_all = Arc::clone(&done);
    let receiving = std::thread::spawn(move || {
        let mut arrived = Vec::new();
        loop {
            match receive(&receiver) {
                Ok((packet, at)) => {
                    let (number, sent) = packet.split_at(4);
                    let number = u32::from_be_bytes(number.try_into().unwrap());
                    let sent = u64::from_be_bytes(sent.try_into().unwrap());
                    let took = at.saturating_sub(Duration::from_nanos(sent));
                    arrived.push((number, took));
                }
                Err(_) if sent_all.load(Ordering::Relaxed) => return arrived,
                Err(_) => {}
            }
        }
    });
    let began = Instant::now();
    for number in 0..count {
        let due = interval * number;
        if let Some(early) = due.checked_sub(began.elapsed()) {
            std::thread::sleep(early);
        }
        let mut packet = vec![0; size(number)];
        packet[..4].copy_from_slice(&number.to_be_bytes());
        let sent = u64::try_from(wall_clock().as_nanos()).unwrap();
        packet[4..12].copy_from_slice(&sent.to_be_bytes());
        from.send(&packet).unwrap();
    }
    done.store(true, Ordering::Relaxed);
    receiving.join().unwrap()
}

/// Receives a packet; returns its first bytes, and when it came by the wall clock.
fn receive(socket: &UdpSocket) -> io::Result<([u8; 12], Duration)> {
    let mut packet = [0; 12];
    let mut space = nix::cmsg_space!(nix::libc::timespec);
    let mut parts = [io::IoSliceMut::new(&mut packet)];
    let fd = socket.as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), MsgFlags::empty())?;
    let stamps = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(at) => Some(at.into()),
        _ => None,
    });
    let at = stamps.unwrap();
    Ok((packet, at))
}

fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
