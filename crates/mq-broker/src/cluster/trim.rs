//! The trimming of logs: entries that nobody needs any more, and those that there is no more room for.
//!
//! An entry is needed by a node that starts at a checkpoint, and by one that takes a session over, for messages that
//! the record does not have itself (`copies.rs`). Records only go forward: what a record that was read does not need,
//! no later one of that session does. A log that is too large all the same loses its oldest entries: else one session
//! that stays away would fill the disks, and then nobody could publish.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::interval;
use tracing::{info, warn};

use super::{
    Cluster,
    engine::{EngineError, Expiry, KeyKind, Malformed, PutOutcome},
    life::{NodeStatus, unknown_status_form},
    log::{Checkpoint, checkpoint_key},
    sessions::{Record, RecordedSession},
};
use crate::{lock::lock, store::At};

/// Interval at which a node looks for entries to forget.
const TRIM_INTERVAL: Duration = Duration::from_mins(1);

impl Cluster {
    /// Forgets them, if this node is the one to do it. Runs as long as the node lives.
    pub(super) async fn trim_logs(self: Arc<Self>) {
        let mut due = interval(TRIM_INTERVAL);
        // The first tick is at once.
        due.tick().await;
        loop {
            due.tick().await;
            // Sessions of a dead node are another's first.
            if !self.is_coordinator() || !self.dead_nodes().is_empty() {
                continue;
            }
            if let Err(error) = self.trim_all().await {
                warn!(%error, "cluster: cannot trim logs");
            }
        }
    }

    async fn trim_all(&self) -> Result<(), EngineError> {
        let kept = self
            .shards
            .iter()
            .map(|shard| lock(&shard.checkpoint).clone());
        let kept: Vec<_> = kept.collect();
        if !kept.iter().any(|(_, kept)| kept.is_worth_trimming()) {
            return Ok(());
        }
        let needed = self.needed().await?;
        for (shard, ((version, mut kept), needed)) in
            self.shards.iter().zip(kept.into_iter().zip(needed))
        {
            if !kept.is_worth_trimming() {
                continue;
            }
            let bound = self.first_with_room(shard.number, &kept).await?;
            let first = needed.max(bound).min(kept.entry);
            if first <= kept.first {
                continue;
            }
            if first > needed {
                warn!(
                    shard = shard.number,
                    first,
                    "cluster: log too large; older messages are lost for disconnected sessions"
                );
            }
            kept.first = first;
            let bytes = kept.encode();
            let key = checkpoint_key(shard.number);
            // Those who read again learn it first.
            let put = self.engine.put(key, version, bytes, Expiry::Never).await?;
            if let PutOutcome::Written(_) = put {
                self.engine.trim(shard.number, first).await?;
                info!(shard = shard.number, first, "cluster: log trimmed");
            }
        }
        Ok(())
    }

    /// Returns the first entry that a log has room for, as if all of its entries were equally large.
    async fn first_with_room(&self, shard: u16, kept: &Checkpoint) -> Result<u64, EngineError> {
        let bytes = self.engine.log_bytes(shard).await?;
        let over = bytes.saturating_sub(self.log_max_bytes);
        if over == 0 {
            return Ok(0);
        }
        let entries = u128::from(kept.entry.saturating_sub(kept.first));
        let too_many = (entries * u128::from(over)).div_ceil(u128::from(bytes));
        let too_many = u64::try_from(too_many).unwrap_or(u64::MAX);
        Ok(kept.first.saturating_add(too_many))
    }

    /// Returns, by log, the first entry that a starting node, or one that takes over a session, may need.
    async fn needed(&self) -> Result<Vec<u64>, EngineError> {
        // Before the records: these may go on meanwhile.
        let mut statuses = HashMap::new();
        for (node, value) in self.engine.values(KeyKind::Node).await? {
            let status = NodeStatus::decode(&value.bytes);
            let status = status.map_err(|Malformed| unknown_status_form(&node))?;
            statuses.insert(node, status);
        }
        let shards = 0..self.engine.shards();
        let mut needed = vec![u64::MAX; shards.len()];
        for node in self.live_nodes() {
            let status = statuses.get(&node);
            for (shard, needed) in shards.clone().zip(&mut needed) {
                let floor = status.map_or(At::default(), |status| status.present_floor(shard));
                *needed = floor.entry().min(*needed);
            }
        }
        for (id, value) in self.engine.values(KeyKind::Session).await? {
            let mut record = Record::decode(&value.bytes).map_err(|Malformed| {
                EngineError::unknown_form(format!("malformed session record of {id:?}"))
            })?;
            if record.session.is_none() {
                continue;
            }
            let owner = record.owner.as_ref();
            if let Some(status) = owner.and_then(|owner| statuses.get(&owner.node)) {
                record.raise_to_floor(status);
            }
            record.next.resize(needed.len(), At::default());
            for (next, needed) in record.next.iter().zip(&mut needed) {
                *needed = next.entry().min(*needed);
            }
            for position in record.session.iter().flat_map(RecordedSession::positions) {
                let needed = &mut needed[usize::from(position.shard)];
                *needed = position.at.entry().min(*needed);
            }
        }
        Ok(needed)
    }
}
