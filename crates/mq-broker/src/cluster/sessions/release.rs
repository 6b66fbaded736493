//! Sessions that another node asks for: this node releases them.

use std::sync::Arc;

use bytes::Bytes;
use mq_codec::ByteStr;
use tokio::sync::mpsc;

use crate::{
    cluster::{Cluster, engine::NodeRequest},
    hub::LocalSessions,
};

impl Cluster {
    /// Lets sessions go that other nodes ask for.
    pub(in crate::cluster) async fn serve_release_requests(
        self: Arc<Self>,
        mut requests: mpsc::Receiver<NodeRequest>,
        local: Arc<dyn LocalSessions>,
    ) {
        while let Some(NodeRequest { payload, reply }) = requests.recv().await {
            let id = std::str::from_utf8(&payload).ok().map(str::to_owned);
            let Some(id) = id.and_then(|id| ByteStr::new(id).ok()) else {
                continue;
            };
            let (cluster, local) = (Arc::clone(&self), Arc::clone(&local));
            // Each has its own time: one that does not end holds up no other.
            tokio::spawn(async move {
                if !cluster.begin_release(&id).await {
                    // The other node may have stopped.
                    let _ = reply.send(Bytes::new());
                    return;
                }
                // What its client has published is in the logs before the place from which on its next owner reads them:
                // that knows by its record then which of it was released.
                let is_settled = Box::pin(cluster.ledger.settle_all());
                let end = Box::new(|| cluster.end_queueing(&id));
                if local.release_session(&id, is_settled, end).await {
                    cluster.finish_release(&id).await;
                } else {
                    cluster.cancel_release(&id);
                }
                // Of a session that has ended meanwhile the record says so before another begins. The other
                // node may have stopped.
                let _ = reply.send(Bytes::new());
            });
        }
    }
}
