//! A QUIC connection and its control lane.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use mq_lane::{LaneId, Outbox};
use quinn::{
    ConnectionError, ReadError, RecvStream, SendStream, Side, VarInt, WriteError, ZeroRttAccepted,
};
use rustls::{CipherSuite, NamedGroup};
use rustls_pki_types::CertificateDer;
use tokio::sync::Semaphore;

use super::{
    lanes::Lanes,
    repeater::{LinkRepeater, Repeater},
    runtime::DrainTimeoutGuard,
    watched_tls::handshake_of,
    windows::{ConnectionLimits, Windows},
    write::{CHUNKS_PER_CALL, Stopped, poll_write_chunks, poll_write_lane},
};
use crate::{
    EarlyData, Error, HandshakeKind, LinkInfo, LinkStats, Progress, Scheme, SendProgress, TlsInfo,
    TlsVersion,
    send_progress::Counts,
    tls::{certificates_of, iana_name},
};

/// Time that a server which has finished its control stream gives the peer to close the connection first.
///
/// `CONNECTION_CLOSE` makes some peers (quic-go) drop bytes that their application has not read yet, so
/// the last packet, such as a CONNACK that refuses, is lost although QUIC has acknowledged it. A
/// peer that reads closes within a round trip; 1 s is enough even over a satellite. A lingering
/// connection holds no packets.
const LINGER: Duration = Duration::from_secs(1);

/// Lingering connections of this process, with some 40 KiB each in quinn. When a crowd is refused, the
/// connections beyond this bound are closed at once.
static LINGERING_CONNECTIONS: Semaphore = Semaphore::const_new(1024);

/// Bytes that a peer may still send while the connection lingers; flow control holds back more.
const LINGER_BYTES: usize = 64 * 1024;

type Streams = (SendStream, RecvStream);
type ClosedPort = Pin<Box<dyn Future<Output = Error> + Send + Sync>>;
type Opening = Pin<Box<dyn Future<Output = Result<Streams, ConnectionError>> + Send + Sync>>;

/// A link over QUIC; the first bidirectional stream of the connection is the control lane, the others are data
/// lanes.
///
/// ```text
/// client: early data -+-> accepted
///                     +-> rejected -> opening a new stream -> sending again -> as without
/// ```
#[expect(
    clippy::struct_excessive_bools,
    reason = "four facts that are true or not by themselves"
)]
pub(crate) struct QuicLink {
    connection: quinn::Connection,
    /// State for datagrams that are [sent again](crate::Repeat), if the options ask for it.
    repeater: Option<LinkRepeater>,
    /// Guard of a server's link, which ends the connection soon after the link is dropped.
    _drain_timeout: Option<DrainTimeoutGuard>,
    send: SendStream,
    recv: RecvStream,
    /// Resolves when the peer stops reading `send`, or has acknowledged all of it.
    stopped: Stopped,
    side: Side,
    /// Local address of the endpoint's socket; its IP address may be the wildcard.
    bound: Option<SocketAddr>,
    /// `true` on a server if a token has proved the client's address before the handshake (RFC 9000 §8.1).
    is_validated: bool,
    server_name: Option<String>,
    /// Resolves when the handshake ends; taken then.
    handshake_end: Option<ZeroRttAccepted>,
    /// Client: resolves when the network reports that nobody listens at the server's port; asked until the handshake
    /// ends.
    closed_port: Option<ClosedPort>,
    handshake: HandshakeKind,
    early_data: EarlyData,
    /// Early data that may have to be sent again; after a rejection, the part that is not sent yet.
    replay: VecDeque<Bytes>,
    replay_len: usize,
    replay_limit: usize,
    /// The stream that replaces the rejected stream of early data.
    reopening: Option<Opening>,
    pub(crate) received: BytesMut,
    lanes: Lanes,
    windows: Windows,
    /// `true` if bytes were taken from the outbox and [`Progress::Flushed`] was not returned since.
    flushing: bool,
    /// `true` if reading comes first in the next call; see `TcpLink::read_turn`.
    read_turn: bool,
    /// `true` if writing has failed; reading returns the reason.
    write_failed: bool,
    bytes_sent: u64,
    bytes_received: u64,
    datagrams_sent: u64,
}

/// A connection whose handshake has begun.
pub(crate) struct BegunConnection {
    pub(super) connecting: quinn::Connecting,
    /// State for datagrams that are [sent again](crate::Repeat), if the options ask for it.
    pub(super) repeater: Option<Arc<Repeater>>,
    pub(super) limits: ConnectionLimits,
}

/// A connection that can send.
struct Usable {
    limits: ConnectionLimits,
    connection: quinn::Connection,
    repeater: Option<LinkRepeater>,
    /// Resolves when the handshake ends, if that is still to come.
    handshake_end: Option<ZeroRttAccepted>,
}

impl QuicLink {
    /// Makes a client's side of a QUIC connection; returns at once when early data can be written, else after the
    /// handshake.
    pub(crate) async fn connect(
        begun: BegunConnection,
        server_name: String,
        replay_limit: usize,
    ) -> Result<Self, Error> {
        let usable = begun.usable().await?;
        let streams = usable.connection.open_bi().await.map_err(Error::quic)?;
        let mut link = Self::new(usable, None, streams, Side::Client);
        link.server_name = Some(server_name);
        if link.handshake_end.is_some() {
            link.early_data = EarlyData::Pending;
            link.replay_limit = replay_limit;
        } else {
            link.handshake = link.negotiated_kind();
        }
        Ok(link)
    }

    /// Makes a server's side of a QUIC connection; waits for the client's first stream, not for the end of the
    /// handshake.
    pub(crate) async fn accept(
        begun: BegunConnection,
        guard: DrainTimeoutGuard,
    ) -> Result<Self, Error> {
        let usable = begun.usable().await?;
        let streams = usable.connection.accept_bi().await.map_err(Error::quic)?;
        let early = streams.1.is_0rtt();
        let mut link = Self::new(usable, Some(guard), streams, Side::Server);
        if early {
            link.early_data = EarlyData::Accepted;
        }
        Ok(link)
    }

    fn new(
        usable: Usable,
        guard: Option<DrainTimeoutGuard>,
        (send, recv): Streams,
        side: Side,
    ) -> Self {
        let Usable {
            limits,
            connection,
            repeater,
            handshake_end,
        } = usable;
        Self {
            lanes: Lanes::new(&connection, limits.streams_at_once()),
            windows: Windows::new(&limits),
            connection,
            repeater,
            _drain_timeout: guard,
            stopped: Box::pin(send.stopped()),
            send,
            recv,
            side,
            bound: None,
            is_validated: false,
            server_name: None,
            handshake_end,
            closed_port: None,
            handshake: HandshakeKind::Pending,
            early_data: EarlyData::NotOffered,
            replay: VecDeque::new(),
            replay_len: 0,
            replay_limit: 0,
            reopening: None,
            received: BytesMut::new(),
            flushing: false,
            read_turn: false,
            write_failed: false,
            bytes_sent: 0,
            bytes_received: 0,
            datagrams_sent: 0,
        }
    }

    pub(crate) fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Poll<Result<Progress, Error>> {
        // Pending is fine: early data flows meanwhile, and the task is woken when it ends.
        if let Poll::Ready(Err(error)) = self.poll_handshake(cx)
            && self.side == Side::Client
        {
            // A server still reads the early data that it has.
            return Poll::Ready(Err(error));
        }
        if self.reopening.is_some() {
            ready!(self.poll_reopen(cx))?;
        }
        if want_read
            && std::mem::take(&mut self.read_turn)
            && let Poll::Ready(progress) = self.poll_receive_any(cx)
        {
            return Poll::Ready(progress);
        }
        if !self.write_failed
            && self.poll_write(cx, outbox)?.is_ready()
            && std::mem::take(&mut self.flushing)
        {
            self.read_turn = true;
            return Poll::Ready(Ok(Progress::Flushed));
        }
        if want_read {
            // What the peer said before it stopped, a DISCONNECT above all, counts.
            let received = self.poll_receive_any(cx);
            if received.is_pending() && self.poll_stopped(cx).is_ready() {
                return Poll::Ready(Err(stopped_reading()));
            }
            received
        } else if self.write_failed {
            let reason = self.connection.close_reason();
            Poll::Ready(reason.map_or_else(|| Err(stopped_reading()), end_of_connection))
        } else {
            Poll::Pending
        }
    }

    /// Resolves when the handshake has ended, and records its outcome.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(end) = &mut self.handshake_end else {
            return Poll::Ready(Ok(()));
        };
        let Poll::Ready(accepted) = Pin::new(end).poll(cx) else {
            let closed_port = self.closed_port.as_mut().map(|port| port.as_mut().poll(cx));
            return match closed_port {
                Some(Poll::Ready(error)) => {
                    self.closed_port = None;
                    Poll::Ready(Err(error))
                }
                Some(Poll::Pending) | None => Poll::Pending,
            };
        };
        self.handshake_end = None;
        self.closed_port = None;
        self.handshake = self.negotiated_kind();
        if let Some(repeater) = &self.repeater
            && self.connection.close_reason().is_none()
        {
            repeater.end_handshake();
        }
        if accepted {
            if self.early_data == EarlyData::Pending {
                self.early_data = EarlyData::Accepted;
                self.replay = VecDeque::new();
                self.replay_len = 0;
            }
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = self.connection.close_reason() {
            // Reading reports it to the owner, like any other end.
            self.write_failed = true;
            self.handshake = HandshakeKind::Pending;
            return Poll::Ready(Err(Error::quic(error)));
        }
        if self.early_data == EarlyData::Pending {
            tracing::debug!(bytes = self.replay_len, "early data rejected, resending");
            self.early_data = EarlyData::Rejected;
            let connection = self.connection.clone();
            self.reopening = Some(Box::pin(async move { connection.open_bi().await }));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_reopen(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Some(opening) = &mut self.reopening {
            (self.send, self.recv) = ready!(opening.as_mut().poll(cx)).map_err(Error::quic)?;
            self.stopped = Box::pin(self.send.stopped());
            self.reopening = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the outbox. A write that flow control blocks is tried again if the window has grown.
    fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<Result<(), Error>> {
        loop {
            let written = self.poll_write_once(cx, outbox);
            if written.is_ready()
                || self.write_failed
                || !self.windows.note_blocked(&self.connection)
            {
                return written;
            }
            self.lanes.forget_blocked();
        }
    }

    fn poll_write_once(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
    ) -> Poll<Result<(), Error>> {
        let control = self.poll_write_control(cx, outbox)?;
        let before = (outbox.data_lanes(), outbox.len());
        let data = self.lanes.poll_write(cx, outbox);
        // Bytes and ends that were written, and bytes that were dropped with a lane that the peer has stopped.
        self.flushing |= (outbox.data_lanes(), outbox.len()) < before;
        self.write_failed |= self.lanes.write_failed;
        // Lanes that are blocked are no reason to keep the owner from filling the others.
        if control.is_ready() && (data.is_ready() || self.flushing) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Writes rejected early data again, then what the outbox has for the control lane; ready when both are empty.
    fn poll_write_control(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
    ) -> Poll<Result<(), Error>> {
        if self.early_data == EarlyData::Rejected {
            while !self.replay.is_empty() {
                let chunks = self.replay.make_contiguous();
                match ready!(poll_write_chunks(&mut self.send, chunks, cx)) {
                    Ok(written) => drop(self.replay.drain(..written.chunks)),
                    Err(error) => return self.on_write_error(&error, cx),
                }
            }
        }
        loop {
            let early = self.early_data == EarlyData::Pending;
            let room = if early {
                self.replay_limit.saturating_sub(self.replay_len)
            } else {
                usize::MAX
            };
            let mut kept = Vec::new();
            let keep = early.then_some(&mut kept);
            let send = &mut self.send;
            let Some(polled) = poll_write_lane(send, outbox, LaneId::CONTROL, room, keep, cx)
            else {
                // Without room to keep more early data, the end of the handshake wakes the task.
                return match outbox.front() {
                    Some(_) => Poll::Pending,
                    None => Poll::Ready(Ok(())),
                };
            };
            match ready!(polled) {
                Ok(written) => {
                    self.bytes_sent += written.bytes as u64;
                    self.flushing = true;
                    self.keep(kept, written.bytes);
                }
                Err(error) => return self.on_write_error(&error, cx),
            }
        }
    }

    /// Keeps the first `count` bytes of early data until the server has answered.
    fn keep(&mut self, chunks: Vec<Bytes>, mut count: usize) {
        for mut bytes in chunks {
            bytes.truncate(count);
            count -= bytes.len();
            self.replay_len += bytes.len();
            if !bytes.is_empty() {
                self.replay.push_back(bytes);
            }
        }
    }

    fn on_write_error(
        &mut self,
        error: &WriteError,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        match error {
            WriteError::ZeroRttRejected => self.poll_rejection(cx),
            // The bytes from before the close are still to be read.
            WriteError::ConnectionLost(_) | WriteError::Stopped(_) => {
                self.write_failed = true;
                Poll::Pending
            }
            WriteError::ClosedStream => Poll::Ready(Err(Error::Closed)),
        }
    }

    /// Handles a stream of rejected early data: wakes the task if the end of the handshake, which the next call
    /// handles, was not polled yet; else returns the error of the connection.
    fn poll_rejection(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.handshake_end.is_some() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let reason = self.connection.close_reason();
        Poll::Ready(Err(reason.map_or(Error::Closed, Error::quic)))
    }

    /// Reads the control lane and the data lanes in turns.
    fn poll_receive_any(&mut self, cx: &mut Context<'_>) -> Poll<Result<Progress, Error>> {
        let lanes_first = std::mem::take(&mut self.lanes.go_first);
        if lanes_first && let Poll::Ready(progress) = self.poll_receive_lanes(cx) {
            return Poll::Ready(Ok(progress));
        }
        let received = self.poll_receive(cx);
        if received.is_ready() {
            self.lanes.go_first = true;
            return received;
        }
        if lanes_first {
            return Poll::Pending;
        }
        self.poll_receive_lanes(cx).map(Ok)
    }

    fn poll_receive_lanes(&mut self, cx: &Context<'_>) -> Poll<Progress> {
        let before = self.lanes.bytes_received;
        let progress = self.lanes.poll_read(cx);
        if self.lanes.has_accepted() {
            let open = self.lanes.opened_by_client();
            self.windows.note_streams(&self.connection, open);
        }
        let count = self.lanes.bytes_received - before;
        if count > 0 {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            self.windows.note_read(&self.connection, count);
        }
        progress
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Progress, Error>> {
        let mut chunks: [Bytes; CHUNKS_PER_CALL] = std::array::from_fn(|_| Bytes::new());
        // The future holds no state: dropped while pending, it has read nothing.
        let polled = pin!(self.recv.read_chunks(&mut chunks)).poll(cx);
        if polled.is_pending() && self.received.is_empty() {
            self.received = BytesMut::new();
        }
        match ready!(polled) {
            Ok(Some(filled)) => {
                let count = chunks[..filled].iter().map(Bytes::len).sum();
                self.received.reserve(count);
                for bytes in &chunks[..filled] {
                    self.received.extend_from_slice(bytes);
                }
                self.bytes_received += count as u64;
                self.windows.note_read(&self.connection, count);
                Poll::Ready(Ok(Progress::Received(LaneId::CONTROL)))
            }
            Ok(None) => Poll::Ready(Ok(Progress::Closed)),
            Err(ReadError::ZeroRttRejected) => {
                self.poll_rejection(cx).map_ok(|()| Progress::Closed)
            }
            Err(ReadError::ConnectionLost(error)) => Poll::Ready(end_of_connection(error)),
            Err(ReadError::Reset(code)) => Poll::Ready(Err(Error::reset(format!(
                "the stream was reset with code {code}"
            )))),
            Err(ReadError::ClosedStream | ReadError::IllegalOrderedRead) => {
                Poll::Ready(Err(Error::Closed))
            }
        }
    }

    /// Resolves, on each call, once the peer has stopped reading (`STOP_SENDING`, RFC 9000 §3.5). On the
    /// control lane this ends the connection like a lost link: no answer can reach the peer.
    fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Ok(Some(code)) = ready!(self.stopped.as_mut().poll(cx)) {
            self.stopped = Box::pin(std::future::ready(Ok(Some(code))));
            return Poll::Ready(());
        }
        // Reading reports other ends.
        self.stopped = Box::pin(std::future::pending());
        Poll::Pending
    }

    fn negotiated_kind(&self) -> HandshakeKind {
        match handshake_of(&self.connection).server_hello {
            Some(hello) if hello.resumed => HandshakeKind::Resumed,
            _ => HandshakeKind::Full,
        }
    }

    pub(crate) fn is_early(&self) -> bool {
        self.side == Side::Server
            && self.early_data == EarlyData::Accepted
            && self.handshake == HandshakeKind::Pending
    }

    pub(crate) fn handshake(&self) -> HandshakeKind {
        self.handshake
    }

    /// Writes what was taken from the outbox and is not written yet: early data that was rejected.
    async fn send_all(&mut self) -> Result<(), Error> {
        poll_fn(|cx| {
            ready!(self.poll_handshake(cx))?;
            ready!(self.poll_reopen(cx))?;
            self.poll_write(cx, &mut Outbox::new())
        })
        .await
    }

    /// See [`Link::end_sending`](crate::Link::end_sending).
    pub(crate) async fn end_sending(&mut self) -> Result<(), Error> {
        self.send_all().await?;
        self.send.finish().map_err(|_| Error::Closed)
    }

    /// Ends the stream and waits until the peer has all of it; a server then waits until the peer
    /// closes the connection, for [`LINGER`] at most.
    pub(crate) async fn close(mut self) {
        let delivered = async {
            self.send_all().await?;
            self.received = BytesMut::new();
            self.lanes.close().await;
            // An error if it has ended already.
            let _ = self.send.finish();
            let stopped = self.send.stopped().await;
            if self.side == Side::Server
                && matches!(stopped, Ok(None))
                && let Ok(_place) = LINGERING_CONNECTIONS.try_acquire()
            {
                let left = tokio::time::timeout(LINGER, self.peer_leaves());
                let _ = left.await;
            }
            Ok::<_, Error>(())
        };
        let _ = delivered.await;
    }

    /// Waits until the peer has closed the connection or ended its stream. Reads and drops further bytes
    /// of the peer, up to a limit.
    async fn peer_leaves(&mut self) {
        let mut left = LINGER_BYTES;
        while left > 0 {
            match self.recv.read_chunk(left, false).await {
                Ok(Some(chunk)) => left -= chunk.bytes.len(),
                Ok(None) | Err(_) => return,
            }
        }
        self.connection.closed().await;
    }

    /// Lets the flow-control windows and the number of streams grow, once the application has admitted the peer.
    pub(crate) fn let_in(&mut self) {
        self.windows.let_in();
        let open = self.lanes.opened_by_client();
        self.windows.note_streams(&self.connection, open);
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// See [`Link::own_lanes`](crate::Link::own_lanes).
    pub(crate) fn own_lanes(&self) -> usize {
        self.lanes.opened_by(self.side)
    }

    pub(crate) fn lanes_mut(&mut self) -> &mut Lanes {
        &mut self.lanes
    }

    /// See [`Link::takes_datagram`](crate::Link::takes_datagram).
    pub(crate) fn takes_datagram(&self, bytes: usize) -> bool {
        let is_early = self.side == Side::Client && self.handshake == HandshakeKind::Pending;
        let fits = |most: usize| most >= bytes;
        !is_early
            && self.connection.max_datagram_size().is_some_and(fits)
            && self.connection.datagram_send_buffer_space() >= bytes
    }

    pub(crate) fn send_datagram(&mut self, bytes: Bytes) -> bool {
        let count = bytes.len() as u64;
        let sent = self.takes_datagram(bytes.len()) && self.connection.send_datagram(bytes).is_ok();
        if sent {
            self.bytes_sent += count;
            self.datagrams_sent += 1;
        }
        sent
    }

    /// See [`Link::open_lane`](crate::Link::open_lane).
    pub(crate) fn open_lane(&mut self) -> Option<LaneId> {
        // Rejected early data would have to be sent again on each of them.
        let is_early = self.side == Side::Client && self.handshake == HandshakeKind::Pending;
        if is_early { None } else { self.lanes.open() }
    }

    /// Sets the local address of the endpoint's socket.
    pub(crate) fn with_bound(mut self, bound: Option<SocketAddr>) -> Self {
        self.bound = bound;
        self
    }

    /// Records that a token has proved the client's address.
    pub(crate) fn with_validated(mut self, validated: bool) -> Self {
        self.is_validated = validated;
        self
    }

    /// See [`Link::is_peer_address_proved`](crate::Link::is_peer_address_proved).
    pub(crate) fn is_peer_address_proved(&self) -> bool {
        self.is_validated || !self.is_early()
    }

    /// Ends the link with the error of `closed_port` if that resolves before the handshake ends.
    pub(crate) fn with_closed_port(mut self, closed_port: ClosedPort) -> Self {
        self.closed_port = Some(closed_port);
        self
    }

    pub(crate) fn connection(&self) -> quinn::Connection {
        self.connection.clone()
    }

    pub(crate) fn send_progress(&self) -> SendProgress {
        let counted = self.connection.stats();
        SendProgress(Counts::Frames {
            streams: counted.frame_tx.stream,
            acks: counted.frame_rx.acks,
        })
    }

    pub(crate) fn stats(&self) -> LinkStats {
        let counted = self.connection.stats();
        let copies = self.repeater.as_ref().map(LinkRepeater::copies);
        let copies = copies.unwrap_or_default();
        LinkStats {
            bytes_sent: self.bytes_sent + self.lanes.bytes_sent,
            bytes_received: self.bytes_received + self.lanes.bytes_received,
            wire_bytes_sent: Some(counted.udp_tx.bytes + copies.bytes),
            wire_bytes_received: Some(counted.udp_rx.bytes),
            packets_sent: Some(counted.udp_tx.datagrams + copies.datagrams),
            packets_repeated: Some(copies.datagrams),
            send_calls: Some(counted.udp_tx.ios + copies.datagrams),
            packets_received: Some(counted.udp_rx.datagrams),
            packets_lost: Some(counted.path.lost_packets),
            messages_as_datagrams: Some(self.datagrams_sent),
            streams_blocked: Some(
                counted.frame_rx.streams_blocked_bidi + counted.frame_rx.streams_blocked_uni,
            ),
            rtt: Some(counted.path.rtt),
            congestion_window: Some(counted.path.cwnd),
            handshake: self.handshake,
            early_data: self.early_data,
            ..LinkStats::default()
        }
    }

    pub(crate) fn info(&self) -> LinkInfo {
        let handshake = handshake_of(&self.connection);
        let certificates = self.connection.peer_identity();
        let certificates = certificates
            .and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok())
            .map(|chain| certificates_of(&chain));
        LinkInfo {
            scheme: Scheme::Quic,
            peer_address: Some(self.connection.remote_address()),
            local_address: self.bound.map(|bound| {
                let ip = self.connection.local_ip().unwrap_or(bound.ip());
                SocketAddr::new(ip, bound.port())
            }),
            tls: handshake.server_hello.map(|hello| TlsInfo {
                version: TlsVersion::Tls13,
                cipher_suite: iana_name(CipherSuite::from(hello.cipher_suite).as_str()),
                key_exchange_group: hello
                    .group
                    .map(|group| iana_name(NamedGroup::from(group).as_str())),
                alpn: handshake.alpn,
                server_name: self.server_name.clone().or(handshake.server_name),
            }),
            peer_certificates: certificates.unwrap_or_default(),
        }
    }
}

impl fmt::Debug for QuicLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicLink")
            .field("peer", &self.connection.remote_address())
            .field("handshake", &self.handshake)
            .field("early_data", &self.early_data)
            .finish_non_exhaustive()
    }
}

impl BegunConnection {
    /// Waits until the connection can send: at once with early data and on a server, else after the handshake.
    async fn usable(self) -> Result<Usable, Error> {
        // Awaiting `connecting` would make a server wait for the client's Finished, one round trip more.
        let (connection, handshake_end) = match self.connecting.into_0rtt() {
            Ok((connection, accepted)) => (connection, Some(accepted)),
            Err(connecting) => (connecting.await.map_err(Error::quic)?, None),
        };
        let repeater = self
            .repeater
            .map(|repeater| LinkRepeater::new(repeater, &connection));
        if let Some(repeater) = &repeater
            && handshake_end.is_none()
        {
            repeater.end_handshake();
        }
        Ok(Usable {
            limits: self.limits,
            connection,
            repeater,
            handshake_end,
        })
    }
}

fn stopped_reading() -> Error {
    Error::reset("the peer reads the control stream no more (STOP_SENDING)")
}

/// Returns the outcome of a closed connection: error code 0 of the peer's application is an orderly close.
fn end_of_connection(error: ConnectionError) -> Result<Progress, Error> {
    match error {
        ConnectionError::ApplicationClosed(close) if close.error_code == VarInt::from_u32(0) => {
            Ok(Progress::Closed)
        }
        other => Err(Error::quic(other)),
    }
}
