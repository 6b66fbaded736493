//! The packets that a host sends and receives, in a pcap file with nanoseconds, as Wireshark opens it.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    thread::JoinHandle,
    time::Duration,
};

use super::{
    namespace::Host,
    packet::{Frame, HEADER, PacketSocket, complete},
    signal::Stop,
};
use crate::{CaptureReport, Error};

/// A capture that is going on: every packet of every interface of a host, loopback too, in both
/// directions.
///
/// Checksums that the kernel leaves to the network card are filled in, so that none looks wrong. A drop ends
/// the capture as [`finish`](Self::finish) does, but loses an error.
#[derive(Debug)]
pub struct Capture {
    stop: Stop,
    thread: Option<JoinHandle<io::Result<CaptureReport>>>,
}

impl Capture {
    /// Begins a file with the packets that `host` sends and receives from now on.
    pub(super) fn start(host: &Host, path: &Path) -> Result<Self, Error> {
        let setup = |source| Error::Capture {
            file: path.to_owned(),
            source,
        };
        let file = BufWriter::new(File::create(path).map_err(setup)?);
        let socket = host.run(PacketSocket::listen).map_err(setup)?;
        let stop = Stop::new().map_err(setup)?;
        let thread = std::thread::Builder::new().name("capture".to_owned());
        let stopped = stop.clone();
        let thread = thread
            .spawn(move || run(&socket, file, &stopped))
            .map_err(setup)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the capture, with all packets until now.
    ///
    /// # Errors
    /// If the file could not be written.
    pub fn finish(mut self) -> io::Result<CaptureReport> {
        self.end()
    }

    fn end(&mut self) -> io::Result<CaptureReport> {
        self.stop.tell();
        let Some(thread) = self.thread.take() else {
            return Ok(CaptureReport::default());
        };
        let ended = thread.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("the capturing thread panicked")))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn run(socket: &PacketSocket, mut file: BufWriter<File>, stop: &Stop) -> io::Result<CaptureReport> {
    let mut report = CaptureReport::default();
    file.write_all(&file_header())?;
    loop {
        // Read the signal before the last frames are taken, so that none is left behind.
        let stopped = stop.is_told();
        while let Some((at, mut frame)) = socket.receive_stamped()? {
            complete(&mut frame);
            write_frame(&mut file, at, &frame)?;
            report.packets += 1;
        }
        file.flush()?;
        if stopped {
            break;
        }
        stop.wait(std::iter::once(socket), None)?;
    }
    report.dropped = socket.dropped()?.into();
    Ok(report)
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

fn write_frame(file: &mut impl Write, at: Duration, frame: &Frame) -> io::Result<()> {
    let bytes = &frame[HEADER..];
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    // 32 bits of seconds: the format's own limit, in 2106.
    let seconds = u32::try_from(at.as_secs()).map_err(io::Error::other)?;
    for field in [seconds, at.subsec_nanos(), length, length] {
        file.write_all(&field.to_ne_bytes())?;
    }
    file.write_all(bytes)
}
