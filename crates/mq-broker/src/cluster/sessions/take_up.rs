//! The way of claimed sessions into this node's hub, with the messages that they still have to get.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
    time::Duration,
};

use mq_codec::ByteStr;
use tokio::{
    sync::{Semaphore, oneshot, oneshot::error::TryRecvError},
    task::yield_now,
    time::timeout,
};
use tracing::{info, warn};

use super::{
    candidates::Candidates,
    message_search::{ClaimRefused, ClaimedSession, EntryRanges, MessageSearch, PendingSession},
    owned::OwnedSession,
    record::Record,
    recorded_session::RecordedSession,
};
use crate::{
    Escaped,
    cluster::{
        Cluster,
        engine::{Entry, Expiry, Key, KeyKind},
        log::{BatchCounts, BatchItem, LOG_SILENCE_TIMEOUT, LogEntry},
    },
    hub::{ArrivingSession, LocalSessions},
    lock::lock,
    store::{At, Life, LogPosition, SessionRecord},
};

/// Shortest life of a session that is taken up while the cluster's time is not known: its client is about to connect.
const LIFE_WITHOUT_TIME: Duration = Duration::from_mins(1);

/// Sessions that are taken up together: their records are written together, and the logs are read once for all of them.
pub(super) const MAX_TAKEN_UP_AT_ONCE: usize = 256;

/// Groups of sessions that are taken up at a time. While there are fewer, a session waits for no other.
const MAX_GROUPS: usize = 4;

/// Entries of the log's copy in memory that are examined before other tasks have their turn.
const ENTRIES_A_TURN: usize = 64;

/// Claimed sessions that wait to be taken up, as the clients of a node that has died come all at once.
#[derive(Debug)]
pub(in crate::cluster) struct TakeUps {
    /// The sessions in the order of their claims, each with the sender of its outcome.
    waiting: Mutex<VecDeque<(ClaimedSession, TakenUp)>>,
    /// Permits for groups: one for each that is being taken up.
    groups: Semaphore,
}

/// Sender of the outcome of one session, to the task that has claimed it.
type TakenUp = oneshot::Sender<Result<(), ClaimRefused>>;

impl Default for TakeUps {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            groups: Semaphore::new(MAX_GROUPS),
        }
    }
}

impl Cluster {
    /// Takes a claimed session up: adds it to this node's hub, in one group with other sessions that wait for that.
    ///
    /// # Errors
    /// [`ClaimRefused::Busy`] if the logs cannot be read; the session is given back then.
    pub(super) async fn take_up_with_others(
        &self,
        local: &dyn LocalSessions,
        claimed: ClaimedSession,
    ) -> Result<(), ClaimRefused> {
        let (taken_up, mut outcome) = oneshot::channel();
        lock(&self.take_ups.waiting).push_back((claimed, taken_up));
        loop {
            let turn = self.take_ups.groups.acquire().await;
            // Another one may have taken it along.
            match outcome.try_recv() {
                Ok(outcome) => return outcome,
                Err(TryRecvError::Closed) => return Err(ClaimRefused::Busy),
                Err(TryRecvError::Empty) => {}
            }
            let group: Vec<_> = {
                let mut waiting = lock(&self.take_ups.waiting);
                let count = waiting.len().min(MAX_TAKEN_UP_AT_ONCE);
                waiting.drain(..count).collect()
            };
            if group.is_empty() {
                // It is in a group that is being taken up.
                drop(turn);
                return outcome.await.unwrap_or(Err(ClaimRefused::Busy));
            }
            let (claimed, taken_up): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            let done = self.take_up(local, claimed).await;
            for taken_up in taken_up {
                // Its claim may have ended.
                let _ = taken_up.send(done);
            }
        }
    }

    /// Takes claimed sessions up: adds them to this node's hub, with the messages that they still have to get.
    ///
    /// # Errors
    /// [`ClaimRefused::Busy`] if the logs cannot be read; the sessions are given back then.
    pub(super) async fn take_up(
        &self,
        local: &dyn LocalSessions,
        claimed: Vec<ClaimedSession>,
    ) -> Result<(), ClaimRefused> {
        let mut pending = Vec::new();
        for claimed in claimed {
            pending.extend(self.begin_taking_up(local, claimed));
        }
        if !pending.is_empty() {
            self.broadcast_mark();
        }
        let mut ranges = EntryRanges::new();
        let mut candidates = Candidates::new(&pending);
        for session in &pending {
            session.widen(&mut ranges);
        }
        if let Err(refused) = self
            .read_again(&mut pending, &mut candidates, &ranges)
            .await
        {
            for session in pending {
                self.give_back(local, session);
            }
            return Err(refused);
        }
        let mut outcome = Ok(());
        for session in pending {
            outcome = self.finish_taking_up(local, session).and(outcome);
        }
        outcome
    }

    /// Begins to queue new messages for a claimed session; earlier messages are put in front of them later. `None` if
    /// the record has no state to take over, so that the session is a new one.
    fn begin_taking_up(
        &self,
        local: &dyn LocalSessions,
        claimed: ClaimedSession,
    ) -> Option<PendingSession> {
        let ClaimedSession {
            id,
            record,
            version,
        } = claimed;
        let Record { session, next, .. } = record;
        let kept = session.filter(|kept| !kept.ends_with_connection() || kept.will.is_some());
        let Some(kept) = kept else {
            let owned = OwnedSession::new(RecordedSession::transient(version), version);
            lock(&self.sessions).insert(id, owned);
            return None;
        };
        let subscriptions = kept.subscriptions.iter();
        let mut subscriptions =
            subscriptions.map(|(filter, (options, id))| (filter.clone(), *options, *id));
        let mut begun = Vec::new();
        let mut note_begun = || {
            // What is queued from here on is noted: in the record it stands behind the rest.
            let mut owned = OwnedSession::new(kept.clone(), version);
            owned.recorded.waiting.clear();
            owned.awaits_messages = true;
            lock(&self.sessions).insert(id.clone(), owned);
            lock(&self.arrival_marks).note_arrival(&id);
            let shards = self.shards.iter();
            begun = shards.map(|shard| shard.progress.begun()).collect();
        };
        let user = kept.user.as_ref();
        let arriving = local.begin_arrival(&id, user, &mut subscriptions, &mut note_begun);
        let Some(arriving) = arriving else {
            self.give_record_back(id, version, kept, next);
            return None;
        };
        let mut wanted = MessageSearch::new(kept, id.clone(), next, begun);
        let mut filters = wanted.recorded.subscriptions.keys();
        let is_member = filters.any(|filter| filter.shared().is_some());
        for (shard, here) in (0..).zip(&self.shards).filter(|_| is_member) {
            let chosen = lock(&here.state).groups.chosen(&id).into_iter();
            let chosen = chosen.map(|at| LogPosition { shard, at });
            wanted.chosen.extend(chosen);
        }
        Some(PendingSession {
            id,
            version,
            arriving,
            wanted,
        })
    }

    /// Gives back a session whose messages could not be read: writes its record as it was, without an owner, so that
    /// any node may claim it.
    fn give_back(&self, local: &dyn LocalSessions, pending: PendingSession) {
        let PendingSession {
            id,
            version,
            arriving,
            wanted,
        } = pending;
        lock(&self.sessions).remove(&id);
        local.abandon_arrival(arriving);
        self.give_record_back(id, version, wanted.recorded, wanted.next);
    }

    /// Writes the record of a session that was claimed without an owner, so that any node may claim it.
    fn give_record_back(&self, id: ByteStr, version: u64, session: RecordedSession, next: Vec<At>) {
        let record = Record {
            owner: None,
            session: Some(session),
            next,
            is_behind: true,
        };
        let (Some(this), Ok(bytes)) = (self.this.upgrade(), record.encode()) else {
            return;
        };
        self.runtime.spawn(async move {
            let key = Key::new(KeyKind::Session, &*id);
            // If it is another one by now, this node has claimed it again.
            let _ = this
                .put_with_retries(key, version, bytes, Expiry::Never)
                .await;
        });
    }

    /// Puts the messages that were found in front of the new ones, and hands the session to the hub.
    ///
    /// # Errors
    /// [`ClaimRefused::Busy`] if the session is not this node's any more.
    fn finish_taking_up(
        &self,
        local: &dyn LocalSessions,
        pending: PendingSession,
    ) -> Result<(), ClaimRefused> {
        let PendingSession {
            id,
            arriving,
            wanted,
            ..
        } = pending;
        let life = self.arriving_life(wanted.recorded.life);
        let will = wanted.recorded.will.clone();
        let will = will.filter(|_| !wanted.is_will_published);
        let found = wanted.finish();
        info!(
            client = %Escaped(&id),
            waiting = found.waiting.len(),
            in_flight = found.in_flight.len(),
            "cluster: session taken over from another node"
        );
        if found.lost > 0 {
            local.count_dropped(found.lost);
            warn!(
                client = %Escaped(&id),
                messages = found.lost,
                "cluster: session lost messages that are no longer in the logs"
            );
        }
        let round = lock(&self.floor).round;
        let mut sessions = lock(&self.sessions);
        let Some(owned) = sessions.get_mut(&id) else {
            return Err(ClaimRefused::Busy);
        };
        owned
            .recorded
            .received
            .extend(found.received.iter().copied());
        let received = owned.recorded.received.iter().copied().collect();
        let waiting = found.waiting.into_iter();
        // Numbers of their own, below those that were given meanwhile.
        let mut queued = BTreeMap::new();
        for (number, (owed, message)) in ArrivingSession::numbers_in_front().zip(waiting) {
            owned.recorded.waiting.insert(number, owed);
            queued.insert(number, message);
        }
        owned.recorded.will.clone_from(&will);
        owned.messages_arrived(round);
        let record = SessionRecord {
            life,
            queued,
            in_flight: found.in_flight,
            received,
            ..SessionRecord::default()
        };
        drop(sessions);
        local.finish_arrival(arriving, record, will.map(|will| *will));
        Ok(())
    }

    /// Returns the life that a session has left by its record: at least [`LIFE_WITHOUT_TIME`] from now on for one
    /// without a connection whose end cannot be told, as the cluster's time is not known.
    fn arriving_life(&self, recorded: Life) -> Life {
        match recorded {
            Life::Away(Some(ends_at)) if !self.clock.is_reliable() => {
                Life::Away(Some(ends_at.max(self.clock.now() + LIFE_WITHOUT_TIME)))
            }
            life => life,
        }
    }

    /// Reads the entries in `ranges` again, and searches them for messages of the sessions in `pending`.
    ///
    /// # Errors
    /// [`ClaimRefused::Busy`] if a log ends or brings no entry for [`LOG_SILENCE_TIMEOUT`].
    async fn read_again(
        &self,
        pending: &mut [PendingSession],
        candidates: &mut Candidates,
        ranges: &EntryRanges,
    ) -> Result<(), ClaimRefused> {
        for (&shard, &(from, to)) in ranges {
            // What is not kept any more, nobody needs, or it is lost.
            let here = &self.shards[usize::from(shard)];
            let first = lock(&here.checkpoint).1.first;
            let from = from.entry().max(first);
            if from > to.entry() || to == At::default() {
                continue;
            }
            let mut counts = BatchCounts::default();
            let recent = lock(&here.recent).range(from, to.entry());
            if let Some(recent) = recent {
                for (number, entry) in recent.iter().enumerate() {
                    self.examine_entry(shard, entry, &mut counts, candidates, pending);
                    if number % ENTRIES_A_TURN == 0 {
                        yield_now().await;
                    }
                }
                continue;
            }
            let mut entries = self.engine.follow(shard, from.saturating_sub(1));
            loop {
                let entry = timeout(LOG_SILENCE_TIMEOUT, entries.recv()).await;
                let Ok(Some(entry)) = entry else {
                    warn!(shard, "cluster: cannot read log for session takeover");
                    return Err(ClaimRefused::Busy);
                };
                if entry.number > to.entry() {
                    break;
                }
                self.examine_entry(shard, &entry, &mut counts, candidates, pending);
                if entry.number == to.entry() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Searches one entry of a log for messages of the sessions in `pending`.
    fn examine_entry(
        &self,
        shard: u16,
        entry: &Entry,
        counts: &mut BatchCounts,
        candidates: &mut Candidates,
        pending: &mut [PendingSession],
    ) {
        let Ok(LogEntry::Batch {
            author,
            count,
            items,
            ..
        }) = LogEntry::decode(&entry.bytes)
        else {
            return;
        };
        let is_new = counts.is_new(&author, count);
        if self.is_fenced_off(&author, shard, entry) {
            return;
        }
        for (index, item) in items.into_iter().enumerate() {
            let BatchItem::Message(item) = item else {
                continue;
            };
            let at = At::new(entry.number, index);
            let position = LogPosition { shard, at };
            for &number in candidates.find(position, &item) {
                let wanted = &mut pending[number].wanted;
                // A record may name the second place of a batch, if a log that was set back has the first one again.
                if is_new || wanted.wanted_positions().contains(&position) {
                    wanted.examine(position, &item);
                }
            }
        }
    }
}
