//! The form in which a node's summary goes to another node.

use bytes::Bytes;

use crate::cluster::{
    engine::{Malformed, Reader, Writer},
    log::Author,
};

/// A summary, or what a later version of it adds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Announcement {
    /// The node whose summary it is.
    pub(super) author: Author,
    /// The version that the entries are added to; `None` if they are the whole summary.
    pub(super) base: Option<u64>,
    pub(super) version: u64,
    pub(super) depth: u8,
    pub(super) entries: Vec<u64>,
}

impl Announcement {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Writer::default();
        self.author.write(&mut to);
        to.number(self.base.unwrap_or_default());
        to.number(self.version);
        to.byte(self.depth);
        let entries = self.entries.iter().flat_map(|entry| entry.to_be_bytes());
        to.bytes(&entries.collect::<Bytes>());
        to.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::without_version(bytes);
        let author = Author::read(&mut from)?;
        // Versions begin at 1.
        let base = Some(from.number()?).filter(|base| *base > 0);
        let (version, depth) = (from.number()?, from.byte()?);
        let (entries, rest) = from.bytes()?.as_chunks();
        from.expect_end()?;
        if !rest.is_empty() {
            return Err(Malformed);
        }
        Ok(Self {
            author,
            base,
            version,
            depth,
            entries: entries
                .iter()
                .map(|entry| u64::from_be_bytes(*entry))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_comes_back_from_its_form() {
        for base in [None, Some(7)] {
            let announcement = Announcement {
                author: Author {
                    node: "a".to_owned(),
                    life: 3,
                },
                base,
                version: 9,
                depth: 8,
                entries: vec![0, 1, u64::MAX],
            };
            let bytes = announcement.encode();
            assert_eq!(Announcement::decode(&bytes), Ok(announcement));
            let cut = &bytes[..bytes.len() - 1];
            assert_eq!(Announcement::decode(cut), Err(Malformed));
        }
    }
}
