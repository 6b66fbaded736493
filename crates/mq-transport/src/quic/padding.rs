//! Cuts off the padding of received packets.
//!
//! Quinn reads PADDING (RFC 9000 §19.1) as a frame for each byte. A client's first datagrams and path MTU probes are
//! mostly padding: some 3,000 such frames a connection, which cost a server as much as the rest of a packet's handling
//! many times over. So a key that has opened a packet cuts off what is padding up to its end.

use bytes::BytesMut;
use quinn::crypto::{CryptoError, Keys, PacketKey};

/// Fewer bytes of padding are quinn's to read: then the look at the frames would cost more.
const MIN_PADDING: usize = 24;

/// Returns the keys, wrapped so that opened packets lose their padding.
pub(super) fn without_padding(mut keys: Keys) -> Keys {
    keys.packet.remote = Box::new(Trimming(keys.packet.remote));
    keys
}

struct Trimming(Box<dyn PacketKey>);

impl PacketKey for Trimming {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.0.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.0.decrypt(packet, header, payload)?;
        trim(payload);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.0.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}

/// Cuts off PADDING frames at the end of a packet's payload; all but one, if there is nothing else.
///
/// Bytes of zero are not always padding: data may end in them. So it leaves everything as it is where it does not know
/// a frame before them.
fn trim(payload: &mut BytesMut) {
    let has_enough = payload.last_chunk::<MIN_PADDING>();
    if has_enough.is_none_or(|last| *last != [0; MIN_PADDING]) {
        return;
    }
    let padding = end_of_data(payload);
    let mut rest = &payload[..];
    loop {
        let at = payload.len() - rest.len();
        if at >= padding {
            payload.truncate(at.max(1));
            return;
        }
        match after_frame(rest) {
            Some(next) => rest = next,
            None => return,
        }
    }
}

/// Returns the position at which the trailing zeros begin.
fn end_of_data(bytes: &[u8]) -> usize {
    let zeros = bytes.as_rchunks::<32>().1.iter().rev();
    let zeros = zeros.take_while(|chunk| **chunk == [0; 32]).count();
    let rest = &bytes[..bytes.len() - 32 * zeros];
    let last = rest.iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| last + 1)
}

/// Returns the bytes behind the first frame; `None` if the frame is unknown, incomplete, or reaches to the end.
fn after_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (kind, rest) = bytes.split_first()?;
    match kind {
        // PADDING, PING, HANDSHAKE_DONE, IMMEDIATE_ACK
        0x00 | 0x01 | 0x1e | 0x1f => Some(rest),
        // ACK, with the counts of ECN or without
        0x02 | 0x03 => {
            let (ranges, rest) = number(numbers(rest, 2)?)?;
            let rest = numbers(rest, 1 + 2 * ranges)?;
            numbers(rest, if *kind == 0x03 { 3 } else { 0 })
        }
        // RESET_STREAM
        0x04 => numbers(rest, 3),
        // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED
        0x05 | 0x11 | 0x15 => numbers(rest, 2),
        // NEW_TOKEN, DATAGRAM with its length
        0x07 | 0x31 => data(rest),
        // CRYPTO, STREAM with its length, CONNECTION_CLOSE of an application
        0x06 | 0x0a | 0x0b | 0x1d => data(numbers(rest, 1)?),
        // STREAM with its offset and length, CONNECTION_CLOSE
        0x0e | 0x0f | 0x1c => data(numbers(rest, 2)?),
        // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID
        0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => numbers(rest, 1),
        // NEW_CONNECTION_ID, with the token of a stateless reset
        0x18 => {
            let (length, rest) = numbers(rest, 2)?.split_first()?;
            rest.get(usize::from(*length) + 16..)
        }
        // PATH_CHALLENGE, PATH_RESPONSE
        0x1a | 0x1b => rest.get(8..),
        _ => None,
    }
}

/// Reads a variable-length integer (RFC 9000 §16); returns it with the bytes behind it.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let of_first = u64::from(first & 0x3f);
    let fold = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
    Some((number[1..].iter().fold(of_first, fold), rest))
}

/// Returns the bytes behind `count` variable-length integers.
fn numbers(mut bytes: &[u8], count: u64) -> Option<&[u8]> {
    for _ in 0..count {
        bytes = number(bytes)?.1;
    }
    Some(bytes)
}

/// Returns the bytes behind a length and as many bytes of data.
fn data(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = number(bytes)?;
    rest.get(usize::try_from(length).ok()?..)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the frames with `padding` bytes of padding appended, then trimmed.
    fn trimmed(frames: &[u8], padding: usize) -> Vec<u8> {
        let mut payload = BytesMut::from(frames);
        payload.resize(frames.len() + padding, 0);
        trim(&mut payload);
        payload.to_vec()
    }

    #[test]
    fn padding_behind_each_frame_is_cut_off() {
        let frames: [&[u8]; 25] = [
            &[0x01],
            &[0x02, 9, 0, 0, 0],
            // Two more ranges, and numbers of two and four bytes.
            &[0x02, 0x7f, 0xff, 0x40, 0, 2, 1, 0, 0, 3, 0x80, 0, 0, 0],
            &[0x03, 9, 0, 0, 0, 1, 0, 0],
            &[0x04, 4, 0, 0],
            &[0x05, 4, 0],
            &[0x06, 0, 3, 2, 0, 0],
            &[0x07, 2, 7, 0],
            &[0x0a, 4, 2, 0, 0],
            &[0x0b, 4, 0],
            &[0x0e, 4, 0, 2, 7, 0],
            &[0x0f, 4, 0, 0],
            &[0x10, 0],
            &[0x11, 4, 0],
            &[0x12, 0],
            &[0x14, 0],
            &[0x15, 4, 0],
            &[0x17, 0],
            &[
                0x18, 1, 0, 2, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0,
            ],
            &[0x19, 0],
            &[0x1a, 1, 2, 3, 4, 5, 6, 7, 0],
            &[0x1c, 0, 0, 1, 0],
            &[0x1d, 0, 0],
            &[0x1e, 0x1f],
            &[0x31, 1, 0],
        ];
        for frame in frames {
            assert_eq!(trimmed(frame, 1_000), frame);
            let behind_padding = [&[0, 0, 0], frame, &[0x01, 0, 0x01]].concat();
            assert_eq!(trimmed(&behind_padding, 1_000), behind_padding);
        }
        assert_eq!(trimmed(&frames.concat(), 40), frames.concat());
    }

    #[test]
    fn data_that_ends_in_zeros_stays() {
        // CRYPTO of 1,000 bytes, and STREAM of as many.
        for head in [&[0x06, 0, 0x43, 0xe8][..], &[0x0e, 4, 0, 0x43, 0xe8]] {
            let whole = trimmed(head, 1_000);
            assert_eq!(whole.len(), head.len() + 1_000);
            assert_eq!(trimmed(head, 1_100), whole);
            // Less than announced: quinn refuses it.
            assert_eq!(trimmed(head, 900).len(), head.len() + 900);
        }
        // STREAM and DATAGRAM that reach to the end, and a frame that is unknown here.
        for head in [
            &[0x08, 4][..],
            &[0x0c, 4, 0],
            &[0x30],
            &[0x40, 0xaf],
            &[0x3f],
        ] {
            assert_eq!(trimmed(head, 1_000).len(), head.len() + 1_000);
        }
    }

    #[test]
    fn a_packet_of_padding_alone_keeps_a_frame() {
        assert_eq!(trimmed(&[], 1_000), [0]);
        assert!(trimmed(&[], 0).is_empty());
    }

    #[test]
    fn any_bytes_are_left_whole_or_lose_zeros() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..100_000 {
            let frames: Vec<u8> = (0..random.usize(0..40))
                .map(|_| random.u8(..) & random.u8(..) & 0x5f)
                .collect();
            let left = trimmed(&frames, random.usize(0..80));
            let end = frames.len() - frames.iter().rev().take_while(|byte| **byte == 0).count();
            assert!(left.len() >= end, "{frames:?}");
        }
    }
}
