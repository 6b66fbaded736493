//! Heads of flows, with which lanes begin in the MQTT-next draft of 5 March 2024.
//!
//! A lane begins with the head of its flow. Numbers are variable-length integers of QUIC (RFC 9000 §16).
//!
//! | flow | head |
//! |---|---|
//! | control | 0x11, 0, flags |
//! | data, of the client | 0x12, identifier, expire interval in seconds, flags |
//! | data, of the server | 0x13, identifier, expire interval in seconds, flags |
//! | user-defined | 0x14, identifier |
//!
//! The draft lists the flags "from the first bit". RFC 9000 §1.3 takes that as the highest, and so do peers whose
//! control lane has a head; mqtt5's client and broker, which send no such head, take it as the lowest.

use core::time::Duration;

use bytes::BufMut;

use super::{FlowError, FlowId};

/// Error code of the draft for a lane that ends within a packet.
pub(crate) const INCOMPLETE_PACKET: u32 = 0xBA;

/// Error code of the draft for a connection that ends by an error of the protocol.
pub(crate) const PROTOCOL_L0: u32 = 0xB4;

/// The form in which a peer encodes the head of a flow: mqtt5's, or the draft's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Dialect {
    /// mqtt5's: the first flag is the lowest bit, and a lane may do without a head.
    #[default]
    Mqtt5,
    /// The draft's: the first flag is the highest bit, and each lane has a head.
    Draft,
}

/// Flags of a flow's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the draft's flags")]
pub(crate) struct FlowFlags {
    /// `true` if the flow begins anew: state that is kept of it is dropped.
    pub(crate) clean: bool,
    /// `true` if the flow is refused when no state of it is kept.
    pub(crate) abort_if_no_state: bool,
    /// Error tolerance, from 0 to 3: with 0 and 1 an error discards the flow's state, with 2 and 3 the state is kept.
    pub(crate) error_tolerance: u8,
    /// `true` if unfinished QoS 1 and 2 messages are kept.
    pub(crate) persistent_qos: bool,
    /// `true` if topic aliases are kept.
    pub(crate) persistent_aliases: bool,
    /// `true` if subscriptions are kept.
    pub(crate) persistent_subscriptions: bool,
    optional_headers: bool,
}

impl FlowFlags {
    fn read(byte: u8, dialect: Dialect) -> Self {
        let byte = match dialect {
            Dialect::Mqtt5 => byte,
            // The error tolerance has two bits, whose order is that of a number.
            Dialect::Draft => {
                let turned = byte.reverse_bits();
                let tolerance = turned >> 2 & 0b11;
                let tolerance = tolerance >> 1 | tolerance << 1 & 0b10;
                turned & !0b1100 | tolerance << 2
            }
        };
        let flag = |bit: u8| byte >> bit & 1 > 0;
        Self {
            clean: flag(0),
            abort_if_no_state: flag(1),
            error_tolerance: byte >> 2 & 0b11,
            persistent_qos: flag(4),
            persistent_aliases: flag(5),
            persistent_subscriptions: flag(6),
            optional_headers: flag(7),
        }
    }

    /// Returns `true` if any state of the flow outlives its lane.
    pub(crate) fn is_persistent(self) -> bool {
        self.persistent_qos || self.persistent_aliases || self.persistent_subscriptions
    }
}

/// The head of a data flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlowHead {
    pub(crate) id: FlowId,
    /// Expire interval: time for which state is kept after an end of the lane that is not in order.
    pub(crate) expiry: Duration,
    pub(crate) flags: FlowFlags,
}

/// The flow of a data lane, with what its head asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) id: FlowId,
    /// The time for which the flow's state is kept after an end that was not in order.
    pub(crate) expiry: Duration,
    pub(crate) flags: FlowFlags,
    /// `true` if the draft's rules count for the flow's end.
    pub(crate) by_rules: bool,
}

impl Flow {
    /// Returns `true` if the exchanges of QoS 1 and 2 messages outlive the lane.
    pub(crate) fn keeps_qos(&self) -> bool {
        self.flags.persistent_qos && self.expiry > Duration::ZERO
    }

    pub(crate) fn keeps_subscriptions(&self) -> bool {
        self.flags.persistent_subscriptions && self.expiry > Duration::ZERO
    }

    pub(crate) fn keeps_anything(&self) -> bool {
        self.flags.is_persistent() && self.expiry > Duration::ZERO
    }
}

/// First item of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beginning {
    /// A packet: the lane has no head.
    Packet,
    /// Too few bytes to tell a packet from a head.
    Incomplete,
    /// A head, and its length in bytes.
    Flow(FlowHead, usize),
}

const CONTROL: u64 = 0x11;
const OF_CLIENT: u64 = 0x12;
const OF_SERVER: u64 = 0x13;
const USER_DEFINED: u64 = 0x14;

impl FlowHead {
    /// Reads the head at the front of a lane that the peer has opened; `of_server` if the peer is the server.
    pub(crate) fn read(
        bytes: &[u8],
        of_server: bool,
        dialect: Dialect,
    ) -> Result<Beginning, FlowError> {
        // No packet begins like one of the four: they would be a CONNECT with reserved bits.
        let is_packet = |first: u8| !(0x11..=0x14).contains(&first);
        if dialect == Dialect::Mqtt5 && bytes.first().is_some_and(|first| is_packet(*first)) {
            return Ok(Beginning::Packet);
        }
        let mut fields = Fields { bytes, at: 0 };
        let Some(kind) = fields.varint() else {
            return Ok(Beginning::Incomplete);
        };
        match kind {
            USER_DEFINED => return Err(FlowError::Refused),
            OF_CLIENT if !of_server => {}
            OF_SERVER if of_server => {}
            _ => return Err(FlowError::StreamType),
        }
        let Some(id) = fields.varint() else {
            return Ok(Beginning::Incomplete);
        };
        let id = FlowId(id);
        if id.0 == 0 || id.is_servers() != of_server {
            return Err(FlowError::BadFlowId);
        }
        let (Some(expiry), Some(flags)) = (fields.varint(), fields.byte()) else {
            return Ok(Beginning::Incomplete);
        };
        let flags = FlowFlags::read(flags, dialect);
        if flags.optional_headers {
            return Err(FlowError::OptionalHeader);
        }
        let expiry = Duration::from_secs(expiry);
        Ok(Beginning::Flow(Self { id, expiry, flags }, fields.at))
    }

    /// Writes the head of a flow of which no state is kept: a client's is new each time.
    pub(crate) fn write_passing(id: FlowId, out: &mut impl BufMut) {
        let kind = if id.is_servers() {
            OF_SERVER
        } else {
            OF_CLIENT
        };
        put_varint(kind, out);
        put_varint(id.0, out);
        put_varint(0, out);
        out.put_u8(if id.is_servers() { 0 } else { CLEAN });
    }
}

/// Bit of [`FlowFlags::clean`] in the flags of a flow's head, as the draft encodes them.
const CLEAN: u8 = 0x80;

/// Writes the head of the control flow.
pub(crate) fn write_control(out: &mut impl BufMut) {
    put_varint(CONTROL, out);
    put_varint(0, out);
    out.put_u8(0);
}

/// Returns the length of the head at the front of the control lane, 0 if the lane begins with CONNECT; `None`
/// while the bytes are too few to tell.
pub(crate) fn read_control(bytes: &[u8]) -> Result<Option<usize>, FlowError> {
    if bytes.first().is_some_and(|first| *first == CONNECT) {
        return Ok(Some(0));
    }
    let mut fields = Fields { bytes, at: 0 };
    let Some(kind) = fields.varint() else {
        return Ok(None);
    };
    if kind != CONTROL {
        return Err(FlowError::StreamType);
    }
    let (Some(id), Some(flags)) = (fields.varint(), fields.byte()) else {
        return Ok(None);
    };
    if id != 0 {
        return Err(FlowError::BadFlowId);
    }
    if FlowFlags::read(flags, Dialect::Draft).optional_headers {
        return Err(FlowError::OptionalHeader);
    }
    Ok(Some(fields.at))
}

/// The first byte of a CONNECT.
const CONNECT: u8 = (mq_codec::PacketType::Connect as u8) << 4;

struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at)?;
        self.at += 1;
        Some(*byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let first = *self.bytes.get(self.at)?;
        let length = 1 << (first >> 6);
        let bytes = self.bytes.get(self.at..self.at + length)?;
        self.at += length;
        let rest = bytes[1..].iter();
        Some(rest.fold(u64::from(first & 0x3F), |sum, byte| {
            sum << 8 | u64::from(*byte)
        }))
    }
}

/// Writes a number below 2^62 in the least bytes.
fn put_varint(number: u64, out: &mut impl BufMut) {
    match number {
        0..0x40 => out.put_uint(number, 1),
        0x40..0x4000 => out.put_uint(number | 1 << 14, 2),
        0x4000..0x4000_0000 => out.put_uint(number | 2 << 30, 4),
        _ => out.put_u64(number | 3 << 62),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], dialect: Dialect) -> Result<Beginning, FlowError> {
        FlowHead::read(bytes, false, dialect)
    }

    #[test]
    fn numbers_are_those_of_rfc_9000() {
        // RFC 9000 §A.1
        for (number, bytes) in [
            (37, &[0x25][..]),
            (15_293, &[0x7b, 0xbd]),
            (494_878_333, &[0x9d, 0x7f, 0x3e, 0x7d]),
            (
                151_288_809_941_952_652,
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
            ),
        ] {
            let mut out = Vec::new();
            put_varint(number, &mut out);
            assert_eq!(out, bytes);
            let mut fields = Fields { bytes, at: 0 };
            assert_eq!((fields.varint(), fields.at), (Some(number), bytes.len()));
        }
        let mut longer = Fields {
            bytes: &[0x40, 0x25],
            at: 0,
        };
        assert_eq!(longer.varint(), Some(37));
    }

    #[test]
    fn the_first_flag_is_the_highest_bit_of_the_draft_and_the_lowest_of_mqtt5() {
        let clean = |byte, dialect| FlowFlags::read(byte, dialect).clean;
        assert!(clean(0x80, Dialect::Draft) && clean(0x01, Dialect::Mqtt5));
        for (draft, mqtt5) in [(0x20, 0x08), (0x10, 0x04), (0x30, 0x0C)] {
            let tolerance = FlowFlags::read(draft, Dialect::Draft).error_tolerance;
            assert_eq!(
                tolerance,
                FlowFlags::read(mqtt5, Dialect::Mqtt5).error_tolerance
            );
        }
        assert_eq!(FlowFlags::read(0x20, Dialect::Draft).error_tolerance, 2);
        assert!(FlowFlags::read(0x08, Dialect::Draft).persistent_qos);
        assert!(FlowFlags::read(0x02, Dialect::Draft).persistent_subscriptions);
        assert!(FlowFlags::read(0x01, Dialect::Draft).optional_headers);
    }

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let whole = [0x12, 0x02, 0x41, 0x2c, 0x0a];
        for length in 0..whole.len() {
            let begins = read(&whole[..length], Dialect::Draft);
            assert_eq!(begins, Ok(Beginning::Incomplete), "{length} bytes");
        }
        let Ok(Beginning::Flow(head, 5)) = read(&whole, Dialect::Draft) else {
            panic!("no head");
        };
        assert_eq!((head.id, head.expiry), (FlowId(2), Duration::from_mins(5)));
        let FlowFlags {
            persistent_qos,
            persistent_subscriptions,
            ..
        } = head.flags;
        assert!(persistent_qos && persistent_subscriptions);
    }

    #[test]
    fn what_is_written_is_read() {
        for id in [2, 3, 0x1234, u64::from(u32::MAX) * 2] {
            let id = FlowId(id);
            let mut out = Vec::new();
            FlowHead::write_passing(id, &mut out);
            let of_server = id.is_servers();
            let Ok(Beginning::Flow(head, length)) = FlowHead::read(&out, of_server, Dialect::Draft)
            else {
                panic!("{id}: no head");
            };
            assert_eq!(
                (head.id, head.expiry, length),
                (id, Duration::ZERO, out.len())
            );
            assert_eq!(head.flags.clean, !of_server);
        }
        let mut out = Vec::new();
        write_control(&mut out);
        assert_eq!(read_control(&out), Ok(Some(3)));
        assert_eq!(read_control(&out[..2]), Ok(None));
        assert_eq!(read_control(&[0x10, 0x10]), Ok(Some(0)));
        assert_eq!(read_control(&[0x30]), Err(FlowError::StreamType));
    }
}
