//! Early data (0-RTT): the packets on which a server acts before its link's handshake is complete.

use super::{Connection, State};

/// The packets of early data (0-RTT) that a server takes before the handshake is complete.
///
/// Until then the bytes may be an attacker's copy of a first flight that overtook the original, which the
/// client will send again (RFC 8446 §8, RFC 9001 §9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EarlyPackets {
    /// CONNECT alone.
    Connect,
    /// CONNECT and packets that may be repeated: PUBLISH of QoS 0 and 1, SUBSCRIBE, UNSUBSCRIBE. Not a
    /// PUBLISH of QoS 2, which must be acted on once. Not an acknowledgement either: a client that has
    /// received nothing yet has nothing to acknowledge.
    Repeatable,
}

impl Connection {
    /// Server: restricts the packets of early data, which the link's bytes are. From now until
    /// [`handshake_complete`](Self::handshake_complete), [`handle_bytes`](Self::handle_bytes) takes `packets`
    /// alone; the first other packet stays in the buffer, with everything after it.
    pub fn restrict_early(&mut self, packets: EarlyPackets) {
        self.early = Some(packets);
    }

    /// Server: ends the restriction of early data. The link's handshake is complete, which proves that the
    /// packets are the peer's own. Then call [`handle_bytes`](Self::handle_bytes) again with the rest of the
    /// buffer.
    pub fn handshake_complete(&mut self) {
        self.early = None;
    }

    /// Returns `true` if the packet at the front of `buffer` waits for the end of the handshake. The owner
    /// should not read more meanwhile, as further bytes would be kept as well.
    #[must_use]
    pub fn is_too_early(&self, buffer: &[u8]) -> bool {
        let (Some(packets), Some(first)) = (self.early, buffer.first()) else {
            return false;
        };
        // The first byte decides, also for an incomplete packet (§2.1).
        let packet_type = first >> 4;
        let qos = first >> 1 & 0b11;
        match packets {
            EarlyPackets::Connect => self.state != State::Idle,
            EarlyPackets::Repeatable => match packet_type {
                PUBLISH => qos >= 2,
                PUBACK..=PUBCOMP => true,
                _ => false,
            },
        }
    }
}

const PUBLISH: u8 = mq_codec::PacketType::Publish as u8;
const PUBACK: u8 = mq_codec::PacketType::PubAck as u8;
const PUBCOMP: u8 = mq_codec::PacketType::PubComp as u8;
