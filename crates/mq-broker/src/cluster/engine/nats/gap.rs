//! Entries that are missing within a log, as the disk of a server was damaged. A consumer reads what its server has, and the
//! servers place each new consumer by chance: so another one may bring what the first one lacks.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use async_nats::jetstream::consumer;
use tokio::time::Instant;
use tracing::warn;

use super::nats_error;
use crate::cluster::engine::EngineError;

/// Time for which entries are looked for. It is long enough for a consumer at each server that runs, and shorter than readers
/// wait for an entry.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);

/// The search for missing entries.
#[derive(Debug)]
pub(super) struct Gap {
    /// Number of servers that keep each entry.
    replicas: usize,
    /// Number of the first missing entry; 0 at first.
    first: u64,
    since: Instant,
    /// Names of the servers that lack it.
    servers: BTreeSet<String>,
}

impl Gap {
    pub(super) fn new(replicas: usize) -> Self {
        Self {
            replicas,
            first: 0,
            since: Instant::now(),
            servers: BTreeSet::new(),
        }
    }

    /// Notes that a consumer has not brought these entries.
    ///
    /// # Errors
    /// If another server may have them: a new consumer is to be made.
    pub(super) fn confirm_lost(
        &mut self,
        missing: RangeInclusive<u64>,
        consumer: &consumer::Info,
    ) -> Result<(), EngineError> {
        if self.first != *missing.start() {
            *self = Self {
                first: *missing.start(),
                ..Self::new(self.replicas)
            };
        }
        let cluster = consumer.cluster.as_ref();
        let server = cluster.and_then(|cluster| cluster.leader.clone());
        let server = server.unwrap_or_default();
        self.servers.insert(server.clone());
        if self.servers.len() < self.replicas && self.since.elapsed() < SEARCH_TIMEOUT {
            let problem = format!(
                "entries {} to {} are missing at server {server}",
                missing.start(),
                missing.end()
            );
            return Err(nats_error(problem));
        }
        let servers: Vec<_> = self.servers.iter().map(String::as_str).collect();
        warn!(
            stream = consumer.stream_name,
            first = missing.start(),
            last = missing.end(),
            servers = servers.join(" "),
            "cluster: servers lack entries within a log; the log is read without them"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumer_at(server: &str) -> consumer::Info {
        let ends = serde_json::json!({"consumer_seq": 0, "stream_seq": 0});
        let info = serde_json::json!({
            "stream_name": "log", "name": "one", "created": "2026-01-01T00:00:00Z",
            "config": {"deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant"},
            "delivered": ends, "ack_floor": ends, "num_ack_pending": 0, "num_redelivered": 0,
            "num_waiting": 0, "num_pending": 0, "cluster": {"leader": server},
        });
        serde_json::from_value(info).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn entries_are_lost_once_all_servers_or_those_that_run_lack_them() {
        let mut gap = Gap::new(3);
        let mut lacks = |first, server| gap.confirm_lost(first..=9, &consumer_at(server)).is_ok();
        assert!(!lacks(5, "n0") && !lacks(5, "n1") && !lacks(5, "n0"));
        assert!(lacks(5, "n2"));
        assert!(!lacks(7, "n2"), "another gap");
        tokio::time::sleep(SEARCH_TIMEOUT).await;
        assert!(lacks(7, "n1"));
    }
}
