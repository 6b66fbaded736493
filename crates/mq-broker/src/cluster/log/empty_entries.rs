//! Entries that say nothing. After a change of the server that leads, NATS may answer that an entry was appended, and bring
//! it to some readers only behind the next one: a log that nobody appends to would stand still.

use std::{convert::Infallible, ops::Range, sync::atomic::Ordering, time::Duration};

use tokio::time::sleep;

use super::{author::Author, entry::LogEntry};
use crate::{
    cluster::{Cluster, engine::EngineError},
    lock::lock,
};

/// Time after which an entry that has not come back is followed by an empty one.
const EMPTY_ENTRY_INTERVAL: Duration = Duration::from_secs(3);

impl Cluster {
    /// Waits for `waiting`, and appends empty entries to these logs meanwhile, so that they bring what they hold back.
    pub(in crate::cluster) async fn appending_empty_entries<T>(
        &self,
        shards: Range<u16>,
        waiting: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            done = waiting => done,
            never = self.append_empty_entries(shards) => match never {},
        }
    }

    async fn append_empty_entries(&self, shards: Range<u16>) -> Infallible {
        loop {
            sleep(EMPTY_ENTRY_INTERVAL).await;
            for shard in shards.clone() {
                // Or the next one does it.
                let _ = self.append_empty_entry(shard).await;
            }
        }
    }

    /// Appends an empty entry, and returns its number.
    pub(super) async fn append_empty_entry(&self, shard: u16) -> Result<u64, EngineError> {
        let Author { node, life } = &self.author;
        let number = self.empty_entries_sent.fetch_add(1, Ordering::Relaxed);
        let id = format!("{node}.{life}.{shard}.push.{number}");
        let read = lock(&self.shards[usize::from(shard)].state).trail.last();
        let entry = LogEntry::empty(&self.author, read);
        self.engine.append(shard, id, entry).await
    }
}
