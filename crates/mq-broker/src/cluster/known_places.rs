//! Places of the logs that a starting node finds named: in checkpoints, and by nodes. A log that ends before them was set
//! back while no node lived, or the values were restored from a later copy than the logs.

use super::{
    Cluster,
    engine::{EngineError, KeyKind, Malformed},
    life::{NodeStatus, unknown_status_form},
    retry_at_start,
};

impl Cluster {
    /// Gives new places to logs that end before those that are named. What sessions' own records name is looked at when
    /// they are claimed.
    pub(super) async fn check_known_places(&self) -> Result<(), EngineError> {
        let known = self.known_entries().await?;
        for (shard, known) in self.shards.iter().zip(known) {
            let known = shard.progress.finished().entry().max(known);
            retry_at_start(|| self.check_reaches(shard, known)).await?;
        }
        for shard in &self.shards {
            shard.set_backs.until_filled().await;
        }
        Ok(())
    }

    /// Returns, by log, the last entry up to which a node says that the records of its sessions are complete.
    async fn known_entries(&self) -> Result<Vec<u64>, EngineError> {
        let mut known = vec![0; self.shards.len()];
        for (node, value) in retry_at_start(|| self.engine.values(KeyKind::Node)).await? {
            let status = NodeStatus::decode(&value.bytes);
            let status = status.map_err(|Malformed| unknown_status_form(&node))?;
            for floor in status.floors() {
                for (known, at) in known.iter_mut().zip(floor) {
                    *known = at.last_before().max(*known);
                }
            }
        }
        Ok(known)
    }
}
