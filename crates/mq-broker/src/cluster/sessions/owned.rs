//! The sessions of this node, and what becomes of them.

use mq_codec::ByteStr;
use tokio::sync::watch;

use super::recorded_session::{MessagePlace, RecordedSession, Urgency};
use crate::{
    cluster::Cluster,
    lock::lock,
    store::{At, LogPosition, Position, SessionChange, StoredMessage, StoredWill},
};

/// A session of this node.
#[derive(Debug)]
pub(in crate::cluster) struct OwnedSession {
    pub(in crate::cluster) kept: RecordedSession,
    /// That of the record.
    pub(in crate::cluster) version: u64,
    /// What becomes of it.
    pub(in crate::cluster) fate: SessionFate,
    /// By log: from where on no message is queued for it, once the hub has let it go.
    pub(super) end: Option<Vec<At>>,
    /// Its will was published by that call: no record is without the will before.
    pub(super) published: Option<Position>,
    /// Calls that are settled by the next write.
    pub(super) waiting: Vec<Position>,
    /// Whether the record is to be written, and whether that is under way.
    pub(super) is_changed: bool,
    pub(super) is_writing: bool,
    /// The round since which it is not what the record says, apart from a write that is under way, and that of the write.
    pub(super) differs: Option<u64>,
    pub(super) writes: Option<u64>,
    /// Of the record's content.
    pub(super) written: u64,
    /// What it had at another node is still being read: the record has more.
    pub(super) awaits_messages: bool,
    /// Tells of a change of `fate`. Dropped with the session.
    gone: watch::Sender<()>,
}

/// What becomes of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) enum SessionFate {
    /// It stays.
    Stays,
    /// The hub is letting it go: it takes no connection any more.
    Releasing,
    /// It is let go, so that any node may take it.
    Released,
    /// It ends.
    Ends,
}

impl OwnedSession {
    pub(in crate::cluster) fn new(kept: RecordedSession, version: u64) -> Self {
        Self {
            kept,
            version,
            fate: SessionFate::Stays,
            end: None,
            published: None,
            waiting: Vec::new(),
            is_changed: false,
            is_writing: false,
            differs: None,
            writes: None,
            written: 0,
            awaits_messages: false,
            gone: watch::Sender::new(()),
        }
    }

    /// The first round of which the record may lack something.
    pub(super) fn lacks(&self) -> Option<u64> {
        if self.awaits_messages {
            return None;
        }
        if self.fate != SessionFate::Stays {
            // From now on the hub may queue nothing more for it.
            return Some(0);
        }
        self.differs.into_iter().chain(self.writes).min()
    }

    /// It has what it had at another node.
    pub(super) fn messages_arrived(&mut self, round: u64) {
        self.awaits_messages = false;
        self.differs = Some(round);
    }

    /// Makes a change, in a round. Returns whether it has to be in the record before anybody learns of it.
    pub(in crate::cluster) fn apply(
        &mut self,
        change: SessionChange,
        origin: Option<LogPosition>,
        round: u64,
    ) -> bool {
        let urgency = self.kept.apply(change, origin);
        self.note_difference(round, urgency)
    }

    /// Sets its will, in a round. Returns whether it has to be in the record before anybody learns of it.
    pub(in crate::cluster) fn set_will(
        &mut self,
        will: Option<Box<StoredWill>>,
        round: u64,
    ) -> bool {
        let urgency = self.kept.set_will(will);
        self.note_difference(round, urgency)
    }

    /// Ends its will, which was published, in a round.
    pub(in crate::cluster) fn end_will(&mut self, round: u64) {
        // It is not in a record before the log has the will: rather twice than not at all.
        self.kept.will = None;
        self.note_difference(round, Urgency::Later);
    }

    /// Notes in a round that the record lacks a change. Returns whether it is urgent.
    fn note_difference(&mut self, round: u64, urgency: Urgency) -> bool {
        self.differs.get_or_insert(round);
        self.is_changed |= urgency > Urgency::Never;
        urgency == Urgency::Now
    }

    /// Copies a message of a log into what is kept, in a round. Returns whether it is there still.
    pub(super) fn copy(
        &mut self,
        place: MessagePlace,
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
        self.fate == SessionFate::Stays && !self.awaits_messages
    }

    pub(super) fn is_kept_here(&self) -> bool {
        matches!(self.fate, SessionFate::Stays | SessionFate::Releasing)
    }

    /// Changes when something else becomes of it, and ends when it is not this node's any more.
    pub(in crate::cluster) fn gone(&self) -> watch::Receiver<()> {
        self.gone.subscribe()
    }
}

impl Cluster {
    /// Which of a client's sessions is here.
    pub(in crate::cluster) fn session_number(&self, id: &ByteStr) -> Option<u64> {
        lock(&self.sessions).get(id).map(|owned| owned.kept.number)
    }

    pub(in crate::cluster) fn stays(&self, id: &ByteStr) -> bool {
        let sessions = lock(&self.sessions);
        sessions
            .get(id)
            .is_some_and(|owned| owned.fate == SessionFate::Stays)
    }

    /// Begins to let a session go: it takes no connection any more. False if it is not here, or goes already; then, if
    /// it is here, waits until it has gone.
    pub(super) async fn begin_release(&self, id: &ByteStr) -> bool {
        let gone = {
            let mut sessions = lock(&self.sessions);
            let Some(owned) = sessions.get_mut(id) else {
                return false;
            };
            if owned.fate == SessionFate::Stays {
                owned.fate = SessionFate::Releasing;
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
            && owned.fate == SessionFate::Releasing
        {
            owned.fate = SessionFate::Stays;
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
    pub(super) async fn finish_release(&self, id: &ByteStr) {
        let gone = {
            let mut sessions = lock(&self.sessions);
            let Some(owned) = sessions.get_mut(id) else {
                return;
            };
            if owned.fate == SessionFate::Releasing {
                owned.fate = SessionFate::Released;
            }
            let gone = owned.gone();
            self.write_now(&mut sessions, id, None);
            gone
        };
        wait_for_end(gone).await;
    }

    /// A session's will was published just now.
    pub(in crate::cluster) fn note_published(&self, owned: &mut OwnedSession) {
        if let Some(will) = &owned.kept.will {
            let shard = self.shard_of(&will.message.message.topic);
            owned.published = Some(shard.last());
        }
    }

    pub(in crate::cluster) fn end(&self, id: &ByteStr) {
        let mut sessions = lock(&self.sessions);
        if let Some(owned) = sessions.get_mut(id) {
            owned.fate = SessionFate::Ends;
            self.write_now(&mut sessions, id, None);
        }
    }

    /// By log: what this node's sessions have not been looked at for.
    pub(in crate::cluster) fn progress(&self) -> Vec<At> {
        let shards = self.shards.iter();
        shards
            .map(|shard| shard.progress.finished().next())
            .collect()
    }
}

async fn wait_for_end(mut gone: watch::Receiver<()>) {
    // An error is the end.
    while gone.changed().await.is_ok() {}
}
