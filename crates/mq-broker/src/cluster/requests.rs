//! Requests of other nodes to this one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::mpsc;
use tracing::error;

use super::{
    Cluster,
    engine::{Malformed, NodeRequest},
    question::{KEPT, Question},
};
use crate::hub::LocalSessions;

impl Cluster {
    /// Answers the requests of other nodes.
    pub(super) async fn serve_requests(
        self: Arc<Self>,
        mut requests: mpsc::Receiver<NodeRequest>,
        local: Arc<dyn LocalSessions>,
    ) {
        while let Some(request) = requests.recv().await {
            if self.serve_request(request, &local).is_err() {
                error!("cluster: malformed request from another node");
            }
        }
    }

    fn serve_request(
        self: &Arc<Self>,
        request: NodeRequest,
        local: &Arc<dyn LocalSessions>,
    ) -> Result<(), Malformed> {
        let NodeRequest { payload, reply } = request;
        match Question::decode(&payload)? {
            Question::Release { id, waited_ms } => {
                let waited = Duration::from_millis(waited_ms);
                let (cluster, local) = (Arc::clone(self), Arc::clone(local));
                // Each has its own time: one that does not end holds up no other.
                tokio::spawn(async move {
                    let is_released = cluster.release_session(&*local, &id, waited).await;
                    let answer = if is_released { &[] } else { KEPT };
                    // The other node may have stopped.
                    let _ = reply.send(Bytes::from_static(answer));
                });
            }
            Question::Life(life) => {
                if life == self.author.life && !self.ledger.has_failed() {
                    // The other node may have stopped.
                    let _ = reply.send(Bytes::new());
                }
            }
            Question::Summary(announcement) => {
                let answer = self.receive_summary(announcement)?;
                // The other node may have stopped.
                let _ = reply.send(answer);
            }
        }
        Ok(())
    }
}
