//! Entries that say nothing. After a change of the server that leads, NATS may answer that an entry was appended, and bring
//! it to some readers only behind the next one: a log that nobody appends to would stand still.

use std::{convert::Infallible, ops::Range, sync::atomic::Ordering, time::Duration};

use tokio::time::sleep;

use super::{author::Author, entry::LogEntry};
use crate::cluster::Cluster;

/// For so long what was appended may be on its way back.
const EMPTY_ENTRY_INTERVAL: Duration = Duration::from_secs(3);

impl Cluster {
    /// Waits for what those logs have to bring.
    pub(in crate::cluster) async fn pushing<T>(
        &self,
        shards: Range<u16>,
        waiting: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            done = waiting => done,
            never = self.push(shards) => match never {},
        }
    }

    async fn push(&self, shards: Range<u16>) -> Infallible {
        let Author { node, life } = &self.author;
        loop {
            sleep(EMPTY_ENTRY_INTERVAL).await;
            for shard in shards.clone() {
                let push = self.pushes.fetch_add(1, Ordering::Relaxed);
                let id = format!("{node}.{life}.{shard}.push.{push}");
                let nothing = LogEntry::nothing(&self.author);
                // Or the next one does it.
                let _ = self.engine.append(shard, id, nothing).await;
            }
        }
    }
}
