//! Which lives of nodes have ended, and from where on their entries count for nothing.

use std::collections::{BTreeMap, HashMap};

use super::{
    entry::Author,
    wire::{Malformed, Reader, Writer},
};

const VERSION: u8 = 1;

/// By node.
#[derive(Debug, Default)]
pub(super) struct Fences(HashMap<String, BTreeMap<u64, Fence>>);

/// The end of a life: by log, the number of the entry that says so.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Fence(BTreeMap<u16, u64>);

impl Fences {
    /// The log has it, at that entry.
    pub(super) fn note(&mut self, author: &Author, shard: u16, entry: u64) {
        let lives = self.0.entry(author.node.clone()).or_default();
        let fence = lives.entry(author.life).or_default();
        fence.0.entry(shard).or_insert(entry);
    }

    /// What a node's value says.
    pub(super) fn learn(&mut self, node: &str, endings: &Endings) {
        for Ending { life, at, .. } in &endings.0 {
            let author = Author {
                node: node.to_owned(),
                life: *life,
            };
            for (shard, entry) in (0..).zip(at) {
                self.note(&author, shard, *entry);
            }
        }
    }

    /// Whether an entry counts for nothing.
    pub(super) fn rejects(&self, author: &Author, shard: u16, entry: u64) -> bool {
        let Some(lives) = self.0.get(&author.node) else {
            return false;
        };
        // The fence of a later life is one of all earlier ones.
        let mut later = lives.range(author.life..);
        later.any(|(_, fence)| fence.0.get(&shard).is_some_and(|at| *at < entry))
    }

    /// The fence of that life or a later one, if it stands in each of so many logs.
    pub(super) fn of(&self, author: &Author, shards: u16) -> Option<&Fence> {
        let lives = self.0.get(&author.node)?;
        let mut later = lives.range(author.life..).map(|(_, fence)| fence);
        later.find(|fence| fence.0.len() == usize::from(shards))
    }

    /// The fence of that very life, as far as it is known to stand in each of so many logs.
    pub(super) fn of_life(&self, node: &str, life: u64, shards: u16) -> Option<Vec<u64>> {
        let fence = self.0.get(node)?.get(&life)?;
        let all = (0..shards).map(|shard| fence.0.get(&shard).copied());
        all.collect()
    }
}

impl Fence {
    pub(super) fn entries(&self) -> impl Iterator<Item = (u16, u64)> {
        self.0.iter().map(|(shard, entry)| (*shard, *entry))
    }
}

/// The value of a node's key of that kind: which of its lives were ended. A life is in it before its fences are
/// appended, so that a node that begins to read later knows where to look for them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Endings(pub(super) Vec<Ending>);

/// The end of one life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    pub(super) life: u64,
    /// By log: its fence is behind that entry.
    pub(super) after: Vec<u64>,
    /// By log: its fence, once it is known.
    pub(super) at: Vec<u64>,
}

/// Lives that are remembered: what an earlier one has appended was read again by all long ago.
const REMEMBERED: usize = 256;

impl Endings {
    /// Adds a life that is about to be ended. False if it is known.
    pub(super) fn begin(&mut self, life: u64, after: Vec<u64>) -> bool {
        if self.0.iter().any(|ending| ending.life >= life) {
            return false;
        }
        let at = Vec::new();
        self.0.push(Ending { life, after, at });
        if self.0.len() > REMEMBERED {
            self.0.remove(0);
        }
        true
    }

    pub(super) fn encode(&self) -> bytes::Bytes {
        let mut to = Writer::new(VERSION);
        to.all(self.0.iter(), |to, ending| {
            to.number(ending.life);
            to.all(ending.after.iter(), |to, entry| to.number(*entry));
            to.all(ending.at.iter(), |to, entry| to.number(*entry));
        });
        to.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let all = from.all(|from| {
            Ok(Ending {
                life: from.number()?,
                after: from.all(Reader::number)?,
                at: from.all(Reader::number)?,
            })
        })?;
        from.end()?;
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_ends_its_life_and_those_before_from_its_place_on() {
        let author = |life| Author {
            node: "a".to_owned(),
            life,
        };
        let mut fences = Fences::default();
        fences.note(&author(2), 0, 10);
        assert!(fences.of(&author(2), 2).is_none(), "not in all logs");
        fences.note(&author(2), 1, 5);
        fences.note(&author(2), 1, 7);
        for (life, shard, entry, is_rejected) in [
            (1, 0, 11, true),
            (2, 0, 11, true),
            (2, 0, 9, false),
            (2, 1, 6, true),
            (3, 0, 11, false),
        ] {
            assert_eq!(fences.rejects(&author(life), shard, entry), is_rejected);
        }
        assert!(fences.of(&author(1), 2).is_some());
        assert_eq!(fences.of_life("a", 2, 2), Some(vec![10, 5]));
        assert_eq!(fences.of_life("a", 1, 2), None);
        assert!(fences.of(&author(3), 2).is_none());
    }

    #[test]
    fn endings_are_known_once_and_in_order() {
        let mut endings = Endings::default();
        assert!(endings.begin(2, vec![7, 8]));
        assert!(!endings.begin(2, vec![9, 9]));
        assert!(!endings.begin(1, vec![9, 9]), "ended with the later one");
        assert!(endings.begin(3, vec![9, 9]));
        endings.0[0].at = vec![10, 11];
        assert_eq!(Endings::decode(&endings.encode()), Ok(endings));
    }
}
