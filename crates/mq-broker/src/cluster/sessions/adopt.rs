//! Adoption: living nodes take the sessions of a node that has died, so that wills are published, sessions end in their
//! time, and the logs need not be kept for them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use mq_codec::ByteStr;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{record::Record, recorded_session::RecordedSession, take_up::MAX_TAKEN_UP_AT_ONCE};
use crate::{
    Escaped,
    cluster::{
        Cluster,
        engine::{EngineError, KeyKind, Value},
        life::{self, NodeStatus},
        log::{Author, hash_partition},
    },
    hub::LocalSessions,
    lock::{lock, read},
    store::Life,
};

/// Interval at which a node looks for sessions that nobody has, if nothing has happened.
const ADOPTION_INTERVAL: Duration = Duration::from_mins(5);

/// Interval at which a node tries again to adopt sessions that could not be taken.
const ADOPTION_RETRY_INTERVAL: Duration = Duration::from_secs(30);

impl Cluster {
    /// Ends the lives of nodes that have died, and takes its part of their sessions. Runs as long as the node lives.
    pub(in crate::cluster) async fn adopt_sessions(self: Arc<Self>) {
        let mut own_heartbeats = self.own_heartbeats.subscribe();
        let mut ended = HashSet::new();
        let mut due = Instant::now() + ADOPTION_RETRY_INTERVAL;
        loop {
            tokio::select! {
                changed = own_heartbeats.changed() => if changed.is_err() {
                    return;
                },
                () = sleep_until(due) => {}
            }
            if self.ledger.has_failed() {
                return;
            }
            let mut is_news = false;
            for author in self.dead_nodes() {
                if self.end_life_if_dead(&author).await.is_ok() {
                    is_news |= self.is_over(&author);
                }
            }
            lock(&self.fence_outage).end_if_quiet();
            // Another node may have ended it.
            for author in self.ended_lives() {
                is_news |= ended.insert(author);
            }
            if !is_news && Instant::now() < due {
                continue;
            }
            let Some(local) = self.local() else {
                return;
            };
            due = Instant::now()
                + match self.adopt_all(&*local).await {
                    // Nodes that do not agree yet on who lives may each leave a session to another one.
                    Ok(true) if is_news => self.lease * 2,
                    Ok(true) => ADOPTION_INTERVAL,
                    Ok(false) => ADOPTION_RETRY_INTERVAL,
                    Err(error) => {
                        warn!(%error, "cluster: cannot adopt sessions of fenced nodes");
                        ADOPTION_RETRY_INTERVAL
                    }
                };
        }
    }

    /// Takes this node's part of the sessions that no living node has. False if some could not be taken.
    async fn adopt_all(self: &Arc<Self>, local: &dyn LocalSessions) -> Result<bool, EngineError> {
        let living = self.live_nodes();
        let is_time_known = self.clock.is_reliable();
        // The rest is taken once it is known.
        let mut all_taken = is_time_known;
        let mut orphans = self.orphans(&living, is_time_known).await?;
        self.raise_to_floors(&mut orphans).await?;
        while !orphans.is_empty() {
            let some = orphans.split_off(orphans.len().saturating_sub(MAX_TAKEN_UP_AT_ONCE));
            let mut claiming = JoinSet::new();
            for (id, record, version) in some {
                let turn = self.claim_lock(&id);
                let Ok(turn) = turn.try_lock_owned() else {
                    // A client is at it, and may give up.
                    all_taken = false;
                    continue;
                };
                if lock(&self.sessions).contains_key(&id) {
                    continue;
                }
                let this = Arc::clone(self);
                // The servers write many of them together.
                claiming.spawn(async move {
                    let claimed = this.claim_raised(&id, record, version).await;
                    (id, turn, claimed)
                });
            }
            let mut claimed = Vec::new();
            let mut turns = Vec::new();
            while let Some(Ok((id, turn, outcome))) = claiming.join_next().await {
                match outcome {
                    Ok(Some(taken)) => claimed.push(taken),
                    // Its record has changed meanwhile. A node that has taken it may have given it back.
                    Ok(None) | Err(_) => all_taken = false,
                }
                turns.push((id, turn));
            }
            let count = claimed.len();
            all_taken &= self.take_up(local, claimed).await.is_ok();
            for (id, turn) in turns {
                drop(turn);
                self.forget_claim_lock(&id);
            }
            info!(
                sessions = count,
                "cluster: sessions of fenced nodes adopted"
            );
        }
        Ok(all_taken)
    }

    /// Raises records to the floors of their owners, each of which is read once.
    async fn raise_to_floors(
        &self,
        orphans: &mut [(ByteStr, Record, u64)],
    ) -> Result<(), EngineError> {
        let mut statuses: HashMap<String, NodeStatus> = HashMap::new();
        for (_, record, _) in orphans {
            let Some(owner) = record.owner.as_ref().filter(|_| !record.is_behind) else {
                continue;
            };
            let node = owner.node.clone();
            if !statuses.contains_key(&node) {
                let (_, status) = life::read_status(&*self.engine, &node).await?;
                statuses.insert(node.clone(), status);
            }
            record.raise_to_floor(&statuses[&node]);
        }
        Ok(())
    }

    /// Lists this node's part of the sessions that no living node has. Sessions whose time may be over are left out
    /// while the time is not known.
    async fn orphans(
        &self,
        living: &[String],
        is_time_known: bool,
    ) -> Result<Vec<(ByteStr, Record, u64)>, EngineError> {
        let mut orphans = Vec::new();
        for (id, Value { version, bytes }) in self.engine.values(KeyKind::Session).await? {
            let Ok(id) = ByteStr::new(id) else {
                continue;
            };
            let Ok(record) = Record::decode(&bytes) else {
                warn!(client = %Escaped(&id), "cluster: malformed session record");
                continue;
            };
            let is_for_this = match &record.owner {
                None => self.is_assigned_here(&id, living),
                // One of its own that is not here could not be read.
                Some(owner) if *owner == self.author => !lock(&self.sessions).contains_key(&id),
                Some(owner) => self.is_over(owner) && self.is_assigned_here(&id, living),
            };
            let is_adoptable = |session: &RecordedSession| {
                is_time_known || !matches!(session.life, Life::Away(Some(_)))
            };
            if is_for_this && record.session.as_ref().is_some_and(is_adoptable) {
                orphans.push((id, record, version));
            }
        }
        Ok(orphans)
    }

    /// Returns `true` if this node is the one of the living that adopts the session `id`: the hash of `id` chooses. Two
    /// nodes that do not agree on who lives may both try.
    fn is_assigned_here(&self, id: &ByteStr, living: &[String]) -> bool {
        // This node is one of them.
        living[hash_partition(id.as_bytes(), living.len())] == self.author.node
    }

    fn ended_lives(&self) -> Vec<Author> {
        let ended = read(&self.fences).ended_lives(self.engine.shards());
        ended
            .into_iter()
            .filter(|author| self.is_over(author))
            .collect()
    }
}
