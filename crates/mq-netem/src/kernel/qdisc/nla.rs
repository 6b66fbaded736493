//! Netlink attributes: a length, a kind and a value, each beginning at a multiple of four bytes.

/// Length and kind.
const HEADER: usize = 4;

/// The bits of a kind that are not flags.
const KIND: u16 = 0x3FFF;

/// Builds the options of a queueing discipline.
#[derive(Default)]
pub(in crate::kernel) struct Writer(Vec<u8>);

impl Writer {
    /// Attributes behind a structure of fixed size, which many disciplines have.
    pub(in crate::kernel) fn behind(structure: Vec<u8>) -> Self {
        Self(structure)
    }

    pub(in crate::kernel) fn put(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(HEADER + value.len()).expect("a table of 8 KiB at most");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Writes an attribute of numbers, one behind the other.
    pub(in crate::kernel) fn put_words(&mut self, kind: u16, words: &[u32]) {
        self.put(kind, &bytes(words));
    }

    pub(in crate::kernel) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Encodes numbers as the kernel has them in its structures.
pub(in crate::kernel) fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Kinds and values, up to the first bytes that make no sense.
pub(in crate::kernel) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & KIND, value))
    })
}

/// Returns the number at `index`, counted in numbers; 0 beyond the end, as an older kernel returns fewer.
pub(in crate::kernel) fn word(bytes: &[u8], index: usize) -> u32 {
    let found = bytes.get(index * 4..).and_then(<[u8]>::first_chunk);
    found.map_or(0, |chunk| u32::from_ne_bytes(*chunk))
}

/// Reads a value that is one number of 64 bits.
pub(in crate::kernel) fn long(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |chunk| u64::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_and_end_with_what_makes_no_sense() {
        let mut writer = Writer::default();
        writer.put(3, b"abcde");
        writer.put_words(0x8000 | 4, &[7, 8]);
        let mut options = writer.finish();
        assert_eq!(options.len(), 12 + 12);
        options.extend([200, 0, 5, 0]);
        let found: Vec<_> = attributes(&options).collect();
        assert_eq!(found[0], (3, &b"abcde"[..]));
        assert_eq!((found[1].0, word(found[1].1, 1)), (4, 8));
        assert_eq!(found.len(), 2);
        for length in 0..options.len() {
            assert!(attributes(&options[..length]).count() <= 2);
        }
        assert_eq!(attributes(&[0, 0, 1, 0]).count(), 0);
    }
}
