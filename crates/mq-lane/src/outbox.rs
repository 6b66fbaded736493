//! The queue of bytes that a connection has ready to write.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};

use crate::{LaneEnd, LaneId};

/// Bodies up to this many bytes are copied behind their header, longer ones are shared.
///
/// A short copy costs less than a reference count and an extra slice in a vectored write. TLS and QUIC
/// take one contiguous chunk best (both copy anyway when they seal a record).
const COPY_LIMIT: usize = 1024;

/// Greatest room, in bytes, that is made at a time for headers and short bodies.
const CHUNK: usize = 16 * 1024;
/// Least room, in bytes, that is made at a time.
const SMALLEST: usize = 256;

/// Bytes ready to be written, by lane, in order.
///
/// The state machine appends whole packets with [`put`](Self::put) and
/// [`put_body`](Self::put_body); a link takes them off the front, either by reference
/// ([`front`](Self::front) or [`slices`](Self::slices), then [`advance`](Self::advance)) or as
/// shared chunks ([`take`](Self::take)). The order of one lane's bytes is kept; a lane whose stream is
/// blocked does not hold up the others. What must not leave yet is [held](Self::hold_behind), and a link finds the outbox as
/// if it were not there. The queue has no bound of its own: its writer checks
/// [`len`](Self::len), which counts all lanes, so that more lanes do not mean more unsent bytes.
#[derive(Debug, Default)]
pub struct Outbox {
    control: VecDeque<Chunk>,
    /// Chunks and end that wait to be written on a data lane, by lane; a lane without any is absent.
    data: BTreeMap<LaneId, Waiting>,
    open: BytesMut,
    open_lane: LaneId,
    len: usize,
    /// Position after the last byte: the bytes put in so far, without those that were cut.
    put: u64,
    /// The value of `put` the last time that the outbox became empty.
    put_at_rest: u64,
    /// Bytes put in between the last two times that the outbox became empty.
    burst: u64,
    /// The position behind which nothing may be taken.
    held_behind: Option<u64>,
}

/// Contiguous bytes of one lane, taken off an [`Outbox`].
#[derive(Debug)]
pub struct Chunk {
    /// The bytes; the taker may take some off their front and put back the rest.
    pub bytes: Bytes,
    /// The outbox's position behind the last byte.
    end: u64,
}

/// Bytes and end of one data lane that wait to be written.
#[derive(Debug, Default)]
struct Waiting {
    chunks: VecDeque<Chunk>,
    /// The end, with the outbox's position when it was put in.
    end: Option<(LaneEnd, u64)>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.end.is_none()
    }
}

impl Outbox {
    /// Makes an empty outbox; allocates nothing until something is put in.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes waiting, over all lanes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there is nothing to take: no bytes and no ends of lanes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_empty = self.len == 0 && self.data.is_empty();
        is_empty || self.held_behind.is_some() && self.is_all_held()
    }

    fn is_all_held(&self) -> bool {
        let mut data = self.data.values();
        self.front().is_none() && !data.any(|waiting| self.is_ready(waiting))
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
        if self.open.capacity() == 0 {
            // Cheaper than to let it grow.
            self.open = BytesMut::with_capacity(self.room());
        } else if self.open.capacity() == self.open.len() {
            self.open.reserve(self.room());
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
            let (bytes, end) = (body.clone(), self.put);
            self.queue(lane).push_back(Chunk { bytes, end });
        }
    }

    /// Ends a data lane after the bytes that wait for it, or with [`LaneEnd::Abort`] at once, dropping them.
    /// The control lane ends with its link.
    pub fn end(&mut self, lane: LaneId, end: LaneEnd) {
        debug_assert_ne!(lane, LaneId::CONTROL);
        self.seal();
        let mut at = self.put;
        if let LaneEnd::Abort(_) = end {
            self.discard(lane);
            // It promises nothing, and is not held.
            at = 0;
        }
        let waiting = self.data.entry(lane).or_default();
        // The first abort counts, and nothing softens it.
        if !matches!(waiting.end, Some((LaneEnd::Abort(_), _))) {
            waiting.end = Some((end, at));
        }
    }

    /// Drops the bytes and the end that wait for a data lane, of which the peer reads no more.
    pub fn discard(&mut self, lane: LaneId) {
        self.discard_bytes(lane);
        self.data.remove(&lane);
    }

    /// Drops the bytes that wait for a data lane, and keeps its end.
    pub fn discard_bytes(&mut self, lane: LaneId) {
        self.seal();
        let Some(waiting) = self.data.get_mut(&lane) else {
            return;
        };
        self.len -= waiting
            .chunks
            .drain(..)
            .map(|chunk| chunk.bytes.len())
            .sum::<usize>();
        if waiting.end.is_none() {
            self.data.remove(&lane);
        }
    }

    /// Returns the position of the next bytes: [`cut`](Self::cut) at it takes them back.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.put
    }

    /// Drops the bytes that were put in since [`position`](Self::position) returned `position`, except
    /// those that were taken already.
    pub fn cut(&mut self, position: u64) {
        let behind = usize::try_from(self.put.saturating_sub(position)).unwrap_or(usize::MAX);
        let open = behind.min(self.open.len());
        self.open.truncate(self.open.len() - open);
        self.len -= open;
        let data = self.data.values_mut().map(|waiting| &mut waiting.chunks);
        for chunks in core::iter::once(&mut self.control).chain(data) {
            while let Some(Chunk { bytes, end }) = chunks.back_mut()
                && *end > position
            {
                let over = usize::try_from(*end - position).unwrap_or(usize::MAX);
                let over = over.min(bytes.len());
                self.len -= over;
                bytes.truncate(bytes.len() - over);
                *end = position;
                if bytes.is_empty() {
                    chunks.pop_back();
                }
            }
        }
        self.data.retain(|_, waiting| !waiting.is_empty());
        self.put = self.put.min(position);
    }

    /// Keeps what is put in behind a [`position`](Self::position) from being taken, until it is called with another
    /// position or `None`.
    pub fn hold_behind(&mut self, position: Option<u64>) {
        let before = core::mem::replace(&mut self.held_behind, position);
        let Some(position) = position.filter(|_| position != before) else {
            return;
        };
        self.seal();
        let data = self.data.values_mut().map(|waiting| &mut waiting.chunks);
        for chunks in core::iter::once(&mut self.control).chain(data) {
            split_at(chunks, position);
        }
    }

    /// Returns `true` if what was put in up to `end` may not be taken.
    fn is_held(&self, end: u64) -> bool {
        self.held_behind.is_some_and(|position| end > position)
    }

    /// Returns the chunks of the control lane that may be taken.
    fn control(&self) -> impl Iterator<Item = &[u8]> {
        let chunks = self.control.iter();
        let chunks = chunks.take_while(|chunk| !self.is_held(chunk.end));
        chunks
            .map(|chunk| &chunk.bytes[..])
            .chain(self.open_control())
    }

    /// Returns the number of bytes of the control lane that may be taken.
    #[must_use]
    pub fn control_len(&self) -> usize {
        self.control().map(<[u8]>::len).sum()
    }

    /// Returns `true` if there is something to take of a data lane.
    fn is_ready(&self, waiting: &Waiting) -> bool {
        match waiting.chunks.front() {
            Some(chunk) => !self.is_held(chunk.end),
            None => waiting.end.is_some_and(|(_, at)| !self.is_held(at)),
        }
    }

    /// Returns the first contiguous bytes of the control lane; `None` if there are none.
    #[must_use]
    pub fn front(&self) -> Option<&[u8]> {
        self.control().next()
    }

    /// Fills `slices` with the bytes at the front of the control lane, for one vectored write; returns
    /// how many entries were filled.
    pub fn slices<'a>(&'a self, slices: &mut [std::io::IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slot, bytes) in slices.iter_mut().zip(self.control()) {
            *slot = std::io::IoSlice::new(bytes);
            filled += 1;
        }
        filled
    }

    /// Returns the control lane's last bytes, which are not sealed as a chunk yet; `None` if there are none, or if they may
    /// not be taken.
    fn open_control(&self) -> Option<&[u8]> {
        let is_there = self.open_lane == LaneId::CONTROL && !self.open.is_empty();
        (is_there && !self.is_held(self.put)).then_some(&self.open[..])
    }

    /// Drops `count` written bytes from the front of the control lane.
    ///
    /// # Panics
    /// If fewer than `count` bytes are waiting there.
    pub fn advance(&mut self, mut count: usize) {
        self.len -= count;
        while let Some(Chunk { bytes, .. }) = self.control.front_mut() {
            if bytes.len() > count {
                bytes.advance(count);
                return;
            }
            count -= bytes.len();
            self.control.pop_front();
        }
        assert!(
            count == 0 || self.open_lane == LaneId::CONTROL,
            "the caller has seen these bytes"
        );
        self.open.advance(count);
        self.rest();
    }

    /// Takes the first chunk of `lane`, for a link that can keep a reference to it.
    pub fn take(&mut self, lane: LaneId) -> Option<Chunk> {
        if lane == self.open_lane {
            self.seal_ready();
        }
        let held_behind = self.held_behind.unwrap_or(u64::MAX);
        let is_ready = |chunk: &mut Chunk| chunk.end <= held_behind;
        let chunk = if lane == LaneId::CONTROL {
            self.control.pop_front_if(is_ready)?
        } else {
            let waiting = self.data.get_mut(&lane)?;
            let chunk = waiting.chunks.pop_front_if(is_ready)?;
            if waiting.is_empty() {
                self.data.remove(&lane);
            }
            chunk
        };
        self.len -= chunk.bytes.len();
        self.rest();
        Some(chunk)
    }

    /// Puts a chunk of [`take`](Self::take) that could not be written, or not all of it, back at the
    /// front.
    pub fn put_back(&mut self, lane: LaneId, chunk: Chunk) {
        if !chunk.bytes.is_empty() {
            self.len += chunk.bytes.len();
            self.queue(lane).push_front(chunk);
        }
    }

    /// Splits off everything after the first `at` bytes of a chunk.
    #[must_use]
    pub fn split(chunk: &mut Chunk, at: usize) -> Chunk {
        let bytes = chunk.bytes.split_off(at);
        let end = chunk.end;
        chunk.end -= bytes.len() as u64;
        Chunk { bytes, end }
    }

    /// Returns the next data lane behind `lane` that has bytes or an end waiting; after the last lane comes the first.
    pub fn next_data_lane(&mut self, lane: LaneId) -> Option<LaneId> {
        if self.open_lane != LaneId::CONTROL {
            self.seal_ready();
        }
        let behind = LaneId(lane.0.saturating_add(1));
        let lanes = self.data.range(behind..).chain(&self.data);
        let mut ready = lanes.filter(|(_, waiting)| self.is_ready(waiting));
        ready.next().map(|(lane, _)| *lane)
    }

    /// Returns the number of data lanes that have bytes or an end waiting.
    pub fn data_lanes(&mut self) -> usize {
        if self.open_lane != LaneId::CONTROL {
            self.seal_ready();
        }
        if self.held_behind.is_none() {
            return self.data.len();
        }
        let waiting = self.data.values();
        waiting.filter(|waiting| self.is_ready(waiting)).count()
    }

    /// Returns `true` if an abort of a data lane waits to be written.
    #[must_use]
    pub fn is_aborting(&self, lane: LaneId) -> bool {
        let waiting = self.data.get(&lane);
        waiting.is_some_and(|waiting| matches!(waiting.end, Some((LaneEnd::Abort(_), _))))
    }

    /// Returns `true` if there is nothing to take of a data lane, bytes or an end.
    #[must_use]
    pub fn is_empty_on(&self, lane: LaneId) -> bool {
        let waiting = self.data.get(&lane);
        let is_open = self.open_lane == lane && !self.open.is_empty();
        !waiting.is_some_and(|waiting| self.is_ready(waiting))
            && (!is_open || self.is_held(self.put))
    }

    /// Takes the end of a data lane that has no bytes waiting.
    pub fn take_end(&mut self, lane: LaneId) -> Option<LaneEnd> {
        let waiting = self.data.get(&lane)?;
        let (end, _) = waiting
            .end
            .filter(|_| waiting.chunks.is_empty() && self.is_ready(waiting))?;
        self.data.remove(&lane);
        Some(end)
    }

    /// Drops all bytes and all ends of lanes.
    pub fn clear(&mut self) {
        self.control.clear();
        self.data.clear();
        self.open.clear();
        self.len = 0;
    }

    /// Returns the bytes to allocate: as many as were put in before the outbox last became empty, or since,
    /// from 256 bytes to 16 KiB and rounded up to a power of two.
    fn room(&self) -> usize {
        let burst = self.burst.max(self.put.saturating_sub(self.put_at_rest));
        let burst = usize::try_from(burst).unwrap_or(CHUNK);
        burst.clamp(SMALLEST, CHUNK).next_power_of_two()
    }

    /// Frees the buffer if nothing waits: an empty outbox holds none, and the next bytes go to memory that was
    /// in use a moment ago.
    fn rest(&mut self) {
        if self.len == 0 {
            self.burst = self.put.saturating_sub(self.put_at_rest);
            self.put_at_rest = self.put;
            self.open = BytesMut::new();
        }
    }

    fn queue(&mut self, lane: LaneId) -> &mut VecDeque<Chunk> {
        if lane == LaneId::CONTROL {
            &mut self.control
        } else {
            &mut self.data.entry(lane).or_default().chunks
        }
    }

    /// Makes a chunk of the last bytes, if they may be taken.
    fn seal_ready(&mut self) {
        if !self.is_held(self.put) {
            self.seal();
        }
    }

    fn seal(&mut self) {
        if !self.open.is_empty() {
            let bytes = self.open.split().freeze();
            let (lane, end) = (self.open_lane, self.put);
            self.queue(lane).push_back(Chunk { bytes, end });
        }
    }
}

/// Splits the chunk that has bytes on both sides of a position.
fn split_at(chunks: &mut VecDeque<Chunk>, position: u64) {
    let index = chunks.partition_point(|chunk| chunk.end <= position);
    if let Some(chunk) = chunks.get_mut(index) {
        let over = usize::try_from(chunk.end - position).unwrap_or(usize::MAX);
        let at = chunk.bytes.len().saturating_sub(over);
        if at > 0 {
            let behind = Outbox::split(chunk, at);
            chunks.insert(index + 1, behind);
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

    fn taken(outbox: &mut Outbox, lane: LaneId) -> Vec<Bytes> {
        core::iter::from_fn(|| outbox.take(lane).map(|chunk| chunk.bytes)).collect()
    }

    #[test]
    fn small_packets_of_a_lane_leave_as_one_chunk() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId::CONTROL, b"ab");
        outbox.put_body(LaneId::CONTROL, &Bytes::from_static(b"cd"));
        assert_eq!(outbox.len(), 4);
        assert_eq!(taken(&mut outbox, LaneId::CONTROL), ["abcd"]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn bytes_are_written_by_reference_in_order_and_in_part() {
        let mut outbox = Outbox::new();
        let long = Bytes::from(vec![7; COPY_LIMIT + 1]);
        put(&mut outbox, LaneId::CONTROL, b"ab");
        outbox.put_body(LaneId::CONTROL, &long);
        put(&mut outbox, LaneId::CONTROL, b"cd");
        let mut slices = [std::io::IoSlice::new(&[]); 4];
        assert_eq!(outbox.slices(&mut slices), 3);
        assert_eq!([&slices[0][..], &slices[2][..]], [b"ab", b"cd"]);
        outbox.advance(2 + long.len() + 1);
        assert_eq!(outbox.front(), Some(&b"d"[..]));
        put(&mut outbox, LaneId::CONTROL, b"e");
        assert_eq!(outbox.front(), Some(&b"de"[..]), "behind what is left");
        put(&mut outbox, LaneId(4), b"other");
        assert_eq!(outbox.front(), Some(&b"de"[..]), "not of another lane");
        outbox.advance(2);
        assert_eq!((outbox.front(), outbox.len()), (None, 5));
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
            let left = taken(&mut outbox, LaneId::CONTROL).concat();
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
        let mut take = || outbox.take(LaneId::CONTROL).unwrap().bytes;
        assert_eq!(&take()[..], b"head");
        assert_eq!(take().as_ptr(), body.as_ptr());
        assert_eq!(&take()[..], b"next");
    }

    #[test]
    fn a_lane_that_is_not_written_holds_up_no_other() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId(4), b"a");
        put(&mut outbox, LaneId::CONTROL, b"b");
        put(&mut outbox, LaneId(8), b"c");
        put(&mut outbox, LaneId(4), b"d");
        assert_eq!(outbox.len(), 4);
        assert_eq!(outbox.next_data_lane(LaneId::CONTROL), Some(LaneId(4)));
        assert_eq!(outbox.next_data_lane(LaneId(4)), Some(LaneId(8)));
        assert_eq!(outbox.next_data_lane(LaneId(8)), Some(LaneId(4)));
        assert_eq!(taken(&mut outbox, LaneId(8)), ["c"]);
        assert_eq!(taken(&mut outbox, LaneId::CONTROL), ["b"]);
        assert_eq!(taken(&mut outbox, LaneId(4)), ["a", "d"]);
        assert!(outbox.is_empty());
        assert_eq!(outbox.next_data_lane(LaneId::CONTROL), None);
    }

    #[test]
    fn bytes_behind_a_position_are_cut_off_on_every_lane() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId(4), b"ab");
        put(&mut outbox, LaneId::CONTROL, b"c");
        let position = outbox.position();
        put(&mut outbox, LaneId::CONTROL, b"d");
        put(&mut outbox, LaneId(4), b"e");
        put(&mut outbox, LaneId(8), b"f");
        let mut chunk = outbox.take(LaneId(4)).unwrap();
        let rest = Outbox::split(&mut chunk, 1);
        outbox.put_back(LaneId(4), rest);
        outbox.cut(position);
        assert_eq!(outbox.len(), 2);
        assert_eq!(taken(&mut outbox, LaneId(4)), ["b"]);
        assert_eq!(taken(&mut outbox, LaneId::CONTROL), ["c"]);
        assert_eq!(outbox.next_data_lane(LaneId::CONTROL), None);
        assert_eq!(outbox.position(), position);
    }

    #[test]
    fn what_is_held_is_taken_once_it_may_be() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId::CONTROL, b"a");
        put(&mut outbox, LaneId(4), b"b");
        outbox.end(LaneId(4), LaneEnd::Finish);
        put(&mut outbox, LaneId::CONTROL, b"c");
        let position = outbox.position();
        put(&mut outbox, LaneId::CONTROL, b"d");
        outbox.end(LaneId(8), LaneEnd::Finish);
        put(&mut outbox, LaneId(12), b"e");
        outbox.hold_behind(Some(position));
        put(&mut outbox, LaneId::CONTROL, b"f");
        assert_eq!((outbox.len(), outbox.control_len()), (6, 2));
        assert_eq!(outbox.data_lanes(), 1);
        assert_eq!(outbox.next_data_lane(LaneId(4)), Some(LaneId(4)));
        assert_eq!(outbox.take_end(LaneId(4)), None, "behind its bytes");
        assert_eq!(taken(&mut outbox, LaneId(4)), ["b"]);
        assert_eq!(outbox.take_end(LaneId(4)), Some(LaneEnd::Finish));
        for held in [LaneId(8), LaneId(12)] {
            assert!(outbox.is_empty_on(held));
            assert_eq!((outbox.take_end(held), outbox.data_lanes()), (None, 0));
        }
        let mut slices = [std::io::IoSlice::new(&[]); 4];
        let filled = outbox.slices(&mut slices);
        let slices = slices[..filled].iter().map(|slice| &**slice);
        assert_eq!(slices.collect::<Vec<_>>().concat(), b"ac");
        outbox.advance(2);
        assert_eq!((outbox.front(), outbox.is_empty()), (None, true));
        assert!(taken(&mut outbox, LaneId(12)).is_empty());
        let position = outbox.position() - 1;
        outbox.hold_behind(Some(position));
        assert_eq!(taken(&mut outbox, LaneId::CONTROL).concat(), b"d");
        assert_eq!(outbox.take_end(LaneId(8)), Some(LaneEnd::Finish));
        assert_eq!(taken(&mut outbox, LaneId(12)), ["e"]);
        assert!(outbox.is_empty());
        outbox.hold_behind(None);
        assert_eq!((outbox.front(), outbox.len()), (Some(&b"f"[..]), 1));
    }

    #[test]
    fn a_lane_is_aborted_whatever_is_held() {
        let mut outbox = Outbox::new();
        outbox.hold_behind(Some(0));
        put(&mut outbox, LaneId(4), b"a");
        outbox.end(LaneId(4), LaneEnd::Abort(7));
        assert!(outbox.is_aborting(LaneId(4)) && !outbox.is_empty());
        assert_eq!(outbox.next_data_lane(LaneId(4)), Some(LaneId(4)));
        assert_eq!(outbox.take_end(LaneId(4)), Some(LaneEnd::Abort(7)));
    }

    #[test]
    fn a_lane_ends_behind_its_bytes_or_at_once_without_them() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId(4), b"a");
        outbox.end(LaneId(4), LaneEnd::Finish);
        assert_eq!(outbox.take_end(LaneId(4)), None);
        assert_eq!(taken(&mut outbox, LaneId(4)), ["a"]);
        assert!(!outbox.is_empty());
        assert_eq!(outbox.take_end(LaneId(4)), Some(LaneEnd::Finish));
        assert!(outbox.is_empty());
        put(&mut outbox, LaneId(8), b"b");
        outbox.end(LaneId(8), LaneEnd::Abort(7));
        outbox.end(LaneId(8), LaneEnd::Finish);
        assert_eq!(outbox.len(), 0);
        assert_eq!(outbox.take_end(LaneId(8)), Some(LaneEnd::Abort(7)));
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
        assert_eq!(outbox.front(), Some(&b"a"[..]));
    }

    #[test]
    fn a_partial_write_keeps_the_rest() {
        let mut outbox = Outbox::new();
        put(&mut outbox, LaneId::CONTROL, b"abcdef");
        outbox.advance(4);
        assert_eq!(outbox.front(), Some(&b"ef"[..]));
        assert_eq!(outbox.len(), 2);
        outbox.advance(2);
        assert!(outbox.is_empty());
    }
}
