//! A WebSocket connection.

use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use mq_lane::{LaneId, Outbox};
use tungstenite::{
    handshake::{client::generate_key, machine::TryParse},
    protocol::frame::coding::{CloseCode, Control},
};

use super::{
    frame::{Decoder, Role, put_close, put_control, put_data},
    upgrade::{self, Gate, HeadError, HeadReader},
};
use crate::{
    Address, Error, HandshakeKind, Link, LinkInfo, LinkStats, Progress, Scheme, SendProgress,
};

/// The most framed bytes that wait for the stream, and the longest frame: as much as rustls keeps, and
/// enough for one large write.
const FRAMED_LIMIT: usize = 64 * 1024;

/// Time that a client has to read the reason for which its request was refused.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(1);

/// A link over WebSocket on TCP or TLS.
///
/// ```text
/// client: request -> answer -+
/// server: request -> answer -+-> open -+-> peer closed: Close answered, no more is sent
///                                      +-> failed: Close sent with why, no more is read
///                                      +-> close(): Close sent, the peer's awaited
/// ```
///
/// The next call answers a ping. The link sends no pings, as MQTT has its own.
#[derive(Debug)]
pub(crate) struct WsLink {
    /// The link below the frames: TCP, or TLS over it.
    stream: Link,
    role: Role,
    decoder: Decoder,
    /// Whole frames that the stream has not taken.
    framed: Outbox,
    pub(crate) received: BytesMut,
    /// `true` if the stream has received bytes behind the handshake that were not decoded yet.
    unread: bool,
    /// `true` if bytes were taken from the outbox and [`Progress::Flushed`] was not returned since.
    flushing: bool,
    end: End,
    bytes_sent: u64,
    bytes_received: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Both sides may send.
    Open,
    /// The peer's Close was received and answered.
    PeerClosed,
    /// The peer broke a rule, and was sent a Close.
    Failed(&'static str),
    /// This side has sent a Close and waits for the peer's.
    Closing,
}

impl WsLink {
    /// Makes a client's side of a WebSocket; returns when the server has agreed.
    ///
    /// Before that it sends nothing but the request (RFC 6455 §4.1). Where TLS has early data, the
    /// request is early data: a replayed GET opens a connection on which nothing follows.
    pub(crate) async fn connect(stream: Link, address: &Address) -> Result<Self, Error> {
        let mut link = Self::new(stream, Role::Client);
        let key = generate_key();
        let request = upgrade::request(address, &key)?;
        link.framed.put_body(LaneId::CONTROL, &request.into());
        let response = link.read_head().await?;
        upgrade::check(response, address, &key)?;
        Ok(link)
    }

    /// Makes a server's side of a WebSocket; returns when it has granted a request. Other requests get HTTP's answer,
    /// and the connection is closed.
    pub(crate) async fn accept(stream: Link, gate: &Gate) -> Result<Self, Error> {
        let mut link = Self::new(stream, Role::Server);
        let answer = gate.answer(link.read_head().await?);
        link.framed.put_body(LaneId::CONTROL, &answer.text.into());
        let answered = poll_fn(|cx| link.stream.poll_progress(cx, &mut link.framed, false)).await;
        if let Some(refusal) = answer.refusal {
            // A close with unread bytes would send a reset, which overtakes the answer.
            link.stream.close(REFUSAL_DEADLINE).await;
            return Err(refusal);
        }
        answered?;
        Ok(link)
    }

    fn new(stream: Link, role: Role) -> Self {
        Self {
            stream,
            role,
            decoder: Decoder::new(role),
            framed: Outbox::new(),
            received: BytesMut::new(),
            unread: false,
            flushing: false,
            end: End::Open,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Writes the framed bytes, and reads the head of the peer's request or answer.
    async fn read_head<T: TryParse>(&mut self) -> Result<Result<T, HeadError>, Error> {
        let mut reader = HeadReader::new();
        poll_fn(|cx| {
            loop {
                match ready!(self.stream.poll_progress(cx, &mut self.framed, true))? {
                    Progress::Received(_) => {}
                    Progress::Flushed | Progress::Datagrams => continue,
                    Progress::LaneClosed(..) | Progress::Closed => {
                        let reason = "it ended in the middle of the WebSocket handshake";
                        return Poll::Ready(Err(Error::reset(reason)));
                    }
                }
                let bytes = self.stream.received(LaneId::CONTROL);
                match reader.read(bytes) {
                    Ok(None) => {}
                    Ok(Some((length, head))) => {
                        bytes.advance(length);
                        self.unread = !bytes.is_empty();
                        return Poll::Ready(Ok(Ok(head)));
                    }
                    Err(error) => return Poll::Ready(Ok(Err(error))),
                }
            }
        })
        .await
    }

    pub(crate) fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Poll<Result<Progress, Error>> {
        if want_read && std::mem::take(&mut self.unread) && self.decode() {
            return Poll::Ready(Ok(Progress::Received(LaneId::CONTROL)));
        }
        loop {
            if let Some(ended) = self.ended() {
                // The Close leaves if the stream has room; otherwise the owner's `close` sends it.
                let _ = self.stream.poll_progress(cx, &mut self.framed, false);
                return Poll::Ready(ended);
            }
            self.frame(outbox);
            let polled = self.stream.poll_progress(cx, &mut self.framed, want_read);
            if polled.is_pending() {
                self.give_room_back();
            }
            match ready!(polled)? {
                Progress::Received(_) => {
                    if self.decode() {
                        return Poll::Ready(Ok(Progress::Received(LaneId::CONTROL)));
                    }
                }
                Progress::Flushed => {
                    if outbox.is_empty() && std::mem::take(&mut self.flushing) {
                        return Poll::Ready(Ok(Progress::Flushed));
                    }
                }
                Progress::Datagrams => {}
                ended @ (Progress::LaneClosed(..) | Progress::Closed) => {
                    return Poll::Ready(Ok(ended));
                }
            }
        }
    }

    /// Frames an answer to the last ping, and as much of the outbox as fits.
    fn frame(&mut self, outbox: &mut Outbox) {
        if self.framed.len() < FRAMED_LIMIT
            && let Some(payload) = self.decoder.ping.take()
        {
            put_control(self.role, &mut self.framed, Control::Pong, &payload);
        }
        while !outbox.is_empty() && self.framed.len() < FRAMED_LIMIT {
            let count = put_data(self.role, outbox, &mut self.framed, FRAMED_LIMIT);
            self.bytes_sent += count as u64;
            self.flushing = true;
        }
    }

    /// Frees empty buffers: an idle connection holds none.
    fn give_room_back(&mut self) {
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
        if self.framed.is_empty() {
            self.framed = Outbox::new();
        }
    }

    /// Decodes received frames; returns `true` if they had payload.
    fn decode(&mut self) -> bool {
        let before = self.received.len();
        let decoded = self
            .decoder
            .decode(self.stream.received(LaneId::CONTROL), &mut self.received);
        match decoded {
            Ok(None) => {}
            Ok(Some(closing)) => {
                if self.end == End::Open {
                    put_close(self.role, &mut self.framed, closing.code);
                }
                self.end = End::PeerClosed;
            }
            Err(violation) => {
                if self.end == End::Open {
                    put_close(self.role, &mut self.framed, Some(violation.code));
                }
                self.end = End::Failed(violation.what);
            }
        }
        let count = self.received.len() - before;
        self.bytes_received += count as u64;
        count > 0
    }

    fn ended(&self) -> Option<Result<Progress, Error>> {
        match self.end {
            End::Open | End::Closing => None,
            End::PeerClosed => Some(Ok(Progress::Closed)),
            End::Failed(what) => Some(Err(Error::Protocol {
                reason: what.into(),
            })),
        }
    }

    /// Sends framed bytes and a Close, waits for the peer's Close, and ends the stream (RFC 6455 §7.1).
    pub(crate) async fn close(mut self, deadline: Duration) {
        if std::mem::take(&mut self.unread) {
            self.decode();
        }
        if self.end == End::Open {
            put_close(self.role, &mut self.framed, Some(CloseCode::Normal));
            self.end = End::Closing;
        }
        poll_fn(|cx| {
            loop {
                let waiting = self.end == End::Closing;
                if !waiting && self.framed.is_empty() {
                    return Poll::Ready(());
                }
                match ready!(self.stream.poll_progress(cx, &mut self.framed, waiting)) {
                    Ok(Progress::Flushed | Progress::Datagrams) => {}
                    Ok(Progress::Received(_)) => {
                        // The payload has no reader any more.
                        self.decode();
                        self.received.clear();
                    }
                    Ok(Progress::LaneClosed(..) | Progress::Closed) | Err(_) => {
                        return Poll::Ready(());
                    }
                }
            }
        })
        .await;
        self.stream.close(deadline).await;
    }

    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.stream.poll_handshake(cx)
    }

    pub(crate) fn handshake(&self) -> HandshakeKind {
        self.stream.handshake()
    }

    pub(crate) fn is_early(&self) -> bool {
        self.stream.is_early()
    }

    pub(crate) fn stream(&mut self) -> &mut Link {
        &mut self.stream
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            bytes_sent: self.bytes_sent,
            bytes_received: self.bytes_received,
            ..self.stream.stats()
        }
    }

    pub(crate) fn send_progress(&self) -> SendProgress {
        self.stream.send_progress()
    }

    pub(crate) fn info(&self) -> LinkInfo {
        let below = self.stream.info();
        let scheme = match below.scheme {
            Scheme::Tls => Scheme::Wss,
            _ => Scheme::Ws,
        };
        LinkInfo { scheme, ..below }
    }
}
