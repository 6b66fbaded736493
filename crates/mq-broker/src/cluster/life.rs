//! Lives of nodes: how one begins, how others see that it goes on, and how it is ended.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::info;

use super::{
    Cluster,
    engine::{
        DEDUPLICATION_WINDOW, Engine, EngineError, Expiry, Key, KeyKind, Malformed, PutOutcome,
        RETRY_INTERVAL, Reader, Value, Writer,
    },
    log::{Author, LogEntry},
    question::Question,
};
use crate::{
    lock::{lock, read},
    store::At,
};

const VERSION: u8 = 1;

/// Heartbeats of a node in one lease.
const HEARTBEATS_PER_LEASE: u32 = 3;

/// Heartbeats after which the records are written of sessions of which no change is urgent. A change that is in no
/// record yet comes again from a node that dies, at QoS 1.
const HEARTBEATS_PER_ROUND: u64 = 10;

/// Time that a fence may take.
const FENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a node without heartbeats has to answer that it lives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Leases for which a node that answers may send no heartbeat.
const MAX_SPARED_LEASES: u32 = 10;

/// Earlier lives of a node of which it is known how complete their records are.
const MAX_REMEMBERED_LIVES: usize = 16;

/// The last heartbeats of all nodes, by name.
pub(super) type Lives = BTreeMap<String, LastHeartbeat>;

/// A node's last sign of life: a heartbeat, or an answer.
#[derive(Debug)]
pub(super) struct LastHeartbeat {
    life: u64,
    /// The heartbeat's number in that life. The version of its value would not do: it goes back with the servers' storage.
    heartbeat: u64,
    /// The number of this node's own heartbeats since. So a node that was stopped, or cut off with all others, takes
    /// none of them for dead.
    missed: u32,
    at: Instant,
    heartbeat_at: Instant,
}

impl LastHeartbeat {
    /// Returns `true` if the node showed no sign of life for a lease. The first heartbeats of this node come faster than
    /// later ones, so their number alone is not enough.
    fn is_silent(&self, lease: Duration) -> bool {
        self.missed >= HEARTBEATS_PER_LEASE && self.at.elapsed() >= lease
    }

    /// Returns the node's present life, as far as it is known.
    pub(super) fn author(&self, node: &str) -> Author {
        Author {
            node: node.to_owned(),
            life: self.life,
        }
    }

    pub(super) fn silent_for(&self) -> Duration {
        self.at.elapsed()
    }
}

/// The value of a node's key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NodeStatus {
    life: u64,
    /// Grows while it lives.
    heartbeat: u64,
    /// Places up to which the records of its sessions are complete (see [`Floor`](super::sessions::Floor)), by life.
    floors: BTreeMap<u64, Vec<At>>,
}

impl NodeStatus {
    fn encode(&self) -> bytes::Bytes {
        let mut to = Writer::new(VERSION);
        to.number(self.life);
        to.number(self.heartbeat);
        to.list(self.floors.iter(), |to, (life, floor)| {
            to.number(*life);
            to.list(floor.iter(), |to, at| to.number(at.0));
        });
        to.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let (life, heartbeat) = (from.number()?, from.number()?);
        let floors = from.list(|from| {
            let life = from.number()?;
            Ok((life, from.list(|from| Ok(At(from.number()?)))?))
        })?;
        from.expect_end()?;
        let floors = floors.into_iter().collect();
        Ok(Self {
            life,
            heartbeat,
            floors,
        })
    }

    /// Returns the places, by log, up to which the records are complete of sessions that a life had when it last showed
    /// itself.
    pub(super) fn floor_of(&self, life: u64) -> Option<&[At]> {
        self.floors.get(&life).map(Vec::as_slice)
    }

    /// Returns what [`floor_of`](Self::floor_of) does of all lives.
    pub(super) fn floors(&self) -> impl Iterator<Item = &[At]> {
        self.floors.values().map(Vec::as_slice)
    }

    /// Returns the place in that log up to which the records are complete of sessions that the life that goes on owns.
    pub(super) fn present_floor(&self, shard: u16) -> At {
        let floor = self.floor_of(self.life);
        let at = floor.and_then(|floor| floor.get(usize::from(shard)));
        at.copied().unwrap_or_default()
    }

    fn set_floor(&mut self, life: u64, floor: Vec<At>) {
        self.floors.insert(life, floor);
        if self.floors.len() > MAX_REMEMBERED_LIVES {
            self.floors.pop_first();
        }
    }
}

/// Begins a life of a node, the next after the last.
pub(super) async fn begin_life(engine: &dyn Engine, node: String) -> Result<Author, EngineError> {
    loop {
        let (version, mut status) = read_status(engine, &node).await?;
        status.life += 1;
        status.heartbeat = 0;
        let life = status.life;
        let key = Key::new(KeyKind::Node, &*node);
        match engine
            .put(key, version, status.encode(), Expiry::Never)
            .await?
        {
            PutOutcome::Written(_) => return Ok(Author { node, life }),
            PutOutcome::Conflict => {}
        }
    }
}

/// Returns the last status of a node, with its version.
pub(super) async fn read_status(
    engine: &dyn Engine,
    node: &str,
) -> Result<(u64, NodeStatus), EngineError> {
    let value = engine.get(Key::new(KeyKind::Node, node)).await?;
    let Some(Value { version, bytes }) = value else {
        return Ok((0, NodeStatus::default()));
    };
    let status = NodeStatus::decode(&bytes);
    let status = status.map_err(|Malformed| unknown_status_form(node))?;
    Ok((version, status))
}

impl Cluster {
    /// Shows that this node lives, and writes what could wait.
    pub(super) async fn send_heartbeats(self: Arc<Self>) {
        let mut ticks = interval(self.lease / HEARTBEATS_PER_LEASE);
        // Beats that come at once after a pause would make all others seem silent.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for heartbeat in 1.. {
            ticks.tick().await;
            if heartbeat % HEARTBEATS_PER_ROUND == 0 {
                self.begin_round();
            }
            // If it fails, the next one may not.
            let _ = self.write_heartbeat(Some(heartbeat)).await;
            let nodes = self.unfenced_nodes();
            lock(&self.arrival_marks).keep_nodes(&nodes);
            self.interest.keep_nodes(&nodes, &self.author.node);
            self.broadcast_mark();
            if self.ledger.has_failed() {
                return;
            }
        }
    }

    /// Shows that this node lives, with a number of its own or the next one, and up to where its records are complete.
    pub(super) async fn write_heartbeat(
        &self,
        heartbeat: Option<u64>,
    ) -> Result<PutOutcome, EngineError> {
        let (version, mut status) = read_status(&*self.engine, &self.author.node).await?;
        if status.life > self.author.life {
            self.fail("another node has the same name");
            return Ok(PutOutcome::Conflict);
        }
        // It is an earlier one if the values were set back.
        status.life = self.author.life;
        status.heartbeat = heartbeat.unwrap_or(status.heartbeat + 1);
        let floor = lock(&self.floor).at.clone();
        status.set_floor(self.author.life, floor);
        let key = Key::new(KeyKind::Node, &*self.author.node);
        let put = self
            .engine
            .put(key, version, status.encode(), Expiry::Never);
        let put = put.await?;
        if let PutOutcome::Written(written) = put {
            let before = self.heartbeat_version.swap(written, Ordering::Relaxed);
            if version < before {
                self.rewrite_records();
            }
        }
        Ok(put)
    }

    /// Notes the signs of life of all nodes.
    pub(super) async fn watch_heartbeats(self: Arc<Self>) {
        let mut watched = self.engine.watch(KeyKind::Node);
        while let Some((node, value)) = watched.recv().await {
            if let Ok(status) = NodeStatus::decode(&value.bytes) {
                self.note_heartbeat(node, status.life, status.heartbeat);
            }
        }
    }

    fn note_heartbeat(&self, node: String, life: u64, heartbeat: u64) {
        let mut lives = lock(&self.lives);
        let is_old = |seen: &LastHeartbeat| (seen.life, seen.heartbeat) >= (life, heartbeat);
        if lives.get(&node).is_some_and(is_old) {
            return;
        }
        if node == self.author.node {
            for seen in lives.values_mut() {
                seen.missed = seen.missed.saturating_add(1);
            }
            self.own_heartbeats.send_modify(|count| *count += 1);
        }
        let now = Instant::now();
        let seen = LastHeartbeat {
            life,
            heartbeat,
            missed: 0,
            at: now,
            heartbeat_at: now,
        };
        lives.insert(node, seen);
    }

    /// Lives of other nodes that nothing is heard of, and that nobody has ended yet.
    pub(super) fn dead_nodes(&self) -> Vec<Author> {
        let lives = lock(&self.lives);
        let silent = lives.iter().filter(|(_, seen)| seen.is_silent(self.lease));
        let silent = silent.map(|(node, seen)| seen.author(node));
        silent.filter(|author| !self.is_over(author)).collect()
    }

    /// Returns `true` if every life but the present one of each living node is over, and this node would know otherwise: its
    /// own heartbeats come back.
    pub(super) fn are_ended_lives_over(&self) -> bool {
        let lives = lock(&self.lives);
        let own = lives.get(&self.author.node);
        let is_connected = own.is_some_and(|own| own.heartbeat_at.elapsed() < self.lease);
        is_connected
            && lives.iter().all(|(node, seen)| {
                let present = seen.author(node);
                let earlier = Author {
                    life: present.life.saturating_sub(1),
                    ..present.clone()
                };
                (!seen.is_silent(self.lease) || self.is_over(&present))
                    && (earlier.life == 0 || self.is_over(&earlier))
            })
    }

    /// Returns the nodes that live, this one included, in the order of their names.
    pub(super) fn live_nodes(&self) -> Vec<String> {
        let lives = lock(&self.lives);
        let living = lives.iter().filter(|(node, seen)| {
            // One that has left is over before it is silent.
            !seen.is_silent(self.lease) && !self.is_over(&seen.author(node))
        });
        let mut living: Vec<_> = living.map(|(node, _)| node.clone()).collect();
        living.push(self.author.node.clone());
        living.sort();
        living.dedup();
        living
    }

    /// Returns the nodes that may still tell or append something, by what is known.
    fn unfenced_nodes(&self) -> Vec<String> {
        let lives = lock(&self.lives);
        let nodes = lives.iter();
        let nodes = nodes.filter(|(node, seen)| !self.is_over(&seen.author(node)));
        nodes.map(|(node, _)| node.clone()).collect()
    }

    /// Returns `true` if this node is the first by name of those that live: the node that writes checkpoints and trims
    /// logs.
    pub(super) fn is_coordinator(&self) -> bool {
        self.live_nodes().first() == Some(&self.author.node)
    }

    /// Returns `true` if a life sent no heartbeat for a lease, or a later one of its node has begun.
    pub(super) fn is_dead(&self, author: &Author) -> bool {
        let lives = lock(&self.lives);
        let seen = lives.get(&author.node);
        seen.is_some_and(|seen| seen.life > author.life || seen.is_silent(self.lease))
    }

    /// Returns `true` if no entry of this life that counts is still to come.
    pub(super) fn is_over(&self, author: &Author) -> bool {
        let fences = read(&self.fences);
        let Some(fence) = fences.complete_fence(author, self.engine.shards()) else {
            return false;
        };
        fence.entries().all(|(shard, entry)| {
            let progress = &self.shards[usize::from(shard)].progress;
            progress.finished().entry() >= entry
        })
    }

    /// Ends the life of a node that has died. One that answers lives: its heartbeats are late, as the engine is slow. It is
    /// spared for [`MAX_SPARED_LEASES`].
    pub(super) async fn end_life_if_dead(&self, author: &Author) -> Result<(), EngineError> {
        // Many clients may come at once for sessions of one node.
        let _turn = self.ending_lives.lock().await;
        if self.is_over(author) || !self.is_dead(author) || self.answers(author).await {
            return Ok(());
        }
        self.end_life(author).await
    }

    /// Asks a node that is silent whether it lives, and notes the answer as a sign of life.
    async fn answers(&self, author: &Author) -> bool {
        let longest = self.lease * MAX_SPARED_LEASES;
        let may_be_spared = |seen: &LastHeartbeat| {
            seen.life == author.life && seen.heartbeat_at.elapsed() < longest
        };
        if !lock(&self.lives)
            .get(&author.node)
            .is_some_and(may_be_spared)
        {
            return false;
        }
        let question = Question::Life(author.life).encode();
        let request = self.engine.request(&author.node, question);
        let answers = matches!(timeout(ANSWER_TIMEOUT, request).await, Ok(Ok(_)));
        if answers
            && let Some(seen) = lock(&self.lives).get_mut(&author.node)
            && seen.life == author.life
        {
            (seen.missed, seen.at) = (0, Instant::now());
        }
        answers
    }

    /// Ends a life, and waits until nothing of it can come any more.
    pub(super) async fn end_life(&self, author: &Author) -> Result<(), EngineError> {
        if self.is_over(author) {
            return Ok(());
        }
        info!(
            node = author.node,
            life = author.life,
            "cluster: fencing node"
        );
        self.append_fences(author).await?;
        let ended = self.appending_empty_entries(0..self.engine.shards(), self.until_over(author));
        let ended = timeout(FENCE_TIMEOUT, ended).await;
        ended.map_err(|_| {
            let node = &author.node;
            EngineError::unavailable(format!("the fence of {node} was not read back in time"))
        })
    }

    /// Has the logs say that a life ends there.
    pub(super) async fn append_fences(&self, author: &Author) -> Result<(), EngineError> {
        for shard in &self.shards {
            shard.set_backs.until_filled().await;
            let Author { node, life } = author;
            let (log, set_backs) = (shard.number, shard.set_backs.count());
            let id = format!("fence.{node}.{life}.{log}.{set_backs}");
            self.engine.append(log, id, LogEntry::fence(author)).await?;
        }
        Ok(())
    }

    /// Waits until nothing that this life has appended is still to come.
    pub(super) async fn until_over(&self, author: &Author) {
        let mut noted = self.fences_noted.subscribe();
        while !self.is_over(author) {
            tokio::select! {
                _ = noted.changed() => {}
                () = sleep(RETRY_INTERVAL) => {}
            }
        }
    }
}

pub(super) fn unknown_status_form(node: &str) -> EngineError {
    EngineError::unknown_form(format!("malformed record of node {node}"))
}

// An append of a fence that was tried within this time is one with the earlier try; a later one is a second fence,
// which changes nothing.
const _: () = assert!(FENCE_TIMEOUT.as_secs() < DEDUPLICATION_WINDOW.as_secs());
