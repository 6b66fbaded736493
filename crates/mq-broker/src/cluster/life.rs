//! Lives of nodes: how one begins, how others see that it goes on, and how it is ended.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::{Instant, interval, sleep, timeout};
use tracing::info;

use super::{
    APPENDED_ONCE, Cluster, RETRY,
    engine::{Engine, EngineError, Key, Kind, Lasts, Put, Value, Watched},
    entry::{Author, LogEntry},
    wire::{Malformed, Reader, Writer},
};
use crate::lock::{lock, read};

const VERSION: u8 = 1;

/// How often a node shows that it lives, in one lease.
const BEATS: u32 = 3;

/// After so many beats the records are written of sessions of which no change is urgent. What is not in them yet comes
/// again from a node that dies, at QoS 1.
const RECORDS: u64 = 10;

/// For so long a fence may take.
const FENCING: Duration = Duration::from_secs(10);

/// What is known of other nodes, by name.
pub(super) type Lives = HashMap<String, Seen>;

/// A node's last sign of life.
#[derive(Debug)]
pub(super) struct Seen {
    life: u64,
    at: Instant,
}

/// The value of a node's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Status {
    life: u64,
    /// Grows while it lives.
    beat: u64,
}

impl Status {
    fn encode(self) -> bytes::Bytes {
        let mut to = Writer::new(VERSION);
        to.number(self.life);
        to.number(self.beat);
        to.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes, VERSION)?;
        let (life, beat) = (from.number()?, from.number()?);
        from.end()?;
        Ok(Self { life, beat })
    }
}

/// Begins a life of a node, the next after the last.
pub(super) async fn begin(engine: &dyn Engine, node: String) -> Result<Author, EngineError> {
    loop {
        let key = Key::new(Kind::Node, &*node);
        let last = engine.value(key.clone()).await?;
        let (version, life) = match last {
            None => (0, 1),
            Some(Value { version, bytes }) => {
                let status = Status::decode(&bytes);
                let status = status.map_err(|Malformed| unknown_form(&node))?;
                (version, status.life + 1)
            }
        };
        let status = Status { life, beat: 0 }.encode();
        match engine.put(key, version, status, Lasts::Always).await? {
            Put::Done(_) => return Ok(Author { node, life }),
            Put::Conflict => {}
        }
    }
}

impl Cluster {
    /// Shows that this node lives, and writes what could wait.
    pub(super) async fn live(self: Arc<Self>) {
        let mut beats = interval(self.lease / BEATS);
        for beat in 1.. {
            beats.tick().await;
            if beat % RECORDS == 0 {
                self.write_later();
            }
            let key = Key::new(Kind::Node, &*self.author.node);
            let status = Status {
                life: self.author.life,
                beat,
            };
            let Ok(Some(last)) = self.engine.value(key.clone()).await else {
                continue;
            };
            match Status::decode(&last.bytes) {
                Ok(status) if status.life > self.author.life => {
                    return self.fail("another node has its name");
                }
                _ => {}
            }
            // If it fails, the next one may not.
            let put = self
                .engine
                .put(key, last.version, status.encode(), Lasts::Always);
            let _ = put.await;
        }
    }

    /// Notes the signs of life of other nodes.
    pub(super) async fn watch_lives(self: Arc<Self>) {
        let mut watched = self.engine.watch(Kind::Node);
        while let Some(watched) = watched.recv().await {
            let Watched::Value(node, value) = watched else {
                continue;
            };
            if let Ok(Status { life, .. }) = Status::decode(&value.bytes) {
                let at = Instant::now();
                lock(&self.lives).insert(node, Seen { life, at });
            }
        }
    }

    /// Whether this node is the first by name of those that live.
    pub(super) fn is_first(&self) -> bool {
        let lives = lock(&self.lives);
        let mut before = lives.iter().filter(|(node, _)| **node < self.author.node);
        before.all(|(_, seen)| seen.at.elapsed() >= self.lease)
    }

    /// Whether nothing was heard of that life for a lease, or a later one of its node has begun.
    pub(super) fn is_dead(&self, author: &Author) -> bool {
        let lives = lock(&self.lives);
        let seen = lives.get(&author.node);
        seen.is_some_and(|seen| seen.life > author.life || seen.at.elapsed() >= self.lease)
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
        let mut noted = self.fenced.subscribe();
        for shard in 0..self.engine.shards() {
            let id = format!("fence.{}.{}.{shard}", author.node, author.life);
            self.engine
                .append(shard, id, LogEntry::fence(author))
                .await?;
        }
        let is_over = async {
            while !self.is_over(author) {
                tokio::select! {
                    _ = noted.changed() => {}
                    () = sleep(RETRY) => {}
                }
            }
        };
        let ended = timeout(FENCING, is_over).await;
        ended.map_err(|_| {
            let node = &author.node;
            EngineError(format!("the fence of {node} does not come back"))
        })
    }
}

fn unknown_form(node: &str) -> EngineError {
    EngineError(format!("what is known of {node} is of no known form"))
}

// An append of a fence that was tried within this time is one with the earlier try; a later one is a second fence,
// which changes nothing.
const _: () = assert!(FENCING.as_secs() < APPENDED_ONCE.as_secs());
