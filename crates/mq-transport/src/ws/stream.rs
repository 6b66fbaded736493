//! The stream below the frames: TCP, or TLS over it.

use std::task::{Context, Poll};

use bytes::BytesMut;
use mq_lane::Outbox;

use crate::{Error, HandshakeKind, LinkInfo, LinkStats, Progress, stream::Stream};

impl Stream {
    pub(super) fn poll_progress(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        want_read: bool,
    ) -> Poll<Result<Progress, Error>> {
        match self {
            Self::Tcp(link) => link.poll_progress(cx, outbox, want_read),
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.poll_progress(cx, outbox, want_read),
        }
    }

    pub(super) fn received(&mut self) -> &mut BytesMut {
        match self {
            Self::Tcp(link) => &mut link.received,
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.received(),
        }
    }

    #[cfg_attr(
        not(feature = "tls"),
        expect(unused_variables, reason = "TCP has none to wait for")
    )]
    pub(super) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self {
            Self::Tcp(_) => Poll::Ready(Ok(())),
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.poll_handshake(cx),
        }
    }

    pub(super) fn handshake(&self) -> HandshakeKind {
        match self {
            Self::Tcp(_) => HandshakeKind::None,
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.handshake(),
        }
    }

    pub(super) fn is_early(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.is_early(),
        }
    }

    pub(super) async fn close(self) {
        match self {
            Self::Tcp(link) => link.close().await,
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.close().await,
        }
    }

    pub(super) fn stats(&self) -> LinkStats {
        match self {
            Self::Tcp(link) => link.stats(),
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.stats(),
        }
    }

    pub(super) fn info(&self) -> LinkInfo {
        match self {
            Self::Tcp(link) => link.info(),
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.info(),
        }
    }
}
