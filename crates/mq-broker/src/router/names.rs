//! Values by name, in any number.

use std::{hash::BuildHasher as _, sync::LazyLock};

use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};

/// The most names in one table. A table that grows moves all its entries, while the router's lock
/// holds up every message: so many take some tens of microseconds. A table of 512 places is full
/// with them.
const MOST: usize = 448;

/// Tables that a full one becomes.
const PARTS: usize = 16;

/// The bits of a hash that choose among the parts, level by level: those that the tables themselves
/// use least (hashbrown begins at the lowest, and keeps the highest seven beside its entries).
const FIRST_BIT: u32 = 32;
const LEVELS: u32 = 6;

/// The seed of all tables, random so that clients do not know which names collide.
static HASHES: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);

/// Values by name: a hash table that never moves more than a few hundred of them at once, and that
/// returns its memory as they are removed.
#[derive(Debug)]
pub(super) struct Names<V>(Part<V>);

type Table<V> = HashTable<(Box<[u8]>, V)>;

#[derive(Debug)]
enum Part<V> {
    Table(Table<V>),
    /// Parts by groups of bits of the hash, at most [`LEVELS`] deep. Never without any name.
    Split(Box<[Part<V>; PARTS]>),
}

impl<V> Default for Names<V> {
    fn default() -> Self {
        Self(Part::default())
    }
}

impl<V> Default for Part<V> {
    fn default() -> Self {
        Self::Table(HashTable::new())
    }
}

impl<V> Names<V> {
    /// Returns `true` if there is no name.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `visit` with each value, in no order.
    pub(super) fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a V)) {
        self.0.for_each(&mut visit);
    }

    #[inline]
    pub(super) fn get(&self, name: &[u8]) -> Option<&V> {
        if self.is_empty() {
            return None;
        }
        let hash = HASHES.hash_one(name);
        let mut part = &self.0;
        let mut level = 0;
        loop {
            match part {
                Part::Table(table) => {
                    let found = table.find(hash, |(own, _)| **own == *name);
                    return found.map(|(_, value)| value);
                }
                Part::Split(parts) => part = &parts[index(hash, level)],
            }
            level += 1;
        }
    }

    /// Returns the value of a name, which `new` makes if there is none.
    pub(super) fn get_or_insert_with(&mut self, name: &[u8], new: impl FnOnce() -> V) -> &mut V {
        self.0
            .get_or_insert_with(name, HASHES.hash_one(name), 0, new)
    }

    /// Calls `change` with the value of a name, and removes it if `change` requests that. `None` if
    /// the name has no value.
    pub(super) fn change<T>(
        &mut self,
        name: &[u8],
        change: impl FnOnce(&mut V) -> (T, bool),
    ) -> Option<T> {
        self.0.change(name, HASHES.hash_one(name), 0, change)
    }
}

impl<V> Part<V> {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Table(table) if table.is_empty())
    }

    fn for_each<'a>(&'a self, visit: &mut dyn FnMut(&'a V)) {
        match self {
            Self::Table(table) => table.iter().for_each(|(_, value)| visit(value)),
            Self::Split(parts) => parts.iter().for_each(|part| part.for_each(visit)),
        }
    }

    fn get_or_insert_with(
        &mut self,
        name: &[u8],
        hash: u64,
        level: u32,
        new: impl FnOnce() -> V,
    ) -> &mut V {
        if let Self::Table(table) = self
            && table.len() >= MOST
            && level < LEVELS
            && table.find(hash, |(own, _)| **own == *name).is_none()
        {
            let table = core::mem::take(table);
            *self = Self::split(table, level);
        }
        match self {
            Self::Table(table) => {
                match table.entry(
                    hash,
                    |(own, _)| **own == *name,
                    |(own, _)| HASHES.hash_one(&**own),
                ) {
                    Entry::Occupied(found) => &mut found.into_mut().1,
                    Entry::Vacant(place) => &mut place.insert((name.into(), new())).into_mut().1,
                }
            }
            Self::Split(parts) => {
                parts[index(hash, level)].get_or_insert_with(name, hash, level + 1, new)
            }
        }
    }

    fn split(table: Table<V>, level: u32) -> Self {
        let mut parts: Box<[Table<V>; PARTS]> = Box::default();
        for entry in table {
            let hash = HASHES.hash_one(&*entry.0);
            parts[index(hash, level)]
                .insert_unique(hash, entry, |(own, _)| HASHES.hash_one(&**own));
        }
        Self::Split(Box::new(parts.map(Self::Table)))
    }

    fn change<T>(
        &mut self,
        name: &[u8],
        hash: u64,
        level: u32,
        change: impl FnOnce(&mut V) -> (T, bool),
    ) -> Option<T> {
        match self {
            Self::Table(table) => {
                let mut found = table.find_entry(hash, |(own, _)| **own == *name).ok()?;
                let (changed, is_over) = change(&mut found.get_mut().1);
                if is_over {
                    found.remove();
                    give_back(table);
                }
                Some(changed)
            }
            Self::Split(parts) => {
                let part = &mut parts[index(hash, level)];
                let changed = part.change(name, hash, level + 1, change);
                if part.is_empty() && parts.iter().all(Self::is_empty) {
                    *self = Self::default();
                }
                changed
            }
        }
    }
}

/// Shrinks a table of which little is used.
fn give_back<V>(table: &mut Table<V>) {
    if table.capacity() > PARTS && table.len() < table.capacity() / 8 {
        table.shrink_to(2 * table.len(), |(own, _)| HASHES.hash_one(&**own));
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest bits count")]
fn index(hash: u64, level: u32) -> usize {
    (hash >> (FIRST_BIT + 4 * level)) as usize % PARTS
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    impl<V> Part<V> {
        /// Returns the number of values, the most in one table, and the capacity.
        fn measure(&self) -> (usize, usize, usize) {
            match self {
                Self::Table(table) => (table.len(), table.len(), table.capacity()),
                Self::Split(parts) => parts.iter().map(Self::measure).fold(
                    (0, 0, 0),
                    |(all, most, room), (len, own_most, own_room)| {
                        (all + len, most.max(own_most), room + own_room)
                    },
                ),
            }
        }
    }

    fn name(number: usize) -> String {
        format!("device-{number}")
    }

    #[test]
    fn no_table_grows_large_and_all_memory_comes_back() {
        const COUNT: usize = 100_000;
        let mut names = Names::default();
        for number in 0..COUNT {
            *names.get_or_insert_with(name(number).as_bytes(), || 0) += number;
        }
        let (count, most, room) = names.0.measure();
        assert_eq!(count, COUNT);
        assert!(most <= MOST, "{most}");
        assert!(room < 4 * COUNT, "{room}");
        for number in 0..COUNT {
            assert_eq!(names.get(name(number).as_bytes()), Some(&number));
        }
        // One name stays, as the topic level of a client that is still connected.
        for number in 1..COUNT {
            let removed = names.change(name(number).as_bytes(), |value| (*value, true));
            assert_eq!(removed, Some(number));
        }
        let (count, _, room) = names.0.measure();
        assert_eq!(count, 1);
        assert!(room < COUNT / 100, "{room}");
        assert_eq!(names.change(name(0).as_bytes(), |_| ((), true)), Some(()));
        assert!(names.is_empty());
        assert!(matches!(names.0, Part::Table(table) if table.allocation_size() == 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn names_are_those_of_a_map(
            changes in prop::collection::vec((0..2_000_usize, any::<bool>()), 0..4_000),
        ) {
            let (mut names, mut map) = (Names::default(), HashMap::new());
            for (number, is_there) in changes {
                let text = name(number);
                if is_there {
                    *names.get_or_insert_with(text.as_bytes(), || 0) += 1;
                    *map.entry(text).or_insert(0) += 1;
                } else {
                    let removed = names.change(text.as_bytes(), |value| (*value, true));
                    prop_assert_eq!(removed, map.remove(&text));
                }
            }
            prop_assert_eq!(names.0.measure().0, map.len());
            prop_assert_eq!(names.is_empty(), map.is_empty());
            for number in 0..2_000 {
                let text = name(number);
                prop_assert_eq!(names.get(text.as_bytes()), map.get(&text));
            }
        }
    }
}
