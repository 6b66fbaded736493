//! The payload of a measured message: its sequence number, then bytes that do not compress.

use bytes::{BufMut, Bytes, BytesMut};
use mq_measure::stats::SplitMix64;

/// The shortest payload that can be measured: the sequence number alone.
pub(crate) const MIN_SIZE: usize = 8;

/// Source of payloads of one size.
#[derive(Debug)]
pub(crate) struct Payloads {
    size: usize,
    /// Random bytes (requirement of the papers: the application's payload is random), the same for
    /// each message, since no transport here compresses or compares them.
    filling: Bytes,
}

impl Payloads {
    pub(crate) fn new(size: usize, seed: u64) -> Self {
        let size = size.max(MIN_SIZE);
        let mut random = SplitMix64::new(seed);
        let mut filling = BytesMut::with_capacity(size);
        while filling.len() < size - MIN_SIZE {
            filling.put_u64(random.next_u64());
        }
        filling.truncate(size - MIN_SIZE);
        Self {
            size,
            filling: filling.freeze(),
        }
    }

    pub(crate) fn make(&self, seq: u64) -> Bytes {
        let mut payload = BytesMut::with_capacity(self.size);
        payload.put_u64(seq);
        payload.extend_from_slice(&self.filling);
        payload.freeze()
    }
}

/// Reads the sequence number of a payload; `None` if it is too short to have one.
pub(crate) fn sequence(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().copied().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_gives_its_sequence_number_back() {
        let payloads = Payloads::new(100, 1);
        let payload = payloads.make(77);
        assert_eq!(payload.len(), 100);
        assert_eq!(sequence(&payload), Some(77));
        assert_eq!(Payloads::new(3, 1).make(5).len(), MIN_SIZE);
        assert_eq!(sequence(b"short"), None);
    }
}
