//! Fences: the ends of nodes' lives in the logs. Entries of a life behind its fence count for nothing.

use std::collections::{BTreeMap, HashMap};

use super::author::Author;

/// Lives of a node that are remembered: what an earlier one has appended was read again by all long ago.
const MAX_LIVES_PER_NODE: usize = 256;

/// The fences of all nodes, by name and life.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Fences(HashMap<String, BTreeMap<u64, Fence>>);

/// The end of a life: by log, the number of the entry that says so.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::cluster) struct Fence(BTreeMap<u16, u64>);

impl Fences {
    /// Notes that the log of `shard` has the fence of a life, at `entry`.
    pub(in crate::cluster) fn note(&mut self, author: &Author, shard: u16, entry: u64) {
        let lives = self.0.entry(author.node.clone()).or_default();
        let fence = lives.entry(author.life).or_default();
        fence.0.entry(shard).or_insert(entry);
        if lives.len() > MAX_LIVES_PER_NODE {
            lives.pop_first();
        }
    }

    /// Forgets the fences of a log in entries that it has lost. Returns the lives that they have ended.
    pub(super) fn forget(&mut self, shard: u16, is_lost: impl Fn(u64) -> bool) -> Vec<Author> {
        let mut forgotten = Vec::new();
        for (node, lives) in &mut self.0 {
            for (life, fence) in lives {
                if fence.0.get(&shard).is_some_and(|entry| is_lost(*entry)) {
                    fence.0.remove(&shard);
                    let (node, life) = (node.clone(), *life);
                    forgotten.push(Author { node, life });
                }
            }
        }
        forgotten
    }

    /// Returns the last life of each node whose fence stands in each of so many logs.
    pub(in crate::cluster) fn ended_lives(&self, shards: u16) -> Vec<Author> {
        let nodes = self.0.iter();
        let last = nodes.filter_map(|(node, lives)| {
            let ended = |(_, fence): &(&u64, &Fence)| fence.0.len() == usize::from(shards);
            let (life, _) = lives.iter().rev().find(ended)?;
            let (node, life) = (node.clone(), *life);
            Some(Author { node, life })
        });
        last.collect()
    }

    /// Returns the lives whose fences stand in one log, each with the number of its entry.
    pub(super) fn in_log(&self, shard: u16) -> Vec<(Author, u64)> {
        let lives = self
            .0
            .iter()
            .flat_map(|(node, lives)| lives.iter().map(move |(life, fence)| (node, *life, fence)));
        let here = lives.filter_map(|(node, life, fence)| {
            let entry = *fence.0.get(&shard)?;
            let node = node.clone();
            Some((Author { node, life }, entry))
        });
        here.collect()
    }

    /// Returns `true` if an entry stands behind the fence of its author.
    pub(in crate::cluster) fn rejects(&self, author: &Author, shard: u16, entry: u64) -> bool {
        let Some(lives) = self.0.get(&author.node) else {
            return false;
        };
        // The fence of a later life is one of all earlier ones.
        let mut later = lives.range(author.life..);
        later.any(|(_, fence)| fence.0.get(&shard).is_some_and(|at| *at < entry))
    }

    /// Returns the fence of that life or a later one, if it stands in each of so many logs.
    pub(in crate::cluster) fn complete_fence(
        &self,
        author: &Author,
        shards: u16,
    ) -> Option<&Fence> {
        let lives = self.0.get(&author.node)?;
        let mut later = lives.range(author.life..).map(|(_, fence)| fence);
        later.find(|fence| fence.0.len() == usize::from(shards))
    }
}

impl Fence {
    pub(in crate::cluster) fn entries(&self) -> impl Iterator<Item = (u16, u64)> {
        self.0.iter().map(|(shard, entry)| (*shard, *entry))
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
        assert!(
            fences.complete_fence(&author(2), 2).is_none(),
            "not in all logs"
        );
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
        assert!(fences.complete_fence(&author(1), 2).is_some());
        assert!(fences.complete_fence(&author(3), 2).is_none());
        assert!(fences.forget(0, |entry| entry > 10).is_empty());
        assert_eq!(fences.forget(0, |entry| entry > 9), [author(2)]);
        assert!(!fences.rejects(&author(2), 0, 11), "another entry is there");
    }
}
