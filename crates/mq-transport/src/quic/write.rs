//! Writing to a QUIC stream: the bytes of a lane, from its outbox to quinn.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::Bytes;
use mq_lane::{Chunk, LaneId, Outbox};
use quinn::{SendStream, StoppedError, VarInt, WriteError};

/// Chunks that quinn gets or gives under one lock.
pub(super) const CHUNKS_PER_CALL: usize = 32;

/// Future that resolves when the peer stops reading a stream, or has acknowledged all of it.
pub(super) type Stopped =
    Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync>>;

/// Tries once to write the first bytes of a lane, `most` at most. Bytes that were not written stay in the outbox. Returns
/// `None` if there is nothing to write, or `most` is 0. `keep` gets a copy of the chunks that were offered.
pub(super) fn poll_write_lane(
    send: &mut SendStream,
    outbox: &mut Outbox,
    lane: LaneId,
    most: usize,
    keep: Option<&mut Vec<Bytes>>,
    cx: &mut Context<'_>,
) -> Option<Poll<Result<quinn::Written, WriteError>>> {
    let mut taken: [Option<Chunk>; CHUNKS_PER_CALL] = [const { None }; CHUNKS_PER_CALL];
    let (mut room, mut filled) = (most, 0);
    while filled < CHUNKS_PER_CALL
        && room > 0
        && let Some(mut chunk) = outbox.take(lane)
    {
        if chunk.bytes.len() > room {
            outbox.put_back(lane, Outbox::split(&mut chunk, room));
        }
        room -= chunk.bytes.len();
        taken[filled] = Some(chunk);
        filled += 1;
    }
    if filled == 0 {
        return None;
    }
    let mut chunks: [Bytes; CHUNKS_PER_CALL] = std::array::from_fn(|at| {
        let chunk = taken[at].as_mut();
        chunk.map_or_else(Bytes::new, |chunk| std::mem::take(&mut chunk.bytes))
    });
    if let Some(keep) = keep {
        keep.extend_from_slice(&chunks[..filled]);
    }
    let polled = poll_write_chunks(send, &mut chunks[..filled], cx);
    for (chunk, bytes) in taken.iter_mut().zip(chunks).rev() {
        if let Some(mut chunk) = chunk.take() {
            chunk.bytes = bytes;
            outbox.put_back(lane, chunk);
        }
    }
    Some(polled)
}

/// Tries once to write the chunks; on pending or error they are as before.
pub(super) fn poll_write_chunks(
    send: &mut SendStream,
    chunks: &mut [Bytes],
    cx: &mut Context<'_>,
) -> Poll<Result<quinn::Written, WriteError>> {
    // The future holds no state: dropped while pending, it has written nothing.
    pin!(send.write_chunks(chunks)).poll(cx)
}
