//! Packets of a broker, taken apart by hand; see [`packet`](crate::packet).

use bytes::BytesMut;

use crate::packet::{V5, Version};

/// A received packet: its first byte and the bytes behind its length.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) first: u8,
    pub(crate) body: Vec<u8>,
}

/// Takes a whole packet off the front of what was received.
///
/// # Panics
/// If its length is not one.
pub(crate) fn take(received: &mut BytesMut) -> Option<Packet> {
    let mut length = 0;
    for at in 0.. {
        assert!(at < 4, "the broker sent a length of five bytes");
        let byte = *received.get(1 + at)?;
        length |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            assert!(
                byte > 0 || at == 0,
                "the broker sent a length that could be shorter"
            );
            let size = 2 + at + length;
            if received.len() < size {
                return None;
            }
            let packet = received.split_to(size);
            return Some(Packet {
                first: packet[0],
                body: packet[2 + at..].to_vec(),
            });
        }
    }
    None
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [&str; 16] = [
            "type 0",
            "CONNECT",
            "CONNACK",
            "PUBLISH",
            "PUBACK",
            "PUBREC",
            "PUBREL",
            "PUBCOMP",
            "SUBSCRIBE",
            "SUBACK",
            "UNSUBSCRIBE",
            "UNSUBACK",
            "PINGREQ",
            "PINGRESP",
            "DISCONNECT",
            "AUTH",
        ];
        let name = NAMES[usize::from(self.first >> 4)];
        write!(f, "{name} {:02X}", self.first)?;
        for byte in self.body.iter().take(40) {
            write!(f, " {byte:02X}")?;
        }
        Ok(())
    }
}

/// CONNACK.
#[derive(Clone, Debug)]
pub(crate) struct ConnAck {
    pub(crate) session_present: bool,
    pub(crate) code: u8,
    pub(crate) properties: Properties,
}

/// PUBLISH.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) dup: bool,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) topic: String,
    pub(crate) id: u16,
    pub(crate) properties: Properties,
    pub(crate) payload: Vec<u8>,
}

/// A packet with an identifier and reason codes: PUBACK and the like, SUBACK, UNSUBACK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) id: u16,
    pub(crate) codes: Vec<u8>,
    pub(crate) properties: Properties,
}

/// Properties in order, the values as bytes: behind their length, where they have one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Properties(Vec<(u8, Vec<u8>)>);

impl Properties {
    /// Returns the values of all properties of that identifier.
    pub(crate) fn all(&self, id: u8) -> Vec<&[u8]> {
        let of_id = self.0.iter().filter(|(at, _)| *at == id);
        of_id.map(|(_, value)| &value[..]).collect()
    }

    pub(crate) fn get(&self, id: u8) -> Option<&[u8]> {
        self.all(id).first().copied()
    }

    /// Returns the value of the property as a number.
    pub(crate) fn number(&self, id: u8) -> Option<u32> {
        let value = self.get(id)?;
        Some(
            value
                .iter()
                .fold(0, |number, byte| number << 8 | u32::from(*byte)),
        )
    }

    /// Returns the names and values of user properties, in order.
    pub(crate) fn user(&self) -> Vec<(String, String)> {
        let pairs = self.all(0x26).into_iter().map(|pair| {
            let mut fields = Fields(pair);
            (fields.string(), fields.string())
        });
        pairs.collect()
    }
}

/// Takes fields off the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        assert!(count <= self.0.len(), "the broker's packet is cut short");
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1)[0]
    }

    fn two(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes(2).try_into().unwrap())
    }

    fn binary(&mut self) -> &'a [u8] {
        let length = self.two();
        self.bytes(length.into())
    }

    fn string(&mut self) -> String {
        String::from_utf8(self.binary().to_vec()).expect("the broker sent ill-formed UTF-8")
    }

    fn varint(&mut self) -> usize {
        let mut value = 0;
        for at in 0..4 {
            let byte = self.byte();
            value |= usize::from(byte & 0x7F) << (7 * at);
            if byte & 0x80 == 0 {
                return value;
            }
        }
        panic!("the broker sent a variable byte integer of five bytes")
    }

    /// Reads the properties in front; none before 5.0, or where the packet has ended.
    fn properties(&mut self, version: Version) -> Properties {
        let mut properties = Properties::default();
        if version < V5 || self.0.is_empty() {
            return properties;
        }
        let length = self.varint();
        let mut fields = Fields(self.bytes(length));
        while !fields.0.is_empty() {
            let id = fields.byte();
            let value = match id {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2A => fields.bytes(1),
                0x13 | 0x21..=0x23 => fields.bytes(2),
                0x02 | 0x11 | 0x18 | 0x27 => fields.bytes(4),
                0x0B => {
                    let before = fields.0;
                    fields.varint();
                    &before[..before.len() - fields.0.len()]
                }
                0x26 => {
                    let before = fields.0;
                    fields.binary();
                    fields.binary();
                    &before[..before.len() - fields.0.len()]
                }
                0x03 | 0x08 | 0x09 | 0x12 | 0x15 | 0x16 | 0x1A | 0x1C | 0x1F => fields.binary(),
                other => panic!("the broker sent the unknown property {other:#04x}"),
            };
            properties.0.push((id, value.to_vec()));
        }
        properties
    }

    fn end(&self) {
        assert!(self.0.is_empty(), "the broker's packet is too long");
    }
}

impl Packet {
    pub(crate) fn connack(&self, version: Version) -> ConnAck {
        let mut fields = Fields(&self.body);
        let flags = fields.byte();
        assert!(flags <= 1, "reserved bits in {self:?}");
        assert!(flags == 0 || version > Version::V31, "{self:?} for 3.1");
        let code = fields.byte();
        let ack = ConnAck {
            session_present: flags == 1,
            code,
            properties: fields.properties(version),
        };
        fields.end();
        assert!(
            code == 0 || flags == 0,
            "a refusal with a session: {self:?}"
        );
        ack
    }

    pub(crate) fn message(&self, version: Version) -> Message {
        let mut fields = Fields(&self.body);
        let qos = self.first >> 1 & 3;
        assert!(qos < 3, "{self:?}");
        let topic = fields.string();
        let id = if qos > 0 { fields.two() } else { 0 };
        assert!(qos == 0 || id > 0, "packet identifier 0 in {self:?}");
        let properties = fields.properties(version);
        Message {
            dup: self.first & 8 != 0,
            qos,
            retain: self.first & 1 != 0,
            topic,
            id,
            properties,
            payload: fields.0.to_vec(),
        }
    }

    /// Reads PUBACK, PUBREC, PUBREL or PUBCOMP; what is left out is success.
    pub(crate) fn ack(&self, version: Version) -> Answer {
        let mut fields = Fields(&self.body);
        let id = fields.two();
        let code = if version == V5 && !fields.0.is_empty() {
            fields.byte()
        } else {
            0
        };
        let properties = fields.properties(version);
        fields.end();
        Answer {
            id,
            codes: vec![code],
            properties,
        }
    }

    /// Reads SUBACK or UNSUBACK.
    pub(crate) fn codes(&self, version: Version) -> Answer {
        let mut fields = Fields(&self.body);
        let id = fields.two();
        let properties = fields.properties(version);
        Answer {
            id,
            codes: fields.0.to_vec(),
            properties,
        }
    }

    /// Reads the reason code and the properties of DISCONNECT.
    pub(crate) fn disconnect(&self) -> (u8, Properties) {
        let mut fields = Fields(&self.body);
        let code = if self.body.is_empty() {
            0
        } else {
            fields.byte()
        };
        let properties = fields.properties(V5);
        fields.end();
        (code, properties)
    }
}
