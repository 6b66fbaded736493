//! A UDP socket of tokio, for quinn.
//!
//! Quinn has one of its own, which asks after every datagram whether there is another: with one datagram at a time
//! every second call to the kernel is for nothing. It also keeps room for a waiting task in each connection.

use std::{
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState},
};
use tokio::{io::Interest, net::UdpSocket};

/// `true` where one read takes up to [`BATCH_SIZE`] datagrams (`recvmmsg`); on other systems it takes one.
const TAKES_ALL: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// A UDP socket that belongs to the runtime in which it was made.
#[derive(Debug)]
pub(super) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
}

impl Socket {
    pub(super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        Ok(Self {
            state: UdpSocketState::new((&socket).into())?,
            io: UdpSocket::from_std(socket)?,
        })
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(SendRoom {
            socket: self,
            waiting: None,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.io.try_io(Interest::WRITABLE, || {
            self.state.send((&self.io).into(), transmit)
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let most = bufs.len().min(BATCH_SIZE);
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let mut last = None;
            let read = self.io.try_io(Interest::READABLE, || {
                let count = self.state.recv((&self.io).into(), bufs, meta)?;
                if TAKES_ALL && count < most {
                    // The socket is empty. With this answer tokio waits for what comes from now on; it does not if
                    // something has come since it looked.
                    last = Some(count);
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(count)
            });
            // Other errors are of single datagrams.
            if let Some(count) = last.or(read.ok()) {
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// A task that may wait until the socket takes a datagram.
struct SendRoom {
    socket: Arc<Socket>,
    waiting: Option<Writable>,
}

impl UdpPoller for SendRoom {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting.is_none() {
            // Asks tokio, and not the kernel.
            let is_writable = self.socket.io.try_io(Interest::WRITABLE, || Ok(()));
            if is_writable.is_ok() {
                return Poll::Ready(Ok(()));
            }
            let socket = self.socket.clone();
            self.waiting = Some(Box::pin(async move { socket.io.writable().await }));
        }
        let polled = match &mut self.waiting {
            Some(waiting) => waiting.as_mut().poll(cx),
            None => Poll::Ready(Ok(())),
        };
        if polled.is_ready() {
            self.waiting = None;
        }
        polled
    }
}

impl fmt::Debug for SendRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRoom").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, thread, time::Duration};

    use tokio::time::timeout;

    use super::*;

    /// Number of buffers of a read.
    const ROOM: usize = 4;

    fn bound() -> (Socket, SocketAddr, std::net::UdpSocket) {
        let of = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = Socket::new(of()).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address, of())
    }

    /// Reads once. Returns the first byte of each datagram.
    async fn read(socket: &Socket) -> Vec<u8> {
        let mut memory = [[0; 1472]; ROOM];
        let mut meta = [RecvMeta::default(); ROOM];
        let count = poll_fn(|cx| {
            let mut bufs = memory.each_mut().map(|one| IoSliceMut::new(one));
            socket.poll_recv(cx, &mut bufs, &mut meta)
        });
        let count = timeout(Duration::from_secs(20), count).await;
        let count = count.expect("something to read").unwrap();
        memory[..count].iter().map(|one| one[0]).collect()
    }

    #[tokio::test]
    async fn more_datagrams_than_there_is_room_for_come_with_the_next_read() {
        let (socket, address, peer) = bound();
        // Of different lengths, so that the kernel joins none.
        for number in 0..10_u8 {
            let datagram = vec![number; 1 + usize::from(number)];
            peer.send_to(&datagram, address).unwrap();
        }
        let mut all = Vec::new();
        while all.len() < 10 {
            all.extend(read(&socket).await);
        }
        assert!(all.into_iter().eq(0..10));
    }

    #[tokio::test]
    async fn no_datagram_waits_for_the_next() {
        let (socket, address, peer) = bound();
        let (go, went) = std::sync::mpsc::channel();
        // On a thread of its own, so that datagrams come before, during and after the reader's look.
        let sender = thread::spawn(move || {
            while let Ok(number) = went.recv() {
                peer.send_to(&[number], address).unwrap();
            }
        });
        for number in 0..20_000_u32 {
            let number = number.to_le_bytes()[0];
            go.send(number).unwrap();
            assert_eq!(read(&socket).await, [number]);
        }
        drop(go);
        sender.join().unwrap();
    }

    #[tokio::test]
    async fn a_socket_with_room_is_writable_at_once() {
        let (socket, address, peer) = bound();
        let socket = Arc::new(socket);
        let mut poller = socket.clone().create_io_poller();
        poll_fn(|cx| poller.as_mut().poll_writable(cx))
            .await
            .unwrap();
        let transmit = Transmit {
            destination: peer.local_addr().unwrap(),
            ecn: None,
            contents: b"there",
            segment_size: None,
            src_ip: None,
        };
        socket.try_send(&transmit).unwrap();
        let mut datagram = [0; 8];
        let (count, from) = peer.recv_from(&mut datagram).unwrap();
        assert_eq!((&datagram[..count], from), (&b"there"[..], address));
    }
}
