//! A TLS connection, with early data on both sides.

use std::{
    future::poll_fn,
    io::{self, BufRead as _, IoSlice, Read as _, Write as _},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BytesMut};
use mq_lane::{LaneId, Outbox};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncWrite as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::identity::certificates_of;
use crate::{
    EarlyData, Error, HandshakeKind, LinkInfo, LinkStats, Progress, Scheme, SendProgress, TlsInfo,
    TlsVersion,
    buffer::{ReadSize, poll_read},
    tcp::{Ends, linger},
    tcp_info,
};

/// The most early data that a client sends over TLS.
///
/// A server that rejects early data skips it record by record. rustls 0.23 keeps the skipped records in
/// a buffer of 18 kB until the client's Finished comes, and counts them against its limit again with
/// each read. More early data than this can fail the handshake, where it should only cost a round trip.
const MAX_EARLY_DATA: usize = 8 * 1024;

/// A link over TLS on TCP.
///
/// ```text
/// client: [ClientHello + early data] -> handshaking -+-> established (early data accepted)
///                                                    +-> sending early data again -> established
/// server: handshaking -+-> reading and answering early data -> established
///                      +-> established
/// ```
///
/// Nothing is sent before the first poll: by then the first packets are in the outbox and leave
/// together with the `ClientHello`.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four facts that are true or not by themselves"
)]
pub(crate) struct TlsLink {
    io: TcpStream,
    ends: Ends,
    tls: Connection,
    server_name: Option<String>,
    /// Ciphertext read from the socket and not decrypted yet; empty between calls.
    ciphertext: BytesMut,
    read_size: ReadSize,
    pub(crate) received: BytesMut,
    /// `true` if `received` has bytes for which `Received` was not returned yet.
    unreported: bool,
    /// `true` if bytes were taken from the outbox and [`Progress::Flushed`] was not returned since.
    flushing: bool,
    /// `true` if reading comes first in the next call; see `TcpLink::read_turn`.
    read_turn: bool,
    ended: bool,
    handshake: HandshakeKind,
    early_data: EarlyData,
    /// Early data that may have to be sent again; after a rejection, the part that is not sent yet.
    replay: BytesMut,
    replay_limit: usize,
    bytes_sent: u64,
    /// Bytes of ciphertext that the kernel has taken.
    written: u64,
    bytes_received: u64,
}

impl TlsLink {
    /// Makes a client's side of a TLS connection; returns at once when early data can be written, else after the
    /// handshake.
    pub(crate) async fn connect(
        io: TcpStream,
        config: ClientConfig,
        server_name: ServerName<'static>,
        replay_limit: usize,
    ) -> Result<Self, Error> {
        let shown = server_name.to_str().into_owned();
        let mut tls = ClientConnection::new(Arc::new(config), server_name).map_err(Error::tls)?;
        let early = tls.early_data().is_some();
        let mut link = Self::new(io, tls.into(), Some(shown));
        if early {
            link.early_data = EarlyData::Pending;
            link.replay_limit = replay_limit.min(MAX_EARLY_DATA);
        } else {
            poll_fn(|cx| link.poll_handshake(cx)).await?;
        }
        Ok(link)
    }

    /// Makes a server's side of a TLS connection; returns once early data was accepted, else after the handshake.
    pub(crate) async fn accept(io: TcpStream, config: Arc<ServerConfig>) -> Result<Self, Error> {
        let tls = ServerConnection::new(config).map_err(Error::tls)?;
        let mut link = Self::new(io, tls.into(), None);
        poll_fn(|cx| {
            loop {
                let written = link.poll_write_tls(cx)?;
                if link.early_data == EarlyData::Accepted || !link.tls.is_handshaking() {
                    return Poll::Ready(Ok::<_, Error>(()));
                }
                if link.tls.wants_write() {
                    ready!(written);
                }
                ready!(link.poll_read_tls(cx))?;
            }
        })
        .await?;
        Ok(link)
    }

    fn new(io: TcpStream, tls: Connection, server_name: Option<String>) -> Self {
        Self {
            io,
            ends: Ends::default(),
            tls,
            server_name,
            ciphertext: BytesMut::new(),
            read_size: ReadSize::new(),
            received: BytesMut::new(),
            unreported: false,
            flushing: false,
            read_turn: false,
            ended: false,
            handshake: HandshakeKind::Pending,
            early_data: EarlyData::NotOffered,
            replay: BytesMut::new(),
            replay_limit: 0,
            bytes_sent: 0,
            written: 0,
            bytes_received: 0,
        }
    }

    pub(crate) fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Poll<Result<Progress, Error>> {
        if want_read && std::mem::take(&mut self.read_turn) {
            if !self.unreported && !self.ended {
                let _ = self.poll_read_tls(cx)?;
            }
            if std::mem::take(&mut self.unreported) {
                return Poll::Ready(Ok(Progress::Received(LaneId::CONTROL)));
            }
        }
        loop {
            let fed = self.feed(outbox)?;
            let written = match self.poll_write_tls(cx) {
                Poll::Ready(Err(error)) => {
                    // What the peer sent before it closed, such as a DISCONNECT or an alert, can still
                    // be read.
                    if want_read && !self.unreported {
                        let _ = self.poll_read_tls(cx)?;
                    }
                    if want_read && std::mem::take(&mut self.unreported) {
                        return Poll::Ready(Ok(Progress::Received(LaneId::CONTROL)));
                    }
                    return Poll::Ready(Err(error));
                }
                written => written,
            };
            if written.is_ready() {
                if outbox.is_empty() && std::mem::take(&mut self.flushing) {
                    self.read_turn = true;
                    return Poll::Ready(Ok(Progress::Flushed));
                }
                // rustls' buffer is empty, so it takes more, also where it was full before this
                // call and took nothing. Before the handshake ends, rustls may keep its buffer.
                if !outbox.is_empty() && (fed || !self.tls.is_handshaking()) {
                    continue;
                }
            }
            if want_read && std::mem::take(&mut self.unreported) {
                return Poll::Ready(Ok(Progress::Received(LaneId::CONTROL)));
            }
            if self.ended && want_read {
                return Poll::Ready(Ok(Progress::Closed));
            }
            if !want_read && !self.tls.is_handshaking() {
                return Poll::Pending;
            }
            ready!(self.poll_read_tls(cx))?;
        }
    }

    /// Drives the handshake to its end. Bytes that come in meanwhile wait in `received`.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            let written = self.poll_write_tls(cx)?;
            if !self.tls.is_handshaking() {
                // The client's Finished must be out as well before it is complete for both.
                return written.map(Ok);
            }
            ready!(self.poll_read_tls(cx))?;
        }
    }

    /// Moves as many bytes as rustls accepts from the outbox; returns `true` if it accepted any.
    fn feed(&mut self, outbox: &mut Outbox) -> Result<bool, Error> {
        let mut fed = false;
        if self.early_data == EarlyData::Pending {
            let Connection::Client(tls) = &mut self.tls else {
                return Ok(false);
            };
            while let (Some(bytes), Some(mut writer)) = (outbox.front(), tls.early_data()) {
                let room = self.replay_limit.saturating_sub(self.replay.len());
                let count = writer.write(&bytes[..bytes.len().min(room)])?;
                if count == 0 {
                    break;
                }
                self.replay.extend_from_slice(&bytes[..count]);
                self.bytes_sent += count as u64;
                outbox.advance(count);
                fed = true;
            }
        } else {
            let mut writer = self.tls.writer();
            while !self.replay.is_empty() {
                let count = writer.write(&self.replay)?;
                if count == 0 {
                    return Ok(fed);
                }
                self.replay.advance(count);
                fed = true;
            }
            while let Some(bytes) = outbox.front() {
                let count = writer.write(bytes)?;
                if count == 0 {
                    break;
                }
                self.bytes_sent += count as u64;
                outbox.advance(count);
                fed = true;
                self.flushing = true;
            }
        }
        self.flushing |= fed && self.early_data == EarlyData::Pending;
        Ok(fed)
    }

    /// Writes all ciphertext that rustls has ready.
    fn poll_write_tls(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while self.tls.wants_write() {
            let mut writer = Writer {
                io: &mut self.io,
                cx,
            };
            match self.tls.write_tls(&mut writer) {
                Ok(0) => {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe).into()));
                }
                Ok(count) => self.written += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Does one read and decrypts all of it. When ready, there may still be no application bytes.
    fn poll_read_tls(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let size = &mut self.read_size;
        if ready!(poll_read(&mut self.io, &mut self.ciphertext, size, cx))? == 0 {
            if self.tls.is_handshaking() {
                let reason = "it ended in the middle of the TLS handshake";
                return Poll::Ready(Err(Error::reset(reason)));
            }
            // An end without close_notify is treated the same: MQTT packets carry their length, and a
            // missing DISCONNECT means a cut connection.
            self.ended = true;
            return Poll::Ready(Ok(()));
        }
        while !self.ciphertext.is_empty() {
            self.fill_tls()?;
            match self.tls.process_new_packets() {
                Ok(state) => {
                    self.collect()?;
                    self.ended |= state.peer_has_closed();
                }
                Err(error) => {
                    // The alert tells the peer why.
                    let _ = self.poll_write_tls(cx)?;
                    return Poll::Ready(Err(Error::tls(error)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Gives rustls as much ciphertext as it has room for: a record and a bit more.
    ///
    /// Its room is filled before it processes, because rustls looks at all the early data that it
    /// skips each time, and counts it again.
    fn fill_tls(&mut self) -> io::Result<()> {
        let mut filled = 0;
        while !self.ciphertext.is_empty() {
            match self.tls.read_tls(&mut &self.ciphertext[..]) {
                Ok(0) => return Err(io::ErrorKind::InvalidData.into()),
                Ok(count) => {
                    self.ciphertext.advance(count);
                    filled += count;
                }
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes decrypted bytes out of rustls and follows the handshake.
    fn collect(&mut self) -> Result<(), Error> {
        let before = self.received.len();
        if let Connection::Server(tls) = &mut self.tls
            && self.handshake == HandshakeKind::Pending
            && let Some(mut early) = tls.early_data()
        {
            self.early_data = EarlyData::Accepted;
            let mut piece = [0; 2048];
            loop {
                match early.read(&mut piece)? {
                    0 => break,
                    count => self.received.extend_from_slice(&piece[..count]),
                }
            }
        }
        let mut reader = self.tls.reader();
        loop {
            match reader.fill_buf() {
                Ok([]) => break,
                Ok(bytes) => {
                    self.received.extend_from_slice(bytes);
                    let count = bytes.len();
                    reader.consume(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error.into()),
            }
        }
        let count = self.received.len() - before;
        self.bytes_received += count as u64;
        self.unreported |= count > 0;
        if self.handshake == HandshakeKind::Pending && !self.tls.is_handshaking() {
            self.on_handshake_complete();
        }
        Ok(())
    }

    fn on_handshake_complete(&mut self) {
        self.handshake = match self.tls.handshake_kind() {
            Some(rustls::HandshakeKind::Resumed) => HandshakeKind::Resumed,
            _ => HandshakeKind::Full,
        };
        if self.early_data == EarlyData::Pending
            && let Connection::Client(tls) = &self.tls
        {
            if tls.is_early_data_accepted() {
                self.early_data = EarlyData::Accepted;
                self.replay = BytesMut::new();
            } else {
                tracing::debug!(bytes = self.replay.len(), "early data rejected, resending");
                self.early_data = EarlyData::Rejected;
            }
        }
    }

    /// Returns the received bytes; a look at them counts as [`Progress::Received`].
    pub(crate) fn received(&mut self) -> &mut BytesMut {
        self.unreported = false;
        &mut self.received
    }

    pub(crate) fn is_early(&self) -> bool {
        matches!(self.tls, Connection::Server(_))
            && self.early_data == EarlyData::Accepted
            && self.handshake == HandshakeKind::Pending
    }

    pub(crate) fn handshake(&self) -> HandshakeKind {
        self.handshake
    }

    /// See [`Link::end_sending`](crate::Link::end_sending). Waits for the end of the handshake first, which decides whether
    /// early data arrived.
    pub(crate) async fn end_sending(&mut self) -> Result<(), Error> {
        poll_fn(|cx| {
            ready!(self.poll_handshake(cx))?;
            while !self.replay.is_empty() {
                self.feed(&mut Outbox::new())?;
                ready!(self.poll_write_tls(cx))?;
            }
            Poll::Ready(Ok::<_, Error>(()))
        })
        .await?;
        self.tls.send_close_notify();
        poll_fn(|cx| self.poll_write_tls(cx)).await?;
        Ok(self.io.shutdown().await?)
    }

    pub(crate) async fn close(mut self) {
        let _ = self.end_sending().await;
        linger(&mut self.io).await;
    }

    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        &mut self.io
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            bytes_sent: self.bytes_sent,
            bytes_received: self.bytes_received,
            handshake: self.handshake,
            early_data: self.early_data,
            ..tcp_info::of(&self.io)
        }
    }

    pub(crate) fn send_progress(&self) -> SendProgress {
        SendProgress::of_stream(self.written, tcp_info::unacknowledged(&self.io))
    }

    pub(crate) fn info(&self) -> LinkInfo {
        let suite = self.tls.negotiated_cipher_suite();
        let tls = suite.map(|suite| TlsInfo {
            version: match self.tls.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_2) => TlsVersion::Tls12,
                _ => TlsVersion::Tls13,
            },
            cipher_suite: iana_name(suite.suite().as_str()),
            key_exchange_group: self
                .tls
                .negotiated_key_exchange_group()
                .map(|group| iana_name(group.name().as_str())),
            alpn: self
                .tls
                .alpn_protocol()
                .map(|name| String::from_utf8_lossy(name).into_owned()),
            server_name: match &self.tls {
                Connection::Client(_) => self.server_name.clone(),
                Connection::Server(tls) => tls.server_name().map(str::to_owned),
            },
        });
        let certificates = self.tls.peer_certificates().unwrap_or_default();
        LinkInfo {
            scheme: Scheme::Tls,
            peer_address: self.ends.peer(&self.io),
            local_address: self.ends.local(&self.io),
            tls,
            peer_certificates: certificates_of(certificates),
        }
    }
}

/// A socket in the form that rustls takes: calls that return `WouldBlock`.
struct Writer<'a, 'b> {
    io: &'a mut TcpStream,
    cx: &'a mut Context<'b>,
}

impl Writer<'_, '_> {
    fn block<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
        match polled {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl io::Write for Writer<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::block(Pin::new(&mut *self.io).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::block(Pin::new(&mut *self.io).poll_write_vectored(self.cx, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns IANA's name for a name of rustls, which writes `TLS13_` for `TLS_`.
pub(crate) fn iana_name(name: Option<&str>) -> String {
    let name = name.unwrap_or("unknown");
    name.strip_prefix("TLS13_")
        .map_or_else(|| name.to_owned(), |rest| format!("TLS_{rest}"))
}
