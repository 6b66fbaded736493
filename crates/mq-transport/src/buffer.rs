//! Reading in large pieces without holding large buffers for idle connections.

use std::{
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;

use crate::stream_socket::StreamSocket;

/// Room for the first read and for those after short ones.
const MIN_READ: usize = 4 * 1024;
/// Room for a read after reads that filled their room: a bulk transfer.
const MAX_READ: usize = 64 * 1024;

/// Bytes of room to make for the next read, 4 KiB to 64 KiB; follows the sizes of the reads before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSize(usize);

impl ReadSize {
    pub(crate) fn new() -> Self {
        Self(MIN_READ)
    }

    fn record(&mut self, count: usize) {
        if count >= self.0 {
            self.0 = (self.0 * 2).min(MAX_READ);
        } else if count < self.0 / 4 {
            self.0 = (self.0 / 2).max(MIN_READ);
        }
    }
}

/// Appends one read from `io` to `buffer`; 0 is the end of the stream.
///
/// Room is made only once the socket is readable, and an empty buffer is given back when it is
/// not: an idle connection holds none.
pub(crate) fn poll_read(
    io: &mut impl StreamSocket,
    buffer: &mut BytesMut,
    size: &mut ReadSize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let polled = match io.poll_readable(cx) {
        Poll::Ready(ready) => {
            ready?;
            if buffer.capacity() == 0 {
                // Cheaper than to let it grow.
                *buffer = BytesMut::with_capacity(size.0);
            } else {
                buffer.reserve(size.0);
            }
            // The future holds no state: dropped while pending, it has read nothing.
            pin!(io.read_buf(buffer)).poll(cx)
        }
        Poll::Pending => Poll::Pending,
    };
    if polled.is_pending() && buffer.is_empty() {
        *buffer = BytesMut::new();
    }
    let count = ready!(polled)?;
    size.record(count);
    Poll::Ready(Ok(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_grow_with_bulk_and_shrink_with_silence() {
        let mut size = ReadSize::new();
        for _ in 0..10 {
            size.record(size.0);
        }
        assert_eq!(size.0, MAX_READ);
        for _ in 0..10 {
            size.record(2);
        }
        assert_eq!(size.0, MIN_READ);
    }
}
