//! Lives of nodes: how one begins, how others see that it goes on, and how it is ended. A life lasts from a start of
//! the node's broker to its end.

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

/// Heartbeats from one round to the next. In a round a node writes the records of the sessions whose changes could
/// wait. If it dies before, a message of QoS 1 may be delivered again.
const HEARTBEATS_PER_ROUND: u64 = 10;

/// Time within which the fences of a life have to be read back from all logs.
const FENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time within which a node without heartbeats has to answer that it lives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Leases without a heartbeat after which a node counts as dead, even if it answers.
const MAX_SPARED_LEASES: u32 = 10;

/// Lives of a node, with the present one, whose floors its status has.
const MAX_REMEMBERED_LIVES: usize = 16;

/// The last heartbeats of all nodes, by name.
pub(super) type Lives = BTreeMap<String, LastHeartbeat>;

/// A node's last sign of life: a heartbeat, or an answer.
#[derive(Debug)]
pub(super) struct LastHeartbeat {
    life: u64,
    /// The heartbeat's number in that life. The version of its value would not do: it goes back with the servers' storage.
    heartbeat: u64,
    /// The number of this node's own heartbeats that were read back since. So a node that was stopped, or cut off with
    /// all others, takes none of them for dead.
    missed: u32,
    /// Time of the last heartbeat or answer.
    at: Instant,
    /// Time of the last heartbeat.
    heartbeat_at: Instant,
}

impl LastHeartbeat {
    /// Returns `true` if the node showed no sign of life for a lease. The first heartbeats of this node come faster than
    /// later ones, so their number alone is not enough.
    fn is_silent(&self, lease: Duration) -> bool {
        self.missed >= HEARTBEATS_PER_LEASE && self.at.elapsed() >= lease
    }

    /// Returns the life that the last heartbeat of `node` was of.
    pub(super) fn author(&self, node: &str) -> Author {
        Author {
            node: node.to_owned(),
            life: self.life,
        }
    }

    /// Returns the time since the last sign of life.
    pub(super) fn silent_for(&self) -> Duration {
        self.at.elapsed()
    }
}

/// Status of a node, which is the value of its key in the engine and is written with each heartbeat.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NodeStatus {
    life: u64,
    /// Number of the life's last heartbeat.
    heartbeat: u64,
    /// Floors by life: the places, by log, up to which the records of the life's sessions are complete. See
    /// [`Floor`](super::sessions::Floor).
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

    /// Returns the floor of a life at its last heartbeat: the places, by log, up to which the records of its sessions
    /// are complete. `None` if it is not known.
    pub(super) fn floor_of(&self, life: u64) -> Option<&[At]> {
        self.floors.get(&life).map(Vec::as_slice)
    }

    /// Returns the floors of all lives that the status has.
    pub(super) fn floors(&self) -> impl Iterator<Item = &[At]> {
        self.floors.values().map(Vec::as_slice)
    }

    /// Returns the floor of the present life in one log; place 0 if it is not known.
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

/// Begins a node's next life: writes a status with the life's number, and returns node and number.
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

/// Returns the last status of a node, with the version of its value; version 0 and an empty status if there is none.
///
/// # Errors
/// If the engine does not answer, or the status has a form that this node does not know.
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
    /// Sends the heartbeats of this node until the node fails, and begins a round after each [`HEARTBEATS_PER_ROUND`]
    /// of them.
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

    /// Writes a heartbeat and the present floor to the status of this node. `heartbeat` is the heartbeat's number;
    /// `None` for the next one.
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

    /// Notes the heartbeats of all nodes as they come, until the engine sends no more.
    pub(super) async fn watch_heartbeats(self: Arc<Self>) {
        let mut watched = self.engine.watch(KeyKind::Node);
        while let Some((node, value)) = watched.recv().await {
            if let Ok(status) = NodeStatus::decode(&value.bytes) {
                self.note_heartbeat(node, status.life, status.heartbeat);
            }
        }
    }

    /// Notes a heartbeat, unless a later one of its node is known.
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

    /// Returns the lives of nodes that were silent for a lease, and that no node has ended yet.
    pub(super) fn dead_nodes(&self) -> Vec<Author> {
        let lives = lock(&self.lives);
        let silent = lives.iter().filter(|(_, seen)| seen.is_silent(self.lease));
        let silent = silent.map(|(node, seen)| seen.author(node));
        silent.filter(|author| !self.is_over(author)).collect()
    }

    /// Returns `true` if every life but the present one of each living node is over. Returns `false` while this node
    /// cannot know, as its own heartbeats do not come back.
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

    /// Returns the nodes whose present life is not over, as far as this node knows: they may still send and append.
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

    /// Returns `true` if the life has ended, and this node has read every log up to the fence at which it ends: no
    /// entry of the life that counts is still to come.
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

    /// Ends the life of a node that has died. A node that answers lives, with heartbeats that a slow engine delays: it
    /// is spared for [`MAX_SPARED_LEASES`].
    pub(super) async fn end_life_if_dead(&self, author: &Author) -> Result<(), EngineError> {
        // Many clients may come at once for sessions of one node.
        let _turn = self.ending_lives.lock().await;
        if self.is_over(author) || !self.is_dead(author) || self.answers(author).await {
            return Ok(());
        }
        let ended = self.end_life(author).await;
        let mut outage = lock(&self.fence_outage);
        match &ended {
            Ok(()) => outage.end(),
            Err(error) => outage.failed(error),
        }
        ended
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

    /// Ends a life by a fence in every log, and waits until this node has read all fences.
    ///
    /// # Errors
    /// If a fence cannot be appended, or is not read back within [`FENCE_TIMEOUT`].
    pub(super) async fn end_life(&self, author: &Author) -> Result<(), EngineError> {
        if self.is_over(author) {
            return Ok(());
        }
        self.append_fences(author).await?;
        let ended = self.appending_empty_entries(0..self.engine.shards(), self.until_over(author));
        let ended = timeout(FENCE_TIMEOUT, ended).await;
        let Author { node, life } = author;
        ended.map_err(|_| {
            EngineError::unavailable(format!("the fence of {node} was not read back in time"))
        })?;
        info!(node, life, "cluster: node fenced");
        Ok(())
    }

    /// Appends a fence of a life to every log: what the life appends behind it counts for nothing.
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

    /// Waits until a life is over, see [`is_over`](Self::is_over).
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
