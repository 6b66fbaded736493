//! Pings at a steady pace, with counted and timed answers.

use std::{
    io::{ErrorKind, Read as _},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use socket2::{Domain, Protocol, Socket, Type};

/// Length of a ping on an Ethernet, in bytes: the headers of Ethernet, IPv4 and ICMP, and 56 bytes more.
pub(crate) const FRAME: u64 = 14 + 20 + 8 + 56;

/// The interval of pings: long enough for any shipped link and for a busy board.
const INTERVAL: Duration = Duration::from_millis(20);

/// Number of unanswered pings after which the peer counts as unreachable, before the first counted ping.
const GREETINGS: u16 = 6;

/// Length of ICMP's header, in bytes.
const HEADER: usize = 8;
/// Length of the token behind the header, in bytes, which distinguishes these pings from other programs'.
const TOKEN: usize = 8;
const SIZE: usize = HEADER + 56;

/// Round trips of the answered pings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Echoes {
    pub(crate) sent: u32,
    /// Round-trip time of each answered ping, to its first answer.
    pub(crate) round_trips: Vec<Duration>,
}

impl Echoes {
    pub(crate) fn lost(&self) -> u32 {
        let answered = u32::try_from(self.round_trips.len()).unwrap_or(u32::MAX);
        self.sent.saturating_sub(answered)
    }

    pub(crate) fn median(&self) -> Option<Duration> {
        let mut sorted = self.round_trips.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

/// Pings `peer` through `interface`, and waits `linger` for the last answers. The first pings do not count:
/// they go on until there is an answer, so that neighbour discovery is over.
pub(crate) fn ping(
    peer: IpAddr,
    interface: &str,
    count: u16,
    linger: Duration,
) -> anyhow::Result<Echoes> {
    let mut pinger = Pinger::new(peer, interface)?;
    // The first pings have numbers that no counted ping has.
    let greeted = (0..GREETINGS).map(|number| u16::MAX - number);
    let mut refusal = None;
    let mut answered = false;
    for number in greeted {
        refusal = pinger.send(number).err();
        answered = pinger.answer(linger).is_some();
        if answered {
            break;
        }
    }
    if !answered {
        let why = refusal.map_or_else(String::new, |error| format!(": {error}"));
        bail!("{peer} does not answer pings through {interface}{why}");
    }
    let mut sent = Vec::new();
    let mut round_trips = vec![None; count.into()];
    let begin = Instant::now();
    let mut note = |(number, at): (u16, Instant), sent: &[Instant]| {
        let number = usize::from(number);
        if let (Some(round_trip), Some(sent)) = (round_trips.get_mut(number), sent.get(number)) {
            round_trip.get_or_insert(at.duration_since(*sent));
        }
    };
    for number in 0..count {
        let due = begin + INTERVAL * u32::from(number);
        while let Some(left) = due.checked_duration_since(Instant::now())
            && !left.is_zero()
        {
            if let Some(answer) = pinger.answer(left) {
                note(answer, &sent);
            }
        }
        sent.push(Instant::now());
        // A ping that the network does not take counts as lost, like one that is dropped later.
        let _ = pinger.send(number);
    }
    let end = Instant::now() + linger;
    while let Some(left) = end.checked_duration_since(Instant::now())
        && !left.is_zero()
    {
        if let Some(answer) = pinger.answer(left) {
            note(answer, &sent);
        }
    }
    Ok(Echoes {
        sent: count.into(),
        round_trips: round_trips.into_iter().flatten().collect(),
    })
}

struct Pinger {
    socket: Socket,
    v6: bool,
    token: [u8; TOKEN],
}

impl Pinger {
    fn new(peer: IpAddr, interface: &str) -> anyhow::Result<Self> {
        let (domain, protocol) = match peer {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        // No privilege is needed if net.ipv4.ping_group_range allows it.
        let socket = Socket::new(domain, Type::DGRAM, Some(protocol))
            .or_else(|_| Socket::new(domain, Type::RAW, Some(protocol)))
            .context("pings need root, or a net.ipv4.ping_group_range with this user's group")?;
        let through = socket.bind_device(Some(interface.as_bytes()));
        through.with_context(|| format!("cannot send through {interface}"))?;
        socket
            .connect(&SocketAddr::new(peer, 0).into())
            .with_context(|| format!("cannot ping {peer}"))?;
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let now = now.map_or(0, |now| now.subsec_nanos());
        let token = u64::from(std::process::id()) << 32 | u64::from(now);
        Ok(Self {
            socket,
            v6: peer.is_ipv6(),
            token: token.to_be_bytes(),
        })
    }

    fn send(&self, number: u16) -> std::io::Result<()> {
        self.socket.send(&self.request(number)).map(|_| ())
    }

    fn request(&self, number: u16) -> [u8; SIZE] {
        let mut request = [0; SIZE];
        request[0] = if self.v6 { 128 } else { 8 };
        // The identifier is a part of the token; the kernel writes its own for unprivileged sockets.
        request[4..6].copy_from_slice(&self.token[2..4]);
        request[6..8].copy_from_slice(&number.to_be_bytes());
        request[HEADER..HEADER + TOKEN].copy_from_slice(&self.token);
        if !self.v6 {
            let sum = checksum(&request);
            request[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        request
    }

    /// Waits for the next answer; returns its number and its time of arrival, or `None` at the time limit.
    fn answer(&mut self, within: Duration) -> Option<(u16, Instant)> {
        let end = Instant::now() + within;
        let mut buffer = [0; 256];
        loop {
            let left = end.checked_duration_since(Instant::now())?;
            // A timeout of 0 would mean none.
            let left = left.max(Duration::from_micros(50));
            self.socket.set_read_timeout(Some(left)).ok()?;
            match self.socket.read(&mut buffer) {
                Ok(length) => {
                    let now = Instant::now();
                    if let Some(number) = self.number(&buffer[..length]) {
                        return Some((number, now));
                    }
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return None;
                }
                // For example a router's answer that the host does not exist.
                Err(_) => {}
            }
        }
    }

    /// Returns the number of the ping that this message answers; `None` for other messages.
    fn number(&self, message: &[u8]) -> Option<u16> {
        // A raw socket for IPv4 has the IP header too; its first byte differs from that of any ICMP answer.
        let header = match message.first()? {
            first if !self.v6 && first >> 4 == 4 => usize::from(first & 15) * 4,
            _ => 0,
        };
        let message = message.get(header..)?;
        let reply = if self.v6 { 129 } else { 0 };
        let own = message.get(HEADER..HEADER + TOKEN)? == self.token;
        let number = u16::from_be_bytes([message[6], message[7]]);
        (message[0] == reply && own).then_some(number)
    }
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded to 16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_makes_the_sum_zero() {
        // The example of RFC 1071, section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
    }

    #[test]
    fn loopback_answers() {
        let echoes = match ping([127, 0, 0, 1].into(), "lo", 5, Duration::from_millis(200)) {
            Ok(echoes) => echoes,
            Err(error) if format!("{error:#}").contains("ping_group_range") => return,
            Err(error) => panic!("{error:#}"),
        };
        assert_eq!((echoes.sent, echoes.lost()), (5, 0));
        assert!(echoes.median().unwrap() < Duration::from_millis(50));
    }
}
