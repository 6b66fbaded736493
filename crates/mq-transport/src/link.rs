//! A link: one connection, whatever carries it.

#[cfg(feature = "tls")]
use std::sync::Arc;
use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use bytes::BytesMut;
use mq_lane::{LaneId, Outbox};

#[cfg(feature = "quic")]
use crate::quic::QuicLink;
#[cfg(feature = "tls")]
use crate::tls::{HeldTickets, TlsLink};
#[cfg(feature = "ws")]
use crate::ws::WsLink;
use crate::{Error, HandshakeKind, LinkInfo, LinkStats, mem::MemLink, tcp::TcpLink};

/// One connection, owned by one task.
///
/// The owner calls [`progress`](Self::progress) in a loop, consumes complete packets from
/// [`received`](Self::received) and appends packets to its outbox. Dropping a link cuts the
/// connection; [`close`](Self::close) delivers first what was written.
#[derive(Debug)]
pub struct Link {
    transport: Transport,
    /// Handed out for lanes that the connection does not have; stays empty.
    no_lane: BytesMut,
    /// On a server that holds them back.
    #[cfg(feature = "tls")]
    tickets: Option<Arc<HeldTickets>>,
}

#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpLink),
    #[cfg(feature = "tls")]
    Tls(Box<TlsLink>),
    #[cfg(feature = "quic")]
    Quic(Box<QuicLink>),
    #[cfg(feature = "ws")]
    Ws(Box<WsLink>),
    Mem(Box<MemLink>),
}

/// What [`Link::progress`] has to tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Bytes came in on this lane and are in [`Link::received`].
    Received(LaneId),
    /// All that the outbox had was handed to the kernel or the QUIC stack.
    Flushed,
    /// The peer ended this lane, and the connection goes on. No link tells this in this version, in
    /// which a connection has one lane.
    LaneClosed(LaneId),
    /// The peer ended the connection in order. What it sent before is in [`Link::received`].
    Closed,
}

/// Calls the same method of whichever transport it is.
macro_rules! each {
    ($transport:expr, $link:ident => $call:expr) => {
        match $transport {
            Transport::Tcp($link) => $call,
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

/// Calls the same method of a transport with a handshake; of another it is what `else` says.
macro_rules! with_handshake {
    ($transport:expr, $link:ident => $call:expr, else $other:expr) => {
        match $transport {
            #[cfg(feature = "tls")]
            Transport::Tls($link) => $call,
            #[cfg(feature = "quic")]
            Transport::Quic($link) => $call,
            #[cfg(feature = "ws")]
            Transport::Ws($link) => $call,
            Transport::Tcp(_) | Transport::Mem(_) => $other,
        }
    };
}

impl Link {
    pub(crate) fn new(transport: Transport) -> Self {
        Self {
            transport,
            no_lane: BytesMut::new(),
            #[cfg(feature = "tls")]
            tickets: None,
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_held_tickets(self, tickets: Option<Arc<HeldTickets>>) -> Self {
        Self { tickets, ..self }
    }

    /// Two links in memory that are each other's peer, for tests; what is not read yet is bounded
    /// to 256 KiB in each direction.
    #[must_use]
    pub fn pair() -> (Self, Self) {
        Self::pair_with_delay(Duration::ZERO)
    }

    /// The same where each byte takes `delay` to the other side, by tokio's clock: a paused clock
    /// makes it virtual time.
    #[must_use]
    pub fn pair_with_delay(delay: Duration) -> (Self, Self) {
        let (one, other) = MemLink::pair(delay);
        let link = |mem| Self::new(Transport::Mem(Box::new(mem)));
        (link(one), link(other))
    }

    /// Reads and writes until there is something to tell.
    ///
    /// Resolves when bytes came in (unless `want_read` is off, which leaves them to the peer:
    /// back-pressure), when all of `outbox` was handed on, or when the peer ended the connection.
    /// [`Progress::Flushed`] is told once for bytes that were taken, never for an outbox that had
    /// none. Reads and writes take turns: neither starves the other.
    ///
    /// Cancel-safe: what was written has left `outbox`, what came in is in
    /// [`received`](Self::received). TLS and WebSocket keep up to 64 KiB each of taken bytes that
    /// the kernel has no room for; the next call goes on with them, whatever its outbox holds.
    ///
    /// # Errors
    /// [`Error::Reset`] or [`Error::TimedOut`] when the peer is gone, [`Error::Handshake`] or
    /// [`Error::CertificateRejected`] where a handshake was still under way, [`Error::Protocol`].
    /// The link is of no use after an error.
    pub async fn progress(
        &mut self,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Result<Progress, Error> {
        poll_fn(|cx| self.poll_progress(cx, outbox, want_read)).await
    }

    /// [`progress`](Self::progress) for those who poll.
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

    /// [`poll_progress`](Self::poll_progress) for an owner that also waits for the end of the
    /// handshake: `None` says, once, that it has ended and nothing else is to be told.
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

    /// How many bytes came in on `lane` and were not consumed yet, for an owner that counts them: the
    /// link still tells of those that it has not told of.
    #[must_use]
    pub fn received_len(&self, lane: LaneId) -> usize {
        if lane != LaneId::CONTROL {
            return 0;
        }
        each!(&self.transport, link => link.received.len())
    }

    /// The bytes that came in on `lane` and were not consumed yet, for the owner to consume from
    /// the front. An owner that has looked at them is not told of them any more.
    ///
    /// A connection that is silent while this is empty holds no read buffer. The owner bounds it:
    /// by refusing packets above its limit, and by `want_read`.
    pub fn received(&mut self, lane: LaneId) -> &mut BytesMut {
        if lane == LaneId::CONTROL {
            #[cfg(feature = "tls")]
            if let Transport::Tls(link) = &mut self.transport {
                // It need not tell of them any more.
                link.received();
            }
            each!(&mut self.transport, link => &mut link.received)
        } else {
            self.no_lane.clear();
            &mut self.no_lane
        }
    }

    /// Ends the connection in order, after delivering what was written: TCP's FIN, TLS's
    /// `close_notify`, WebSocket's Close, QUIC's end of stream and `CONNECTION_CLOSE`.
    ///
    /// Waits until the peer has ended its side as well, and at most for `deadline`. Over QUIC a
    /// client waits only until the server has everything, and a server waits 1 s longer than that at
    /// most: a peer whose connection is closed under it may drop what it has not read. What is
    /// still in an outbox is not sent.
    pub async fn close(self, deadline: Duration) {
        #[cfg(feature = "quic")]
        let quic = match &self.transport {
            Transport::Quic(link) => Some(link.connection()),
            _ => None,
        };
        let closing = async {
            match self.transport {
                Transport::Tcp(link) => link.close().await,
                #[cfg(feature = "tls")]
                Transport::Tls(link) => link.close().await,
                #[cfg(feature = "quic")]
                Transport::Quic(link) => link.close().await,
                #[cfg(feature = "ws")]
                Transport::Ws(link) => link.close().await,
                Transport::Mem(link) => drop(link),
            }
        };
        if tokio::time::timeout(deadline, closing).await.is_err() {
            tracing::debug!(?deadline, "the peer did not take everything in time");
        }
        #[cfg(feature = "quic")]
        if let Some(connection) = quic {
            connection.close(0_u32.into(), b"");
            // Lets the connection's driver send the packet before a runtime that ends stops it.
            tokio::task::yield_now().await;
        }
    }

    /// Counters; see [`LinkStats`] for their cost.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        each!(&self.transport, link => link.stats())
    }

    /// The two ends, and what was negotiated so far.
    #[must_use]
    pub fn info(&self) -> LinkInfo {
        each!(&self.transport, link => link.info())
    }

    /// On a server: whether what came in so far is early data of a handshake that has not ended.
    ///
    /// Such bytes may be a copy that overtook the original. A single-use ticket lets one of the two be
    /// taken as early data, whichever comes first; the client sends again what was refused (RFC 8446 §8,
    /// RFC 9001 §9.2). The client has not proved yet that it is there. Always false on a client.
    #[must_use]
    pub fn is_early(&self) -> bool {
        with_handshake!(&self.transport, link => link.is_early(), else false)
    }

    /// On a server that [holds tickets back](crate::ListenOptions::hold_tickets): the client was let
    /// in, and its tickets are good from now on. Elsewhere they are anyway.
    pub fn release_tickets(&mut self) {
        #[cfg(feature = "tls")]
        if let Some(tickets) = self.tickets.take() {
            tickets.release();
        }
    }

    /// How the handshake went, without waiting; [`progress`](Self::progress) moves it on.
    #[must_use]
    pub fn handshake(&self) -> HandshakeKind {
        with_handshake!(&self.transport, link => link.handshake(), else HandshakeKind::None)
    }

    /// Waits for the end of the handshake; at once where there is none.
    ///
    /// Cancel-safe, and loses nothing: bytes that come in meanwhile are told of by the next
    /// [`progress`](Self::progress). An owner who is driving progress reads
    /// [`handshake`](Self::handshake) after each step instead.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub async fn handshake_complete(&mut self) -> Result<HandshakeKind, Error> {
        with_handshake!(
            &mut self.transport,
            link => poll_fn(|cx| link.poll_handshake(cx)).await?,
            else ()
        );
        Ok(self.handshake())
    }
}
