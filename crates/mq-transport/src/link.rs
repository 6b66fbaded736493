//! A link: one connection, whatever carries it.

#[cfg(feature = "tls")]
use std::sync::Arc;
use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use mq_lane::{LaneEnd, LaneId, Outbox};

#[cfg(feature = "quic")]
use crate::quic::QuicLink;
#[cfg(feature = "tls")]
use crate::tls::{HeldTickets, TlsLink};
#[cfg(feature = "ws")]
use crate::ws::WsLink;
use crate::{
    Error, HandshakeKind, LinkInfo, LinkStats, SendProgress,
    mem::MemLink,
    socket::move_here,
    tcp::{TcpLink, UnixLink},
};

/// A connection over any transport, owned by one task.
///
/// The owner calls [`progress`](Self::progress) in a loop, consumes complete packets from
/// [`received`](Self::received) and appends packets to its outbox. Dropping a link cuts the
/// connection; [`close`](Self::close) delivers first what was written.
#[derive(Debug)]
pub struct Link {
    transport: Transport,
    /// The peer's address in the PROXY header that the connection began with.
    told_peer: Option<Box<SocketAddr>>,
    /// An empty buffer that stands in for the received bytes of lanes that the connection does not have.
    no_lane: Option<Box<BytesMut>>,
    /// The tickets of this connection, on a server that [holds tickets back](crate::ListenOptions::hold_tickets).
    #[cfg(feature = "tls")]
    tickets: Option<Arc<HeldTickets>>,
}

#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpLink),
    Unix(Box<UnixLink>),
    #[cfg(feature = "tls")]
    Tls(Box<TlsLink>),
    #[cfg(feature = "quic")]
    Quic(Box<QuicLink>),
    #[cfg(feature = "ws")]
    Ws(Box<WsLink>),
    Mem(Box<MemLink>),
}

/// The outcome of [`Link::progress`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Bytes were received on this lane and are in [`Link::received`].
    Received(LaneId),
    /// The kernel or the QUIC stack has taken all bytes of the outbox, but for those of data lanes on which the peer takes no
    /// more now.
    Flushed,
    /// The peer ended this data lane in some way, and the connection goes on. Bytes received before are in
    /// [`Link::received`], until the owner ends its side with [`Outbox::end`].
    LaneClosed(LaneId, LaneClosed),
    /// Datagrams were received: see [`Link::next_datagram`].
    Datagrams,
    /// The peer closed the connection in order. Bytes received before are in [`Link::received`].
    Closed,
}

/// Ways in which a peer ends a data lane, a QUIC stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneClosed {
    /// Closed in order by FIN, after a whole packet or within one. The other direction stays open.
    Finished,
    /// Reset by `RESET_STREAM` with this error code; both directions are closed.
    Reset(u64),
    /// Refused by `STOP_SENDING` with this error code: the peer reads nothing more; both directions are closed.
    Stopped(u64),
}

/// Text form, such as `reset with code 0x1`.
impl fmt::Display for LaneClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("finished"),
            Self::Reset(code) => write!(f, "reset with code {code:#x}"),
            Self::Stopped(code) => write!(f, "stopped with code {code:#x}"),
        }
    }
}

impl From<LaneClosed> for LaneEnd {
    fn from(closed: LaneClosed) -> Self {
        match closed {
            LaneClosed::Finished => Self::Finish,
            LaneClosed::Reset(code) | LaneClosed::Stopped(code) => {
                Self::Abort(u32::try_from(code).unwrap_or(u32::MAX))
            }
        }
    }
}

/// Calls the same method of each transport.
macro_rules! each {
    ($transport:expr, $link:ident => $call:expr) => {
        match $transport {
            Transport::Tcp($link) => $call,
            Transport::Unix($link) => $call,
            #[cfg(feature = "tls")]
            Transport::Tls($link) => $call,
            #[cfg(feature = "quic")]
            Transport::Quic($link) => $call,
            #[cfg(feature = "ws")]
            Transport::Ws($link) => $call,
            Transport::Mem($link) => $call,
        }
    };
}

/// Calls the same method of each transport with a handshake; others give the value of `else`.
macro_rules! with_handshake {
    ($transport:expr, $link:ident => $call:expr, else $other:expr) => {
        match $transport {
            #[cfg(feature = "tls")]
            Transport::Tls($link) => $call,
            #[cfg(feature = "quic")]
            Transport::Quic($link) => $call,
            #[cfg(feature = "ws")]
            Transport::Ws($link) => $call,
            Transport::Tcp(_) | Transport::Unix(_) | Transport::Mem(_) => $other,
        }
    };
}

impl Link {
    pub(crate) fn new(transport: Transport) -> Self {
        Self {
            transport,
            told_peer: None,
            no_lane: None,
            #[cfg(feature = "tls")]
            tickets: None,
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_held_tickets(self, tickets: Option<Arc<HeldTickets>>) -> Self {
        Self { tickets, ..self }
    }

    pub(crate) fn with_told_peer(self, peer: SocketAddr) -> Self {
        Self {
            told_peer: Some(Box::new(peer)),
            ..self
        }
    }

    /// Makes two links in memory that are each other's peer, for tests. Each direction holds at most 256 KiB of unread
    /// bytes.
    #[must_use]
    pub fn pair() -> (Self, Self) {
        Self::pair_with_delay(Duration::ZERO)
    }

    /// Returns two links in memory that are each other's peer, with a one-way delay of `delay` for each byte. The
    /// delay is measured by tokio's clock: a paused clock makes it virtual time.
    #[must_use]
    pub fn pair_with_delay(delay: Duration) -> (Self, Self) {
        let (one, other) = MemLink::pair(delay);
        let link = |mem| Self::new(Transport::Mem(Box::new(mem)));
        (link(one), link(other))
    }

    /// Reads and writes until there is some [`Progress`] to return.
    ///
    /// Resolves when bytes came in, when all of `outbox` was taken, or when the peer ended the
    /// connection. With `want_read` off it does not read, so that bytes stay with the peer
    /// (back-pressure). It returns [`Progress::Flushed`] once for the bytes that were taken, and
    /// never for an empty outbox. Reads and writes take turns: neither starves the other.
    ///
    /// Cancel-safe: written bytes have left `outbox`, and bytes that came in are in
    /// [`received`](Self::received). TLS and WebSocket each keep up to 64 KiB of taken bytes that
    /// the kernel has no room for; the next call goes on with them, whatever its outbox holds.
    ///
    /// # Errors
    /// [`Error::Reset`] or [`Error::TimedOut`] when the peer is gone, [`Error::Handshake`] or
    /// [`Error::CertificateRejected`] where a handshake was still under way, [`Error::Protocol`].
    /// The link is unusable after an error.
    pub async fn progress(
        &mut self,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Result<Progress, Error> {
        poll_fn(|cx| self.poll_progress(cx, outbox, want_read)).await
    }

    /// Writes all of `outbox`, and reads nothing. Set a time limit: a peer that does not read keeps it waiting.
    ///
    /// # Errors
    /// If the peer has closed the connection in order ([`Error::Closed`]), or for a reason of [`progress`](Self::progress).
    pub async fn flush(&mut self, outbox: &mut Outbox) -> Result<(), Error> {
        while !outbox.is_empty() {
            // A link whose peer has closed says so at each call, and takes nothing more.
            if self.progress(outbox, false).await? == Progress::Closed {
                return Err(Error::Closed);
            }
        }
        Ok(())
    }

    /// Ends this side alone: TCP's FIN, TLS's `close_notify`, QUIC's end of stream. The peer can still send, and what it sends
    /// can be read; nothing more may be written. Bytes in an outbox are not sent: [`flush`](Self::flush) them first.
    ///
    /// Returns `false`, and does nothing, where both sides end together: over WebSocket, and on mem.
    ///
    /// # Errors
    /// If the connection has failed.
    pub async fn end_sending(&mut self) -> Result<bool, Error> {
        match &mut self.transport {
            Transport::Tcp(link) => link.end_sending().await?,
            Transport::Unix(link) => link.end_sending().await?,
            #[cfg(feature = "tls")]
            Transport::Tls(link) => link.end_sending().await?,
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.end_sending().await?,
            #[cfg(feature = "ws")]
            Transport::Ws(_) => return Ok(false),
            Transport::Mem(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Polls for progress, as [`progress`](Self::progress) awaits it.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Poll<Result<Progress, Error>> {
        each!(&mut self.transport, link => link.poll_progress(cx, outbox, want_read))
    }

    /// Polls like [`poll_progress`](Self::poll_progress), for an owner that also waits for the end of the handshake:
    /// `None` says, once, that the handshake has ended and there is no other progress.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub fn poll_progress_or_handshake(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Poll<Option<Result<Progress, Error>>> {
        let was_pending = self.handshake() == HandshakeKind::Pending;
        match self.poll_progress(cx, outbox, want_read) {
            Poll::Ready(progress) => Poll::Ready(Some(progress)),
            Poll::Pending if was_pending && self.handshake() != HandshakeKind::Pending => {
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Returns the number of bytes received on all lanes and not consumed yet. Unlike [`received`](Self::received),
    /// the call does not count as a look at the bytes.
    #[must_use]
    pub fn received_len(&self) -> usize {
        let control = each!(&self.transport, link => link.received.len());
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => control + link.lanes().received_len(),
            _ => control,
        }
    }

    /// Returns the data lanes with bytes that were received and not consumed yet.
    #[must_use]
    pub fn unread_lanes(&self) -> Vec<LaneId> {
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.lanes().unread().collect(),
            _ => Vec::new(),
        }
    }

    /// Opens a data lane, where the transport has them and the peer grants one more now: over QUIC a
    /// bidirectional stream. On a client not before the handshake is complete. The owner writes to it
    /// through the outbox, and ends it with [`Outbox::end`].
    pub fn open_lane(&mut self) -> Option<LaneId> {
        match &mut self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.open_lane(),
            _ => None,
        }
    }

    /// Takes the next received datagram (RFC 9221). Datagrams that the owner does not take wait in the QUIC stack,
    /// which drops the oldest beyond [`datagram_buffer`](crate::QuicOptions::datagram_buffer).
    pub fn next_datagram(&mut self) -> Option<Bytes> {
        match &mut self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.lanes_mut().next_datagram(),
            _ => None,
        }
    }

    /// Returns `true` if a datagram with a payload of `bytes` bytes can be sent now: the peer accepts datagrams of
    /// that size (`max_datagram_frame_size`, RFC 9221 §3), the path MTU has room, and the QUIC stack's send buffer
    /// (1 MiB) does not have to drop an earlier datagram for it. On a client not before the handshake is complete. A
    /// datagram may be lost on the way like any packet.
    #[cfg_attr(
        not(feature = "quic"),
        expect(unused_variables, reason = "other transports have none")
    )]
    #[must_use]
    pub fn takes_datagram(&self, bytes: usize) -> bool {
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.takes_datagram(bytes),
            _ => false,
        }
    }

    /// Sends a datagram if [it can be sent now](Self::takes_datagram); returns `true` if it was sent.
    #[cfg_attr(
        not(feature = "quic"),
        expect(unused_variables, reason = "other transports have none")
    )]
    pub fn send_datagram(&mut self, bytes: Bytes) -> bool {
        match &mut self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.send_datagram(bytes),
            _ => false,
        }
    }

    /// Returns the number of open data lanes.
    #[must_use]
    pub fn data_lanes(&self) -> usize {
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.lanes().len(),
            _ => 0,
        }
    }

    /// Returns the number of open data lanes that this side has opened.
    #[must_use]
    pub fn own_lanes(&self) -> usize {
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.own_lanes(),
            _ => 0,
        }
    }

    /// Returns the open data lanes, each with the number of bytes ever received on it.
    #[must_use]
    pub fn lane_bytes_received(&self) -> Vec<(LaneId, u64)> {
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.lanes().bytes_received().collect(),
            _ => Vec::new(),
        }
    }

    /// Sets the urgency of what is written to a data lane: while there is something to send on a lane of
    /// higher priority, the others wait. Default 0, as that of the control lane.
    #[cfg_attr(
        not(feature = "quic"),
        expect(unused_variables, reason = "other transports have one lane")
    )]
    pub fn prioritize_lane(&mut self, lane: LaneId, priority: i32) {
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.lanes().prioritize(lane, priority),
            _ => {}
        }
    }

    /// Returns the bytes that came in on `lane` and were not consumed yet, for the owner to consume from the front.
    /// [`progress`](Self::progress) does not return again for bytes that the owner has looked at.
    ///
    /// A silent connection with an empty buffer holds no memory for it. The owner bounds the buffer
    /// by refusing packets above its limit, and by `want_read`.
    pub fn received(&mut self, lane: LaneId) -> &mut BytesMut {
        if lane == LaneId::CONTROL {
            #[cfg(feature = "tls")]
            if let Transport::Tls(link) = &mut self.transport {
                // The owner looks at them now: no further `Received` for them.
                link.received();
            }
            return each!(&mut self.transport, link => &mut link.received);
        }
        #[cfg(feature = "quic")]
        if let Transport::Quic(link) = &mut self.transport
            && let Some(received) = link.lanes_mut().received(lane)
        {
            return received;
        }
        let no_lane = self.no_lane.get_or_insert_default();
        no_lane.clear();
        no_lane
    }

    /// Ends the connection in order, after delivering what was written: TCP's FIN, TLS's
    /// `close_notify`, WebSocket's Close, QUIC's end of stream and `CONNECTION_CLOSE`.
    ///
    /// Waits until the peer has ended its side as well, for `deadline` at most. Over QUIC a
    /// client waits only until the server has everything. A server waits up to 1 s longer, since some
    /// peers drop unread bytes when their connection is closed. Bytes that are still in an outbox are
    /// not sent.
    pub async fn close(self, deadline: Duration) {
        self.close_with(0, deadline).await;
    }

    /// Closes the link like [`close`](Self::close), with an application error code. QUIC alone carries the code, in
    /// `CONNECTION_CLOSE` (RFC 9000 §19.19).
    pub async fn close_with(self, code: u32, deadline: Duration) {
        #[cfg(not(feature = "quic"))]
        let _ = code;
        #[cfg(feature = "quic")]
        let quic = match &self.transport {
            Transport::Quic(link) => Some(link.connection()),
            _ => None,
        };
        let closing = async {
            match self.transport {
                Transport::Tcp(link) => link.close().await,
                Transport::Unix(link) => link.close().await,
                #[cfg(feature = "tls")]
                Transport::Tls(link) => link.close().await,
                #[cfg(feature = "quic")]
                Transport::Quic(link) => link.close().await,
                #[cfg(feature = "ws")]
                Transport::Ws(link) => Box::pin(link.close(deadline)).await,
                Transport::Mem(link) => drop(link),
            }
        };
        if tokio::time::timeout(deadline, closing).await.is_err() {
            tracing::debug!(
                deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
                "close timed out with bytes unsent"
            );
        }
        #[cfg(feature = "quic")]
        if let Some(connection) = quic {
            connection.close(code.into(), b"");
            // Lets the connection's driver send the packet before a runtime that ends stops it.
            tokio::task::yield_now().await;
        }
    }

    /// Returns `true` if [`move_here`](Self::move_here) can move the link. False over QUIC, whose endpoint stays on
    /// its runtime, on mem, and while [early data](Self::is_early) is being received.
    #[must_use]
    pub fn can_move(&self) -> bool {
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(_) => false,
            Transport::Mem(_) => false,
            _ => !self.is_early(),
        }
    }

    /// Moves the socket to the runtime of the caller, which serves the link from now on; needs a file descriptor
    /// for a moment. Does nothing where it [cannot be moved](Self::can_move). Loses nothing.
    ///
    /// # Errors
    /// If the system refuses. The link goes on with its socket where it was.
    pub fn move_here(&mut self) -> io::Result<()> {
        match &mut self.transport {
            Transport::Tcp(link) => move_here(link.stream()),
            Transport::Unix(link) => move_here(link.stream()),
            #[cfg(feature = "tls")]
            Transport::Tls(link) => move_here(link.stream()),
            #[cfg(feature = "ws")]
            Transport::Ws(link) => link.stream().move_here(),
            #[cfg(feature = "quic")]
            Transport::Quic(_) => Ok(()),
            Transport::Mem(_) => Ok(()),
        }
    }

    /// Returns the counters; see [`LinkStats`] for their cost.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        each!(&self.transport, link => link.stats())
    }

    /// Returns how far the bytes of this side have got. Costs a system call on TCP, TLS and WebSocket (Linux only; elsewhere
    /// there is no progress) and a lock on QUIC; in memory there is none.
    #[must_use]
    pub fn send_progress(&self) -> SendProgress {
        each!(&self.transport, link => link.send_progress())
    }

    /// Returns the two ends, and the parameters negotiated so far. Behind a proxy the peer's address is that of its
    /// [PROXY header](crate::ListenOptions::proxy_protocol).
    #[must_use]
    pub fn info(&self) -> LinkInfo {
        let mut info = each!(&self.transport, link => link.info());
        if let Some(told) = &self.told_peer {
            info.peer_address = Some(**told);
        }
        info
    }

    /// Returns `true` on a server if the bytes received so far are early data of a handshake that has not ended.
    ///
    /// Such bytes may be a copy that overtook the original. A single-use ticket lets the server accept one of the two
    /// as early data, whichever arrives first; the client sends the refused bytes again (RFC 8446 §8, RFC 9001 §9.2).
    /// The bytes do not prove yet that the client is live. Always false on a client.
    #[must_use]
    pub fn is_early(&self) -> bool {
        with_handshake!(&self.transport, link => link.is_early(), else false)
    }

    /// Returns `true` unless the peer's address may be forged: on a server, that of a client whose [early data](Self::is_early) is
    /// received over QUIC, until a token or the end of the handshake has proved it (RFC 9000 §8.1).
    #[must_use]
    pub fn is_peer_address_proved(&self) -> bool {
        match &self.transport {
            #[cfg(feature = "quic")]
            Transport::Quic(link) => link.is_peer_address_proved(),
            _ => true,
        }
    }

    /// Records that the application has admitted the client. Its tickets become valid, where the server
    /// [holds them back](crate::ListenOptions::hold_tickets), and its windows may grow, where their
    /// [memory is bounded](crate::ListenOptions::window_memory).
    pub fn let_in(&mut self) {
        #[cfg(feature = "quic")]
        if let Transport::Quic(link) = &mut self.transport {
            link.let_in();
        }
        #[cfg(feature = "tls")]
        if let Some(tickets) = self.tickets.take() {
            tickets.release();
        }
    }

    /// Returns the state of the handshake without waiting; [`progress`](Self::progress) drives the handshake.
    #[must_use]
    pub fn handshake(&self) -> HandshakeKind {
        with_handshake!(&self.transport, link => link.handshake(), else HandshakeKind::None)
    }

    /// Waits for the end of the handshake; at once where there is none.
    ///
    /// Cancel-safe, and loses nothing: the next [`progress`](Self::progress) returns for bytes that
    /// come in meanwhile. An owner that drives progress reads
    /// [`handshake`](Self::handshake) after each step instead.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub async fn handshake_complete(&mut self) -> Result<HandshakeKind, Error> {
        poll_fn(|cx| self.poll_handshake(cx)).await?;
        Ok(self.handshake())
    }

    #[cfg_attr(
        not(any(feature = "tls", feature = "ws")),
        expect(unused_variables, reason = "there is none to wait for")
    )]
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        with_handshake!(
            &mut self.transport,
            link => link.poll_handshake(cx),
            else Poll::Ready(Ok(()))
        )
    }
}
