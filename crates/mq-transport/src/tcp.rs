//! TCP and Unix sockets: bytes as they are.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll},
};

use bytes::BytesMut;
use mq_lane::{LaneId, Outbox};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
};

use crate::{
    Error, LinkInfo, LinkStats, Progress, SendProgress,
    buffer::{ReadSize, poll_read},
    stream_socket::StreamSocket,
    tcp_info,
};

/// The addresses of a TCP connection. They do not change, so the kernel is asked until it has told both: it tells the
/// peer's once the peer has answered.
#[derive(Debug, Default)]
pub(crate) struct Ends(OnceLock<[Option<SocketAddr>; 2]>);

impl Ends {
    pub(crate) fn peer(&self, stream: &impl StreamSocket) -> Option<SocketAddr> {
        self.of(stream)[0]
    }

    pub(crate) fn local(&self, stream: &impl StreamSocket) -> Option<SocketAddr> {
        self.of(stream)[1]
    }

    fn of(&self, stream: &impl StreamSocket) -> [Option<SocketAddr>; 2] {
        if let Some(known) = self.0.get() {
            return *known;
        }
        let ends = stream.ends();
        if ends[0].is_some() {
            let _ = self.0.set(ends);
        }
        ends
    }
}

/// Slices of one vectored write; the kernel takes up to 1,024, and the outbox rarely has this many.
const SLICES: usize = 64;

/// A link over plain TCP.
pub(crate) type TcpLink = StreamLink<TcpStream>;

/// A link over a Unix socket.
pub(crate) type UnixLink = StreamLink<UnixStream>;

/// A link over a stream socket, without anything above it.
#[derive(Debug)]
pub(crate) struct StreamLink<S> {
    stream: S,
    ends: Ends,
    pub(crate) received: BytesMut,
    read_size: ReadSize,
    /// `true` if the last call returned a flush. The next call reads first, so that an owner that always has
    /// something to write also reads.
    read_turn: bool,
    bytes_sent: u64,
    bytes_received: u64,
}

impl<S: StreamSocket> StreamLink<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            ends: Ends::default(),
            received: BytesMut::new(),
            read_size: ReadSize::new(),
            read_turn: false,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    pub(crate) fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Poll<Result<Progress, Error>> {
        if want_read
            && std::mem::take(&mut self.read_turn)
            && let Poll::Ready(progress) = self.poll_receive(cx)
        {
            return Poll::Ready(progress);
        }
        if !outbox.is_empty()
            && let Poll::Ready(written) = self.poll_write(cx, outbox)
        {
            return Poll::Ready(match written {
                Ok(()) => {
                    self.read_turn = true;
                    Ok(Progress::Flushed)
                }
                // Packets from before the close, such as a DISCONNECT, can still be read.
                Err(error) => match self.poll_receive(cx) {
                    Poll::Ready(Ok(received @ Progress::Received(_))) if want_read => Ok(received),
                    _ => Err(error.into()),
                },
            });
        }
        if want_read {
            self.poll_receive(cx)
        } else {
            Poll::Pending
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<io::Result<()>> {
        while !outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = outbox.slices(&mut slices);
            let stream = Pin::new(&mut self.stream);
            match stream.poll_write_vectored(cx, &slices[..filled])? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                Poll::Ready(count) => {
                    self.bytes_sent += count as u64;
                    outbox.advance(count);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Progress, Error>> {
        poll_read(
            &mut self.stream,
            &mut self.received,
            &mut self.read_size,
            cx,
        )
        .map(|count| {
            Ok(match count? {
                0 => Progress::Closed,
                count => {
                    self.bytes_received += count as u64;
                    Progress::Received(LaneId::CONTROL)
                }
            })
        })
    }

    pub(crate) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// See [`Link::end_sending`](crate::Link::end_sending).
    pub(crate) async fn end_sending(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }

    pub(crate) async fn close(mut self) {
        linger(&mut self.stream).await;
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            bytes_sent: self.bytes_sent,
            bytes_received: self.bytes_received,
            ..tcp_info::of(&self.stream)
        }
    }

    pub(crate) fn send_progress(&self) -> SendProgress {
        SendProgress::of_stream(self.bytes_sent, tcp_info::unacknowledged(&self.stream))
    }

    pub(crate) fn info(&self) -> LinkInfo {
        LinkInfo {
            scheme: S::SCHEME,
            peer_address: self.ends.peer(&self.stream),
            local_address: self.ends.local(&self.stream),
            tls: None,
            peer_certificates: Vec::new(),
        }
    }
}

/// Ends this side's stream and waits for the peer to end its own.
///
/// It reads because a socket that is closed with unread bytes sends a reset, which can overtake the
/// last bytes written.
pub(crate) async fn linger(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut scratch = [0; 1024];
    while matches!(stream.read(&mut scratch).await, Ok(1..)) {}
}
