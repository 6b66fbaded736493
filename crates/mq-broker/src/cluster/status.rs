//! The status of a node, for operators.

use std::{pin::Pin, time::Duration};

use tokio::time::timeout;

use super::Cluster;
use crate::{
    lock::lock,
    view::{self, ClusterLog, ClusterNode, ClusterStatus},
};

/// Time that the engine has to return where the logs end.
const LOG_ENDS_TIMEOUT: Duration = Duration::from_secs(2);

impl ClusterStatus for Cluster {
    fn own_status(&self) -> view::Cluster {
        let mut nodes: Vec<_> = {
            let lives = lock(&self.lives);
            let nodes = lives.iter().map(|(name, seen)| {
                let author = seen.author(name);
                ClusterNode {
                    life: author.life,
                    heard_ms: milliseconds(seen.silent_for()),
                    is_over: self.is_over(&author),
                    name: author.node,
                }
            });
            nodes.collect()
        };
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let own = nodes.iter().find(|node| node.name == self.author.node);
        let lease = milliseconds(self.lease);
        let majority_lost = own.is_some_and(|own| own.heard_ms >= lease);
        let mut longest = Duration::ZERO;
        let logs = self.shards.iter().map(|shard| {
            let (messages_waiting, time) = shard.backlog();
            longest = time.max(longest);
            ClusterLog {
                shard: shard.number,
                read: shard.progress.finished().entry(),
                lost_entries: shard.set_backs.lost_entries(),
                behind: None,
                messages_waiting,
            }
        });
        let logs: Vec<_> = logs.collect();
        view::Cluster {
            node: Some(self.author.node.clone()),
            life: Some(self.author.life),
            has_left: self.ledger.has_failed(),
            majority_lost,
            storage_percent: self.storage.percent(),
            storage_full: self.storage.is_full(),
            sessions: lock(&self.sessions).len(),
            messages_waiting: logs.iter().map(|log| log.messages_waiting).sum(),
            waiting_ms: milliseconds(longest),
            clock_offset_ms: self.clock.wall_clock_offset_ms(),
            clock_problem: self.clock.problem(),
            nodes,
            logs,
        }
    }

    fn why_not_ready(&self) -> Option<String> {
        self.clock.problem()
    }

    fn full_status(&self) -> Pin<Box<dyn Future<Output = view::Cluster> + Send + '_>> {
        Box::pin(async move {
            let ends = async {
                let mut ends = Vec::new();
                for shard in 0..self.engine.shards() {
                    ends.push(self.engine.last_entry(shard).await.ok());
                }
                ends
            };
            let ends = timeout(LOG_ENDS_TIMEOUT, ends).await.unwrap_or_default();
            let mut shown = self.own_status();
            for (log, end) in shown.logs.iter_mut().zip(ends) {
                log.behind = end.map(|end| end.saturating_sub(log.read));
            }
            shown
        })
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
