//! The sessions of this node, and how their records are written.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use mq_codec::ByteStr;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{error, warn};

use super::record::{Kept, Place, Record, Urgency};
use crate::{
    Escaped,
    cluster::{
        Cluster, GIVEN_UP,
        engine::{Key, Kind, Lasts, Malformed, Put, RETRY},
    },
    lock::lock,
    store::{At, LogPosition, Position, SessionChange, StoredMessage},
};

/// How often is looked whether a log has a will.
const STEP: Duration = Duration::from_millis(10);

/// A session of this node.
#[derive(Debug)]
pub(in crate::cluster) struct Owned {
    pub(in crate::cluster) kept: Kept,
    /// That of the record.
    pub(in crate::cluster) version: u64,
    /// What becomes of it.
    pub(in crate::cluster) future: Future,
    /// By log: from where on no message is queued for it, once the hub has let it go.
    end: Option<Vec<At>>,
    /// Its will was published by that call: no record is without the will before.
    published: Option<Position>,
    /// Calls that are settled by the next write.
    waiting: Vec<Position>,
    /// Whether the record is to be written, and whether that is under way.
    is_changed: bool,
    is_writing: bool,
    /// The round since which it is not what the record says, apart from a write that is under way, and that of the write.
    differs: Option<u64>,
    writes: Option<u64>,
    /// Of the record's content.
    written: u64,
    /// What it had at another node is still being read: the record has more.
    pub(super) is_coming: bool,
    /// Tells of a change of `future`. Dropped with the session.
    gone: watch::Sender<()>,
}

/// What becomes of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) enum Future {
    /// It stays.
    Stays,
    /// The hub is letting it go: it takes no connection any more.
    IsLeaving,
    /// It is let go, so that any node may take it.
    IsLetGo,
    /// It ends.
    Ends,
}

/// The node's life has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed;

/// A write of a record.
enum Begun {
    /// There is nothing to write, or nobody to do it.
    Nothing,
    Write(Write),
    /// No log has its will yet.
    NotYet,
    /// No value has room for it. Calls that were to be settled.
    TooLarge(Vec<Position>),
}

struct Write {
    bytes: Bytes,
    /// The record has to be in this version still.
    version: u64,
    /// Calls that are settled by it.
    calls: Vec<Position>,
    future: Future,
    /// As [`Owned::written`].
    content: Option<u64>,
}

impl Owned {
    pub(in crate::cluster) fn new(kept: Kept, version: u64) -> Self {
        Self {
            kept,
            version,
            future: Future::Stays,
            end: None,
            published: None,
            waiting: Vec::new(),
            is_changed: false,
            is_writing: false,
            differs: None,
            writes: None,
            written: 0,
            is_coming: false,
            gone: watch::Sender::new(()),
        }
    }

    /// The first round of which the record may lack something.
    fn lacks(&self) -> Option<u64> {
        if self.is_coming {
            return None;
        }
        if self.future != Future::Stays {
            // From now on the hub may queue nothing more for it.
            return Some(0);
        }
        self.differs.into_iter().chain(self.writes).min()
    }

    /// It has what it had at another node.
    pub(super) fn has_come(&mut self, round: u64) {
        self.is_coming = false;
        self.differs = Some(round);
    }

    /// Makes a change, in a round. Returns whether it has to be in the record before anybody learns of it.
    pub(in crate::cluster) fn apply(
        &mut self,
        change: SessionChange,
        origin: Option<LogPosition>,
        round: u64,
    ) -> bool {
        self.differs.get_or_insert(round);
        let urgency = self.kept.apply(change, origin);
        self.is_changed |= urgency > Urgency::Never;
        urgency == Urgency::Now
    }

    /// Copies a message of a log into what is kept, in a round. Returns whether it is there still.
    pub(super) fn copy(
        &mut self,
        place: Place,
        position: LogPosition,
        logged: &StoredMessage,
        round: u64,
    ) -> bool {
        let is_there = self.kept.copy(place, position, logged);
        if is_there {
            self.differs.get_or_insert(round);
        }
        is_there
    }

    /// Whether it stays, with all that it had elsewhere.
    pub(super) fn is_whole(&self) -> bool {
        self.future == Future::Stays && !self.is_coming
    }

    fn is_kept_here(&self) -> bool {
        matches!(self.future, Future::Stays | Future::IsLeaving)
    }

    /// Changes when something else becomes of it, and ends when it is not this node's any more.
    pub(in crate::cluster) fn gone(&self) -> watch::Receiver<()> {
        self.gone.subscribe()
    }
}

impl Cluster {
    /// Writes a session's record, for a call that waits for it.
    pub(in crate::cluster) fn write_now(
        &self,
        sessions: &mut MutexGuard<'_, HashMap<ByteStr, Owned>>,
        id: &ByteStr,
        call: Option<Position>,
    ) {
        let Some(owned) = sessions.get_mut(id) else {
            if let Some(call) = call {
                self.ledger.done(call);
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
        let next = self.progress();
        let mut sessions = lock(&self.sessions);
        let lacks = sessions.values().filter_map(Owned::lacks).min();
        lock(&self.floor).begin_round(lacks, next);
        let mut changed = Vec::new();
        for (id, owned) in sessions.iter_mut() {
            if owned.differs.is_none() || owned.is_coming {
                continue;
            }
            if !owned.is_writing && self.content(owned) == Some(owned.written) {
                owned.differs = None;
                owned.is_changed = false;
            } else {
                changed.push(id.clone());
            }
        }
        for id in changed {
            self.write_now(&mut sessions, &id, None);
        }
    }

    /// What its record says but for the places in the logs; `None` if it has no form.
    fn content(&self, session: &Owned) -> Option<u64> {
        let owner = session.is_kept_here().then_some(&self.author);
        let bytes = Record::encode_parts(owner, Some(&session.kept), &[], false).ok()?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Some(hasher.finish())
    }

    /// Which of a client's sessions is here.
    pub(in crate::cluster) fn session_number(&self, id: &ByteStr) -> Option<u64> {
        lock(&self.sessions).get(id).map(|owned| owned.kept.number)
    }

    pub(in crate::cluster) fn stays(&self, id: &ByteStr) -> bool {
        let sessions = lock(&self.sessions);
        sessions
            .get(id)
            .is_some_and(|owned| owned.future == Future::Stays)
    }

    /// Begins to let a session go: it takes no connection any more. False if it is not here, or goes already; then, if
    /// it is here, waits until it has gone.
    pub(super) async fn begin_to_let_go(&self, id: &ByteStr) -> bool {
        let gone = {
            let mut sessions = lock(&self.sessions);
            let Some(owned) = sessions.get_mut(id) else {
                return false;
            };
            if owned.future == Future::Stays {
                owned.future = Future::IsLeaving;
                return true;
            }
            owned.gone()
        };
        wait_for_end(gone).await;
        false
    }

    /// Keeps a session that was to be let go, and cannot.
    pub(super) fn keep(&self, id: &ByteStr) {
        if let Some(owned) = lock(&self.sessions).get_mut(id)
            && owned.future == Future::IsLeaving
        {
            owned.future = Future::Stays;
            owned.gone.send_replace(());
        }
    }

    /// From here on no message is queued for a session. Each record from now on says so.
    pub(super) fn end_queueing(&self, id: &ByteStr) {
        let shards = self.shards.iter();
        let end = shards.map(|shard| shard.progress.begun().next()).collect();
        if let Some(owned) = lock(&self.sessions).get_mut(id) {
            owned.end = Some(end);
        }
    }

    /// Lets a session go, which the hub has let go: its record says so, and then it is not this node's. Resolves then.
    pub(super) async fn let_go(&self, id: &ByteStr) {
        let gone = {
            let mut sessions = lock(&self.sessions);
            let Some(owned) = sessions.get_mut(id) else {
                return;
            };
            if owned.future == Future::IsLeaving {
                owned.future = Future::IsLetGo;
            }
            let gone = owned.gone();
            self.write_now(&mut sessions, id, None);
            gone
        };
        wait_for_end(gone).await;
    }

    /// A session's will was published just now.
    pub(in crate::cluster) fn note_published(&self, owned: &mut Owned) {
        if let Some(will) = &owned.kept.will {
            let shard = self.shard_of(&will.message.message.topic);
            owned.published = Some(shard.last());
        }
    }

    pub(in crate::cluster) fn end(&self, id: &ByteStr) {
        let mut sessions = lock(&self.sessions);
        if let Some(owned) = sessions.get_mut(id) {
            owned.future = Future::Ends;
            self.write_now(&mut sessions, id, None);
        }
    }

    /// What is to be written of a session, if anything.
    fn begin_write(&self, id: &ByteStr) -> Begun {
        let mut sessions = lock(&self.sessions);
        let Some(owned) = sessions.get_mut(id) else {
            return Begun::Nothing;
        };
        if let Some(published) = owned.published {
            if self.ledger.is_open(published) {
                return Begun::NotYet;
            }
            owned.published = None;
        }
        if !core::mem::take(&mut owned.is_changed) {
            owned.is_writing = false;
            return Begun::Nothing;
        }
        let Ok(bytes) = self.encode(owned) else {
            error!(client = %id, "a session has no form");
            self.fail("a session cannot be written");
            return Begun::Nothing;
        };
        let calls = core::mem::take(&mut owned.waiting);
        if bytes.len() > self.engine.largest_value() && owned.future != Future::Ends {
            let bytes = bytes.len();
            warn!(client = %Escaped(id), bytes, "a session is too large for the cluster, and ends");
            if owned.future != Future::Stays {
                // The hub does not have it any more.
                owned.future = Future::Ends;
                owned.is_changed = true;
            }
            return Begun::TooLarge(calls);
        }
        owned.writes = owned.differs.take();
        let content = self.content(owned);
        Begun::Write(Write {
            bytes,
            version: owned.version,
            calls,
            future: owned.future,
            content,
        })
    }

    async fn write_record(self: Arc<Self>, id: ByteStr) {
        let key = Key::new(Kind::Session, &*id);
        loop {
            let write = match self.begin_write(&id) {
                Begun::Nothing => return,
                Begun::Write(write) => write,
                Begun::NotYet if self.ledger.has_failed() => return,
                Begun::NotYet => {
                    sleep(STEP).await;
                    continue;
                }
                Begun::TooLarge(calls) => {
                    self.end_too_large(&id, calls).await;
                    continue;
                }
            };
            let Write {
                bytes,
                version,
                calls,
                future,
                content,
            } = write;
            let lasts = match future {
                Future::Ends => Lasts::AWhile,
                _ => Lasts::Always,
            };
            let written = match self.put(key.clone(), version, bytes, lasts).await {
                Ok(written) => written,
                Err(Failed) => return,
            };
            let mut sessions = lock(&self.sessions);
            let is_over = match (written, sessions.get_mut(&id)) {
                (Some(version), Some(owned)) => {
                    owned.version = version;
                    owned.writes = None;
                    owned.written = content.unwrap_or_default();
                    matches!(future, Future::IsLetGo | Future::Ends)
                }
                // Other nodes ask for a session, unless they have ended this node's life.
                _ => return self.fail("another node has taken a session of it"),
            };
            let later = if is_over {
                sessions.remove(&id).map(|owned| owned.waiting)
            } else {
                None
            };
            drop(sessions);
            for call in calls.into_iter().chain(later.into_iter().flatten()) {
                self.ledger.done(call);
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
            self.ledger.done(call);
        }
        if !self.stays(id) {
            return;
        }
        let has_ended = match self.hub() {
            Some(hub) => hub.end_unkeepable(id).await,
            None => false,
        };
        if !has_ended {
            self.fail("a session is too large for the cluster, and does not end");
        }
    }

    fn encode(&self, owned: &Owned) -> Result<Bytes, Malformed> {
        // In this order: what is queued meanwhile is in `seen`.
        let mut next = owned.end.clone().unwrap_or_else(|| self.progress());
        for (shard, seen) in &owned.kept.seen {
            let next = &mut next[usize::from(*shard)];
            *next = seen.next().max(*next);
        }
        Record::encode_parts(
            owned.is_kept_here().then_some(&self.author),
            (owned.future != Future::Ends).then_some(&owned.kept),
            &next,
            false,
        )
    }

    /// By log: what this node's sessions have not been looked at for.
    pub(in crate::cluster) fn progress(&self) -> Vec<At> {
        let shards = self.shards.iter();
        shards
            .map(|shard| shard.progress.finished().next())
            .collect()
    }

    /// Puts a value under a key, if the version that the key has is still `last`. Returns the new version. `None`: another
    /// node has put a value meanwhile.
    pub(super) async fn put(
        &self,
        key: Key,
        last: u64,
        bytes: Bytes,
        lasts: Lasts,
    ) -> Result<Option<u64>, Failed> {
        let began = Instant::now();
        while began.elapsed() < GIVEN_UP && !self.ledger.has_failed() {
            match self
                .engine
                .put(key.clone(), last, bytes.clone(), lasts)
                .await
            {
                Ok(Put::Done(version)) => return Ok(Some(version)),
                Ok(Put::Conflict) => {}
                Err(error) => warn!(%error, "a value cannot be put"),
            }
            // This try, or an earlier one, may have been done all the same.
            match self.engine.value(key.clone()).await {
                Ok(Some(value)) if value.version > last => {
                    return Ok((value.bytes == bytes).then_some(value.version));
                }
                Ok(_) => {}
                Err(error) => warn!(%error, "a value cannot be read"),
            }
            sleep(RETRY).await;
        }
        self.fail("a value could not be put for a minute");
        Err(Failed)
    }
}

async fn wait_for_end(mut gone: watch::Receiver<()>) {
    // An error is the end.
    while gone.changed().await.is_ok() {}
}
