//! Checkpoints: what a starting node reads before the logs. The retained messages are values, and each log has a place
//! from which the node reads on.
//!
//! Any node may write them, and one does: the first by name of those that live. No agreement is needed for that: a
//! value only gives way to one of a later place.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use mq_codec::TopicName;
use tokio::{
    task::{JoinSet, yield_now},
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
        engine::{Engine, EngineError, Expiry, Key, KeyKind, PutOutcome, RETRY_INTERVAL},
        retry_at_start,
    },
    hub::LocalSessions,
    lock::{lock, read},
};

/// Interval at which checkpoints and retained messages are written as values.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(10);

/// Times that a node tries to get a checkpoint between two entries.
const CHECKPOINT_TRIES: usize = 100;

/// Values of retained messages that a starting node takes over before other tasks have their turn, heartbeats among them.
const LOADED_PER_TURN: usize = 256;

/// Values that are written at a time.
const MAX_WRITES_IN_FLIGHT: usize = 16;

/// Retained messages that have changed.
type RetainedChanges = VecDeque<(TopicName, RetainedChange)>;

/// Reads the last checkpoint of each log, from which a starting node reads on.
pub(in crate::cluster) async fn load_checkpoints(
    engine: &dyn Engine,
) -> Result<Vec<Checkpoint>, EngineError> {
    let mut checkpoints = Vec::new();
    for shard in 0..engine.shards() {
        let value = engine.get(checkpoint_key(shard)).await?;
        let checkpoint = value.map(|value| Checkpoint::decode(&value.bytes));
        let checkpoint = checkpoint.transpose().map_err(|_| {
            let problem = "malformed checkpoint";
            EngineError::unknown_form(problem)
        })?;
        checkpoints.push(checkpoint.unwrap_or_default());
    }
    Ok(checkpoints)
}

pub(in crate::cluster) fn checkpoint_key(shard: u16) -> Key {
    Key::new(KeyKind::Log, shard.to_string())
}

impl Cluster {
    /// Takes over what was retained before this node began. Not all of it may be the last: that comes from the logs.
    pub(in crate::cluster) async fn load_retained(
        &self,
        local: &dyn LocalSessions,
    ) -> Result<(), EngineError> {
        let mut count = 0_u64;
        let values = self.engine.values(KeyKind::Retained).await?;
        for (number, (topic, value)) in (1_usize..).zip(values) {
            let change = RetainedChange::decode(&value.bytes).map_err(|_| {
                EngineError::unknown_form(format!("malformed retained message of {topic:?}"))
            })?;
            if let Some(message) = change.message {
                local.restore_retained(message);
                count += 1;
            }
            if number.is_multiple_of(LOADED_PER_TURN) {
                yield_now().await;
            }
        }
        debug!(messages = count, "cluster: retained messages loaded");
        Ok(())
    }

    /// Reads the logs up to where they end now: what was published before a client comes is known by then.
    pub(in crate::cluster) async fn catch_up(&self) -> Result<(), EngineError> {
        let mut ends = Vec::new();
        for shard in &self.shards {
            let end = retry_at_start(|| self.engine.last_entry(shard.number)).await?;
            shard.set_backs.note_start(end);
            ends.push(end);
        }
        let left = || {
            let shards = self.shards.iter().zip(&ends);
            let left =
                shards.map(|(shard, end)| end.saturating_sub(shard.progress.finished().entry()));
            left.sum::<u64>()
        };
        if left() > 0 {
            info!(entries = left(), "cluster: reading newer log entries");
        }
        while left() > 0 {
            if self.ledger.has_failed() {
                let problem =
                    "the node has left it while it began, as the log says: start the broker again";
                return Err(EngineError::NodeEnded(Arc::from(Box::from(problem))));
            }
            sleep(RETRY_INTERVAL / 20).await;
        }
        Ok(())
    }

    /// Notes which checkpoints there are.
    pub(in crate::cluster) async fn watch_checkpoints(self: Arc<Self>) {
        let mut watched = self.engine.watch(KeyKind::Log);
        while let Some((number, value)) = watched.recv().await {
            if let Some(shard) = self.shard_by_name(&number)
                && let Ok(checkpoint) = Checkpoint::decode(&value.bytes)
            {
                lock(&shard.state).forget_retained_up_to(checkpoint.entry);
                *lock(&shard.checkpoint) = (value.version, checkpoint);
            }
        }
    }

    fn shard_by_name(&self, number: &str) -> Option<&Shard> {
        self.shards.get(number.parse::<usize>().ok()?)
    }

    /// Writes them, if this node is the one to do it.
    pub(in crate::cluster) async fn write_checkpoints(self: Arc<Self>) {
        let mut due = interval(CHECKPOINT_INTERVAL);
        // The first tick is at once.
        due.tick().await;
        loop {
            due.tick().await;
            let is_first = self.is_coordinator();
            if !self.are_ended_lives_over() {
                // Sessions of theirs are to be taken up by nodes that know which members of shared subscriptions their
                // messages were for.
                for shard in &self.shards {
                    lock(&shard.candidates).clear();
                }
                continue;
            }
            for shard in &self.shards {
                let Some((checkpoint, changes)) = self.next_checkpoint(shard).await else {
                    continue;
                };
                if !is_first {
                    continue;
                }
                if let Err(error) = self.write_checkpoint(shard, checkpoint, changes).await {
                    warn!(shard = shard.number, %error, "cluster: cannot write checkpoint");
                }
            }
        }
    }

    /// Returns the next checkpoint of a log, with the retained messages up to it; `None` if its reader is in the midst
    /// of an entry all the time.
    async fn next_checkpoint(&self, shard: &Shard) -> Option<(Checkpoint, RetainedChanges)> {
        for _ in 0..CHECKPOINT_TRIES {
            if let Some(noted) = self.try_next_checkpoint(shard) {
                return Some(noted);
            }
            sleep(RETRY_INTERVAL / 20).await;
        }
        None
    }

    /// Returns the next checkpoint if the reader is between two entries.
    fn try_next_checkpoint(&self, shard: &Shard) -> Option<(Checkpoint, RetainedChanges)> {
        let state = lock(&shard.state);
        let fences = read(&self.fences).in_log(shard.number);
        let checkpoint = lock(&shard.candidates).rotate(state.checkpoint(fences)?);
        let entry = checkpoint.entry;
        let old = |change: &RetainedChange| change.at.entry() <= entry;
        let changes = state.retained.iter().filter(|(_, change)| old(change));
        let changes = changes.map(|(topic, change)| (topic.clone(), change.clone()));
        Some((checkpoint, changes.collect()))
    }

    async fn write_checkpoint(
        self: &Arc<Self>,
        shard: &Shard,
        mut checkpoint: Checkpoint,
        mut changes: RetainedChanges,
    ) -> Result<(), EngineError> {
        let (version, kept) = lock(&shard.checkpoint).clone();
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
                writing.spawn(async move { cluster.write_retained(&topic, &change).await });
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
            .put(checkpoint_key(shard.number), version, bytes, Expiry::Never)
            .await?;
        Ok(())
    }

    /// Makes a topic's value one of that place, unless it is one of a later place.
    async fn write_retained(
        &self,
        topic: &TopicName,
        change: &RetainedChange,
    ) -> Result<(), EngineError> {
        let key = Key::new(KeyKind::Retained, &**topic);
        let Ok(bytes) = change.encode() else {
            return Ok(());
        };
        let expiry = match change.message {
            Some(_) => Expiry::Never,
            None => Expiry::AfterTtl,
        };
        loop {
            let value = self.engine.get(key.clone()).await?;
            let known = value
                .as_ref()
                .map(|value| RetainedChange::decode(&value.bytes));
            if let Some(Ok(known)) = known
                && known.at >= change.at
            {
                return Ok(());
            }
            let version = value.map_or(0, |value| value.version);
            let put = self.engine.put(key.clone(), version, bytes.clone(), expiry);
            if let PutOutcome::Written(_) = put.await? {
                return Ok(());
            }
        }
    }
}
