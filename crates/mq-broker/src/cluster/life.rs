//! Lives of nodes: how one begins, how others see that it goes on, and how it is ended.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::info;

use super::{
    Cluster,
    engine::{
        APPENDED_ONCE, Engine, EngineError, Key, Kind, Lasts, Malformed, Put, RETRY, Reader, Value,
        Writer,
    },
    log::{Author, LogEntry},
};
use crate::{
    lock::{lock, read},
    store::At,
};

const VERSION: u8 = 1;

/// How often a node shows that it lives, in one lease.
const BEATS_A_LEASE: u32 = 3;

/// After so many beats the records are written of sessions of which no change is urgent. What is not in them yet comes
/// again from a node that dies, at QoS 1.
const BEATS_A_ROUND: u64 = 10;

/// For so long a fence may take.
const FENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Earlier lives of a node of which it is known how complete their records are.
const MAX_REMEMBERED_LIVES: usize = 16;

/// What is known of other nodes, by name.
pub(super) type Lives = HashMap<String, LastSign>;

/// A node's last sign of life.
#[derive(Debug)]
pub(super) struct LastSign {
    life: u64,
    version: u64,
    /// How many signs of this node's own life have come since. So a node that was stopped, or cut off with all others,
    /// takes none of them for dead.
    missed: u32,
    at: Instant,
}

impl LastSign {
    /// Whether nothing was heard of it for a lease. A node's first signs of its own life come faster than later ones, so
    /// they alone do not tell.
    fn is_silent(&self, lease: Duration) -> bool {
        self.missed >= BEATS_A_LEASE && self.at.elapsed() >= lease
    }

    /// Its node's present life, as far as it is known.
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
pub(super) struct Status {
    life: u64,
    /// Grows while it lives.
    beat: u64,
    /// By life: [up to where](super::sessions::Floor) its sessions' records are complete.
    floors: BTreeMap<u64, Vec<At>>,
}

impl Status {
    fn encode(&self) -> bytes::Bytes {
        let mut to = Writer::new(VERSION);
        to.number(self.life);
        to.number(self.beat);
        to.all(self.floors.iter(), |to, (life, floor)| {
            to.number(*life);
            to.all(floor.iter(), |to, at| to.number(at.0));
        });
        to.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let (life, beat) = (from.number()?, from.number()?);
        let floors = from.all(|from| {
            let life = from.number()?;
            Ok((life, from.all(|from| Ok(At(from.number()?)))?))
        })?;
        from.end()?;
        let floors = floors.into_iter().collect();
        Ok(Self { life, beat, floors })
    }

    /// Up to where, by log, the records are complete of sessions that a life had when it last showed itself.
    pub(super) fn floor_of(&self, life: u64) -> Option<&[At]> {
        self.floors.get(&life).map(Vec::as_slice)
    }

    /// Up to where, in that log, the records are complete of sessions that the life that goes on owns.
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
pub(super) async fn begin(engine: &dyn Engine, node: String) -> Result<Author, EngineError> {
    loop {
        let (version, mut status) = status_of(engine, &node).await?;
        status.life += 1;
        status.beat = 0;
        let life = status.life;
        let key = Key::new(Kind::Node, &*node);
        match engine
            .put(key, version, status.encode(), Lasts::Always)
            .await?
        {
            Put::Done(_) => return Ok(Author { node, life }),
            Put::Conflict => {}
        }
    }
}

/// What a node has said last, with its version.
pub(super) async fn status_of(
    engine: &dyn Engine,
    node: &str,
) -> Result<(u64, Status), EngineError> {
    let value = engine.value(Key::new(Kind::Node, node)).await?;
    let Some(Value { version, bytes }) = value else {
        return Ok((0, Status::default()));
    };
    let status = Status::decode(&bytes);
    let status = status.map_err(|Malformed| unknown_form(node))?;
    Ok((version, status))
}

impl Cluster {
    /// Shows that this node lives, and writes what could wait.
    pub(super) async fn live(self: Arc<Self>) {
        let mut beats = interval(self.lease / BEATS_A_LEASE);
        // Beats that come at once after a pause would make all others seem silent.
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for beat in 1.. {
            beats.tick().await;
            if beat % BEATS_A_ROUND == 0 {
                self.begin_round();
            }
            // If it fails, the next one may not.
            let _ = self.show_life(Some(beat)).await;
            lock(&self.arrival_marks).forget(&self.not_over());
            self.send_mark();
            if self.ledger.has_failed() {
                return;
            }
        }
    }

    /// Shows that this node lives, with a number of its own or the next one, and up to where its records are complete.
    pub(super) async fn show_life(&self, beat: Option<u64>) -> Result<Put, EngineError> {
        let (version, mut status) = status_of(&*self.engine, &self.author.node).await?;
        if status.life > self.author.life {
            self.fail("another node has its name");
            return Ok(Put::Conflict);
        }
        status.beat = beat.unwrap_or(status.beat + 1);
        let floor = lock(&self.floor).at.clone();
        status.set_floor(self.author.life, floor);
        let key = Key::new(Kind::Node, &*self.author.node);
        self.engine
            .put(key, version, status.encode(), Lasts::Always)
            .await
    }

    /// Notes the signs of life of all nodes.
    pub(super) async fn watch_lives(self: Arc<Self>) {
        let mut watched = self.engine.watch(Kind::Node);
        while let Some((node, value)) = watched.recv().await {
            if let Ok(Status { life, .. }) = Status::decode(&value.bytes) {
                self.note_life(node, life, value.version);
            }
        }
    }

    fn note_life(&self, node: String, life: u64, version: u64) {
        let mut lives = lock(&self.lives);
        if lives.get(&node).is_some_and(|seen| seen.version >= version) {
            return;
        }
        if node == self.author.node {
            for seen in lives.values_mut() {
                seen.missed = seen.missed.saturating_add(1);
            }
            self.beats.send_modify(|beats| *beats += 1);
        }
        let seen = LastSign {
            life,
            version,
            missed: 0,
            at: Instant::now(),
        };
        lives.insert(node, seen);
    }

    /// Lives of other nodes that nothing is heard of, and that nobody has ended yet.
    pub(super) fn dead(&self) -> Vec<Author> {
        let lives = lock(&self.lives);
        let silent = lives.iter().filter(|(_, seen)| seen.is_silent(self.lease));
        let silent = silent.map(|(node, seen)| seen.author(node));
        silent.filter(|author| !self.is_over(author)).collect()
    }

    /// The nodes that live, this one included, in the order of their names.
    pub(super) fn living(&self) -> Vec<String> {
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

    /// The nodes that may still tell or append something, by what is known.
    fn not_over(&self) -> Vec<String> {
        let lives = lock(&self.lives);
        let nodes = lives.iter();
        let nodes = nodes.filter(|(node, seen)| !self.is_over(&seen.author(node)));
        nodes.map(|(node, _)| node.clone()).collect()
    }

    /// Whether this node is the first by name of those that live.
    pub(super) fn is_first(&self) -> bool {
        self.living().first() == Some(&self.author.node)
    }

    /// Whether nothing was heard of that life for a lease, or a later one of its node has begun.
    pub(super) fn is_dead(&self, author: &Author) -> bool {
        let lives = lock(&self.lives);
        let seen = lives.get(&author.node);
        seen.is_some_and(|seen| seen.life > author.life || seen.is_silent(self.lease))
    }

    /// Whether nothing that this life has appended is still to come.
    pub(super) fn is_over(&self, author: &Author) -> bool {
        let fences = read(&self.fences);
        let Some(fence) = fences.of(author, self.engine.shards()) else {
            return false;
        };
        fence.entries().all(|(shard, entry)| {
            let progress = &self.shards[usize::from(shard)].progress;
            progress.finished().entry() >= entry
        })
    }

    /// Ends a life, and waits until nothing of it can come any more.
    pub(super) async fn end_life(&self, author: &Author) -> Result<(), EngineError> {
        if self.is_over(author) {
            return Ok(());
        }
        info!(
            node = author.node,
            life = author.life,
            "a node's life is ended"
        );
        self.append_fences(author).await?;
        let ended = self.pushing(0..self.engine.shards(), self.until_over(author));
        let ended = timeout(FENCE_TIMEOUT, ended).await;
        ended.map_err(|_| {
            let node = &author.node;
            EngineError::unavailable(format!("the fence of {node} does not come back"))
        })
    }

    /// Has the logs say that a life ends there.
    pub(super) async fn append_fences(&self, author: &Author) -> Result<(), EngineError> {
        for shard in 0..self.engine.shards() {
            let id = format!("fence.{}.{}.{shard}", author.node, author.life);
            self.engine
                .append(shard, id, LogEntry::fence(author))
                .await?;
        }
        Ok(())
    }

    /// Waits until nothing that this life has appended is still to come.
    pub(super) async fn until_over(&self, author: &Author) {
        let mut noted = self.fenced.subscribe();
        while !self.is_over(author) {
            tokio::select! {
                _ = noted.changed() => {}
                () = sleep(RETRY) => {}
            }
        }
    }
}

pub(super) fn unknown_form(node: &str) -> EngineError {
    EngineError::unknown_form(format!("what is known of {node} is of no known form"))
}

// An append of a fence that was tried within this time is one with the earlier try; a later one is a second fence,
// which changes nothing.
const _: () = assert!(FENCE_TIMEOUT.as_secs() < APPENDED_ONCE.as_secs());
