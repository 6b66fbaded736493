//! Records of the sessions of this node, as they are written.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use mq_codec::ByteStr;
use tokio::time::{Instant, sleep};
use tracing::{error, warn};

use super::{
    owned::{OwnedSession, SessionFate},
    record::Record,
};
use crate::{
    Escaped,
    cluster::{
        Cluster, GIVE_UP_AFTER,
        engine::{EngineError, Expiry, Key, KeyKind, Malformed, PutOutcome, RETRY_INTERVAL, Value},
    },
    lock::lock,
    store::{Change, LogPosition, Position, SessionChange},
};

/// Interval at which a record that waits for its will to be in a log is looked at again.
const WILL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Records of a node that are on their way to the engine at a time. Signs of life go the same way: behind thousands of
/// records, as when a node's clients all come to another one, they would be late, and a healthy node count as dead.
pub(in crate::cluster) const MAX_RECORD_WRITES: usize = 64;

/// The node's life has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeEnded;

/// A write of a record.
enum NextWrite {
    /// The record needs no write, or nobody is there to do it.
    Nothing,
    Record(RecordWrite),
    /// No log has the session's will yet.
    AwaitsWill,
    /// No value has room for the record. The calls are those that were to be settled.
    TooLarge(Vec<Position>),
}

struct RecordWrite {
    bytes: Bytes,
    /// The record has to be in this version still.
    version: u64,
    /// Calls that are settled by it.
    calls: Vec<Position>,
    fate: SessionFate,
    /// The hash for [`OwnedSession::written_hash`].
    content: Option<u64>,
}

impl Cluster {
    /// Records changes that belong together, of a message at that place in the logs or of none.
    pub(in crate::cluster) fn record_changes(
        &self,
        origin: Option<LogPosition>,
        changes: Vec<Change>,
    ) -> Position {
        let mut sessions = lock(&self.sessions);
        let round = lock(&self.floor).round;
        let mut ids = Vec::new();
        for change in changes {
            match change {
                Change::Session(id, change) => {
                    let Some(owned) = sessions.get_mut(&id) else {
                        continue;
                    };
                    if matches!(change, SessionChange::Attached { .. }) {
                        owned.recorded.connected_at = self.connection_time();
                    }
                    if owned.apply(change, origin, round) {
                        ids.push(id);
                    }
                }
                // What is retained is in the log, and a node has its name.
                Change::Retained(_) | Change::Unretained(_) | Change::BrokerId(_) => {}
            }
        }
        ids.dedup();
        let position = self.ledger.begin(ids.len());
        for id in ids {
            self.request_write(&mut sessions, &id, Some(position));
        }
        position
    }

    /// Records a change of one session, in a round. `change` returns `true` if it has to be in the record before anybody
    /// learns of it.
    pub(in crate::cluster) fn record_change(
        &self,
        id: &ByteStr,
        change: impl FnOnce(&mut OwnedSession, u64) -> bool,
    ) -> Position {
        let mut sessions = lock(&self.sessions);
        let round = lock(&self.floor).round;
        let owned = sessions.get_mut(id);
        let is_urgent = owned.is_some_and(|owned| change(owned, round));
        let position = self.ledger.begin(usize::from(is_urgent));
        if is_urgent {
            self.request_write(&mut sessions, id, Some(position));
        }
        position
    }

    /// Writes a session's record, for a call that waits for it.
    pub(in crate::cluster) fn request_write(
        &self,
        sessions: &mut MutexGuard<'_, BTreeMap<ByteStr, OwnedSession>>,
        id: &ByteStr,
        call: Option<Position>,
    ) {
        let Some(owned) = sessions.get_mut(id) else {
            if let Some(call) = call {
                self.ledger.complete_part(call);
            }
            return;
        };
        owned.waiting.extend(call);
        owned.is_changed = true;
        if !core::mem::replace(&mut owned.is_writing, true) {
            let cluster = self.this.upgrade().expect("it is in use");
            self.runtime.spawn(cluster.write_record(id.clone()));
        }
    }

    /// Begins a round: writes the records of all sessions that are not what their records say.
    pub(in crate::cluster) fn begin_round(&self) {
        lock(&self.value_outage).end_if_quiet();
        let next = self.next_positions();
        let mut sessions = lock(&self.sessions);
        let lacks = sessions
            .values()
            .filter_map(OwnedSession::first_unwritten_round)
            .min();
        lock(&self.floor).begin_round(lacks, next);
        let mut changed = Vec::new();
        for (id, owned) in sessions.iter_mut() {
            if owned.changed_in_round.is_none() || owned.awaits_messages {
                continue;
            }
            if !owned.is_writing && self.content_hash(owned) == Some(owned.written_hash) {
                owned.changed_in_round = None;
            } else {
                changed.push(id.clone());
            }
        }
        for id in changed {
            self.request_write(&mut sessions, &id, None);
        }
    }

    /// Returns a hash of a session's record without the places in the logs; `None` if it cannot be encoded.
    fn content_hash(&self, session: &OwnedSession) -> Option<u64> {
        let owner = session.is_kept_here().then_some(&self.author);
        let bytes = Record::encode_parts(owner, Some(&session.recorded), &[], false).ok()?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Some(hasher.finish())
    }

    /// Takes the next write of a session's record, if there is one.
    fn begin_write(&self, id: &ByteStr) -> NextWrite {
        let mut sessions = lock(&self.sessions);
        let Some(owned) = sessions.get_mut(id) else {
            return NextWrite::Nothing;
        };
        if let Some(published) = owned.will_call {
            if self.ledger.is_open(published) {
                return NextWrite::AwaitsWill;
            }
            owned.will_call = None;
        }
        if !core::mem::take(&mut owned.is_changed) {
            owned.is_writing = false;
            return NextWrite::Nothing;
        }
        let Ok(bytes) = self.encode(owned) else {
            error!(client = %Escaped(id), "cluster: cannot encode session");
            self.fail("cannot encode session record");
            return NextWrite::Nothing;
        };
        let calls = core::mem::take(&mut owned.waiting);
        if bytes.len() > self.engine.max_value_bytes() && owned.fate != SessionFate::Ends {
            let bytes = bytes.len();
            warn!(client = %Escaped(id), bytes, "cluster: session record too large; session ended");
            if owned.fate != SessionFate::Stays {
                // The hub does not have it any more.
                owned.fate = SessionFate::Ends;
                owned.is_changed = true;
            }
            return NextWrite::TooLarge(calls);
        }
        owned.writing_round = owned.changed_in_round.take();
        let content = self.content_hash(owned);
        NextWrite::Record(RecordWrite {
            bytes,
            version: owned.version,
            calls,
            fate: owned.fate,
            content,
        })
    }

    async fn write_record(self: Arc<Self>, id: ByteStr) {
        let key = Key::new(KeyKind::Session, &*id);
        loop {
            let write = match self.begin_write(&id) {
                NextWrite::Nothing => return,
                NextWrite::Record(write) => write,
                NextWrite::AwaitsWill if self.ledger.has_failed() => return,
                NextWrite::AwaitsWill => {
                    sleep(WILL_POLL_INTERVAL).await;
                    continue;
                }
                NextWrite::TooLarge(calls) => {
                    self.end_too_large(&id, calls).await;
                    continue;
                }
            };
            let RecordWrite {
                bytes,
                version,
                calls,
                fate,
                content,
            } = write;
            let expiry = match fate {
                SessionFate::Ends => Expiry::AfterTtl,
                _ => Expiry::Never,
            };
            let written = match self
                .put_with_retries(key.clone(), version, bytes, expiry)
                .await
            {
                Ok(written) => written,
                Err(NodeEnded) => return,
            };
            let mut sessions = lock(&self.sessions);
            let is_over = match (written, sessions.get_mut(&id)) {
                (Some(version), Some(owned)) => {
                    owned.version = version;
                    owned.writing_round = None;
                    owned.written_hash = content.unwrap_or_default();
                    matches!(fate, SessionFate::Released | SessionFate::Ends)
                }
                // Other nodes ask for a session, unless they have ended this node's life.
                _ => return self.fail("session taken over by another node"),
            };
            let later = if is_over {
                sessions.remove(&id).map(|owned| owned.waiting)
            } else {
                None
            };
            drop(sessions);
            for call in calls.into_iter().chain(later.into_iter().flatten()) {
                self.ledger.complete_part(call);
            }
            if is_over {
                return;
            }
        }
    }

    /// Ends a session that no value has room for, such as one with very long subscriptions: else it would end this node,
    /// and then the next one.
    async fn end_too_large(&self, id: &ByteStr, calls: Vec<Position>) {
        // The hub does not wait for what this session has changed.
        for call in calls {
            self.ledger.complete_part(call);
        }
        if !self.is_owned(id) {
            return;
        }
        let has_ended = match self.local() {
            Some(local) => local.end_unkeepable(id).await,
            None => false,
        };
        if !has_ended {
            self.fail("record of an ended session is too large");
        }
    }

    fn encode(&self, owned: &OwnedSession) -> Result<Bytes, Malformed> {
        // In this order: what is queued meanwhile is in `seen`.
        let mut next = owned
            .queued_up_to
            .clone()
            .unwrap_or_else(|| self.next_positions());
        for (shard, seen) in &owned.recorded.seen {
            let next = &mut next[usize::from(*shard)];
            *next = seen.next().max(*next);
        }
        Record::encode_parts(
            owned.is_kept_here().then_some(&self.author),
            (owned.fate != SessionFate::Ends).then_some(&owned.recorded),
            &next,
            false,
        )
    }

    /// Puts a value under a key, if the version that the key has is still `last`. Returns the new version. `None`: another
    /// node has put a value meanwhile.
    pub(super) async fn put_with_retries(
        &self,
        key: Key,
        last: u64,
        bytes: Bytes,
        expiry: Expiry,
    ) -> Result<Option<u64>, NodeEnded> {
        let mut began = Instant::now();
        let mut expected = last;
        // Without room it is not done by mistake: there is a time for it again.
        while (began.elapsed() < GIVE_UP_AFTER || self.storage.is_full())
            && !self.ledger.has_failed()
        {
            let asked = Instant::now();
            let permit = self.record_writes.acquire().await;
            // The time of its turn does not count.
            began += asked.elapsed();
            let put = self
                .engine
                .put(key.clone(), expected, bytes.clone(), expiry);
            let put = put.await;
            drop(permit);
            let is_conflict = matches!(put, Ok(PutOutcome::Conflict));
            match put {
                Ok(PutOutcome::Written(version)) => return Ok(Some(version)),
                Ok(PutOutcome::Conflict) => {}
                Err(error @ EngineError::Full(_)) => self.storage.note_refusal(&error),
                Err(error) => lock(&self.value_outage).failed(&error),
            }
            // This try, or an earlier one, may have been done all the same.
            match self.engine.get(key.clone()).await {
                Ok(Some(value)) if value.version > last => {
                    return Ok((value.bytes == bytes).then_some(value.version));
                }
                Ok(older) if is_conflict => {
                    expected = older.as_ref().map_or(0, |older| older.version);
                    if let Some(older) = older.filter(|older| older.version < last) {
                        self.end_earlier_ownership(&key, &older).await;
                    }
                }
                Ok(_) => {}
                Err(error) => lock(&self.value_outage).failed(&error),
            }
            sleep(RETRY_INTERVAL).await;
        }
        self.fail("cannot write key for a minute");
        Err(NodeEnded)
    }

    /// Asks a node to let a session go which is its own by a record that was set back.
    async fn end_earlier_ownership(&self, key: &Key, older: &Value) {
        if key.kind != KeyKind::Session {
            return;
        }
        let id = ByteStr::new(key.name.clone());
        if let (Ok(id), Ok(record)) = (id, Record::decode(&older.bytes))
            && let Some(owner) = self.other_owner(&record)
        {
            self.request_release(owner, &id, Duration::ZERO).await;
        }
    }

    /// Writes the records of all sessions of this node again, as those in the engine are of before.
    pub(in crate::cluster) fn rewrite_records(&self) {
        let mut sessions = lock(&self.sessions);
        error!(
            sessions = sessions.len(),
            "cluster: session records were set back; this node rewrites its own"
        );
        let round = lock(&self.floor).round;
        let complete = sessions.iter_mut();
        let complete = complete.filter(|(_, owned)| !owned.awaits_messages);
        let complete = complete.map(|(id, owned)| {
            owned.changed_in_round.get_or_insert(round);
            owned.written_hash = 0;
            id.clone()
        });
        for id in complete.collect::<Vec<_>>() {
            self.request_write(&mut sessions, &id, None);
        }
    }
}
