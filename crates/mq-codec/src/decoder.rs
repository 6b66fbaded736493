//! Framing: whole packets off the front of a buffer.

use bytes::BytesMut;

use crate::{
    DecodeError, Packet, PacketType, Publish, Version,
    wire::{Reader, varint},
};

/// Takes packets off the front of a buffer as they become complete.
///
/// A decoder belongs to one direction of one connection (or of one lane of it). It keeps the
/// version and the size limit, no bytes: incomplete packets stay in the caller's buffer.
#[derive(Clone, Debug)]
pub struct Decoder {
    version: Option<Version>,
    max_packet_size: u32,
}

impl Decoder {
    /// A decoder that refuses packets of more than `max_packet_size` bytes, fixed header included.
    ///
    /// With `version: None` the first packet must be CONNECT, which sets the version
    /// `[MQTT-3.1.0-1]`: what a server wants. A client gives the version that it asked for.
    #[must_use]
    pub fn new(version: Option<Version>, max_packet_size: u32) -> Self {
        Self {
            version,
            max_packet_size,
        }
    }

    /// The version, once it is known.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Changes the size limit for packets from now on; bytes, fixed header included.
    pub fn set_max_packet_size(&mut self, bytes: u32) {
        self.max_packet_size = bytes;
    }

    /// Takes one packet off the front of `buffer`; `None`, and nothing taken, while it is
    /// incomplete.
    ///
    /// Payload, binary fields and strings of more than 31 bytes share the memory of `buffer`, which
    /// lives on while any of them does. Call it again until it returns `None`.
    ///
    /// # Errors
    /// If the bytes cannot become a valid packet. That is known as early as possible: a packet
    /// over the size limit is refused by its fixed header, before its body has arrived. What
    /// `buffer` holds after an error is unspecified.
    #[inline]
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Packet>, DecodeError> {
        let Some((first, rest)) = buffer.split_first() else {
            return Ok(None);
        };
        let packet_type = match (first >> 4, self.version) {
            (0x03, Some(_)) => PacketType::Publish,
            _ => self.check_first_byte(*first)?,
        };
        let flags = first & 0x0F;
        let Some((remaining, length_bytes)) = varint(rest)? else {
            return Ok(None);
        };
        let header = 1 + length_bytes;
        let size = header + remaining as usize;
        let within_limit = u32::try_from(size).is_ok_and(|size| size <= self.max_packet_size);
        if !within_limit {
            return Err(DecodeError::PacketTooLarge {
                size: u32::try_from(size).unwrap_or(u32::MAX),
                limit: self.max_packet_size,
            });
        }
        if buffer.len() < size {
            return Ok(None);
        }
        let version = self.version.unwrap_or(Version::V5);
        let reader = Reader::new(packet_type, buffer, header, size);
        if packet_type == PacketType::Publish {
            return Publish::read(reader, flags, version).map(|p| Some(Packet::Publish(p)));
        }
        let packet = Packet::read(reader, version)?;
        if let (None, Packet::Connect(connect)) = (self.version, &packet) {
            self.version = Some(connect.version);
        }
        Ok(Some(packet))
    }

    /// What can be refused by the first byte alone is: type and flags.
    fn check_first_byte(&self, first: u8) -> Result<PacketType, DecodeError> {
        let packet = PacketType::from_bits(first >> 4)
            .filter(|packet| *packet != PacketType::Auth || self.version >= Some(Version::V5))
            .ok_or(DecodeError::ReservedPacketType(first >> 4))?;
        if self.version.is_none() && packet != PacketType::Connect {
            return Err(DecodeError::NotConnect(packet));
        }
        let flags = first & 0x0F;
        let valid = match packet {
            PacketType::Publish => true,
            PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe => {
                // MQTT 3.1 lets a sender mark the repetition of these with DUP (bit 3).
                flags == 0b0010 || (flags == 0b1010 && self.version == Some(Version::V3_1))
            }
            _ => flags == 0,
        };
        if !valid {
            return Err(DecodeError::ReservedFlags { packet, flags });
        }
        Ok(packet)
    }
}
