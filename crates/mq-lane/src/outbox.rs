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
/// blocked does not hold up the others. The queue has no bound of its own: its writer checks
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

    fn end_by(&mut self, end: LaneEnd, at: u64) {
        // The first abort counts, and nothing softens it.
        if !matches!(self.end, Some((LaneEnd::Abort(_), _))) {
            self.end = Some((end, at));
        }
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

    /// Returns `true` if no bytes and no ends of lanes are waiting.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.data.is_empty()
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
        if let LaneEnd::Abort(_) = end {
            self.discard(lane);
        }
        let at = self.put;
        self.data.entry(lane).or_default().end_by(end, at);
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

    /// Moves what was put in before [`position`](Self::position) returned `position`, bytes and ends of lanes, behind
    /// what is in another outbox.
    pub fn move_up_to(&mut self, position: u64, to: &mut Self) {
        self.seal();
        to.seal();
        to.put = to.put.max(self.put.min(position));
        let mut moved = move_chunks(&mut self.control, position, &mut to.control);
        for (lane, waiting) in &mut self.data {
            let there = to.data.entry(*lane).or_default();
            moved += move_chunks(&mut waiting.chunks, position, &mut there.chunks);
            if waiting.chunks.is_empty()
                && let Some((end, at)) = waiting.end.take_if(|(_, at)| *at <= position)
            {
                there.end_by(end, at);
            }
        }
        for data in [&mut self.data, &mut to.data] {
            data.retain(|_, waiting| !waiting.is_empty());
        }
        self.len -= moved;
        to.len += moved;
        self.rest();
    }

    /// Returns the first contiguous bytes of the control lane; `None` if there are none.
    #[must_use]
    pub fn front(&self) -> Option<&[u8]> {
        let chunks = self.control.iter().map(|chunk| &chunk.bytes[..]);
        chunks.chain(self.open_control()).next()
    }

    /// Fills `slices` with the bytes at the front of the control lane, for one vectored write; returns
    /// how many entries were filled.
    pub fn slices<'a>(&'a self, slices: &mut [std::io::IoSlice<'a>]) -> usize {
        let chunks = self.control.iter().map(|chunk| &chunk.bytes[..]);
        let mut filled = 0;
        for (slot, bytes) in slices.iter_mut().zip(chunks.chain(self.open_control())) {
            *slot = std::io::IoSlice::new(bytes);
            filled += 1;
        }
        filled
    }

    /// Returns the control lane's last bytes, which are not sealed as a chunk yet; `None` if there are none.
    fn open_control(&self) -> Option<&[u8]> {
        (self.open_lane == LaneId::CONTROL && !self.open.is_empty()).then_some(&self.open[..])
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
            self.seal();
        }
        let chunk = if lane == LaneId::CONTROL {
            self.control.pop_front()?
        } else {
            let waiting = self.data.get_mut(&lane)?;
            let chunk = waiting.chunks.pop_front()?;
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
            self.seal();
        }
        let behind = LaneId(lane.0.saturating_add(1));
        let next = self.data.range(behind..).next();
        next.or_else(|| self.data.iter().next())
            .map(|(lane, _)| *lane)
    }

    /// Returns the number of data lanes that have bytes or an end waiting.
    pub fn data_lanes(&mut self) -> usize {
        if self.open_lane != LaneId::CONTROL {
            self.seal();
        }
        self.data.len()
    }

    /// Returns `true` if an abort of a data lane waits to be written.
    #[must_use]
    pub fn is_aborting(&self, lane: LaneId) -> bool {
        let waiting = self.data.get(&lane);
        waiting.is_some_and(|waiting| matches!(waiting.end, Some((LaneEnd::Abort(_), _))))
    }

    /// Returns `true` if neither bytes nor an end wait for a data lane.
    #[must_use]
    pub fn is_empty_on(&self, lane: LaneId) -> bool {
        !self.data.contains_key(&lane) && (self.open_lane != lane || self.open.is_empty())
    }

    /// Takes the end of a data lane that has no bytes waiting.
    pub fn take_end(&mut self, lane: LaneId) -> Option<LaneEnd> {
        let waiting = self.data.get(&lane)?;
        let (end, _) = waiting.end.filter(|_| waiting.chunks.is_empty())?;
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

    fn seal(&mut self) {
        if !self.open.is_empty() {
            let bytes = self.open.split().freeze();
            let (lane, end) = (self.open_lane, self.put);
            self.queue(lane).push_back(Chunk { bytes, end });
        }
    }
}

/// Moves the bytes up to a position behind others of their lane, and returns their number.
fn move_chunks(from: &mut VecDeque<Chunk>, position: u64, to: &mut VecDeque<Chunk>) -> usize {
    let mut moved = 0;
    while let Some(mut chunk) = from.pop_front() {
        let over = usize::try_from(chunk.end.saturating_sub(position)).unwrap_or(usize::MAX);
        let at = chunk.bytes.len().saturating_sub(over);
        if at < chunk.bytes.len() {
            from.push_front(Outbox::split(&mut chunk, at));
        }
        if at == 0 {
            break;
        }
        moved += at;
        to.push_back(chunk);
        if over > 0 {
            break;
        }
    }
    moved
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
    fn what_was_put_in_up_to_a_position_moves_to_another_outbox() {
        let long = Bytes::from(vec![7; COPY_LIMIT + 1]);
        let (mut outbox, mut moved) = (Outbox::new(), Outbox::new());
        put(&mut outbox, LaneId::CONTROL, b"a");
        put(&mut outbox, LaneId(4), b"b");
        outbox.end(LaneId(4), LaneEnd::Finish);
        outbox.put_body(LaneId::CONTROL, &long);
        put(&mut outbox, LaneId::CONTROL, b"c");
        let position = outbox.position();
        put(&mut outbox, LaneId::CONTROL, b"d");
        outbox.end(LaneId(8), LaneEnd::Finish);
        put(&mut outbox, LaneId(12), b"e");
        outbox.move_up_to(position, &mut moved);
        let all = 3 + long.len();
        assert_eq!((moved.len(), outbox.len()), (all, 2));
        assert_eq!(moved.take_end(LaneId(4)), None, "behind its bytes");
        assert_eq!(taken(&mut moved, LaneId(4)), ["b"]);
        assert_eq!(moved.take_end(LaneId(4)), Some(LaneEnd::Finish));
        assert_eq!(moved.data_lanes(), 0);
        outbox.move_up_to(position, &mut moved);
        assert_eq!(outbox.len(), 2, "the same once more");
        assert_eq!(outbox.take_end(LaneId(4)), None);
        outbox.move_up_to(u64::MAX, &mut moved);
        assert!(outbox.is_empty());
        assert_eq!(moved.take_end(LaneId(8)), Some(LaneEnd::Finish));
        assert_eq!(taken(&mut moved, LaneId(12)), ["e"]);
        let control = taken(&mut moved, LaneId::CONTROL).concat();
        assert_eq!(control, [b"a", &long[..], b"cd"].concat());
        assert!(moved.is_empty());
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
