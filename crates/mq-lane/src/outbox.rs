//! The queue of bytes that a connection has ready to write.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::LaneId;

/// Bodies up to this many bytes are copied behind their header, longer ones are shared.
///
/// A short copy costs less than a reference count and an extra slice in a vectored write. TLS and QUIC
/// take one contiguous chunk best (both copy anyway when they seal a record).
const COPY_LIMIT: usize = 1024;

/// Room made at a time for headers and short bodies.
const CHUNK: usize = 16 * 1024;

/// Bytes ready to be written, in order, by lane.
///
/// The state machine appends whole packets with [`put`](Self::put) and
/// [`put_body`](Self::put_body); a link takes them off the front, either by reference
/// ([`front`](Self::front) or [`slices`](Self::slices), then [`advance`](Self::advance)) or as
/// shared chunks ([`take`](Self::take)). The queue keeps the order of all packets, of one lane as of
/// all. It has no bound of its own: its writer checks [`len`](Self::len).
#[derive(Debug, Default)]
pub struct Outbox {
    sealed: VecDeque<(LaneId, Bytes)>,
    open: BytesMut,
    open_lane: LaneId,
    len: usize,
    /// The number of all bytes that were ever put in.
    put: u64,
}

impl Outbox {
    /// An empty outbox; allocates nothing until something is put in.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of bytes waiting, over all lanes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is waiting.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends what `write` puts into the buffer that it is given, on `lane`.
    ///
    /// `write` must only append. If it returns an error, its bytes are taken back and the outbox is as
    /// before.
    ///
    /// # Errors
    /// Whatever `write` returns.
    pub fn put<E>(
        &mut self,
        lane: LaneId,
        write: impl FnOnce(&mut BytesMut) -> Result<(), E>,
    ) -> Result<(), E> {
        if lane != self.open_lane {
            self.seal();
            self.open_lane = lane;
        }
        if self.open.capacity() == self.open.len() {
            self.open.reserve(CHUNK);
        }
        let before = self.open.len();
        let result = write(&mut self.open);
        if result.is_err() {
            self.open.truncate(before);
        }
        let count = self.open.len() - before;
        self.len += count;
        self.put += count as u64;
        result
    }

    /// Appends `body` on `lane`: copied up to 1,024 bytes, shared where it is longer.
    pub fn put_body(&mut self, lane: LaneId, body: &Bytes) {
        if body.len() <= COPY_LIMIT {
            let copied: Result<(), core::convert::Infallible> = self.put(lane, |open| {
                open.extend_from_slice(body);
                Ok(())
            });
            match copied {
                Ok(()) => {}
            }
        } else {
            self.seal();
            self.len += body.len();
            self.put += body.len() as u64;
            self.sealed.push_back((lane, body.clone()));
        }
    }

    /// The position of the next bytes: [`cut`](Self::cut) at it takes them back.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.put
    }

    /// Drops the bytes that were put in since [`position`](Self::position) returned `position`, except
    /// those that were taken already.
    pub fn cut(&mut self, position: u64) {
        let behind = usize::try_from(self.put.saturating_sub(position)).unwrap_or(usize::MAX);
        let mut count = behind.min(self.len);
        self.put -= count as u64;
        self.len -= count;
        let open = count.min(self.open.len());
        self.open.truncate(self.open.len() - open);
        count -= open;
        while let Some((_, bytes)) = self.sealed.back_mut()
            && count > 0
        {
            let last = count.min(bytes.len());
            bytes.truncate(bytes.len() - last);
            count -= last;
            if bytes.is_empty() {
                self.sealed.pop_back();
            }
        }
    }

    /// The first contiguous bytes and their lane.
    pub fn front(&mut self) -> Option<(LaneId, &[u8])> {
        if self.sealed.is_empty() {
            self.seal();
        }
        self.sealed.front().map(|(lane, bytes)| (*lane, &bytes[..]))
    }

    /// Fills `slices` with the bytes at the front, for one vectored write; returns how many
    /// entries were filled. Lanes are ignored: for links that have only one.
    pub fn slices<'a>(&'a mut self, slices: &mut [std::io::IoSlice<'a>]) -> usize {
        self.seal();
        let mut filled = 0;
        for (slot, (_, bytes)) in slices.iter_mut().zip(&self.sealed) {
            *slot = std::io::IoSlice::new(bytes);
            filled += 1;
        }
        filled
    }

    /// Drops `count` written bytes from the front.
    ///
    /// # Panics
    /// If fewer than `count` bytes are waiting.
    pub fn advance(&mut self, mut count: usize) {
        self.len -= count;
        self.seal();
        while count > 0 {
            let (_, bytes) = self
                .sealed
                .front_mut()
                .expect("len() counts the bytes that are queued");
            if bytes.len() > count {
                bytes::Buf::advance(bytes, count);
                return;
            }
            count -= bytes.len();
            self.sealed.pop_front();
        }
    }

    /// Takes the first chunk and its lane, for a link that can keep a reference to it.
    pub fn take(&mut self) -> Option<(LaneId, Bytes)> {
        if self.sealed.is_empty() {
            self.seal();
        }
        let (lane, bytes) = self.sealed.pop_front()?;
        self.len -= bytes.len();
        Some((lane, bytes))
    }

    /// Puts a chunk of [`take`](Self::take) that could not be written back at the front.
    pub fn put_back(&mut self, lane: LaneId, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.sealed.push_front((lane, bytes));
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.sealed.clear();
        self.open.clear();
        self.len = 0;
    }

    fn seal(&mut self) {
        if !self.open.is_empty() {
            let bytes = self.open.split().freeze();
            self.sealed.push_back((self.open_lane, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(outbox: &mut Outbox, lane: LaneId, bytes: &[u8]) {
        outbox
            .put(lane, |open| {
                open.extend_from_slice(bytes);
                Ok::<_, ()>(())
            })
            .unwrap();
    }

    #[test]
    fn small_packets_of_a_lane_leave_as_one_chunk() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId::CONTROL, b"ab");
        outbox.put_body(LaneId::CONTROL, &Bytes::from_static(b"cd"));
        assert_eq!(outbox.len(), 4);
        assert_eq!(
            outbox.take(),
            Some((LaneId::CONTROL, Bytes::from_static(b"abcd")))
        );
        assert!(outbox.is_empty());
        assert_eq!(outbox.take(), None);
    }

    #[test]
    fn bytes_behind_a_position_can_be_cut_off_unless_they_were_taken() {
        let long = Bytes::from(vec![7; COPY_LIMIT + 1]);
        for written in [0, 1, 3, 4, 1_000, 1_030] {
            let mut outbox = Outbox::new();
            put(&mut outbox, LaneId::CONTROL, b"abc");
            let position = outbox.position();
            put(&mut outbox, LaneId::CONTROL, b"d");
            outbox.put_body(LaneId::CONTROL, &long);
            put(&mut outbox, LaneId::CONTROL, b"ef");
            outbox.advance(written);
            outbox.cut(position);
            assert_eq!(outbox.len(), 3_usize.saturating_sub(written));
            put(&mut outbox, LaneId::CONTROL, b"!");
            let mut left = Vec::new();
            while let Some((_, bytes)) = outbox.take() {
                left.extend_from_slice(&bytes);
            }
            assert_eq!(left, [&b"abc"[written.min(3)..], b"!"].concat());
        }
    }

    #[test]
    fn long_bodies_are_shared_and_stay_in_order() {
        let body = Bytes::from(vec![7; COPY_LIMIT + 1]);
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId::CONTROL, b"head");
        outbox.put_body(LaneId::CONTROL, &body);
        put(&mut outbox, LaneId::CONTROL, b"next");
        assert_eq!(&outbox.take().unwrap().1[..], b"head");
        assert_eq!(outbox.take().unwrap().1.as_ptr(), body.as_ptr());
        assert_eq!(&outbox.take().unwrap().1[..], b"next");
    }

    #[test]
    fn lanes_are_kept_apart() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId(0), b"a");
        put(&mut outbox, LaneId(4), b"b");
        assert_eq!(
            outbox.take().unwrap(),
            (LaneId(0), Bytes::from_static(b"a"))
        );
        assert_eq!(
            outbox.take().unwrap(),
            (LaneId(4), Bytes::from_static(b"b"))
        );
    }

    #[test]
    fn a_failed_put_leaves_no_trace() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId::CONTROL, b"a");
        let failed = outbox.put(LaneId::CONTROL, |open| {
            open.extend_from_slice(b"half");
            Err("no")
        });
        assert_eq!(failed, Err("no"));
        assert_eq!(outbox.front(), Some((LaneId::CONTROL, &b"a"[..])));
    }

    #[test]
    fn a_partial_write_keeps_the_rest() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId::CONTROL, b"abcdef");
        outbox.advance(4);
        assert_eq!(outbox.front(), Some((LaneId::CONTROL, &b"ef"[..])));
        assert_eq!(outbox.len(), 2);
        outbox.advance(2);
        assert!(outbox.is_empty());
    }
}
