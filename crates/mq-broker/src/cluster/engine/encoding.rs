//! The form of entries and values: numbers of variable length (LEB128), and what has a form in MQTT in that.

use bytes::{BufMut, Bytes, BytesMut};
use mq_codec::{ByteStr, PacketId, SubscriptionId, TopicFilter};

use crate::store::{StoredMessage, decode_message, encode_message, read_filter};

/// Something that is not of this form, or of a later version of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) struct Malformed;

#[derive(Debug, Default)]
pub(in crate::cluster) struct Writer(BytesMut);

impl Writer {
    /// Begins with the form's version.
    pub(in crate::cluster) fn new(version: u8) -> Self {
        let mut writer = Self::default();
        writer.0.put_u8(version);
        writer
    }

    pub(in crate::cluster) fn byte(&mut self, byte: u8) {
        self.0.put_u8(byte);
    }

    pub(in crate::cluster) fn number(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                return self.0.put_u8(low);
            }
            self.0.put_u8(low | 0x80);
        }
    }

    pub(in crate::cluster) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.put_slice(bytes);
    }

    pub(in crate::cluster) fn packet_id(&mut self, id: Option<PacketId>) {
        self.number(id.map_or(0, |id| id.get().into()));
    }

    pub(in crate::cluster) fn subscription_id(&mut self, id: Option<SubscriptionId>) {
        self.number(id.map_or(0, |id| id.get().into()));
    }

    /// Writes a list with its length in front.
    pub(in crate::cluster) fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.number(items.len() as u64);
        for item in items {
            write(self, item);
        }
    }

    /// # Errors
    /// If MQTT has no form for it.
    pub(in crate::cluster) fn message(&mut self, message: &StoredMessage) -> Result<(), Malformed> {
        let bytes = encode_message(message).map_err(|_| Malformed)?;
        self.bytes(&bytes);
        Ok(())
    }

    pub(in crate::cluster) fn finish(self) -> Bytes {
        self.0.freeze()
    }
}

#[derive(Debug)]
pub(in crate::cluster) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads a value that begins with its form's version. Fails if that is not `version`.
    pub(in crate::cluster) fn new(bytes: &'a [u8], version: u8) -> Result<Self, Malformed> {
        match bytes.split_first() {
            Some((first, rest)) if *first == version => Ok(Self(rest)),
            _ => Err(Malformed),
        }
    }

    /// Reads a part of a value, which has no version of its own.
    pub(in crate::cluster) fn without_version(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(in crate::cluster) fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(in crate::cluster) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    pub(in crate::cluster) fn u16(&mut self) -> Result<u16, Malformed> {
        self.number()?.try_into().map_err(|_| Malformed)
    }

    pub(in crate::cluster) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.number()?).map_err(|_| Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(in crate::cluster) fn text(&mut self) -> Result<ByteStr, Malformed> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)?;
        ByteStr::new(text.to_owned()).map_err(|_| Malformed)
    }

    pub(in crate::cluster) fn filter(&mut self) -> Result<TopicFilter, Malformed> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)?;
        read_filter(text).ok_or(Malformed)
    }

    pub(in crate::cluster) fn packet_id(&mut self) -> Result<Option<PacketId>, Malformed> {
        Ok(PacketId::new(self.u16()?))
    }

    pub(in crate::cluster) fn subscription_id(
        &mut self,
    ) -> Result<Option<SubscriptionId>, Malformed> {
        let id = u32::try_from(self.number()?).map_err(|_| Malformed)?;
        Ok(SubscriptionId::new(id))
    }

    pub(in crate::cluster) fn message(&mut self) -> Result<StoredMessage, Malformed> {
        decode_message(self.bytes()?).map_err(|_| Malformed)
    }

    /// Reads a list that [`Writer::list`] wrote.
    pub(in crate::cluster) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.number()?;
        // Each takes a byte at least, so that a wrong count asks for no memory.
        if count > self.0.len() as u64 {
            return Err(Malformed);
        }
        (0..count).map(|_| read(self)).collect()
    }

    pub(in crate::cluster) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::cluster) fn expect_end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}
