//! A client's CONNECT: read whole, checked, and left as it is.

use bytes::{Bytes, BytesMut};
use mq_codec::{ByteStr, ConnAck, DecodeError, Decoder, Packet, ReasonCode, Version, packet_len};
use mq_transport::{LaneId, Link, Outbox, Progress};

/// Greatest size of a CONNECT, in bytes.
pub(crate) const MAX_CONNECT: u32 = 64 * 1024;

/// Length of the longest fixed header, in bytes (§2.1.4).
const MAX_HEADER: usize = 5;

/// Characters of a client identifier that a line of the log has.
const MAX_SHOWN: usize = 128;

/// A CONNECT as the client has sent it.
#[derive(Debug)]
pub(crate) struct FirstPacket {
    /// The packet's bytes.
    pub(crate) bytes: Bytes,
    pub(crate) version: Version,
    /// `true` if the client begins with an empty session.
    pub(crate) clean_start: bool,
    pub(crate) client_id: ByteStr,
}

/// Reasons for which a client's first bytes are no CONNECT that is passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoConnect {
    #[error("too many clients of its address")]
    TooMany,
    #[error("the client left before its CONNECT was complete")]
    Left,
    #[error(transparent)]
    Link(#[from] mq_transport::Error),
    #[error("{error}")]
    Malformed {
        error: DecodeError,
        /// Version of the refusal; `None` if the bytes are not MQTT.
        version: Option<Version>,
    },
}

impl FirstPacket {
    /// Returns the client identifier for a line of the log. The client chooses it: it must neither end the line, nor fill
    /// it, nor look like another field.
    pub(crate) fn shown_id(&self) -> String {
        let id = self.client_id.as_str();
        let end = id.char_indices().nth(MAX_SHOWN).map(|(end, _)| end);
        let head = &id[..end.unwrap_or(id.len())];
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'=');
        let mut shown = if !head.is_empty() && head.bytes().all(is_plain) {
            head.to_owned()
        } else {
            format!("{head:?}")
        };
        if end.is_some() {
            shown.push('…');
        }
        shown
    }
}

/// Reads the first packet. Bytes behind it stay in the link.
pub(crate) async fn read(link: &mut Link) -> Result<FirstPacket, NoConnect> {
    let mut nothing = Outbox::new();
    let mut checked = 0;
    loop {
        let received = link.received(LaneId::CONTROL);
        if received.len() > checked && is_decided(received) {
            checked = received.len();
            // The decoder takes the packet off a copy: what is passed on are the client's own bytes.
            let mut copy = BytesMut::from(&received[..]);
            let mut decoder = Decoder::new(None, MAX_CONNECT);
            match decoder.decode(&mut copy) {
                Ok(Some(Packet::Connect(connect))) => {
                    let size = received.len() - copy.len();
                    return Ok(FirstPacket {
                        bytes: received.split_to(size).freeze(),
                        version: connect.version,
                        clean_start: connect.clean_start,
                        client_id: connect.client_id,
                    });
                }
                // A server's decoder takes nothing else first.
                Ok(_) => {}
                Err(error) => {
                    let version = decoder.version();
                    return Err(NoConnect::Malformed { error, version });
                }
            }
        }
        if link.progress(&mut nothing, true).await? == Progress::Closed {
            return Err(NoConnect::Left);
        }
    }
}

/// Returns `true` if the packet is complete, or if the first bytes show that it will not be a CONNECT to pass on. Without this a packet
/// that comes byte by byte would be copied for each.
fn is_decided(received: &[u8]) -> bool {
    /// Flags that CONNECT must not have are refused with the whole packet.
    fn is_connect(received: &[u8]) -> bool {
        received.first().is_some_and(|first| first >> 4 == 1)
    }
    match packet_len(received) {
        Some(size) => {
            received.len() >= size || size > MAX_CONNECT as usize || !is_connect(received)
        }
        None => received.len() >= MAX_HEADER || !is_connect(received),
    }
}

/// Writes a CONNACK that refuses the client: with `reason` in 5.0, and before it with the return code that comes nearest.
pub(crate) fn put_refusal(reason: ReasonCode, version: Version, outbox: &mut Outbox) {
    let refusal = Packet::from(ConnAck::new(reason));
    // A CONNACK without properties can be encoded in every version that has a code for the reason.
    let _ = outbox.put(LaneId::CONTROL, |out| refusal.encode(version, out));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(id: &str) -> String {
        let first = FirstPacket {
            bytes: Bytes::new(),
            version: Version::V5,
            clean_start: true,
            client_id: ByteStr::new(id).unwrap(),
        };
        first.shown_id()
    }

    #[test]
    fn a_client_identifier_stays_within_its_place_in_a_line() {
        assert_eq!(shown("sensor-7"), "sensor-7");
        assert_eq!(shown("a\nWARN b=c"), r#""a\nWARN b=c""#);
        let long = "ä".repeat(30_000);
        assert_eq!(shown(&long).chars().count(), MAX_SHOWN + 3);
    }
}
