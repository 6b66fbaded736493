//! The way of messages from the logs to the sessions of this node.

use std::sync::Arc;

use tracing::error;

use super::{
    append::Shard,
    author::Author,
    entry::{BatchItem, LogEntry, LogMessage},
    groups::SharedGroups,
};
use crate::{
    cluster::{Cluster, engine::Entry},
    hub::{ClusterMessage, ClusterReceivers, LocalSessions, Publisher},
    lock::{lock, read, write},
    store::{At, LogPosition},
};

impl Cluster {
    /// Reads one log, as long as this node lives.
    pub(in crate::cluster) async fn follow_log(
        self: Arc<Self>,
        shard: u16,
        local: Arc<dyn LocalSessions>,
    ) {
        let here = &self.shards[usize::from(shard)];
        let last = lock(&here.state).entry;
        let mut entries = self.engine.follow(shard, last);
        let mut publisher = local.publisher();
        let mut first_lost = None;
        while let Some(entry) = entries.recv().await {
            if entry.is_lost() {
                first_lost.get_or_insert(entry.number);
                lock(&here.state).finish_entry(&entry, false);
                here.progress.finish(At::end_of(entry.number));
                continue;
            }
            if let Some(first) = first_lost.take() {
                let last = entry.number - 1;
                error!(
                    shard,
                    first,
                    last,
                    "cluster: servers have lost log entries, and acknowledged messages in them"
                );
                here.set_backs.note_lost(&(first..=last));
            }
            lock(&here.state).begin_entry();
            lock(&here.recent).push(&entry);
            let mut is_synced = false;
            match LogEntry::decode(&entry.bytes) {
                Ok(LogEntry::Fence(author)) => {
                    if !self.read_fence(here, &author, entry.number) {
                        return;
                    }
                }
                Ok(LogEntry::Batch {
                    author,
                    count,
                    read,
                    items,
                }) => {
                    let (is_new, is_contradicted) = {
                        let mut state = lock(&here.state);
                        let is_contradicted = state.trail.contradicts(read);
                        (state.counts.is_new(&author, count), is_contradicted)
                    };
                    if is_contradicted {
                        self.ask_for_sync(here);
                    }
                    if is_new && !self.is_fenced_off(&author, shard, &entry) {
                        for (index, item) in items.into_iter().enumerate() {
                            let at = At::new(entry.number, index);
                            match item {
                                BatchItem::Member(membership) => {
                                    lock(&here.state).groups.update_member(&author, membership);
                                }
                                BatchItem::Message(item) => {
                                    let position = LogPosition { shard, at };
                                    self.deliver_logged(position, item, &*local, &mut publisher);
                                }
                                BatchItem::Groups(groups) => {
                                    let Ok(groups) = SharedGroups::decode(&groups) else {
                                        return self.fail("malformed groups in a log");
                                    };
                                    if !self.read_missed(here, &*local, &mut publisher).await {
                                        return;
                                    }
                                    self.replace_groups(here, groups, &*local);
                                    is_synced = true;
                                }
                            }
                        }
                        publisher.wake_readers();
                    }
                    if author == self.author {
                        here.progress.finish(At::end_of(entry.number));
                        here.read_back.send_modify(|last| *last = count.max(*last));
                    }
                }
                Err(_) => {
                    error!(shard, entry = entry.number, "cluster: malformed log entry");
                    return self.fail("malformed log entry");
                }
            }
            lock(&here.state).finish_entry(&entry, is_synced);
            here.progress.finish(At::end_of(entry.number));
        }
        self.fail("log has no next entry");
    }

    /// Notes the end of a life in one log. Returns `false` if it is this one.
    pub(super) fn read_fence(&self, here: &Shard, author: &Author, entry: u64) -> bool {
        if self.is_ended_by(author) {
            self.fail("fenced by another node");
            return false;
        }
        write(&self.fences).note(author, here.number, entry);
        let mut state = lock(&here.state);
        state.counts.end_life(author);
        state.groups.end_life(author);
        self.fences_noted.send_modify(|count| *count += 1);
        true
    }

    /// Returns `true` if an entry is behind the fence of its author.
    pub(in crate::cluster) fn is_fenced_off(
        &self,
        author: &Author,
        shard: u16,
        entry: &Entry,
    ) -> bool {
        read(&self.fences).rejects(author, shard, entry.number)
    }

    pub(super) fn deliver_logged(
        &self,
        position: LogPosition,
        item: LogMessage,
        local: &dyn LocalSessions,
        publisher: &mut Publisher,
    ) {
        let LogMessage {
            from,
            packet_id,
            session,
            mut message,
        } = item;
        let packet_id = packet_id.filter(|_| self.session_number(&from) == Some(session));
        let here = &self.shards[usize::from(position.shard)];
        let progress = &here.progress;
        let chosen = {
            let mut state = lock(&here.state);
            if message.retain {
                message.retain = state.retain(position.at, &message);
            }
            let topic = message.message.topic.as_bytes();
            state.groups.choose(position.at, topic)
        };
        let message = ClusterMessage {
            from,
            packet_id,
            message,
            to: ClusterReceivers {
                group_members: &chosen,
                already_delivered: &[],
            },
        };
        local.publish_from_cluster(message, publisher, &mut || {
            progress.begin(position.at);
            Some(position)
        });
        progress.finish(position.at);
    }

    /// Returns `true` if a fence ends this life.
    fn is_ended_by(&self, author: &Author) -> bool {
        author.node == self.author.node && author.life >= self.author.life
    }
}
