//! rtnetlink, one request at a time.
//!
//! Requests are synchronous, so that a drop can restore an interface. The options of a queueing discipline stay
//! the bytes that the kernel gave, so that they can be given back.

use std::{fmt, io, net::IpAddr};

use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::qdisc::nla;

/// Messages of linux/rtnetlink.h.
mod message {
    pub(super) const ERROR: u16 = 2;
    pub(super) const DONE: u16 = 3;
    pub(super) const GET_LINK: u16 = 18;
    pub(super) const SET_LINK: u16 = 19;
    pub(super) const GET_ADDRESS: u16 = 22;
    pub(super) const GET_ROUTE: u16 = 26;
    pub(super) const NEW_QDISC: u16 = 36;
    pub(super) const DEL_QDISC: u16 = 37;
    pub(super) const GET_QDISC: u16 = 38;
    pub(super) const GET_FILTER: u16 = 46;
}

/// Flags of linux/netlink.h.
mod flag {
    pub(super) const REQUEST: u16 = 0x1;
    pub(super) const ACK: u16 = 0x4;
    pub(super) const INTERRUPTED: u16 = 0x10;
    pub(super) const CAPPED: u16 = 0x100;
    pub(super) const REPLACE: u16 = 0x100;
    pub(super) const DUMP: u16 = 0x300;
    pub(super) const CREATE: u16 = 0x400;
}

/// `nlmsghdr`.
const HEADER: usize = 16;
/// `tcmsg`, `ifinfomsg`, `ifaddrmsg`, `rtmsg`.
const TC: usize = 20;
const LINK: usize = 16;
const ADDRESS: usize = 8;
const ROUTE: usize = 12;

/// The parent of the discipline at the root.
pub(super) const ROOT: u32 = 0xFFFF_FFFF;

/// The kernel's refusal.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) code: i32,
    /// The kernel's explanation, if it gave one.
    says: Option<String>,
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self {
            code: error.raw_os_error().unwrap_or_default(),
            says: error.raw_os_error().is_none().then(|| error.to_string()),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, &self.says) {
            (0, Some(says)) => f.write_str(says),
            (code, says) => {
                write!(f, "{}", io::Error::from_raw_os_error(code))?;
                says.iter().try_for_each(|says| write!(f, ": {says}"))
            }
        }
    }
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mtu: u32,
    /// The hardware address.
    pub(super) address: Vec<u8>,
    /// Packets that TCP hands over in one bundle; `None` if the kernel does not say.
    pub(super) gso_max_segs: Option<u32>,
    /// The bridge or bond that the interface is a part of.
    pub(super) master: Option<u32>,
    /// The interface below, in the same namespace: a VLAN has one.
    pub(super) lower: Option<u32>,
}

/// A queueing discipline of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Qdisc {
    pub(super) kind: String,
    pub(super) handle: u32,
    pub(super) parent: u32,
    /// `TCA_OPTIONS` as the kernel gave them; empty without options.
    pub(super) options: Vec<u8>,
    /// `true` if the discipline has a size table or a shared block of filters, which cannot be restored.
    pub(super) entangled: bool,
}

impl Qdisc {
    /// Returns the major number of the handle; 0 for a discipline that the kernel has set by itself.
    pub(super) fn major(&self) -> u16 {
        major(self.handle)
    }
}

/// Writes kind and handle in the form of `tc`, such as `htb 1:`.
impl fmt::Display for Qdisc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:x}:", self.kind, self.major())
    }
}

/// Returns the part of a handle or parent that names the discipline.
pub(super) fn major(handle: u32) -> u16 {
    u16::try_from(handle >> 16).expect("16 bits are left")
}

/// A connection to the kernel, in the network namespace of the thread that opened it.
pub(super) struct Netlink {
    socket: Socket,
}

impl Netlink {
    pub(super) fn open() -> Result<Self, Refused> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Ask for explanations in words; older kernels give none.
        let _ = socket.set_ext_ack(true);
        Ok(Self { socket })
    }

    pub(super) fn interfaces(&self) -> Result<Vec<Interface>, Refused> {
        let found = self.dump(message::GET_LINK, &[0; LINK])?;
        Ok(found.iter().filter_map(|link| interface(link)).collect())
    }

    /// Lists the addresses of all interfaces, each with its interface's index.
    pub(super) fn addresses(&self) -> Result<Vec<(u32, IpAddr)>, Refused> {
        let found = self.dump(message::GET_ADDRESS, &[0; ADDRESS])?;
        let address = |message: &Vec<u8>| {
            let (structure, attributes) = message.split_at_checked(ADDRESS)?;
            // On a point-to-point interface IFA_LOCAL is its own address, IFA_ADDRESS the peer's.
            let mut own = nla::attributes(attributes).filter(|(kind, _)| [1, 2].contains(kind));
            let first = own.next()?;
            let (_, value) = own.find(|(kind, _)| *kind == 2).unwrap_or(first);
            Some((nla::word(structure, 1), ip(value)?))
        };
        Ok(found.iter().filter_map(address).collect())
    }

    /// Returns the index of the interface by which packets to `address` leave.
    pub(super) fn way_to(&self, address: IpAddr) -> Option<u32> {
        let (family, bytes) = match address {
            IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
        };
        let mut route = vec![0; ROUTE];
        route[0] = u8::try_from(family).ok()?;
        route[1] = u8::try_from(bytes.len() * 8).ok()?;
        let mut request = nla::Writer::behind(route);
        request.put(1, &bytes);
        let answer = self
            .request(message::GET_ROUTE, 0, &request.finish())
            .ok()?;
        let (_, attributes) = answer.first()?.split_at_checked(ROUTE)?;
        let mut attributes = nla::attributes(attributes);
        let (_, out) = attributes.find(|(kind, _)| *kind == 4)?;
        Some(nla::word(out, 0))
    }

    /// Lists all queueing disciplines of an interface, except that for arriving packets.
    pub(super) fn qdiscs(&self, index: u32) -> Result<Vec<Qdisc>, Refused> {
        let found = self.dump(message::GET_QDISC, &tc(index, 0, 0))?;
        let all = found.iter().filter_map(|message| qdisc(message, index));
        Ok(all
            .filter(|qdisc| !["ingress", "clsact"].contains(&qdisc.kind.as_str()))
            .collect())
    }

    /// Returns `true` if the discipline with this handle has filters.
    pub(super) fn has_filters(&self, index: u32, handle: u32) -> Result<bool, Refused> {
        let found = self.dump(message::GET_FILTER, &tc(index, 0, handle))?;
        Ok(!found.is_empty())
    }

    /// Makes a discipline in the place of another, which stays if the new one cannot be made.
    pub(super) fn put(
        &self,
        index: u32,
        parent: u32,
        handle: u32,
        kind: &str,
        options: &[u8],
    ) -> Result<(), Refused> {
        let mut request = nla::Writer::behind(tc(index, handle, parent));
        request.put(1, format!("{kind}\0").as_bytes());
        if !options.is_empty() {
            request.put(2, options);
        }
        let flags = flag::CREATE | flag::REPLACE | flag::ACK;
        self.request(message::NEW_QDISC, flags, &request.finish())?;
        Ok(())
    }

    /// Makes a discipline at the root, in the place of the old one. The kernel has both for a moment. If the kernel
    /// refuses with `EINVAL`, as for two netems of which one duplicates, the old one is deleted first; if the second
    /// attempt fails too, the kernel's default stays.
    pub(super) fn put_root(
        &self,
        index: u32,
        handle: u32,
        kind: &str,
        options: &[u8],
    ) -> Result<(), Refused> {
        match self.put(index, ROOT, handle, kind, options) {
            Err(refused) if refused.code == libc::EINVAL => {
                self.delete_root(index)?;
                self.put(index, ROOT, handle, kind, options)
            }
            other => other,
        }
    }

    /// Deletes the root discipline; the kernel sets its default in its place.
    pub(super) fn delete_root(&self, index: u32) -> Result<(), Refused> {
        self.request(message::DEL_QDISC, flag::ACK, &tc(index, 0, ROOT))?;
        Ok(())
    }

    /// Sets how many packets TCP hands over in one bundle from now on.
    pub(super) fn set_gso_max_segs(&self, index: u32, segments: u32) -> Result<(), Refused> {
        let mut request = nla::Writer::behind(nla::bytes(&[0, index, 0, 0]));
        request.put_words(40, &[segments]);
        self.request(message::SET_LINK, flag::ACK, &request.finish())?;
        Ok(())
    }

    /// Lists all objects of a kind. The request is repeated if the list changed meanwhile.
    fn dump(&self, kind: u16, payload: &[u8]) -> Result<Vec<Vec<u8>>, Refused> {
        for _ in 0..10 {
            match self.request(kind, flag::DUMP, payload) {
                Err(refused) if refused.code == libc::EAGAIN => {}
                other => return other,
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN).into())
    }

    fn request(&self, kind: u16, flags: u16, payload: &[u8]) -> Result<Vec<Vec<u8>>, Refused> {
        let length = u32::try_from(HEADER + payload.len()).expect("some kilobytes at most");
        let mut request = length.to_ne_bytes().to_vec();
        request.extend(kind.to_ne_bytes());
        request.extend((flag::REQUEST | flags).to_ne_bytes());
        request.extend([0; 8]);
        request.extend(payload);
        self.socket.send(&request, 0)?;
        let (mut found, mut interrupted) = (Vec::new(), false);
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while let Some(length) = rest.first_chunk().map(|length| u32::from_ne_bytes(*length)) {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let Some(message) = rest.get(..length).filter(|_| length >= HEADER) else {
                    return Err(io::Error::other("the kernel's answer is cut off").into());
                };
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                let half = |at: usize| u16::from_ne_bytes([message[at], message[at + 1]]);
                let (kind, answered) = (half(4), half(6));
                let payload = &message[HEADER..];
                interrupted |= answered & flag::INTERRUPTED != 0;
                match kind {
                    message::ERROR => return verdict(payload, answered).map(|()| found),
                    message::DONE if interrupted => {
                        return Err(io::Error::from_raw_os_error(libc::EAGAIN).into());
                    }
                    message::DONE => return verdict(payload, answered).map(|()| found),
                    _ => found.push(payload.to_vec()),
                }
            }
            // A single answer, which no acknowledgement follows.
            if flags & (flag::DUMP | flag::ACK) == 0 && !found.is_empty() {
                return Ok(found);
            }
        }
    }
}

/// Reads an error message, in which code 0 is success.
fn verdict(payload: &[u8], flags: u16) -> Result<(), Refused> {
    let code = nla::word(payload, 0).cast_signed();
    if code == 0 {
        return Ok(());
    }
    // The code is followed by the request, or its header alone if capped, and then by attributes.
    let request = if flags & flag::CAPPED == 0 {
        usize::try_from(nla::word(payload, 1)).unwrap_or(usize::MAX)
    } else {
        HEADER
    };
    let attributes = request
        .checked_next_multiple_of(4)
        .and_then(|request| payload.get(4 + request..))
        .unwrap_or_default();
    let mut attributes = nla::attributes(attributes);
    let says = attributes.find(|(kind, _)| *kind == 1);
    Err(Refused {
        code: -code,
        says: says.map(|(_, value)| text(value)),
    })
}

fn tc(index: u32, handle: u32, parent: u32) -> Vec<u8> {
    let message = nla::bytes(&[0, index, handle, parent, 0]);
    debug_assert_eq!(message.len(), TC);
    message
}

fn interface(message: &[u8]) -> Option<Interface> {
    let (structure, attributes) = message.split_at_checked(LINK)?;
    let mut interface = Interface {
        index: nla::word(structure, 1),
        ..Interface::default()
    };
    let mut elsewhere = false;
    for (kind, value) in nla::attributes(attributes) {
        // IFLA_* of linux/if_link.h.
        match kind {
            1 => interface.address = value.to_vec(),
            3 => interface.name = text(value),
            4 => interface.mtu = nla::word(value, 0),
            5 => interface.lower = Some(nla::word(value, 0)),
            10 => interface.master = Some(nla::word(value, 0)),
            37 => elsewhere = true,
            40 => interface.gso_max_segs = Some(nla::word(value, 0)),
            _ => {}
        }
    }
    interface.lower = interface.lower.filter(|_| !elsewhere);
    Some(interface)
}

fn qdisc(message: &[u8], index: u32) -> Option<Qdisc> {
    let (structure, attributes) = message.split_at_checked(TC)?;
    if nla::word(structure, 1) != index {
        return None;
    }
    let mut qdisc = Qdisc {
        kind: String::new(),
        handle: nla::word(structure, 2),
        parent: nla::word(structure, 3),
        options: Vec::new(),
        entangled: false,
    };
    for (kind, value) in nla::attributes(attributes) {
        // TCA_* of linux/rtnetlink.h.
        match kind {
            1 => qdisc.kind = text(value),
            2 => qdisc.options = value.to_vec(),
            // A size table, and shared blocks of filters.
            8 | 13 | 14 => qdisc.entangled = true,
            _ => {}
        }
    }
    Some(qdisc)
}

/// Reads a string, up to its final zero.
fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}
