//! Stream sockets of the kernel: what links need of them.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

use crate::Scheme;

/// A stream socket of the kernel.
pub(crate) trait StreamSocket: AsyncRead + AsyncWrite + AsFd + AsRawFd + Unpin {
    const SCHEME: Scheme;

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Returns the addresses of the peer and of this side, as far as there are any.
    fn ends(&self) -> [Option<SocketAddr>; 2];

    /// Makes a socket of a second descriptor, which the runtime of the caller watches.
    fn of_this_runtime(descriptor: OwnedFd) -> io::Result<Self>
    where
        Self: Sized;
}

impl StreamSocket for TcpStream {
    const SCHEME: Scheme = Scheme::Tcp;

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn ends(&self) -> [Option<SocketAddr>; 2] {
        [self.peer_addr().ok(), self.local_addr().ok()]
    }

    fn of_this_runtime(descriptor: OwnedFd) -> io::Result<Self> {
        Self::from_std(descriptor.into())
    }
}

impl StreamSocket for UnixStream {
    const SCHEME: Scheme = Scheme::Unix;

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn ends(&self) -> [Option<SocketAddr>; 2] {
        [None, None]
    }

    fn of_this_runtime(descriptor: OwnedFd) -> io::Result<Self> {
        Self::from_std(descriptor.into())
    }
}
