//! Fields: the integers, strings and binary data that packets are made of.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{
    ByteStr, DecodeError, EncodeError, MAX_REMAINING_LENGTH, PacketId, PacketType, StringError,
    TopicError, TopicFilter, TopicName, Version,
    byte_str::{Characters, check_text},
};

/// Reads the fields of one packet off the front of a buffer.
///
/// A short field is copied out. A field worth sharing is split off the buffer, and everything before
/// it is dropped. So a small PUBLISH touches the buffer's reference count once, for its payload,
/// and a packet of short fields does not touch it.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) packet: PacketType,
    /// The characters that strings may have.
    characters: Characters,
    buffer: &'a mut BytesMut,
    /// The start of the next field.
    at: usize,
    /// The end of what may be read: of the packet, or of a part of it.
    end: usize,
}

/// Bytes behind the part of a packet that is being read.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Behind(usize);

impl<'a> Reader<'a> {
    /// Reads the packet of `size` bytes that `buffer` begins with, from byte `at`, after the fixed
    /// header.
    #[inline]
    pub(crate) fn new(
        packet: PacketType,
        characters: Characters,
        buffer: &'a mut BytesMut,
        at: usize,
        size: usize,
    ) -> Self {
        debug_assert!(at <= size && size <= buffer.len());
        Self {
            packet,
            characters,
            buffer,
            at,
            end: size,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// Returns the bytes of the packet that were not read yet.
    #[inline]
    fn rest(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn varint(&mut self) -> Result<u32, DecodeError> {
        let read = varint(self.rest())?;
        let (value, length) = read.ok_or_else(|| self.truncated())?;
        self.at += length;
        Ok(value)
    }

    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        let packet = self.packet;
        PacketId::new(self.u16()?).ok_or(DecodeError::PacketIdZero(packet))
    }

    /// Reads binary data: a 16-bit length and as many bytes.
    #[inline]
    pub(crate) fn binary(&mut self) -> Result<Bytes, DecodeError> {
        let length = self.u16()?.into();
        self.peek(length)?;
        Ok(self.share(length))
    }

    /// Reads a topic name, which may be empty; `refused` makes the error of the field.
    #[inline]
    pub(crate) fn topic(
        &mut self,
        refused: fn(TopicError) -> DecodeError,
    ) -> Result<TopicName, DecodeError> {
        let length = self.u16()?.into();
        TopicName::check_received(self.peek(length)?, self.characters).map_err(refused)?;
        Ok(TopicName::from_checked(self.text(length)))
    }

    pub(crate) fn string(&mut self) -> Result<ByteStr, DecodeError> {
        let length = self.u16()?.into();
        check_text(self.peek(length)?, self.characters)
            .map_err(|error| self.string_error(error))?;
        Ok(self.text(length))
    }

    /// Reads a topic filter, which only SUBSCRIBE and UNSUBSCRIBE have.
    pub(crate) fn filter(&mut self, version: Version) -> Result<TopicFilter, DecodeError> {
        let length = self.u16()?.into();
        TopicFilter::check_received(self.peek(length)?, self.characters)
            .and_then(|()| TopicFilter::received(self.text(length), version))
            .map_err(DecodeError::TopicFilter)
    }

    /// Reads the list at the end of a packet, with at least one entry; `none` makes the error for an empty list.
    pub(crate) fn list<T>(
        &mut self,
        none: fn(PacketType) -> DecodeError,
        mut entry: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        // Most have one.
        let mut list = Vec::with_capacity(1);
        while !self.is_empty() {
            list.push(entry(self)?);
        }
        if list.is_empty() {
            return Err(none(self.packet));
        }
        Ok(list)
    }

    pub(crate) fn string_error(&self, error: StringError) -> DecodeError {
        DecodeError::String {
            packet: self.packet,
            error,
        }
    }

    /// Skips the next byte if it is 0, such as the length of no properties.
    #[inline]
    pub(crate) fn skip_zero(&mut self) -> bool {
        let zero = self.rest().first() == Some(&0);
        self.at += usize::from(zero);
        zero
    }

    /// Limits reading to the next `length` bytes, until [`widen`](Self::widen).
    pub(crate) fn narrow(&mut self, length: usize) -> Result<Behind, DecodeError> {
        let left = self.end - self.at;
        let behind = left.checked_sub(length).ok_or_else(|| self.truncated())?;
        self.end -= behind;
        Ok(Behind(behind))
    }

    /// Ends the limit of [`narrow`](Self::narrow).
    pub(crate) fn widen(&mut self, behind: Behind) {
        self.end += behind.0;
    }

    /// Takes the packet off the buffer; refuses a packet that was not read to its end.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if !self.is_empty() {
            return Err(DecodeError::TrailingBytes(self.packet));
        }
        self.buffer.advance(self.end);
        Ok(())
    }

    /// Takes the packet off the buffer; the unread rest is its payload.
    #[expect(clippy::inline_always, reason = "see `share`")]
    #[inline(always)]
    pub(crate) fn into_payload(mut self) -> Bytes {
        self.share(self.end - self.at)
    }

    /// Returns the next `length` bytes, without skipping them.
    #[inline]
    fn peek(&self, length: usize) -> Result<&[u8], DecodeError> {
        self.rest().get(..length).ok_or_else(|| self.truncated())
    }

    /// Takes the next `length` bytes, which are complete and are text.
    #[expect(clippy::inline_always, reason = "see `share`")]
    #[inline(always)]
    fn text(&mut self, length: usize) -> ByteStr {
        match ByteStr::in_place(&self.rest()[..length]) {
            Some(text) => {
                self.at += length;
                text
            }
            None => ByteStr::shared(self.share(length)),
        }
    }

    /// Splits the next `length` bytes off, with all before them.
    ///
    /// Always inlined: a call would write the parts of the handle one by one and read them in pairs
    /// right after, which a processor cannot forward. That was a third of the cost of decoding a small
    /// PUBLISH.
    #[expect(clippy::inline_always, reason = "measured, see above")]
    #[inline(always)]
    fn share(&mut self, length: usize) -> Bytes {
        self.buffer.advance(self.at);
        self.end -= self.at + length;
        self.at = 0;
        self.buffer.split_to(length).freeze()
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        match self.rest().first_chunk::<N>() {
            Some(bytes) => {
                let bytes = *bytes;
                self.at += N;
                Ok(bytes)
            }
            None => Err(self.truncated()),
        }
    }

    #[cold]
    fn truncated(&self) -> DecodeError {
        DecodeError::Truncated(self.packet)
    }
}

/// Decodes the variable byte integer at the start of `bytes` (§1.5.5); returns it and its length in
/// bytes, `None` if it is incomplete.
#[inline]
pub(crate) fn varint(bytes: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    match *bytes {
        [first @ 0..0x80, ..] => Ok(Some((first.into(), 1))),
        [first, second @ 1..0x80, ..] => {
            let value = u32::from(first & 0x7F) | u32::from(second) << 7;
            Ok(Some((value, 2)))
        }
        _ => long_varint(bytes),
    }
}

fn long_varint(bytes: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    let read = padded_varint(bytes)?;
    match read {
        Some((_, length)) if length > 1 && bytes[length - 1] == 0 => {
            Err(DecodeError::VarintNotMinimal)
        }
        _ => Ok(read),
    }
}

/// Decodes a variable byte integer like [`varint`], but allows more bytes than it needs: a remaining
/// length before MQTT 5.0.
pub(crate) fn padded_varint(bytes: &[u8]) -> Result<Option<(u32, usize)>, DecodeError> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() >= 4 {
        return Err(DecodeError::VarintTooLong);
    }
    Ok(None)
}

/// The sink of fields. One function of each packet writes them to [`Length`], which counts, and to
/// [`BytesMut`], which holds, so the length in front can never differ from what follows.
pub(crate) trait Sink {
    fn bytes(&mut self, bytes: &[u8]);

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    fn varint(&mut self, mut value: u32) {
        debug_assert!(value <= MAX_REMAINING_LENGTH);
        loop {
            let low = (value & 0x7F) as u8;
            value >>= 7;
            if value == 0 {
                return self.u8(low);
            }
            self.u8(low | 0x80);
        }
    }

    fn packet_id(&mut self, id: PacketId) {
        self.u16(id.get());
    }

    /// Writes binary data of at most 65,535 bytes; [`check_binary`] comes first.
    fn binary(&mut self, bytes: &[u8]) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "checked before it is written"
        )]
        self.u16(bytes.len() as u16);
        self.bytes(bytes);
    }

    fn string(&mut self, text: &ByteStr) {
        self.binary(text.as_bytes());
    }
}

impl Sink for BytesMut {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.put_slice(bytes);
    }
}

/// Counts instead of writing.
#[derive(Debug, Default)]
pub(crate) struct Length(pub(crate) usize);

impl Sink for Length {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// Returns the number of bytes that `write` writes.
#[inline]
pub(crate) fn length_of(write: impl FnOnce(&mut Length)) -> usize {
    let mut length = Length::default();
    write(&mut length);
    length.0
}

/// Converts a packet's remaining length for the wire.
#[inline]
pub(crate) fn remaining_length(size: usize) -> Result<u32, EncodeError> {
    u32::try_from(size)
        .ok()
        .filter(|size| *size <= MAX_REMAINING_LENGTH)
        .ok_or(EncodeError::PacketTooLong { size })
}

/// Refuses binary data that its length prefix cannot describe.
#[inline]
pub(crate) fn check_binary(packet: PacketType, bytes: Option<&Bytes>) -> Result<(), EncodeError> {
    match bytes {
        Some(bytes) if bytes.len() > usize::from(u16::MAX) => Err(EncodeError::BinaryTooLong {
            packet,
            size: bytes.len(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_byte_integers_match_the_table_of_the_specification() {
        for (value, wire) in [
            (0, &[0x00][..]),
            (127, &[0x7F]),
            (128, &[0x80, 0x01]),
            (16_383, &[0xFF, 0x7F]),
            (16_384, &[0x80, 0x80, 0x01]),
            (2_097_151, &[0xFF, 0xFF, 0x7F]),
            (2_097_152, &[0x80, 0x80, 0x80, 0x01]),
            (MAX_REMAINING_LENGTH, &[0xFF, 0xFF, 0xFF, 0x7F]),
        ] {
            let mut out = BytesMut::new();
            out.varint(value);
            assert_eq!(&out[..], wire);
            assert_eq!(varint(wire), Ok(Some((value, wire.len()))));
            for cut in 0..wire.len() {
                assert_eq!(varint(&wire[..cut]), Ok(None));
            }
        }
    }

    #[test]
    fn overlong_variable_byte_integers_are_refused() {
        assert_eq!(
            varint(&[0x80, 0x80, 0x80, 0x80]),
            Err(DecodeError::VarintTooLong)
        );
        assert_eq!(varint(&[0x80, 0x00]), Err(DecodeError::VarintNotMinimal));
    }
}
