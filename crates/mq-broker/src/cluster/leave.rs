//! The orderly leaving of a node, so that a planned restart costs its clients no more than a new connection.
//!
//! The node writes what its sessions' records lack, publishes how complete they are, and ends its own life: any node
//! may take the sessions at once, and has nothing to read again. If the engine is too slow for that, the node leaves as
//! one that dies.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{
    Cluster,
    engine::{PutOutcome, RETRY_INTERVAL},
};
use crate::lock::lock;

/// Time for which a leaving node writes records. Changes that are not written by then come again, at QoS 1.
const RECORDS_TIMEOUT: Duration = Duration::from_secs(3);

/// Time that the end of this life may take. If it is not in the logs by then, other nodes wait for the lease.
const END_OF_LIFE_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which a leaving node looks whether the records are written.
const RECORDS_POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Cluster {
    /// Ends this life in order. No client is connected any more. Takes 4 s at most.
    pub(crate) async fn leave(&self) {
        if self.ledger.has_failed() {
            return;
        }
        if timeout(RECORDS_TIMEOUT, self.complete_records())
            .await
            .is_err()
        {
            warn!("cluster: session records not written in time");
        }
        self.is_leaving.store(true, Ordering::Release);
        let ending = async {
            // The records first: who finds this life ended believes them.
            while !matches!(self.write_heartbeat(None).await, Ok(PutOutcome::Written(_))) {
                sleep(RETRY_INTERVAL).await;
            }
            while let Err(error) = self.append_fences(&self.author).await {
                warn!(%error, "cluster: cannot fence this node, retrying");
                sleep(RETRY_INTERVAL).await;
            }
        };
        if timeout(END_OF_LIFE_TIMEOUT, ending).await.is_ok() {
            info!(node = self.author.node, "cluster: node left");
        } else {
            warn!("cluster: node left without a fence; its sessions wait for the end of its lease");
        }
    }

    /// Waits until all that was published is in the logs, and the records have what their sessions have.
    async fn complete_records(&self) {
        if !self.ledger.settle_all().await {
            return;
        }
        let end = self.next_positions();
        loop {
            self.begin_round();
            if lock(&self.floor).has_reached(&end) {
                return;
            }
            sleep(RECORDS_POLL_INTERVAL).await;
        }
    }
}
