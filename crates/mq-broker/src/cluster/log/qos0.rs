//! Messages of QoS 0 from node to node, which are in no log and may be lost.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use mq_codec::ByteStr;
use tokio::sync::mpsc;
use tracing::error;

use super::{
    author::Author,
    entry::{Item, Told},
};
use crate::{
    cluster::{Cluster, engine::Malformed},
    hub::{ClusterMessage, ClusterReceivers, LocalSessions, Publisher},
    lock::lock,
    store::StoredMessage,
};

impl Cluster {
    pub(in crate::cluster) fn tell_all(
        &self,
        from: &ByteStr,
        message: StoredMessage,
    ) -> Vec<ByteStr> {
        let topic = &message.message.topic;
        let shard = self.shard_of(topic);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let chosen = lock(&shard.state)
            .groups
            .choose_present(topic.as_bytes(), turn);
        let item = Item {
            from: from.clone(),
            packet_id: None,
            session: 0,
            message,
        };
        if let Ok(item) = item.encode() {
            let told = Told::Message {
                head: &lock(&self.marks).head(),
                chosen: chosen.clone(),
                item: &item,
            };
            self.engine.tell(told.encode());
        }
        chosen
    }

    /// Tells the other nodes this one's mark.
    pub(in crate::cluster) fn tell_mark(&self) {
        let mark = lock(&self.marks).own().clone();
        self.engine.tell(Told::Mark(mark).encode());
    }

    /// QoS 0 of other nodes.
    pub(in crate::cluster) async fn hear(
        self: Arc<Self>,
        mut told: mpsc::Receiver<Bytes>,
        local: Arc<dyn LocalSessions>,
    ) {
        let mut publisher = local.publisher();
        while let Some(message) = told.recv().await {
            if self.hear_one(&message, &*local, &mut publisher).is_err() {
                error!("another node tells what is no message");
            }
        }
    }

    fn hear_one(
        &self,
        told: &[u8],
        local: &dyn LocalSessions,
        publisher: &mut Publisher,
    ) -> Result<(), Malformed> {
        match Told::decode(told)? {
            Told::Mark(mark) => lock(&self.marks).note(mark),
            Told::Message { head, chosen, item } => {
                let is_over = |life: &Author| self.is_over(life);
                let Some(late) = lock(&self.marks).late_for(head, is_over)? else {
                    return Ok(());
                };
                let Item { from, message, .. } = Item::decode(item)?;
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
