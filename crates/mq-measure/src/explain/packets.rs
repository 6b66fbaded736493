//! The TCP and UDP packets of a capture in pcap.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::{IpAddr, SocketAddr},
    ops::Range,
    path::Path,
};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use crate::Error;

/// A packet of TCP or UDP, as a capture has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Time at which the kernel saw the packet, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// The packet's flow.
    pub flow: Flow,
    /// Length of the payload of TCP or UDP, in bytes.
    pub payload_len: usize,
    /// Hash of the bytes that a router does not change: the same at both ends of a link, and for copies of a datagram.
    pub content: u64,
    /// Sequence number of the payload's first byte; `None` over UDP.
    pub tcp_seq: Option<u32>,
}

/// The packets of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// `true` over TCP, `false` over UDP.
    pub is_tcp: bool,
    /// Address of the sender.
    pub from: SocketAddr,
    /// Address of the receiver.
    pub to: SocketAddr,
}

impl Flow {
    /// Returns the other direction of the connection.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            ..self
        }
    }
}

impl Packet {
    /// Returns the numbers of the payload's bytes in the stream of TCP; `None` over UDP. The numbers wrap around.
    pub(super) fn tcp_bytes(&self) -> Option<Range<u32>> {
        let first = self.tcp_seq?;
        let count = u32::try_from(self.payload_len).ok()?;
        Some(first..first.wrapping_add(count))
    }
}

/// The packets of a capture, in the order of their times.
#[derive(Clone, Debug, Default)]
pub struct Packets(pub Vec<Packet>);

impl Packets {
    /// Reads a capture of Ethernet frames in pcap. Packets that are neither TCP nor UDP are left out, and a last record
    /// that was cut off.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Format`] if the file is no pcap, or has other frames.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let file = fs::read(path).map_err(Error::io(path))?;
        let format = |found| Error::Format {
            path: path.to_owned(),
            expected: "a pcap of Ethernet frames".to_owned(),
            found,
        };
        let records = Records::of(&file).map_err(&format)?;
        if records.clone().any_is_cut() {
            return Err(format(
                "packets without their ends: capture them whole".to_owned(),
            ));
        }
        let mut packets: Vec<Packet> = records
            .filter_map(|(at_ns, frame)| parse(at_ns, frame))
            .collect();
        packets.sort_by_key(|packet| packet.at_ns);
        Ok(Self(packets))
    }
}

/// The records of a pcap file (draft-ietf-opsawg-pcap).
#[derive(Clone)]
struct Records<'a> {
    rest: &'a [u8],
    big_endian: bool,
    /// Nanoseconds in a unit of the second field of a time.
    fraction_ns: u64,
}

impl<'a> Records<'a> {
    /// Reads the file's header; an error is what the file is instead.
    fn of(file: &'a [u8]) -> Result<Self, String> {
        const ETHERNET: u32 = 1;
        const NEXT_GENERATION: u32 = 0x0A0D_0D0A;
        let (header, rest) = file
            .split_at_checked(24)
            .ok_or_else(|| format!("{} bytes", file.len()))?;
        let mut records = Self {
            rest,
            big_endian: false,
            fraction_ns: 1,
        };
        let magic = records.word(header, 0);
        (records.big_endian, records.fraction_ns) = match magic {
            0xA1B2_3C4D => (false, 1),
            0xA1B2_C3D4 => (false, 1_000),
            0x4D3C_B2A1 => (true, 1),
            0xD4C3_B2A1 => (true, 1_000),
            NEXT_GENERATION => return Err("pcapng: `editcap -F nsecpcap IN OUT`".to_owned()),
            _ => return Err(format!("a file that begins with {magic:#010x}")),
        };
        match records.word(header, 20) & 0xFFFF {
            ETHERNET => Ok(records),
            other => Err(format!("link type {other}")),
        }
    }

    /// Returns `true` if a packet was longer than its record.
    fn any_is_cut(mut self) -> bool {
        while let Some(header) = self.rest.first_chunk::<16>() {
            if self.word(header, 8) != self.word(header, 12) {
                return true;
            }
            if self.next().is_none() {
                return false;
            }
        }
        false
    }

    fn word(&self, bytes: &[u8], at: usize) -> u32 {
        let word = bytes[at..].first_chunk().copied().unwrap_or_default();
        if self.big_endian {
            u32::from_be_bytes(word)
        } else {
            u32::from_le_bytes(word)
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, rest) = self.rest.split_at_checked(16)?;
        let [seconds, fraction, length] = [0, 4, 8].map(|at| self.word(header, at));
        let (frame, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        let at_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.fraction_ns;
        Some((at_ns, frame))
    }
}

/// Returns the packet in a frame; `None` if it is neither TCP nor UDP.
fn parse(at_ns: u64, frame: &[u8]) -> Option<Packet> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let (from, to, id): (IpAddr, IpAddr, u16) = match sliced.net? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            let (from, to) = (header.source_addr(), header.destination_addr());
            (from.into(), to.into(), header.identification())
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            let (from, to) = (header.source_addr(), header.destination_addr());
            (from.into(), to.into(), 0)
        }
        NetSlice::Arp(_) => return None,
    };
    // A capture may have a checksum that the network card was to compute.
    let (ports, bytes, checksum_at, payload_len, tcp_seq) = match sliced.transport? {
        TransportSlice::Tcp(tcp) => (
            (tcp.source_port(), tcp.destination_port()),
            tcp.slice(),
            16,
            tcp.payload().len(),
            Some(tcp.sequence_number()),
        ),
        TransportSlice::Udp(udp) => (
            (udp.source_port(), udp.destination_port()),
            udp.slice(),
            6,
            udp.payload().len(),
            None,
        ),
        _ => return None,
    };
    let mut hasher = DefaultHasher::new();
    // Datagrams of a QUIC connection have numbers of their own; a copy may have another identification.
    tcp_seq.map(|_| id).hash(&mut hasher);
    (from, to).hash(&mut hasher);
    bytes[..checksum_at].hash(&mut hasher);
    bytes[checksum_at + 2..].hash(&mut hasher);
    Some(Packet {
        at_ns,
        flow: Flow {
            is_tcp: tcp_seq.is_some(),
            from: (from, ports.0).into(),
            to: (to, ports.1).into(),
        },
        payload_len,
        content: hasher.finish(),
        tcp_seq,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a frame with a UDP datagram of one byte from 10.0.0.1:7 to 10.0.0.2:8, with this identification and checksum.
    fn frame(identification: u16, checksum: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0, 0, 29]);
        frame.extend(identification.to_be_bytes());
        frame.extend([0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 7, 0, 8, 0, 9]);
        frame.extend(checksum.to_be_bytes());
        frame.push(b'x');
        frame
    }

    fn file(header: [u32; 6], records: &[(u32, u32, Vec<u8>)], big_endian: bool) -> Vec<u8> {
        let mut file = Vec::new();
        let put = |file: &mut Vec<u8>, word: u32| {
            file.extend(if big_endian {
                word.to_be_bytes()
            } else {
                word.to_le_bytes()
            });
        };
        for word in header {
            put(&mut file, word);
        }
        for (seconds, fraction, frame) in records {
            let length = u32::try_from(frame.len()).unwrap();
            for word in [*seconds, *fraction, length, length] {
                put(&mut file, word);
            }
            file.extend(frame);
        }
        file
    }

    fn load(file: &[u8]) -> Result<Packets, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.pcap");
        fs::write(&path, file).unwrap();
        Packets::load(&path)
    }

    #[test]
    fn both_byte_orders_and_both_units_of_time_are_read() {
        let records = [(2, 5, frame(1, 0))];
        for (magic, big_endian, at_ns) in [
            (0xA1B2_3C4D, false, 2_000_000_005),
            (0xA1B2_3C4D, true, 2_000_000_005),
            (0xA1B2_C3D4, false, 2_000_005_000),
            (0xA1B2_C3D4, true, 2_000_005_000),
        ] {
            let packets = load(&file([magic, 0, 0, 0, 0, 1], &records, big_endian)).unwrap();
            let [packet] = &packets.0[..] else {
                panic!("{packets:?}");
            };
            assert_eq!((packet.at_ns, packet.payload_len), (at_ns, 1));
            assert_eq!(packet.flow.from, "10.0.0.1:7".parse().unwrap());
            assert_eq!(packet.flow.to, "10.0.0.2:8".parse().unwrap());
            assert!(!packet.flow.is_tcp);
        }
    }

    #[test]
    fn a_copy_of_a_datagram_has_the_same_content() {
        let records = [(1, 0, frame(1, 7)), (2, 0, frame(2, 9))];
        let packets = load(&file([0xA1B2_3C4D, 0, 0, 0, 0, 1], &records, false)).unwrap();
        assert_eq!(packets.0[0].content, packets.0[1].content);
    }

    #[test]
    fn a_record_that_was_cut_off_is_left_out() {
        let records = [(1, 0, frame(1, 7)), (2, 0, frame(2, 9))];
        let mut file = file([0xA1B2_3C4D, 0, 0, 0, 0, 1], &records, false);
        file.pop();
        assert_eq!(load(&file).unwrap().0.len(), 1);
    }

    #[test]
    fn a_file_that_is_no_pcap_of_ethernet_is_refused() {
        let refused = |file: &[u8]| load(file).unwrap_err().to_string();
        let pcapng = file([0x0A0D_0D0A, 0, 0, 0, 0, 1], &[], false);
        assert!(refused(&pcapng).ends_with("found pcapng: `editcap -F nsecpcap IN OUT`"));
        let cooked = file([0xA1B2_3C4D, 0, 0, 0, 0, 113], &[], false);
        assert!(refused(&cooked).ends_with("found link type 113"));
        assert!(refused(b"short").ends_with("found 5 bytes"));
        let text = [b'#'; 24];
        assert!(refused(&text).contains("begins with 0x23232323"));
    }
}
