//! Sessions that another node asks for: this node releases them.

use std::time::Duration;

use mq_codec::ByteStr;
use tokio::time::timeout;

use super::claim::CLAIM_TIMEOUT;
use crate::{cluster::Cluster, hub::LocalSessions};

impl Cluster {
    /// Lets a session go that another node asks for, for a connection that has waited for so long. Resolves to `true` once
    /// that node may look at its record, and to `false` if the session's client has connected here more recently.
    pub(in crate::cluster) async fn release_session(
        &self,
        local: &dyn LocalSessions,
        id: &ByteStr,
        waited: Duration,
    ) -> bool {
        let connected = local.connected_before(id);
        if connected.is_some_and(|time| time < waited) {
            return false;
        }
        if !self.begin_release(id).await {
            return true;
        }
        // What its client has published is in the logs before the place from which on its next owner reads them:
        // that knows by its record then which of it was released.
        let is_settled =
            async { self.ledger.settle_all().await && self.ledger.settle_client(id).await };
        // Nobody waits longer for the session. While the servers are full this may take as long as there is no room.
        let is_settled = Box::pin(async { timeout(CLAIM_TIMEOUT, is_settled).await == Ok(true) });
        let end = Box::new(|| self.end_queueing(id));
        // Of a session that has ended meanwhile the record says so before another begins.
        if local.release_session(id, is_settled, end).await {
            self.finish_release(id).await;
        } else {
            self.cancel_release(id);
        }
        true
    }
}
