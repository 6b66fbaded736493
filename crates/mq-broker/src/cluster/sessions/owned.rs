//! The sessions that this node owns: their changes, and how their ownership ends.

use mq_codec::ByteStr;
use tokio::sync::watch;

use super::recorded_session::{MessagePlace, RecordedSession};
use crate::{
    cluster::Cluster,
    lock::lock,
    store::{At, LogPosition, Position, SessionChange, StoredMessage, StoredWill},
};

/// A session that this node owns, and the progress of its record.
#[derive(Debug)]
pub(in crate::cluster) struct OwnedSession {
    /// State of the session as the record is to have it.
    pub(in crate::cluster) recorded: RecordedSession,
    /// The version of the record as it was last written.
    pub(in crate::cluster) version: u64,
    /// The state of the session's ownership.
    pub(in crate::cluster) fate: SessionFate,
    /// Places, by log, from which on no message is queued for the session; set once the hub has released it.
    pub(super) queued_up_to: Option<Vec<At>>,
    /// The call that published the will: no record is written without the will before it is settled.
    pub(super) will_call: Option<Position>,
    /// Calls of the hub that the next write of the record settles.
    pub(super) waiting: Vec<Position>,
    /// `true` if the record is to be written.
    pub(super) is_changed: bool,
    /// `true` while a task writes the record.
    pub(super) is_writing: bool,
    /// The round of the earliest change that the record lacks, apart from those that are being written; `None` if there
    /// is none.
    pub(super) changed_in_round: Option<u64>,
    /// The round of the earliest change that is being written; `None` if none is.
    pub(super) writing_round: Option<u64>,
    /// The hash of the record's content as it was last written.
    pub(super) written_hash: u64,
    /// `true` while the messages that the session had at another node are being read: the record has more.
    pub(super) awaits_messages: bool,
    /// Signal that the session stays after all, as its release has failed. Dropped with the session, which signals the
    /// end.
    fate_changed: watch::Sender<()>,
}

/// The ownership of a session by this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) enum SessionFate {
    /// The session stays.
    Stays,
    /// The hub is letting it go: it takes no connection any more.
    Releasing,
    /// The session is released, so that any node may take it.
    Released,
    /// The session ends.
    Ends,
}

impl OwnedSession {
    pub(in crate::cluster) fn new(recorded: RecordedSession, version: u64) -> Self {
        Self {
            recorded,
            version,
            fate: SessionFate::Stays,
            queued_up_to: None,
            will_call: None,
            waiting: Vec::new(),
            is_changed: false,
            is_writing: false,
            changed_in_round: None,
            writing_round: None,
            written_hash: 0,
            awaits_messages: false,
            fate_changed: watch::Sender::new(()),
        }
    }

    /// Returns the round of the earliest change that the record may lack; `None` if it lacks none, or if the session's
    /// earlier messages are still being read. A session that is being let go counts from round 0.
    pub(super) fn first_unwritten_round(&self) -> Option<u64> {
        if self.awaits_messages {
            return None;
        }
        if self.fate != SessionFate::Stays {
            // From now on the hub may queue nothing more for it.
            return Some(0);
        }
        self.changed_in_round
            .into_iter()
            .chain(self.writing_round)
            .min()
    }

    /// Notes in a round that the messages which the session had at another node have been read.
    pub(super) fn messages_arrived(&mut self, round: u64) {
        self.awaits_messages = false;
        self.changed_in_round = Some(round);
    }

    /// Applies a change, in a round. Returns `true` if the change has to be in the record before anybody learns of it.
    pub(in crate::cluster) fn apply(
        &mut self,
        change: SessionChange,
        origin: Option<LogPosition>,
        round: u64,
    ) -> bool {
        self.changed_in_round.get_or_insert(round);
        self.recorded.apply(change, origin)
    }

    /// Sets the session's will, in a round. Returns `true` if the change has to be in the record before anybody learns
    /// of it.
    pub(in crate::cluster) fn set_will(
        &mut self,
        will: Option<Box<StoredWill>>,
        round: u64,
    ) -> bool {
        self.changed_in_round.get_or_insert(round);
        self.recorded.set_will(will)
    }

    /// Replaces the place of a message by a copy of it, in a round. Returns `false` if the session does not have the
    /// message at that place any more.
    pub(super) fn copy(
        &mut self,
        place: MessagePlace,
        position: LogPosition,
        logged: &StoredMessage,
        round: u64,
    ) -> bool {
        let is_there = self.recorded.copy(place, position, logged);
        if is_there {
            self.changed_in_round.get_or_insert(round);
        }
        is_there
    }

    /// Removes a message that its log has lost, in a round.
    pub(super) fn forget(&mut self, place: MessagePlace, round: u64) {
        self.recorded.forget(place);
        self.changed_in_round.get_or_insert(round);
    }

    /// Returns `true` if the session stays, and has all messages that it had at another node.
    pub(super) fn is_complete(&self) -> bool {
        self.fate == SessionFate::Stays && !self.awaits_messages
    }

    /// Returns `true` if the session is not released and does not end.
    pub(super) fn is_kept_here(&self) -> bool {
        matches!(self.fate, SessionFate::Stays | SessionFate::Releasing)
    }

    /// Returns a receiver that is notified if a release has failed, so that the session stays, and that is closed once
    /// the session is not this node's any more.
    pub(in crate::cluster) fn fate_changes(&self) -> watch::Receiver<()> {
        self.fate_changed.subscribe()
    }
}

impl Cluster {
    /// Returns the number of the session that a client has at this node; `None` if it has none here.
    pub(in crate::cluster) fn session_number(&self, id: &ByteStr) -> Option<u64> {
        lock(&self.sessions)
            .get(id)
            .map(|owned| owned.recorded.number)
    }

    /// Returns `true` if this node has the client's session and is not letting it go.
    pub(in crate::cluster) fn is_owned(&self, id: &ByteStr) -> bool {
        let sessions = lock(&self.sessions);
        sessions
            .get(id)
            .is_some_and(|owned| owned.fate == SessionFate::Stays)
    }

    /// Begins to release a session, which takes no connection from then on. Returns `false` at once if the session is
    /// not here. If it is being released or ends already, waits until it goes on with that, or stays, and returns `false`.
    pub(super) async fn begin_release(&self, id: &ByteStr) -> bool {
        let mut leaves = {
            let mut sessions = lock(&self.sessions);
            let Some(owned) = sessions.get_mut(id) else {
                return false;
            };
            if owned.fate == SessionFate::Stays {
                owned.fate = SessionFate::Releasing;
                return true;
            }
            owned.fate_changes()
        };
        // An error is the end.
        let _ = leaves.changed().await;
        false
    }

    /// Keeps a session whose release has failed.
    pub(super) fn cancel_release(&self, id: &ByteStr) {
        if let Some(owned) = lock(&self.sessions).get_mut(id)
            && owned.fate == SessionFate::Releasing
        {
            owned.fate = SessionFate::Stays;
            owned.fate_changed.send_replace(());
        }
    }

    /// Ends the queue of a session: from here on no message is queued for it. Each record from now on says so.
    pub(super) fn end_queueing(&self, id: &ByteStr) {
        let shards = self.shards.iter();
        let end = shards.map(|shard| shard.progress.begun().next()).collect();
        if let Some(owned) = lock(&self.sessions).get_mut(id) {
            owned.queued_up_to = Some(end);
        }
    }

    /// Finishes the release of a session that the hub has let go: its record names no owner any more. Resolves once that
    /// is written, or the session has ended.
    pub(super) async fn finish_release(&self, id: &ByteStr) {
        let gone = {
            let mut sessions = lock(&self.sessions);
            let Some(owned) = sessions.get_mut(id) else {
                return;
            };
            if owned.fate == SessionFate::Releasing {
                owned.fate = SessionFate::Released;
            }
            let gone = owned.fate_changes();
            self.request_write(&mut sessions, id, None);
            gone
        };
        wait_for_end(gone).await;
    }

    /// Notes that a session's will was published just now.
    pub(in crate::cluster) fn note_will_published(&self, owned: &mut OwnedSession) {
        if let Some(will) = &owned.recorded.will {
            let shard = self.shard_of_topic(&will.message.message.topic);
            owned.will_call = Some(shard.last_position());
        }
    }

    pub(in crate::cluster) fn end_session(&self, id: &ByteStr) {
        let mut sessions = lock(&self.sessions);
        if let Some(owned) = sessions.get_mut(id) {
            owned.fate = SessionFate::Ends;
            self.request_write(&mut sessions, id, None);
        }
    }

    /// Returns the places, by log, from which on this node has not looked for its sessions' messages.
    pub(in crate::cluster) fn next_positions(&self) -> Vec<At> {
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
