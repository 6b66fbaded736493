//! Packets in the files that `--pcap` writes.

use std::path::Path;

/// Returns the frames of a capture.
pub(crate) fn frames(capture: &Path) -> Vec<Vec<u8>> {
    const FILE_HEADER: usize = 24;
    let bytes = std::fs::read(capture).unwrap();
    let (mut rest, mut found) = (&bytes[FILE_HEADER..], Vec::new());
    while let Some((header, behind)) = rest.split_at_checked(16) {
        let length = u32::from_ne_bytes(header[8..12].try_into().unwrap());
        let (frame, behind) = behind.split_at(length.try_into().unwrap());
        found.push(frame.to_vec());
        rest = behind;
    }
    found
}

/// Returns the payloads of a capture's UDP datagrams (IPv4) from and to a port; a single byte is no packet of QUIC.
pub(crate) fn datagrams(capture: &Path, port: u16) -> Vec<Vec<u8>> {
    const ETHERNET: usize = 14;
    const UDP: u8 = 17;
    let mut found = Vec::new();
    for frame in frames(capture) {
        let packet = &frame[ETHERNET..];
        if frame[12..ETHERNET] != [8, 0] || packet[9] != UDP {
            continue;
        }
        let datagram = &packet[usize::from(packet[0] & 15) * 4..];
        let has_port = |at: usize| datagram[at..at + 2] == port.to_be_bytes();
        if datagram.len() > 8 + 1 && (has_port(0) || has_port(2)) {
            found.push(datagram[8..].to_vec());
        }
    }
    found
}
