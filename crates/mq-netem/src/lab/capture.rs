//! The packets that a host sends and receives, in a pcap file.

use std::{io, path::Path, thread::JoinHandle};

use super::{namespace::Host, packet::PacketSocket, pcap::PcapFile, signal::Stop};
use crate::{CaptureReport, Error};

/// A capture that is going on: every packet of every interface of a host, loopback too, in both
/// directions.
///
/// A drop ends the capture as [`finish`](Self::finish) does, but loses an error.
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
        let file = PcapFile::create(path).map_err(setup)?;
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

fn run(socket: &PacketSocket, mut file: PcapFile, stop: &Stop) -> io::Result<CaptureReport> {
    let mut report = CaptureReport::default();
    loop {
        // Read the signal before the last frames are taken, so that none is left behind.
        let stopped = stop.is_told();
        while let Some((at, frame)) = socket.receive_stamped()? {
            file.add(at, frame)?;
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
