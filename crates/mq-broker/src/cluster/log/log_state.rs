//! The state that follows from a log alone: the same for each reader at the same place.

use std::collections::{BTreeMap, HashMap, VecDeque};

use mq_codec::TopicName;

use super::{author::Author, groups::SharedGroups, milestone::Milestone, trail::Trail};
use crate::{
    cluster::engine::{Entry, Malformed, Reader, Writer},
    store::{At, StoredMessage},
};

const VERSION: u8 = 1;

/// Entries of a log that make trimming it worth while.
const MIN_TRIMMED_ENTRIES: u64 = 1_000;

/// Checkpoint intervals after which a checkpoint is written: a node that starts then knows, for some time before it,
/// which member of a shared subscription each message was for, and can take over sessions that have died with another
/// node.
const CHECKPOINT_AGE: usize = 6;

/// The position of a reader of a log, and what it knows by the entries before.
#[derive(Debug, Default)]
pub(in crate::cluster) struct LogState {
    /// The last entry that it has read.
    pub(in crate::cluster) entry: u64,
    /// `true` while the reader is in the midst of the next entry, which the other fields may have in part.
    is_mid_entry: bool,
    pub(in crate::cluster) counts: BatchCounts,
    pub(in crate::cluster) groups: SharedGroups,
    pub(in crate::cluster) trail: Trail,
    /// Topics whose retained message has changed, and is in no value yet.
    pub(super) retained: BTreeMap<TopicName, RetainedChange>,
}

/// The last batch of each author that a reader of a log has seen: one that was appended twice counts once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::cluster) struct BatchCounts(HashMap<Author, u64>);

/// A topic's retained message, from one place of its log on.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct RetainedChange {
    pub(in crate::cluster) at: At,
    /// `None`: it has none any more.
    pub(in crate::cluster) message: Option<StoredMessage>,
}

/// The part of a log's state that is kept as a value, so that a node may begin to read from there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::cluster) struct Checkpoint {
    pub(in crate::cluster) entry: u64,
    /// Hash over the entries up to that one, as [`Milestone`] has it.
    pub(in crate::cluster) hash: u64,
    /// Entries before this one are not kept.
    pub(in crate::cluster) first: u64,
    pub(in crate::cluster) counts: BatchCounts,
    /// Ends of lives, by the entry that says so.
    pub(in crate::cluster) fences: Vec<(Author, u64)>,
    /// [`SharedGroups`] in their form.
    pub(in crate::cluster) groups: bytes::Bytes,
}

/// Checkpoints of a log that are not old enough to be written.
#[derive(Debug, Default)]
pub(super) struct CheckpointCandidates(VecDeque<Checkpoint>);

impl BatchCounts {
    pub(in crate::cluster) fn is_new(&mut self, author: &Author, count: u64) -> bool {
        let last = self.0.entry(author.clone()).or_default();
        core::mem::replace(last, count.max(*last)) < count
    }

    /// Forgets lives that have ended: what comes of them counts for nothing anyway.
    pub(in crate::cluster) fn end_life(&mut self, ended: &Author) {
        let goes_on = |author: &Author| author.node != ended.node || author.life > ended.life;
        self.0.retain(|author, _| goes_on(author));
    }
}

impl LogState {
    pub(super) fn from_checkpoint(checkpoint: &Checkpoint) -> Self {
        Self {
            entry: checkpoint.entry,
            is_mid_entry: false,
            counts: checkpoint.counts.clone(),
            groups: checkpoint.groups().unwrap_or_default(),
            trail: Trail::from_milestone(Milestone {
                entry: checkpoint.entry,
                hash: checkpoint.hash,
            }),
            retained: BTreeMap::new(),
        }
    }

    /// Notes that the next entry is being read.
    pub(in crate::cluster) fn begin_entry(&mut self) {
        self.is_mid_entry = true;
    }

    /// Notes that an entry has been read, and whether it brought the groups of another node.
    pub(in crate::cluster) fn finish_entry(&mut self, entry: &Entry, is_synced: bool) {
        self.entry = entry.number;
        if is_synced {
            self.trail.sync(entry.number);
        }
        self.trail.push(entry);
        self.is_mid_entry = false;
    }

    /// Returns the checkpoint of this state, with the fences that stand in the log. `None` in the midst of an entry: a
    /// node that began there would skip the rest of the entry.
    pub(in crate::cluster) fn checkpoint(&self, fences: Vec<(Author, u64)>) -> Option<Checkpoint> {
        if self.is_mid_entry {
            return None;
        }
        Some(Checkpoint {
            entry: self.entry,
            hash: self.trail.last().hash,
            first: 0,
            counts: self.counts.clone(),
            fences,
            groups: self.groups.encode(),
        })
    }

    /// Notes a retained message that has come. Returns `false` if its topic has one of a later place.
    pub(in crate::cluster) fn retain(&mut self, at: At, message: &StoredMessage) -> bool {
        let topic = message.message.topic.detached();
        let is_end = message.message.payload.is_empty();
        if self.retained.get(&topic).is_some_and(|known| known.at > at) {
            return false;
        }
        let message = (!is_end).then(|| message.clone());
        self.retained.insert(topic, RetainedChange { at, message });
        true
    }

    /// Forgets what was retained up to that entry, which values have.
    pub(super) fn forget_retained_up_to(&mut self, entry: u64) {
        let is_later = |change: &RetainedChange| change.at.entry() > entry;
        self.retained.retain(|_, change| is_later(change));
    }
}

impl RetainedChange {
    /// # Errors
    /// If MQTT has no form for the message.
    pub(in crate::cluster) fn encode(&self) -> Result<bytes::Bytes, Malformed> {
        let mut to = Writer::new(VERSION);
        to.number(self.at.0);
        to.byte(self.message.is_some().into());
        if let Some(message) = &self.message {
            to.message(message)?;
        }
        Ok(to.finish())
    }

    pub(in crate::cluster) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let at = At(from.number()?);
        let is_there = from.byte()? != 0;
        let message = is_there.then(|| from.message()).transpose()?;
        from.expect_end()?;
        Ok(Self { at, message })
    }
}

impl Checkpoint {
    /// Returns `true` if the log has so many old entries that trimming it is worth while.
    pub(in crate::cluster) fn is_worth_trimming(&self) -> bool {
        self.entry >= self.first + MIN_TRIMMED_ENTRIES
    }

    pub(in crate::cluster) fn encode(&self) -> bytes::Bytes {
        let mut to = Writer::new(VERSION);
        to.number(self.entry);
        to.number(self.hash);
        to.number(self.first);
        let number = |to: &mut Writer, (author, number): (&Author, &u64)| {
            author.write(to);
            to.number(*number);
        };
        to.list(self.counts.0.iter(), number);
        let fences = self.fences.iter();
        to.list(fences.map(|(author, entry)| (author, entry)), number);
        to.bytes(&self.groups);
        to.finish()
    }

    fn groups(&self) -> Result<SharedGroups, Malformed> {
        if self.groups.is_empty() {
            return Ok(SharedGroups::default());
        }
        SharedGroups::decode(&self.groups)
    }

    pub(in crate::cluster) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let number = |from: &mut Reader<'_>| Ok((Author::read(from)?, from.number()?));
        let checkpoint = Self {
            entry: from.number()?,
            hash: from.number()?,
            first: from.number()?,
            counts: BatchCounts(from.list(number)?.into_iter().collect()),
            fences: from.list(number)?,
            groups: bytes::Bytes::copy_from_slice(from.bytes()?),
        };
        checkpoint.groups()?;
        from.expect_end()?;
        Ok(checkpoint)
    }
}

impl CheckpointCandidates {
    /// Has the age of the next checkpoint count from now on.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds the present checkpoint, and removes the one that is old enough: that of the log's beginning if there is none
    /// yet.
    pub(super) fn rotate(&mut self, checkpoint: Checkpoint) -> Checkpoint {
        self.0.push_back(checkpoint);
        if self.0.len() > CHECKPOINT_AGE {
            self.0.pop_front().unwrap_or_default()
        } else {
            Checkpoint::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::QoS;
    use mq_proto::{Delivery, Message};

    use super::*;
    use crate::store::StoreClock;

    fn author(life: u64) -> Author {
        Author {
            node: "a".to_owned(),
            life,
        }
    }

    #[test]
    fn a_checkpoint_brings_back_what_was_known() {
        let mut counts = BatchCounts::default();
        assert!(counts.is_new(&author(2), 7));
        let checkpoint = Checkpoint {
            entry: 300,
            hash: 7,
            first: 12,
            counts,
            fences: vec![(author(1), 4)],
            groups: bytes::Bytes::new(),
        };
        let read = Checkpoint::decode(&checkpoint.encode());
        assert_eq!(read.as_ref(), Ok(&checkpoint));
        let mut state = LogState::from_checkpoint(&checkpoint);
        assert!(!state.counts.is_new(&author(2), 7));
        assert!(state.counts.is_new(&author(2), 8));
        state.counts.end_life(&author(2));
        assert_eq!(state.counts, BatchCounts::default());
    }

    #[test]
    fn there_is_no_checkpoint_in_the_midst_of_an_entry() {
        let mut state = LogState::default();
        state.begin_entry();
        assert!(state.counts.is_new(&author(1), 1));
        assert_eq!(state.checkpoint(Vec::new()), None);
        let entry = Entry {
            number: 1,
            bytes: bytes::Bytes::new(),
        };
        state.finish_entry(&entry, false);
        let checkpoint = state.checkpoint(Vec::new()).unwrap();
        assert_eq!(checkpoint.entry, 1);
        let mut later = LogState::from_checkpoint(&checkpoint);
        assert!(later.counts.is_new(&author(1), 2));
    }

    #[test]
    fn a_topic_has_its_last_retained_message_until_a_value_has_it() {
        let message = |payload: &'static str| {
            let message = Message::new(TopicName::new("t").unwrap(), payload);
            StoredMessage::new(
                &Delivery::new(message, QoS::AtLeastOnce),
                StoreClock::MACHINE,
            )
        };
        let mut state = LogState::default();
        for (entry, payload) in [(1, "x"), (2, "")] {
            let at = At::new(entry, 0);
            assert!(state.retain(at, &message(payload)));
            let change = &state.retained[&TopicName::new("t").unwrap()];
            assert_eq!(
                RetainedChange::decode(&change.encode().unwrap()).as_ref(),
                Ok(change)
            );
            assert_eq!((change.at, change.message.is_some()), (at, entry == 1));
        }
        assert!(!state.retain(At::new(1, 1), &message("late")));
        state.forget_retained_up_to(1);
        assert_eq!(state.retained.len(), 1);
        state.forget_retained_up_to(2);
        assert!(state.retained.is_empty());
    }
}
