//! Claims: a node gets a session, and another node releases it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use mq_codec::{ByteStr, ReasonCode};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    claimed::{Claimed, Coming, Ranges, Refused, Wanted},
    owned::{Future, Owned},
    record::{Kept, Record},
};
use crate::{
    auth::TakeOver,
    cluster::{
        Cluster,
        engine::{Asked, Entry, Key, Kind, Lasts, Value},
        life,
        log::{Author, BatchItem, Counts, LogEntry},
    },
    hub::{ArrivingSession, Hub, MAX_RIVALS},
    lock::lock,
    store::{At, LogPosition, SessionRecord, User},
};

/// Time for which a client waits for its session.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(8);

/// Interval at which a node looks again if the owner of a session lives.
const OWNER_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which a node that is behind looks at its progress.
const CATCH_UP_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Time for which a node goes on with a log that brings nothing.
const LOG_SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

impl Cluster {
    /// See [`Nodes::claim`](crate::hub::Nodes::claim).
    pub(in crate::cluster) async fn claim_in_turn(
        &self,
        id: &ByteStr,
        user: &User,
        take_over: TakeOver,
    ) -> Result<(), ReasonCode> {
        let (Some(this), Some(hub)) = (self.this.upgrade(), self.hub()) else {
            return Err(ReasonCode::ServerShuttingDown);
        };
        let (id, user) = (id.clone(), user.clone());
        // It goes on to its end, whether the client waits for it or not: a session that is half here would be taken for
        // a whole one.
        let claiming = self.runtime.spawn(async move {
            let turn = this.turn(&id).lock_owned().await;
            let claimed = this.try_claim(&hub, &id, &user, take_over).await;
            drop(turn);
            this.end_turn(&id);
            claimed
        });
        match timeout(CLAIM_TIMEOUT, claiming).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(Refused::Others))) => Err(ReasonCode::ClientIdentifierNotValid),
            Ok(_) | Err(_) => Err(ReasonCode::ServerBusy),
        }
    }

    /// What is held by whoever claims that session.
    pub(in crate::cluster) fn turn(&self, id: &ByteStr) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(lock(&self.claims).entry(id.clone()).or_default())
    }

    /// Forgets it, unless somebody else holds it or waits for it.
    pub(super) fn end_turn(&self, id: &ByteStr) {
        let mut claims = lock(&self.claims);
        if claims
            .get(id)
            .is_some_and(|turn| Arc::strong_count(turn) == 1)
        {
            claims.remove(id);
        }
    }

    async fn try_claim(
        &self,
        hub: &Hub,
        id: &ByteStr,
        user: &User,
        take_over: TakeOver,
    ) -> Result<(), Refused> {
        let began = Instant::now();
        let mut asked = 0;
        while began.elapsed() < CLAIM_TIMEOUT {
            let leaves = {
                let sessions = lock(&self.sessions);
                match sessions.get(id) {
                    None => None,
                    Some(owned) if owned.future == Future::Stays => return Ok(()),
                    Some(owned) => Some(owned.gone()),
                }
            };
            if let Some(mut leaves) = leaves {
                // Either way it is looked at again.
                let _ = leaves.changed().await;
                continue;
            }
            if self.ledger.has_failed() {
                return Err(Refused::Busy);
            }
            let (record, version) = self.record_of(id).await?;
            let known = record.session.as_ref().and_then(|kept| kept.user.as_ref());
            if take_over == TakeOver::SameUser && known.is_some_and(|known| known != user) {
                return Err(Refused::Others);
            }
            if let Some(owner) = self.other_owner(&record) {
                if asked == MAX_RIVALS {
                    return Err(Refused::Busy);
                }
                asked += u32::from(self.ask_to_let_go(owner, id).await);
                continue;
            }
            if let Some(claimed) = self.claim_record(id, record, version).await? {
                return self.take_up(hub, vec![claimed]).await;
            }
        }
        Err(Refused::Busy)
    }

    /// See [`Nodes::is_elsewhere`](crate::hub::Nodes::is_elsewhere).
    pub(in crate::cluster) async fn is_at_another(&self, id: &ByteStr) -> bool {
        match self.record_of(id).await {
            Ok((record, _)) => self.other_owner(&record).is_some(),
            Err(_) => true,
        }
    }

    /// A session's record, and its version; an empty one, and 0, if there is none.
    async fn record_of(&self, id: &ByteStr) -> Result<(Record, u64), Refused> {
        let value = self.engine.value(Key::new(Kind::Session, &**id)).await;
        let value = value.map_err(|error| {
            warn!(client = %id, %error, "a session cannot be read");
            Refused::Busy
        })?;
        let Some(Value { version, bytes }) = value else {
            return Ok((Record::default(), 0));
        };
        let record = Record::decode(&bytes).map_err(|_| {
            warn!(client = %id, "a session is of no known form");
            Refused::Busy
        })?;
        Ok((record, version))
    }

    /// The other node that has a session, if that may still append something.
    fn other_owner<'a>(&self, record: &'a Record) -> Option<&'a Author> {
        let owner = record.owner.as_ref();
        owner.filter(|owner| **owner != self.author && !self.is_over(owner))
    }

    /// Makes the record of a session, which no living node has, one of this node. `None` if another node has changed it
    /// meanwhile.
    pub(super) async fn claim_record(
        &self,
        id: &ByteStr,
        mut record: Record,
        version: u64,
    ) -> Result<Option<Claimed>, Refused> {
        if let Some(owner) = &record.owner
            && !record.is_behind
        {
            let status = life::status_of(&*self.engine, &owner.node).await;
            let (_, status) = status.map_err(|_| Refused::Busy)?;
            status.raise(&mut record);
        }
        let coming = timeout(CLAIM_TIMEOUT, self.come_to(&record.next));
        coming.await.map_err(|_| Refused::Busy)?;
        let mine = Record {
            owner: Some(self.author.clone()),
            is_behind: true,
            ..record.clone()
        };
        let bytes = mine.encode().map_err(|_| Refused::Busy)?;
        let key = Key::new(Kind::Session, &**id);
        let put = self.put(key, version, bytes, Lasts::Always).await;
        let version = put.map_err(|_| Refused::Busy)?;
        Ok(version.map(|version| Claimed {
            id: id.clone(),
            record,
            version,
        }))
    }

    /// Waits until this node has read the logs as far as a session's last owner: what that has looked at must not come
    /// to the session again.
    async fn come_to(&self, next: &[At]) {
        let is_behind = || {
            let mut all = self.shards.iter().zip(next);
            all.any(|(shard, next)| shard.progress.finished().next() < *next)
        };
        while is_behind() {
            sleep(CATCH_UP_POLL_INTERVAL).await;
        }
    }

    /// Asks the owner of a session to let it go, and ends its life if it has none any more. Returns whether it has
    /// answered.
    async fn ask_to_let_go(&self, owner: &Author, id: &ByteStr) -> bool {
        if self.is_dead(owner) {
            if let Err(error) = self.end_life(owner).await {
                warn!(node = owner.node, %error, "a node's life cannot be ended");
                sleep(OWNER_POLL_INTERVAL).await;
            }
            return false;
        }
        let question = Bytes::copy_from_slice(id.as_bytes());
        let answer = tokio::select! {
            answer = self.engine.ask(&owner.node, question) => answer,
            // One that has left does not answer.
            () = self.until_over(owner) => return false,
        };
        if let Err(error) = &answer {
            debug!(node = owner.node, %error, "a node does not let a session go");
            sleep(OWNER_POLL_INTERVAL).await;
        }
        answer.is_ok()
    }

    /// Lets sessions go that other nodes ask for.
    pub(in crate::cluster) async fn answer(
        self: Arc<Self>,
        mut asked: mpsc::Receiver<Asked>,
        hub: Arc<Hub>,
    ) {
        while let Some(Asked { question, answer }) = asked.recv().await {
            let id = std::str::from_utf8(&question).ok().map(str::to_owned);
            let Some(id) = id.and_then(|id| ByteStr::new(id).ok()) else {
                continue;
            };
            let (cluster, hub) = (Arc::clone(&self), Arc::clone(&hub));
            // Each has its own time: one that does not end holds up no other.
            tokio::spawn(async move {
                if !cluster.begin_to_let_go(&id).await {
                    // The asker may have gone.
                    let _ = answer.send(Bytes::new());
                    return;
                }
                // What its client has published is in the logs before the place from which on its next owner reads them:
                // that knows by its record then which of it was released.
                let is_settled = async {
                    let last = cluster.ledger.last();
                    let mut settled = cluster.ledger.settled();
                    settled.wait_for(|settled| *settled >= last).await.is_ok()
                };
                let end = || cluster.end_queueing(&id);
                if hub.release_session(&id, is_settled, end).await {
                    cluster.let_go(&id).await;
                } else {
                    cluster.keep(&id);
                }
                // Of a session that has ended meanwhile the record says so before another begins. The asker may have
                // gone.
                let _ = answer.send(Bytes::new());
            });
        }
    }

    /// Makes claimed sessions some of this node's hub.
    pub(super) async fn take_up(&self, hub: &Hub, claimed: Vec<Claimed>) -> Result<(), Refused> {
        let mut coming = Vec::new();
        for claimed in claimed {
            coming.extend(self.begin_taking_up(hub, claimed));
        }
        if !coming.is_empty() {
            self.tell_mark();
        }
        let mut ranges = Ranges::new();
        for session in &coming {
            session.widen(&mut ranges);
        }
        if let Err(refused) = self.read_again(&mut coming, &ranges).await {
            for session in coming {
                self.give_back(hub, session);
            }
            return Err(refused);
        }
        for session in coming {
            self.finish_taking_up(hub, session)?;
        }
        Ok(())
    }

    /// Messages queue up for a session from here on; those before are put in front of them. `None` if it has nothing
    /// that came before.
    fn begin_taking_up(&self, hub: &Hub, claimed: Claimed) -> Option<Coming> {
        let Claimed {
            id,
            record,
            version,
        } = claimed;
        let Record { session, next, .. } = record;
        let kept = session.filter(|kept| !kept.ends_with_connection() || kept.will.is_some());
        let Some(kept) = kept else {
            let owned = Owned::new(Kept::passing(version), version);
            lock(&self.sessions).insert(id, owned);
            return None;
        };
        let subscriptions = kept.subscriptions.iter();
        let subscriptions =
            subscriptions.map(|(filter, (options, id))| (filter.clone(), *options, *id));
        let begun = || -> Vec<At> {
            // What is queued from here on is noted: in the record it stands behind the rest.
            let mut owned = Owned::new(kept.clone(), version);
            owned.kept.waiting.clear();
            owned.is_coming = true;
            lock(&self.sessions).insert(id.clone(), owned);
            lock(&self.marks).comes(&id);
            let shards = self.shards.iter();
            shards.map(|shard| shard.progress.begun()).collect()
        };
        let (arriving, begun) =
            ArrivingSession::begin(hub, &id, kept.user.as_ref(), subscriptions, begun);
        let mut wanted = Wanted::new(kept, id.clone(), next, begun);
        let mut filters = wanted.kept.subscriptions.keys();
        let is_member = filters.any(|filter| filter.shared().is_some());
        for (shard, here) in (0..).zip(&self.shards).filter(|_| is_member) {
            let chosen = lock(&here.state).groups.chosen(&id).into_iter();
            let chosen = chosen.map(|at| LogPosition { shard, at });
            wanted.chosen.extend(chosen);
        }
        Some(Coming {
            id,
            version,
            arriving,
            wanted,
        })
    }

    /// Lets any node take a session that could not be read. Its record has all that it had.
    fn give_back(&self, hub: &Hub, coming: Coming) {
        let Coming {
            id,
            version,
            arriving,
            wanted,
        } = coming;
        lock(&self.sessions).remove(&id);
        arriving.abandon(hub);
        let record = Record {
            owner: None,
            session: Some(wanted.kept),
            next: wanted.next,
            is_behind: true,
        };
        let (Some(this), Ok(bytes)) = (self.this.upgrade(), record.encode()) else {
            return;
        };
        self.runtime.spawn(async move {
            let key = Key::new(Kind::Session, &*id);
            // If it is another one by now, this node has claimed it again.
            let _ = this.put(key, version, bytes, Lasts::Always).await;
        });
    }

    fn finish_taking_up(&self, hub: &Hub, coming: Coming) -> Result<(), Refused> {
        let Coming {
            id,
            arriving,
            wanted,
            ..
        } = coming;
        let (life, will) = (wanted.kept.life, wanted.kept.will.clone());
        let found = wanted.found();
        info!(
            client = %id,
            waiting = found.waiting.len(),
            in_flight = found.in_flight.len(),
            "a session of another node goes on here"
        );
        if found.lost > 0 {
            hub.metrics.dropped.add(found.lost);
            warn!(
                client = %id,
                messages = found.lost,
                "a session has lost messages that its logs had no more room for"
            );
        }
        let round = lock(&self.floor).round;
        let mut sessions = lock(&self.sessions);
        let Some(owned) = sessions.get_mut(&id) else {
            return Err(Refused::Busy);
        };
        owned.kept.received.extend(found.received.iter().copied());
        let received = owned.kept.received.iter().copied().collect();
        let waiting = found.waiting.into_iter();
        // Numbers of their own, below those that were given meanwhile.
        let mut queued = BTreeMap::new();
        for (number, (owed, message)) in ArrivingSession::numbers_in_front().zip(waiting) {
            owned.kept.waiting.insert(number, owed);
            queued.insert(number, message);
        }
        owned.has_come(round);
        let record = SessionRecord {
            life,
            queued,
            in_flight: found.in_flight,
            received,
            ..SessionRecord::default()
        };
        drop(sessions);
        arriving.finish(hub, record, will.map(|will| *will));
        Ok(())
    }

    /// Reads again what sessions have to get.
    async fn read_again(&self, coming: &mut [Coming], ranges: &Ranges) -> Result<(), Refused> {
        for (&shard, &(from, to)) in ranges {
            // What is not kept any more, nobody needs, or it is lost.
            let here = &self.shards[usize::from(shard)];
            let first = lock(&here.kept).1.first;
            let from = from.entry().max(first);
            if from > to.entry() || to == At::default() {
                continue;
            }
            let mut counts = Counts::default();
            let recent = lock(&here.recent).within(from, to.entry());
            if let Some(recent) = recent {
                for entry in &recent {
                    self.look_again(shard, entry, &mut counts, coming);
                }
                continue;
            }
            let mut entries = self.engine.follow(shard, from.saturating_sub(1));
            loop {
                let entry = timeout(LOG_SILENCE_TIMEOUT, entries.recv()).await;
                let Ok(Some(entry)) = entry else {
                    warn!(shard, "a log cannot be read again");
                    return Err(Refused::Busy);
                };
                if entry.number > to.entry() {
                    break;
                }
                self.look_again(shard, &entry, &mut counts, coming);
                if entry.number == to.entry() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Looks for what one entry has for them.
    fn look_again(&self, shard: u16, entry: &Entry, counts: &mut Counts, coming: &mut [Coming]) {
        let Ok(LogEntry::Batch {
            author,
            count,
            items,
        }) = LogEntry::decode(&entry.bytes)
        else {
            return;
        };
        if !counts.is_new(&author, count) || self.rejects(&author, shard, entry) {
            return;
        }
        for (index, item) in items.into_iter().enumerate() {
            let BatchItem::Message(item) = item else {
                continue;
            };
            let at = At::new(entry.number, index);
            for session in &mut *coming {
                session.wanted.look(LogPosition { shard, at }, &item);
            }
        }
    }
}
