//! Messages of QoS 0 from node to node, which are in no log and may be lost.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use mq_codec::ByteStr;
use tokio::sync::mpsc;
use tracing::error;

use super::{
    author::Author,
    entry::{LogMessage, NodeMessage},
};
use crate::{
    cluster::{Cluster, engine::Malformed},
    hub::{ClusterMessage, ClusterReceivers, LocalSessions, Publisher},
    lock::lock,
    store::StoredMessage,
};

impl Cluster {
    pub(in crate::cluster) fn send_qos0_to_nodes(
        &self,
        from: &ByteStr,
        message: StoredMessage,
    ) -> Vec<ByteStr> {
        let topic = &Arc::clone(&message.message).topic;
        let shard = self.shard_of_topic(topic);
        let turn = self.qos0_turn.fetch_add(1, Ordering::Relaxed);
        let chosen = lock(&shard.state)
            .groups
            .choose_present(topic.as_bytes(), turn);
        let item = LogMessage {
            from: from.clone(),
            packet_id: None,
            session: 0,
            message,
        };
        let receivers = self.interest.receivers(topic);
        if receivers.is_empty() {
            return chosen;
        }
        if let Ok(item) = item.encode() {
            let told = NodeMessage::Message {
                header: &lock(&self.arrival_marks).header(),
                chosen: chosen.clone(),
                item: &item,
            };
            let told = told.encode();
            for node in receivers {
                self.engine.send(&node, told.clone());
            }
        }
        chosen
    }

    /// Tells the other nodes this one's mark.
    pub(in crate::cluster) fn broadcast_mark(&self) {
        let mark = lock(&self.arrival_marks).own_mark().clone();
        self.engine.broadcast(NodeMessage::Mark(mark).encode());
    }

    /// Publishes QoS 0 messages that other nodes send to this one.
    pub(in crate::cluster) async fn receive_qos0(
        self: Arc<Self>,
        mut told: mpsc::Receiver<Bytes>,
        local: Arc<dyn LocalSessions>,
    ) {
        let mut publisher = local.publisher();
        while let Some(message) = told.recv().await {
            if self
                .receive_one_qos0(&message, &*local, &mut publisher)
                .is_err()
            {
                error!("cluster: malformed message from another node");
            }
        }
    }

    fn receive_one_qos0(
        &self,
        told: &[u8],
        local: &dyn LocalSessions,
        publisher: &mut Publisher,
    ) -> Result<(), Malformed> {
        match NodeMessage::decode(told)? {
            NodeMessage::Mark(mark) => lock(&self.arrival_marks).note_node_mark(mark),
            NodeMessage::Message {
                header,
                chosen,
                item,
            } => {
                let is_over = |life: &Author| self.is_over(life);
                let Some(late) =
                    lock(&self.arrival_marks).sessions_too_late_for(header, is_over)?
                else {
                    return Ok(());
                };
                let LogMessage { from, message, .. } = LogMessage::decode(item)?;
                let message = ClusterMessage {
                    from,
                    packet_id: None,
                    message,
                    to: ClusterReceivers {
                        group_members: &chosen,
                        already_delivered: &late,
                    },
                };
                local.publish_from_cluster(message, publisher, &mut || None);
                publisher.wake_readers();
            }
        }
        Ok(())
    }
}
