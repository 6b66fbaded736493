//! A file of packets with times in nanoseconds, as Wireshark opens it.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    time::Duration,
};

use super::packet::{Frame, HEADER, complete};

/// A file of packets that is being written; dropping it writes what is buffered, and loses an error.
#[derive(Debug)]
pub(super) struct PcapFile(BufWriter<File>);

impl PcapFile {
    /// Begins a file at `path`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&file_header())?;
        file.flush()?;
        Ok(Self(file))
    }

    /// Adds a frame, seen at this time since the Unix epoch. A checksum that the kernel leaves to the network card is
    /// filled in, so that none looks wrong.
    pub(super) fn add(&mut self, at: Duration, mut frame: Frame) -> io::Result<()> {
        complete(&mut frame);
        let bytes = &frame[HEADER..];
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        // 32 bits of seconds: the format's own limit, in 2106.
        let seconds = u32::try_from(at.as_secs()).map_err(io::Error::other)?;
        for field in [seconds, at.subsec_nanos(), length, length] {
            self.0.write_all(&field.to_ne_bytes())?;
        }
        self.0.write_all(bytes)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Makes the header of a file with times in nanoseconds, whole packets, Ethernet (draft-ietf-opsawg-pcap §4).
fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&0xA1B2_3C4D_u32.to_ne_bytes());
    header[4..6].copy_from_slice(&2_u16.to_ne_bytes());
    header[6..8].copy_from_slice(&4_u16.to_ne_bytes());
    header[16..20].copy_from_slice(&65_535_u32.to_ne_bytes());
    header[20..].copy_from_slice(&1_u32.to_ne_bytes());
    header
}
