//! Copies of messages that wait for long, in the records of their sessions: else one device that stays away would keep a
//! log from being trimmed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use mq_codec::ByteStr;
use tokio::time::{interval, timeout};
use tracing::warn;

use super::recorded_session::{MessagePlace, RecordedSession, encoded_size};
use crate::{
    cluster::{
        Cluster,
        engine::{ENTRY_TIMEOUT, EngineError},
        log::{BatchItem, LogEntry, LogMessage, Shard},
    },
    lock::lock,
    store::{At, LogPosition, StoredMessage},
};

/// Interval of the search for waiting messages to copy: a message is copied out of a long log after one to two
/// intervals.
const COPY_INTERVAL: Duration = Duration::from_mins(1);

/// Bytes of a message that is copied, and of all that a record has itself, at most: it is one value of the engine. A
/// session that is owed more keeps its log.
const MAX_COPIED_MESSAGE_BYTES: usize = 64 << 10;
const MAX_COPIED_BYTES: usize = 256 << 10;

/// Messages that are copied in one go.
const MAX_COPIES_A_ROUND: usize = 1_000;

/// Entries that are read for nothing rather than to begin to read anew.
const MAX_SKIPPED_ENTRIES: u64 = 100;

/// The sessions that need a copy of a message, by the message's place in its log.
type MessagesToCopy = BTreeMap<At, Vec<(ByteStr, MessagePlace)>>;

impl Cluster {
    /// Copies what has waited for long. Runs as long as the node lives.
    pub(in crate::cluster) async fn copy_old_messages(self: Arc<Self>) {
        let mut due = interval(COPY_INTERVAL);
        // The first tick is at once.
        due.tick().await;
        let mut before = self.next_positions();
        let mut too_large = HashSet::new();
        loop {
            due.tick().await;
            for (shard, old) in (0..).zip(&before) {
                if !lock(&self.shards[usize::from(shard)].checkpoint)
                    .1
                    .is_worth_trimming()
                {
                    continue;
                }
                let wanted = self.messages_to_copy(shard, *old, &too_large);
                if let Err(error) = self.copy_messages(shard, wanted, &mut too_large).await {
                    warn!(shard, %error, "cluster: cannot copy queued messages to session records");
                }
            }
            before = self.next_positions();
        }
    }

    /// Returns the messages of a log, from before `old`, that sessions of this node still wait for and that a record
    /// has room for.
    fn messages_to_copy(
        &self,
        shard: u16,
        old: At,
        too_large: &HashSet<LogPosition>,
    ) -> MessagesToCopy {
        let mut wanted = MessagesToCopy::new();
        let mut count = 0;
        let sessions = lock(&self.sessions);
        for (id, owned) in &*sessions {
            if !owned.is_complete() {
                continue;
            }
            let is_wanted = |position: &LogPosition| {
                position.shard == shard && position.at < old && !too_large.contains(position)
            };
            let places = owned.recorded.owed();
            let places = places.filter_map(|(place, owed)| Some((place, owed.position()?)));
            let mut places = places
                .filter(|(_, position)| is_wanted(position))
                .peekable();
            if places.peek().is_none() {
                continue;
            }
            let room = MAX_COPIED_BYTES.saturating_sub(owned.recorded.embedded_bytes())
                / MAX_COPIED_MESSAGE_BYTES;
            for (place, position) in places.take(room.min(MAX_COPIES_A_ROUND - count)) {
                count += 1;
                let here = wanted.entry(position.at).or_default();
                here.push((id.clone(), place));
            }
        }
        wanted
    }

    /// Reads these messages, and puts them into the records.
    async fn copy_messages(
        &self,
        shard: u16,
        mut wanted: MessagesToCopy,
        too_large: &mut HashSet<LogPosition>,
    ) -> Result<(), EngineError> {
        let here = &self.shards[usize::from(shard)];
        while let Some((first, _)) = wanted.first_key_value() {
            let mut entries = self.engine.follow(shard, first.entry() - 1);
            let mut last = first.entry() - 1;
            while let Some((next, _)) = wanted.first_key_value()
                && next.entry() <= last + MAX_SKIPPED_ENTRIES
            {
                let entry = timeout(ENTRY_TIMEOUT, entries.recv()).await.ok().flatten();
                let entry = entry
                    .ok_or_else(|| EngineError::unavailable("timeout reading an old log entry"))?;
                last = entry.number;
                if entry.is_lost() && next.entry() == last {
                    self.keep_lost_messages(here, |number| number == last);
                }
                let batch = LogEntry::decode(&entry.bytes);
                let items = match batch {
                    Ok(LogEntry::Batch { items, .. }) => items,
                    _ => Vec::new(),
                };
                for (index, item) in items.into_iter().enumerate() {
                    let at = At::new(entry.number, index);
                    let Some(sessions) = wanted.remove(&at) else {
                        continue;
                    };
                    let position = LogPosition { shard, at };
                    match item {
                        BatchItem::Message(item)
                            if encoded_size(&item.message) <= MAX_COPIED_MESSAGE_BYTES =>
                        {
                            self.put_copies(position, &item, sessions);
                        }
                        _ => {
                            too_large.insert(position);
                        }
                    }
                }
                // What its entry does not have is nowhere.
                wanted = wanted.split_off(&At::end_of(last).next());
            }
        }
        Ok(())
    }

    /// Keeps the messages of entries that a log has lost in the records of this node's sessions, as far as they are in memory.
    /// Records forget the others: their places may stand for other messages from now on.
    pub(in crate::cluster) fn keep_lost_messages(
        &self,
        shard: &Shard,
        is_lost: impl Fn(u64) -> bool,
    ) {
        let is_lost = |at: &LogPosition| at.shard == shard.number && is_lost(at.at.entry());
        let mut sessions = lock(&self.sessions);
        let round = lock(&self.floor).round;
        let mut entries = HashMap::new();
        let mut changed = Vec::new();
        for (id, owned) in sessions.iter_mut() {
            let owed = owned.recorded.owed();
            let lost = owed.filter_map(|(place, owed)| Some((place, owed.position()?)));
            let lost: Vec<_> = lost.filter(|(_, position)| is_lost(position)).collect();
            for (place, position) in &lost {
                let entry = position.at.entry();
                let messages = entries
                    .entry(entry)
                    .or_insert_with(|| messages_in_memory(shard, entry));
                match messages.get(&position.at) {
                    Some(message) if owned.recorded.embedded_bytes() < MAX_COPIED_BYTES => {
                        owned.copy(*place, *position, message, round);
                    }
                    _ => owned.forget(*place, round),
                }
            }
            if !lost.is_empty() {
                changed.push(id.clone());
            }
        }
        for id in changed {
            self.request_write(&mut sessions, &id, None);
        }
    }

    fn put_copies(
        &self,
        position: LogPosition,
        item: &LogMessage,
        of: Vec<(ByteStr, MessagePlace)>,
    ) {
        let mut sessions = lock(&self.sessions);
        let round = lock(&self.floor).round;
        for (id, place) in of {
            let owned = sessions.get_mut(&id);
            let owned = owned.filter(|owned| owned.is_complete());
            // It may have gone meanwhile.
            if owned.is_some_and(|owned| owned.copy(place, position, &item.message, round)) {
                self.request_write(&mut sessions, &id, None);
            }
        }
    }
}

/// Returns the messages of an entry by their places, if the entry is in memory.
fn messages_in_memory(shard: &Shard, entry: u64) -> HashMap<At, StoredMessage> {
    let recent = lock(&shard.recent).range(entry, entry);
    let recent = recent.into_iter().flatten();
    let batches = recent.filter_map(|entry| LogEntry::decode(&entry.bytes).ok());
    let items = batches.flat_map(|batch| match batch {
        LogEntry::Batch { items, .. } => items,
        LogEntry::Fence(_) => Vec::new(),
    });
    let messages = items.enumerate().filter_map(|(index, item)| match item {
        BatchItem::Message(item) => Some((At::new(entry, index), item.message)),
        BatchItem::Member(_) | BatchItem::Groups(_) => None,
    });
    messages.collect()
}

impl RecordedSession {
    fn embedded_bytes(&self) -> usize {
        let owed = self.owed().map(|(_, owed)| owed.embedded_bytes());
        owed.fold(0, usize::saturating_add)
    }

    /// Copies a message of a log, if it is there still. Returns whether it is.
    pub(super) fn copy(
        &mut self,
        place: MessagePlace,
        position: LogPosition,
        logged: &StoredMessage,
    ) -> bool {
        let owed = match place {
            MessagePlace::Waiting(number) => self.waiting.get_mut(&number),
            MessagePlace::InFlight(id) => {
                let mut in_flight = self.in_flight.iter_mut();
                let found = in_flight.find(|(of, _)| *of == id);
                found.and_then(|(_, owed)| owed.as_mut())
            }
        };
        owed.is_some_and(|owed| owed.copy(position, logged))
    }

    /// Removes a message that is lost.
    pub(super) fn forget(&mut self, place: MessagePlace) {
        match place {
            MessagePlace::Waiting(number) => {
                self.waiting.remove(&number);
            }
            MessagePlace::InFlight(id) => self.in_flight.retain(|(of, _)| *of != id),
        }
    }
}
