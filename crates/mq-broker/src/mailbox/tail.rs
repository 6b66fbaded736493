//! The part of a mailbox that is in the store, represented by numbers alone.

use std::{collections::BTreeMap, ops::RangeInclusive};

use mq_proto::Delivery;

use crate::store::Spilled;

/// Approximate bytes of a message in the store besides topic and payload: key, place in a page, and
/// MQTT's header.
const ROW_BYTES: usize = 64;

/// Messages that wait after those in memory.
///
/// A publisher's messages have ascending numbers, so that reading the lowest first keeps its order.
/// Two publishers' messages may be added in another order than that of their numbers; neither
/// publisher's own order changes by that.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// First and last numbers of runs, which are not adjacent: few, since every number that is
    /// assigned while there is a tail is added to it.
    runs: BTreeMap<u64, u64>,
    /// The count of numbers that have messages.
    count: usize,
    bytes: usize,
    /// The store's last call that recorded one of the messages.
    position: u64,
}

impl Tail {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the number of messages.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn add(&mut self, number: u64, weight: usize, position: u64) {
        self.cover(number, position);
        self.count += 1;
        self.bytes += weight;
    }

    /// Adds the number of a message that was not in the tail, and that the store's call at
    /// `position` has removed from the store's queue: a run continues beyond it.
    pub(super) fn cover(&mut self, number: u64, position: u64) {
        let (mut first, mut last) = (number, number);
        if let Some((from, to)) = self.runs.range(..number).next_back()
            && to + 1 == number
        {
            first = *from;
        }
        if let Some(to) = self.runs.remove(&(number + 1)) {
            last = to;
        }
        self.runs.insert(first, last);
        self.position = self.position.max(position);
    }

    /// Restores the tail of an earlier broker: every number between the first and the last is in
    /// the store or was removed.
    pub(super) fn restore(&mut self, spilled: Spilled) {
        let (first, last) = spilled.numbers.into_inner();
        self.runs.insert(first, last);
        self.count = spilled.messages;
        self.bytes = spilled.bytes;
    }

    /// Returns the lowest run, and the store's call that must be settled before all of it is in the
    /// store.
    pub(super) fn first(&self) -> Option<(RangeInclusive<u64>, u64)> {
        let (first, last) = self.runs.first_key_value()?;
        Some((*first..=*last, self.position))
    }

    /// Returns every run.
    pub(super) fn all(&self) -> Vec<RangeInclusive<u64>> {
        self.runs
            .iter()
            .map(|(first, last)| *first..=*last)
            .collect()
    }

    /// Counts out a message of that weight: it is in memory now.
    pub(super) fn loaded(&mut self, weight: usize) {
        self.bytes = self.bytes.saturating_sub(weight);
        self.count = self.count.saturating_sub(1);
    }

    /// Removes these numbers: they are in memory now, or were removed. Lower ones stay, as they may
    /// have been added after these were read.
    pub(super) fn remove(&mut self, numbers: RangeInclusive<u64>) {
        let (from, up_to) = numbers.into_inner();
        while let Some((&first, &last)) = self.runs.range(..=up_to).next_back()
            && last >= from
        {
            self.runs.remove(&first);
            if last > up_to {
                self.runs.insert(up_to + 1, last);
            }
            if first < from {
                self.runs.insert(first, from - 1);
            }
        }
        if self.runs.is_empty() || self.count == 0 {
            self.runs.clear();
            self.count = 0;
            self.bytes = 0;
        }
    }
}

/// Returns the approximate bytes of a message in the store.
pub(super) fn weight(delivery: &Delivery) -> usize {
    let message = &delivery.message;
    ROW_BYTES + message.topic.len() + message.payload.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_come_in_another_order_are_read_in_theirs() {
        let mut tail = Tail::default();
        for number in [7, 6, 9, 8, 12] {
            tail.add(number, 100, number);
        }
        assert_eq!(tail.first(), Some((6..=9, 12)));
        assert_eq!(tail.runs.len(), 2);
        tail.remove(6..=7);
        assert_eq!(tail.first(), Some((8..=9, 12)));
        // A message that got its number earlier and was added late.
        tail.add(5, 100, 13);
        assert_eq!(tail.first(), Some((5..=5, 13)));
        tail.remove(8..=9);
        assert_eq!(tail.first(), Some((5..=5, 13)));
        tail.add(6, 100, 14);
        tail.remove(6..=11);
        assert_eq!(tail.first(), Some((5..=5, 14)));
        tail.remove(0..=11);
        assert_eq!(tail.first(), Some((12..=12, 14)));
        assert_eq!(tail.bytes(), 700);
        tail.remove(12..=12);
        assert!(tail.is_empty());
        assert_eq!(tail.bytes(), 0);
    }
}
