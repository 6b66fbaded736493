//! Claims: a node gets a session, and another node releases it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use mq_codec::{ByteStr, ReasonCode};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use super::{
    message_search::{ClaimRefused, ClaimedSession},
    owned::SessionFate,
    record::Record,
};
use crate::{
    Escaped,
    auth::TakeOverPolicy,
    cluster::{
        Cluster,
        engine::{Expiry, Key, KeyKind, Value},
        life,
        log::Author,
        question::{KEPT, Question},
    },
    hub::{LocalSessions, MAX_RIVALS},
    lock::lock,
    store::{At, User},
};

/// Time for which a client waits for its session.
pub(super) const CLAIM_TIMEOUT: Duration = Duration::from_secs(8);

/// Time after which a client may have given a connection up.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Interval at which a node checks again if the owner of a session lives.
const OWNER_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which a node that has not read its logs far enough checks its progress.
const CATCH_UP_POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Cluster {
    /// Claims a client's session for this node, see [`Nodes::claim`](crate::hub::Nodes::claim). Waits for
    /// [`CLAIM_TIMEOUT`] at most.
    ///
    /// # Errors
    /// The reason code for the client: the session is another user's, this node shuts down, or the claim failed or
    /// takes longer.
    pub(in crate::cluster) async fn claim_session(
        &self,
        id: &ByteStr,
        user: &User,
        take_over: TakeOverPolicy,
    ) -> Result<(), ReasonCode> {
        let (Some(this), Some(local)) = (self.this.upgrade(), self.local()) else {
            return Err(ReasonCode::ServerShuttingDown);
        };
        let (id, user) = (id.clone(), user.clone());
        let (client, _waits) = oneshot::channel();
        // Once another node is asked for the session, the claim goes on to its end, whether the client waits for it or not:
        // a session that is half here would be taken for a whole one.
        let claiming = self.runtime.spawn(async move {
            let turn = this.claim_lock(&id).lock_owned().await;
            let claimed = this
                .try_claim(&*local, &id, &user, take_over, &client)
                .await;
            drop(turn);
            this.forget_claim_lock(&id);
            claimed
        });
        match timeout(CLAIM_TIMEOUT, claiming).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(ClaimRefused::OtherUser))) => Err(ReasonCode::ClientIdentifierNotValid),
            Ok(_) | Err(_) => Err(ReasonCode::ServerBusy),
        }
    }

    /// Returns the lock that a claim of a session holds.
    pub(in crate::cluster) fn claim_lock(&self, id: &ByteStr) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(lock(&self.claims).entry(id.clone()).or_default())
    }

    /// Forgets the lock for claims of a session, unless another claim holds it or waits for it.
    pub(super) fn forget_claim_lock(&self, id: &ByteStr) {
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
        local: &dyn LocalSessions,
        id: &ByteStr,
        user: &User,
        take_over: TakeOverPolicy,
        client: &oneshot::Sender<()>,
    ) -> Result<(), ClaimRefused> {
        let began = Instant::now();
        let mut asked = 0;
        while began.elapsed() < CLAIM_TIMEOUT {
            let own = lock(&self.sessions)
                .get(id)
                .map(|owned| (owned.fate, owned.fate_changes()));
            match own {
                Some((SessionFate::Stays, _)) => {
                    // A message of QoS 2 that is sent again would be acknowledged at once.
                    let left = CLAIM_TIMEOUT.saturating_sub(began.elapsed());
                    let is_settled = timeout(left, self.ledger.settle_client(id)).await;
                    return match is_settled {
                        Ok(true) => Ok(()),
                        Ok(false) | Err(_) => Err(ClaimRefused::Busy),
                    };
                }
                Some((_, mut leaves)) => {
                    // Either way it is looked at again.
                    let left = CLAIM_TIMEOUT.saturating_sub(began.elapsed());
                    let _ = timeout(left, leaves.changed()).await;
                    continue;
                }
                None => {}
            }
            // A client that has not waited may have its session at another node by now.
            let is_abandoned = asked == 0 && client.is_closed();
            if is_abandoned || self.ledger.has_failed() {
                return Err(ClaimRefused::Busy);
            }
            let (mut record, version) = self.read_record(id).await?;
            let known = record.session.as_ref().and_then(|kept| kept.user.as_ref());
            if take_over == TakeOverPolicy::SameUser && known.is_some_and(|known| known != user) {
                return Err(ClaimRefused::OtherUser);
            }
            if let Some(owner) = self.other_owner(&record) {
                if asked == MAX_RIVALS {
                    return Err(ClaimRefused::Busy);
                }
                match self.request_release(owner, id, began.elapsed()).await {
                    Release::Done => asked += 1,
                    Release::Refused => return Err(ClaimRefused::Busy),
                    Release::NoAnswer => {}
                }
                continue;
            }
            if let Some(kept) = &mut record.session {
                if self.is_waiting_behind(kept.connected_at, began.elapsed()) {
                    return Err(ClaimRefused::Busy);
                }
                kept.connected_at = self.connection_time();
            }
            if let Some(claimed) = self.claim_record(id, record, version).await? {
                return self.take_up_with_others(local, claimed).await;
            }
        }
        Err(ClaimRefused::Busy)
    }

    /// Returns the cluster's time now, for a client that connects; `None` if it is not known.
    pub(super) fn connection_time(&self) -> Option<SystemTime> {
        self.clock.is_reliable().then(|| self.clock.now())
    }

    /// Returns `true` if a session's client has connected elsewhere at `connected_at`, since the connection that claims the
    /// session came here: it has waited so long, and its client has given it up. Nodes' times may differ by seconds: a client
    /// that is refused by mistake comes again.
    fn is_waiting_behind(&self, connected_at: Option<SystemTime>, waited: Duration) -> bool {
        let came_at = self
            .connection_time()
            .and_then(|now| now.checked_sub(waited));
        let is_later = connected_at
            .zip(came_at)
            .is_some_and(|(at, came)| at > came);
        waited >= LONG_WAIT && is_later
    }

    /// Returns `true` if another node has the session, or if its record cannot be read; see
    /// [`Nodes::is_elsewhere`](crate::hub::Nodes::is_elsewhere).
    pub(in crate::cluster) async fn is_owned_elsewhere(&self, id: &ByteStr) -> bool {
        match self.read_record(id).await {
            Ok((record, _)) => self.other_owner(&record).is_some(),
            Err(_) => true,
        }
    }

    /// Reads a session's record and its version; returns an empty record and version 0 if there is none.
    async fn read_record(&self, id: &ByteStr) -> Result<(Record, u64), ClaimRefused> {
        let value = self.engine.get(Key::new(KeyKind::Session, &**id)).await;
        let value = value.map_err(|error| {
            lock(&self.value_outage).failed(&error);
            ClaimRefused::Busy
        })?;
        let Some(Value { version, bytes }) = value else {
            return Ok((Record::default(), 0));
        };
        let record = Record::decode(&bytes).map_err(|_| {
            warn!(client = %Escaped(id), "cluster: malformed session record");
            ClaimRefused::Busy
        })?;
        Ok((record, version))
    }

    /// Returns the other node that has a session, if that node may still append something.
    pub(super) fn other_owner<'a>(&self, record: &'a Record) -> Option<&'a Author> {
        let owner = record.owner.as_ref();
        owner.filter(|owner| **owner != self.author && !self.is_over(owner))
    }

    /// Writes this node as the owner into the record of a session that no living node owns. `None` if another node has
    /// changed the record meanwhile.
    async fn claim_record(
        &self,
        id: &ByteStr,
        mut record: Record,
        version: u64,
    ) -> Result<Option<ClaimedSession>, ClaimRefused> {
        if let Some(owner) = &record.owner
            && !record.is_behind
        {
            let status = life::read_status(&*self.engine, &owner.node).await;
            let (_, status) = status.map_err(|_| ClaimRefused::Busy)?;
            record.raise_to_floor(&status);
        }
        self.claim_raised(id, record, version).await
    }

    /// Does what [`claim_record`](Self::claim_record) does, for a record that was raised to its owner's floor.
    pub(super) async fn claim_raised(
        &self,
        id: &ByteStr,
        mut record: Record,
        version: u64,
    ) -> Result<Option<ClaimedSession>, ClaimRefused> {
        self.mend_places(&mut record.next).await?;
        let coming = timeout(CLAIM_TIMEOUT, self.catch_up_to(&record.next));
        coming.await.map_err(|_| ClaimRefused::Busy)?;
        let mine = Record {
            owner: Some(self.author.clone()),
            is_behind: true,
            ..record.clone()
        };
        let bytes = mine.encode().map_err(|_| ClaimRefused::Busy)?;
        let key = Key::new(KeyKind::Session, &**id);
        let put = self
            .put_with_retries(key, version, bytes, Expiry::Never)
            .await;
        let version = put.map_err(|_| ClaimRefused::Busy)?;
        Ok(version.map(|version| ClaimedSession {
            id: id.clone(),
            record,
            version,
        }))
    }

    /// Lowers places of a record that its logs do not reach, since the logs were set back while no node lived: the
    /// entries that this life has received are read for the session.
    async fn mend_places(&self, next: &mut [At]) -> Result<(), ClaimRefused> {
        for (shard, next) in self.shards.iter().zip(next) {
            let entry = next.last_before();
            if shard.progress.finished().entry() >= entry {
                continue;
            }
            let is_set_back = self.check_reaches(shard, entry).await;
            if is_set_back.map_err(|_| ClaimRefused::Busy)? {
                *next = shard.set_backs.first_of_this_life().min(*next);
            }
        }
        Ok(())
    }

    /// Waits until this node has read the logs as far as a session's last owner: what that has looked at must not come
    /// to the session again.
    async fn catch_up_to(&self, next: &[At]) {
        let is_behind = || {
            let mut all = self.shards.iter().zip(next);
            all.any(|(shard, next)| shard.progress.finished().next() < *next)
        };
        while is_behind() {
            sleep(CATCH_UP_POLL_INTERVAL).await;
        }
    }

    /// Asks the owner of a session to let it go to a client that has waited for so long, and ends its life if it has none any
    /// more.
    pub(super) async fn request_release(
        &self,
        owner: &Author,
        id: &ByteStr,
        waited: Duration,
    ) -> Release {
        if self.is_dead(owner) {
            if self.end_life_if_dead(owner).await.is_err() {
                sleep(OWNER_POLL_INTERVAL).await;
            }
            return Release::NoAnswer;
        }
        let question = Question::Release {
            id: id.clone(),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        };
        let answer = tokio::select! {
            answer = self.engine.request(&owner.node, question.encode()) => answer,
            // One that has left does not answer.
            () = self.until_over(owner) => return Release::NoAnswer,
        };
        match answer {
            Ok(answer) if answer == KEPT => Release::Refused,
            Ok(_) => Release::Done,
            Err(error) => {
                debug!(node = owner.node, %error, "cluster: node did not release session");
                sleep(OWNER_POLL_INTERVAL).await;
                Release::NoAnswer
            }
        }
    }
}

/// Outcome of a request to release a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Release {
    /// The session's record may be looked at.
    Done,
    /// The client has connected to the asked node since.
    Refused,
    NoAnswer,
}
