//! The sessions of this node, and how their records are written.

use std::{collections::HashMap, sync::Arc, sync::MutexGuard};

use bytes::Bytes;
use mq_codec::ByteStr;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{error, warn};

use super::{
    Cluster, GIVEN_UP, RETRY,
    engine::{Key, Kind, Lasts, Put},
    record::{Kept, Record, Urgency},
};
use crate::{
    lock::lock,
    store::{At, LogPosition, Position, SessionChange},
};

/// A session of this node.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) kept: Kept,
    /// That of the record.
    pub(super) version: u64,
    /// What becomes of it.
    pub(super) future: Future,
    /// By log: from where on no message was queued for it any more, once it is let go.
    end: Option<Vec<At>>,
    /// Calls that are settled by the next write.
    waiting: Vec<Position>,
    /// Whether the record is to be written, and whether that is under way.
    is_changed: bool,
    is_writing: bool,
    /// Tells of a change of `future`. Dropped with the session.
    gone: watch::Sender<()>,
}

/// What becomes of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Future {
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

impl Owned {
    pub(super) fn new(kept: Kept, version: u64) -> Self {
        Self {
            kept,
            version,
            future: Future::Stays,
            end: None,
            waiting: Vec::new(),
            is_changed: false,
            is_writing: false,
            gone: watch::Sender::new(()),
        }
    }

    /// Makes a change. Returns whether it has to be in the record before anybody learns of it.
    pub(super) fn apply(&mut self, change: SessionChange, origin: Option<LogPosition>) -> bool {
        let urgency = self.kept.apply(change, origin);
        self.is_changed |= urgency > Urgency::Never;
        urgency == Urgency::Now
    }

    /// Changes when something else becomes of it, and ends when it is not this node's any more.
    pub(super) fn gone(&self) -> watch::Receiver<()> {
        self.gone.subscribe()
    }
}

impl Cluster {
    /// Writes a session's record, for a call that waits for it.
    pub(super) fn write_now(
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

    /// Writes the records of all sessions of which a change waits for no one.
    pub(super) fn write_later(&self) {
        let mut sessions = lock(&self.sessions);
        let is_changed = |(id, owned): (&ByteStr, &Owned)| owned.is_changed.then(|| id.clone());
        let changed: Vec<_> = sessions.iter().filter_map(is_changed).collect();
        for id in changed {
            self.write_now(&mut sessions, &id, None);
        }
    }

    pub(super) fn stays(&self, id: &ByteStr) -> bool {
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

    /// Lets a session go, which the hub has let go at these places of the logs: its record says so, and then it is not
    /// this node's. Resolves then.
    pub(super) async fn let_go(&self, id: &ByteStr, end: Vec<At>) {
        let gone = {
            let mut sessions = lock(&self.sessions);
            let Some(owned) = sessions.get_mut(id) else {
                return;
            };
            if owned.future == Future::IsLeaving {
                owned.future = Future::IsLetGo;
                owned.end = Some(end);
            }
            let gone = owned.gone();
            self.write_now(&mut sessions, id, None);
            gone
        };
        wait_for_end(gone).await;
    }

    pub(super) fn end(&self, id: &ByteStr) {
        let mut sessions = lock(&self.sessions);
        if let Some(owned) = sessions.get_mut(id) {
            owned.future = Future::Ends;
            self.write_now(&mut sessions, id, None);
        }
    }

    async fn write_record(self: Arc<Self>, id: ByteStr) {
        let key = Key::new(Kind::Session, &*id);
        loop {
            let (bytes, version, calls, future) = {
                let mut sessions = lock(&self.sessions);
                let Some(owned) = sessions.get_mut(&id) else {
                    return;
                };
                if !core::mem::take(&mut owned.is_changed) {
                    owned.is_writing = false;
                    return;
                }
                let Ok(bytes) = self.encode(owned) else {
                    error!(client = %id, "a session has no form");
                    return self.fail("a session cannot be written");
                };
                let calls = core::mem::take(&mut owned.waiting);
                (bytes, owned.version, calls, owned.future)
            };
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

    fn encode(&self, owned: &Owned) -> Result<Bytes, super::wire::Malformed> {
        // In this order: what is queued meanwhile is in `seen`.
        let mut next = owned.end.clone().unwrap_or_else(|| self.progress());
        for (shard, seen) in &owned.kept.seen {
            let next = &mut next[usize::from(*shard)];
            *next = seen.next().max(*next);
        }
        Record::encode_parts(
            matches!(owned.future, Future::Stays | Future::IsLeaving).then_some(&self.author),
            (owned.future != Future::Ends).then_some(&owned.kept),
            &next,
        )
    }

    /// By log: what this node's sessions have not been looked at for.
    fn progress(&self) -> Vec<At> {
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
