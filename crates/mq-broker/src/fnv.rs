//! FNV-1a with 64 bits: a hash that is the same in each version of this software and at each node. It finds accidents, and
//! resists no attacker.

/// Hash of no bytes.
pub(crate) const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// Returns the hash of what `hash` is of, followed by these bytes.
pub(crate) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known values: other nodes and files of earlier versions have them.
    #[test]
    fn the_hash_is_that_of_the_publication() {
        assert_eq!(fnv1a(FNV_BASIS, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(FNV_BASIS, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(FNV_BASIS, b"foobar"), 0x8594_4171_f739_67e8);
        let part = fnv1a(FNV_BASIS, b"foo");
        assert_eq!(fnv1a(part, b"bar"), fnv1a(FNV_BASIS, b"foobar"));
    }
}
