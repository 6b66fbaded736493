//! What a node that begins finds: the retained messages as values, and a place in each log from where to read on.
//!
//! Any node may write them, and one does: the first by name of those that live. It rests on no agreement: a value only
//! gives way to one of a later place.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use mq_codec::TopicName;
use tokio::{
    task::JoinSet,
    time::{interval, sleep},
};
use tracing::{debug, info, warn};

use super::{
    append::Shard,
    log_state::{Checkpoint, RetainedChange},
};
use crate::{
    cluster::{
        Cluster,
        engine::{Engine, EngineError, Key, Kind, Lasts, Put, RETRY},
        retry_at_start,
    },
    hub::LocalSessions,
    lock::{lock, read},
};

/// How often what is new in a log is kept as values.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(10);

/// How often that is tried in turn.
const CHECKPOINT_TRIES: usize = 100;

/// Values that are written at a time.
const MAX_WRITES_IN_FLIGHT: usize = 16;

/// Retained messages that have changed.
type Changes = VecDeque<(TopicName, RetainedChange)>;

/// Where a node that begins has to read on in each log.
pub(in crate::cluster) async fn checkpoints(
    engine: &dyn Engine,
) -> Result<Vec<Checkpoint>, EngineError> {
    let mut checkpoints = Vec::new();
    for shard in 0..engine.shards() {
        let value = engine.value(key(shard)).await?;
        let checkpoint = value.map(|value| Checkpoint::decode(&value.bytes));
        let checkpoint = checkpoint.transpose().map_err(|_| {
            let problem = "what is known of a log is of no known form";
            EngineError::unknown_form(problem)
        })?;
        checkpoints.push(checkpoint.unwrap_or_default());
    }
    Ok(checkpoints)
}

pub(in crate::cluster) fn key(shard: u16) -> Key {
    Key::new(Kind::Log, shard.to_string())
}

impl Cluster {
    /// Takes over what was retained before this node began. Not all of it may be the last: that comes from the logs.
    pub(in crate::cluster) async fn load_retained(
        &self,
        local: &dyn LocalSessions,
    ) -> Result<(), EngineError> {
        let mut count = 0_u64;
        for (topic, value) in self.engine.all(Kind::Retained).await? {
            let change = RetainedChange::decode(&value.bytes).map_err(|_| {
                EngineError::unknown_form(format!(
                    "the retained message of {topic:?} has no known form"
                ))
            })?;
            if let Some(message) = change.message {
                local.restore_retained(message);
                count += 1;
            }
        }
        debug!(count, "retained messages are read");
        Ok(())
    }

    /// Reads the logs up to where they end now: what was published before a client comes is known by then.
    pub(in crate::cluster) async fn catch_up(&self) -> Result<(), EngineError> {
        let mut ends = Vec::new();
        for shard in 0..self.engine.shards() {
            ends.push(retry_at_start(|| self.engine.end(shard)).await?);
        }
        let left = || {
            let shards = self.shards.iter().zip(&ends);
            let left =
                shards.map(|(shard, end)| end.saturating_sub(shard.progress.finished().entry()));
            left.sum::<u64>()
        };
        if left() > 0 {
            info!(entries = left(), "reads on in the logs of the cluster");
        }
        while left() > 0 {
            if self.ledger.has_failed() {
                let problem =
                    "the node has left it while it began, as the log says: start the broker again";
                return Err(EngineError::NodeEnded(Arc::from(Box::from(problem))));
            }
            sleep(RETRY / 20).await;
        }
        Ok(())
    }

    /// Notes which checkpoints there are.
    pub(in crate::cluster) async fn learn_checkpoints(self: Arc<Self>) {
        let mut watched = self.engine.watch(Kind::Log);
        while let Some((number, value)) = watched.recv().await {
            if let Some(shard) = self.shard_named(&number)
                && let Ok(checkpoint) = Checkpoint::decode(&value.bytes)
            {
                lock(&shard.state).is_kept(checkpoint.entry);
                *lock(&shard.kept) = (value.version, checkpoint);
            }
        }
    }

    fn shard_named(&self, number: &str) -> Option<&Shard> {
        self.shards.get(number.parse::<usize>().ok()?)
    }

    /// Writes them, if this node is the one to do it.
    pub(in crate::cluster) async fn keep_checkpoints(self: Arc<Self>) {
        let mut due = interval(CHECKPOINT_INTERVAL);
        // The first tick is at once.
        due.tick().await;
        loop {
            due.tick().await;
            let is_first = self.is_first();
            for shard in &self.shards {
                let Some((checkpoint, changes)) = self.note_checkpoint(shard).await else {
                    continue;
                };
                if !is_first {
                    continue;
                }
                if let Err(error) = self.keep_checkpoint(shard, checkpoint, changes).await {
                    warn!(shard = shard.number, %error, "what is new in a log cannot be kept");
                }
            }
        }
    }

    /// What may be kept of a log next; `None` if its reader is in the midst of an entry all the time.
    async fn note_checkpoint(&self, shard: &Shard) -> Option<(Checkpoint, Changes)> {
        for _ in 0..CHECKPOINT_TRIES {
            if let Some(noted) = self.note_whole(shard) {
                return Some(noted);
            }
            sleep(RETRY / 20).await;
        }
        None
    }

    /// The same, if the reader is between two entries.
    fn note_whole(&self, shard: &Shard) -> Option<(Checkpoint, Changes)> {
        let state = lock(&shard.state);
        let fences = read(&self.fences).in_log(shard.number);
        let checkpoint = lock(&shard.candidates).note(state.checkpoint(fences)?);
        let entry = checkpoint.entry;
        let old = |change: &RetainedChange| change.at.entry() <= entry;
        let changes = state.retained.iter().filter(|(_, change)| old(change));
        let changes = changes.map(|(topic, change)| (topic.clone(), change.clone()));
        Some((checkpoint, changes.collect()))
    }

    async fn keep_checkpoint(
        self: &Arc<Self>,
        shard: &Shard,
        mut checkpoint: Checkpoint,
        mut changes: Changes,
    ) -> Result<(), EngineError> {
        let (version, kept) = lock(&shard.kept).clone();
        checkpoint.first = kept.first;
        if checkpoint.entry <= kept.entry {
            return Ok(());
        }
        let mut writing = JoinSet::new();
        loop {
            while writing.len() < MAX_WRITES_IN_FLIGHT
                && let Some((topic, change)) = changes.pop_front()
            {
                let cluster = Arc::clone(self);
                writing.spawn(async move { cluster.keep_retained(&topic, &change).await });
            }
            match writing.join_next().await {
                None => break,
                Some(Ok(written)) => written?,
                Some(Err(error)) => return Err(EngineError::unavailable(error)),
            }
        }
        // If it is not the last, another node has written one.
        let bytes = checkpoint.encode();
        self.engine
            .put(key(shard.number), version, bytes, Lasts::Always)
            .await?;
        Ok(())
    }

    /// Makes a topic's value one of that place, unless it is one of a later place.
    async fn keep_retained(
        &self,
        topic: &TopicName,
        change: &RetainedChange,
    ) -> Result<(), EngineError> {
        let key = Key::new(Kind::Retained, &**topic);
        let Ok(bytes) = change.encode() else {
            return Ok(());
        };
        let lasts = match change.message {
            Some(_) => Lasts::Always,
            None => Lasts::AWhile,
        };
        loop {
            let value = self.engine.value(key.clone()).await?;
            let known = value
                .as_ref()
                .map(|value| RetainedChange::decode(&value.bytes));
            if let Some(Ok(known)) = known
                && known.at >= change.at
            {
                return Ok(());
            }
            let version = value.map_or(0, |value| value.version);
            let put = self.engine.put(key.clone(), version, bytes.clone(), lasts);
            if let Put::Done(_) = put.await? {
                return Ok(());
            }
        }
    }
}
