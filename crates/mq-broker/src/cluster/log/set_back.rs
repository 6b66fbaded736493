//! Logs that were set back: the servers' storage was restored from a copy, or lost its last part, while nodes live or
//! records of sessions are newer. Then a log ends before what was read of it.
//!
//! No place of a log stands for two messages, or sessions would skip those that come at places that they are past. So the
//! node that sees it fills the log with entries that say nothing, until it is longer than all that anybody may have read,
//! and appends nothing else meanwhile. A batch that was appended before that is appended once more: whoever has read it at
//! its first place knows it by its count. Behind the filled places stand the groups of shared subscriptions, as that node knows
//! them: nodes that have read different entries would choose different members for ever.
//!
//! ```text
//!  what was read  1 2 3 4 5 6 7 8
//!  set back to    1 2 3 4
//!  appended               a            not read by those that have read 5 before
//!  filled                   - - - ... -
//!  appended                             a b c
//! ```

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::{error, info};

use super::{append::Shard, author::Author};
use crate::{
    cluster::{
        Cluster,
        engine::{EngineError, RETRY_INTERVAL},
    },
    lock::write,
    store::At,
};

/// Interval at which a node asks for the end of a log that brings nothing.
const LOG_END_CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// Entries by which another node, or a record, may be ahead of the node that fills a log.
const MARGIN: u64 = 1_000;

/// Entries that are appended at a time.
const MAX_APPENDS_IN_FLIGHT: usize = 32;

impl Cluster {
    /// Looks for logs that were set back, as long as the node lives. Those in use tell by the numbers of new entries.
    pub(in crate::cluster) async fn watch_log_ends(self: Arc<Self>) {
        let mut before = vec![At::default(); self.shards.len()];
        let mut due = interval(LOG_END_CHECK_INTERVAL);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            for (shard, before) in self.shards.iter().zip(&mut before) {
                let read = shard.progress.finished();
                if core::mem::replace(before, read) == read {
                    // If it cannot be asked, the next time is soon.
                    let _ = self.check_reaches(shard, read.entry()).await;
                }
            }
        }
    }

    /// Acts if a log ends before that entry, which was read or is named by something that is kept. Returns `true` then.
    ///
    /// # Errors
    /// If the engine does not say.
    pub(in crate::cluster) async fn check_reaches(
        &self,
        shard: &Shard,
        entry: u64,
    ) -> Result<bool, EngineError> {
        if self.engine.last_entry(shard.number).await? >= entry {
            return Ok(false);
        }
        // A server that has begun to lead just now may not know yet what was confirmed. The number of an entry that it
        // appends is certain.
        let number = self.append_empty_entry(shard.number).await?;
        if number > entry {
            return Ok(false);
        }
        self.note_set_back(shard, number, entry);
        Ok(true)
    }

    /// Notes that an entry which was appended just now has a number that is not behind the last one that is known.
    pub(super) fn note_set_back(&self, shard: &Shard, appended: u64, known: u64) {
        let (here, number) = (&shard.set_backs, shard.number);
        let end = appended.saturating_sub(1);
        let missing = known - end;
        if !here.begin(appended..=known) {
            return;
        }
        error!(
            shard = shard.number,
            end,
            known,
            missing,
            "cluster: log was set back; acknowledged messages in the missing entries are lost"
        );
        self.keep_lost_messages(shard, |entry| entry > end);
        let ended = write(&self.fences).forget(number, |entry| entry > end);
        let Some(this) = self.this.upgrade() else {
            return;
        };
        self.runtime.spawn(async move {
            this.fill_log(number, known + MARGIN).await;
            this.append_lost_fences(ended).await;
        });
    }

    /// Ends lives again whose fences a log has lost: their nodes may live, and not know.
    pub(super) async fn append_lost_fences(&self, ended: Vec<Author>) {
        for author in ended {
            while self.append_fences(&author).await.is_err() && !self.ledger.has_failed() {
                sleep(RETRY_INTERVAL).await;
            }
        }
    }

    /// Appends entries that say nothing until a log has that number.
    async fn fill_log(self: &Arc<Self>, shard: u16, until: u64) {
        let mut appending = JoinSet::new();
        let mut end = 0;
        let mut appended = 0_u64;
        while end < until && !self.ledger.has_failed() {
            while appending.len() < MAX_APPENDS_IN_FLIGHT {
                let cluster = Arc::clone(self);
                appending.spawn(async move { cluster.append_empty_entry(shard).await });
            }
            match appending.join_next().await {
                Some(Ok(Ok(number))) => {
                    appended += 1;
                    end = end.max(number);
                }
                _ => sleep(RETRY_INTERVAL).await,
            }
        }
        info!(
            shard,
            end, appended, "cluster: log in use again after it was set back"
        );
        let here = &self.shards[usize::from(shard)];
        self.append_groups(here);
        here.set_backs.end();
    }
}
