//! Framing: whole packets off the front of a buffer.

use bytes::{Bytes, BytesMut};

use crate::{
    Connect, DecodeError, Packet, PacketType, Publish, Version,
    byte_str::Characters,
    wire::{Reader, padded_varint, varint},
};

/// Returns the length of the packet that begins here, fixed header included; `None` if its header is incomplete, or its remaining
/// length is longer than four bytes (§2.1.4). Checks nothing else.
///
/// ```
/// assert_eq!(mq_codec::packet_len(&[0x10, 0x80, 0x01]), Some(131));
/// assert_eq!(mq_codec::packet_len(&[0x10, 0x80]), None);
/// ```
#[must_use]
pub fn packet_len(bytes: &[u8]) -> Option<usize> {
    let (remaining, length_bytes) = padded_varint(bytes.get(1..)?).ok()??;
    Some(1 + length_bytes + remaining as usize)
}

/// Takes packets off the front of a buffer as they become complete.
///
/// A decoder belongs to one direction of one connection (or of one of its lanes). It keeps the
/// version and the size limit, and no bytes: incomplete packets stay in the caller's buffer.
#[derive(Clone, Debug)]
pub struct Decoder {
    version: Option<Version>,
    max_packet_size: u32,
    /// `true` for a server's decoder, which refuses packets that only servers send.
    server: bool,
    characters: Characters,
}

impl Decoder {
    /// Bytes of a packet that [`peek_publish`](Self::peek_publish) looks at.
    pub const MAX_PEEKED: usize = 4 * 1024;

    /// Builds a decoder that refuses packets of more than `max_packet_size` bytes, fixed header
    /// included.
    ///
    /// A server gives `version: None`. Then the first packet must be CONNECT, which sets the version
    /// `[MQTT-3.1.0-1]`, and packets that only servers send are refused. A client gives the version
    /// that it asked for.
    #[must_use]
    pub fn new(version: Option<Version>, max_packet_size: u32) -> Self {
        Self {
            version,
            max_packet_size,
            server: version.is_none(),
            characters: Characters::All,
        }
    }

    /// Refuses strings with Disallowed Unicode code points (control characters and noncharacters)
    /// from now on, which a receiver may do (§1.5.4). Use it in servers: a client that refuses them can
    /// be disconnected by any publisher of such characters (§5.4.9).
    pub fn refuse_disallowed_characters(&mut self) {
        self.characters = Characters::Allowed;
    }

    /// Returns the version of MQTT once it is known, also if the rest of CONNECT was refused.
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
    /// If the bytes cannot become a valid packet. Errors come as early as possible: a packet
    /// over the size limit is refused by its fixed header, before its body has arrived. The content
    /// of `buffer` after an error is unspecified.
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
        let (length, minimal) = match varint(rest) {
            // Only 5.0 wants it as short as it can be `[MQTT-1.5.5-1]`.
            Err(DecodeError::VarintNotMinimal) if self.version < Some(Version::V5) => {
                (padded_varint(rest)?, false)
            }
            length => (length?, true),
        };
        let Some((remaining, length_bytes)) = length else {
            return Ok(None);
        };
        let header = 1 + length_bytes;
        let size = header + remaining as usize;
        let within_limit = u32::try_from(size).is_ok_and(|size| size <= self.max_packet_size);
        if !within_limit {
            if self.version.is_none() && !self.read_version_of_large(buffer, header)? {
                return Ok(None);
            }
            return Err(DecodeError::PacketTooLarge {
                size: u32::try_from(size).unwrap_or(u32::MAX),
                limit: self.max_packet_size,
            });
        }
        if buffer.len() < size {
            return Ok(None);
        }
        let reader = Reader::new(packet_type, self.characters, buffer, header, size);
        let Some(version) = self.version else {
            return self.first_connect(reader, flags, minimal).map(Some);
        };
        if packet_type == PacketType::Publish {
            return Publish::read(reader, flags, version).map(|p| Some(Packet::Publish(p)));
        }
        Packet::read(reader, version).map(Some)
    }

    /// Reads the head of a PUBLISH of which `buffer` has the beginning: the packet without its payload, and the number of
    /// bytes that are still to come.
    ///
    /// `None` for other packets and for complete ones, if the head is longer than 4 KiB or incomplete,
    /// and if it is not valid: [`decode`](Self::decode) finds the error once the packet is complete.
    #[must_use]
    pub fn peek_publish(&self, buffer: &[u8]) -> Option<(Publish, usize)> {
        let version = self.version?;
        let (first, rest) = buffer.split_first()?;
        let (remaining, length_bytes) = varint(rest).ok()??;
        let header = 1 + length_bytes;
        let size = header + remaining as usize;
        let to_come = size.checked_sub(buffer.len()).filter(|more| *more > 0)?;
        if first >> 4 != 0x03 || size > self.max_packet_size as usize {
            return None;
        }
        let mut head = BytesMut::from(&buffer[..buffer.len().min(Self::MAX_PEEKED)]);
        let end = head.len();
        let publish = PacketType::Publish;
        let reader = Reader::new(publish, self.characters, &mut head, header, end);
        let mut publish = Publish::read(reader, first & 0x0F, version).ok()?;
        publish.payload = Bytes::new();
        Some((publish, to_come))
    }

    /// Reads the version of a CONNECT that is too large, for the form of the refusal. Returns whether
    /// enough bytes have arrived. Reads, and waits for, nothing beyond the size limit.
    fn read_version_of_large(
        &mut self,
        buffer: &mut BytesMut,
        header: usize,
    ) -> Result<bool, DecodeError> {
        // The longest protocol name, with its length, and the level.
        const LONGEST: usize = 2 + "MQIsdp".len() + 1;
        if (self.max_packet_size as usize) < header + LONGEST {
            return Ok(true);
        }
        if buffer.len() < header + LONGEST {
            return Ok(false);
        }
        let mut start = BytesMut::from(&buffer[..header + LONGEST]);
        let size = start.len();
        let (packet, characters) = (PacketType::Connect, self.characters);
        let mut reader = Reader::new(packet, characters, &mut start, header, size);
        let (version, _) = Connect::read_version(&mut reader)?;
        self.version = Some(version);
        Ok(true)
    }

    /// Decodes CONNECT, whose fixed header can only be checked once its version is known.
    fn first_connect(
        &mut self,
        mut reader: Reader<'_>,
        flags: u8,
        minimal: bool,
    ) -> Result<Packet, DecodeError> {
        let (version, is_bridge) = Connect::read_version(&mut reader)?;
        self.version = Some(version);
        if flags != 0 && version > Version::V3_1 {
            let packet = PacketType::Connect;
            return Err(DecodeError::ReservedFlags { packet, flags });
        }
        if !minimal && version >= Version::V5 {
            return Err(DecodeError::VarintNotMinimal);
        }
        let connect = Connect::read_rest(&mut reader, version, is_bridge)?;
        reader.finish()?;
        Ok(Packet::from(connect))
    }

    /// Refuses what the first byte alone shows to be wrong: type, flags and direction.
    fn check_first_byte(&self, first: u8) -> Result<PacketType, DecodeError> {
        let packet = PacketType::from_bits(first >> 4)
            .filter(|packet| *packet != PacketType::Auth || self.version >= Some(Version::V5))
            .ok_or(DecodeError::ReservedPacketType(first >> 4))?;
        if self.version.is_none() && packet != PacketType::Connect {
            return Err(DecodeError::NotConnect(packet));
        }
        let flags = first & 0x0F;
        // MQTT 3.1 has DUP, QoS and RETAIN in every packet. DUP marks a repetition, QoS is 1 for these
        // three packets, and other bits are "not used".
        let used = match self.version {
            Some(Version::V3_1) => 0b0110,
            _ => 0b1111,
        };
        let valid = match packet {
            PacketType::Publish => true,
            PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe => {
                flags & used == 0b0010
            }
            _ => flags == 0 || used != 0b1111 || self.version.is_none(),
        };
        if !valid {
            return Err(DecodeError::ReservedFlags { packet, flags });
        }
        if self.server && packet.is_from_server_only() {
            return Err(DecodeError::FromServerOnly(packet));
        }
        Ok(packet)
    }
}
