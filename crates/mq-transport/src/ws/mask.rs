//! The mask on the bytes of clients. Tungstenite keeps its own private, and that cannot go on in the middle of a frame.

/// The key of one frame (RFC 6455 §5.3), rotated so that it begins at the next byte.
///
/// The mask keeps a program from sending chosen bytes through old proxies, so it has to be
/// unpredictable. It hides nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    key: [u8; 4],
}

impl Mask {
    /// Draws an unpredictable key.
    pub(super) fn random() -> Self {
        Self::from(rand::random::<[u8; 4]>())
    }

    pub(super) fn key(self) -> [u8; 4] {
        self.key
    }

    /// Masks the next bytes of the frame, or unmasks them.
    pub(super) fn apply(&mut self, bytes: &mut [u8]) {
        let [a, b, c, d] = self.key;
        let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
        let turn = bytes.len() % 4;
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for bytes in words {
            *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
        }
        for (byte, key) in rest.iter_mut().zip(self.key.into_iter().cycle()) {
            *byte ^= key;
        }
        self.key.rotate_left(turn);
    }
}

impl From<[u8; 4]> for Mask {
    fn from(key: [u8; 4]) -> Self {
        Self { key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_goes_on_where_the_last_bytes_ended() {
        let key = [0x37, 0xFA, 0x21, 0x3D];
        let data: Vec<u8> = (0..=255).collect();
        let expected: Vec<u8> = data
            .iter()
            .zip(key.iter().cycle())
            .map(|(d, k)| d ^ k)
            .collect();
        for length in 1..40 {
            let mut mask = Mask::from(key);
            let mut masked = data.clone();
            for piece in masked.chunks_mut(length) {
                mask.apply(piece);
            }
            assert_eq!(masked, expected, "in pieces of {length}");
        }
    }

    #[test]
    fn the_example_of_the_rfc_is_read() {
        // RFC 6455 §5.7: a masked "Hello".
        let mut bytes = [0x7F, 0x9F, 0x4D, 0x51, 0x58];
        Mask::from([0x37, 0xFA, 0x21, 0x3D]).apply(&mut bytes);
        assert_eq!(&bytes, b"Hello");
    }
}
