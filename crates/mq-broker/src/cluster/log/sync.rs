//! The way back to one view of a log for nodes that have read different entries at the same places, as the log was
//! [set back](super::set_back) between their reading. A node that sees it, by its [trail](super::trail) or after it has filled
//! the log, appends the groups of shared subscriptions as it knows them. Each reader that comes to them reads what it has
//! missed at earlier places, goes on with those groups, and publishes its own members once more.

use std::{ops::RangeInclusive, time::Duration};

use tokio::time::{Instant, timeout};
use tracing::{error, warn};

use super::{
    append::Shard,
    author::Author,
    entry::{BatchItem, LogEntry},
    groups::SharedGroups,
};
use crate::{
    cluster::{Cluster, engine::Entry},
    hub::{LocalSessions, Publisher},
    lock::{lock, write},
    store::{At, LogPosition},
};

/// Bytes of the groups of a log that one entry has room for, at most: about 8,000 members.
const MAX_GROUPS_BYTES: usize = 512 << 10;

/// Interval at which a node asks for one view of a log at most.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);

/// Time within which a log that is read again has to bring its next entry.
pub(in crate::cluster) const LOG_SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

impl Cluster {
    /// Asks for one view of a log, as another node has read other entries than this one.
    pub(super) fn ask_for_sync(&self, shard: &Shard) {
        if shard.set_backs.may_sync(Instant::now(), SYNC_INTERVAL) {
            warn!(
                shard = shard.number,
                "cluster: another node has read other log entries; log is read again"
            );
            self.append_groups(shard);
        }
    }

    /// Has all readers go on with the groups as this node knows them, ahead of what waits to be appended.
    pub(super) fn append_groups(&self, shard: &Shard) {
        let groups = lock(&shard.state).groups.encode();
        if groups.len() > MAX_GROUPS_BYTES {
            warn!(
                shard = shard.number,
                bytes = groups.len(),
                "cluster: shared subscriptions too large to be put right; restart all nodes"
            );
            return;
        }
        if let Ok(item) = BatchItem::Groups(groups).encode() {
            shard.append_first(item, &self.ledger);
        }
    }

    /// Goes on with the groups of the node that has filled the log, and publishes again what that node need not know: the
    /// members of this node, and the ends of lives.
    pub(super) fn replace_groups(
        &self,
        shard: &Shard,
        groups: SharedGroups,
        local: &dyn LocalSessions,
    ) {
        let known = groups.members_of(&self.author);
        let authors = groups.authors();
        lock(&shard.state).groups.replace(groups);
        local.publish_memberships_again();
        for (client, filter) in known {
            local.publish_membership_again(&client, &filter);
        }
        let ended: Vec<_> = authors
            .into_iter()
            .filter(|author| self.is_over(author))
            .collect();
        self.begin_fencing_again(ended);
    }

    /// Reads what came to places that this node was past, as the log was set back. Returns `false` if it ends this life.
    pub(super) async fn read_missed(
        &self,
        here: &Shard,
        local: &dyn LocalSessions,
        publisher: &mut Publisher,
    ) -> bool {
        let (remembered, last) = {
            let state = lock(&here.state);
            (state.trail.first().unwrap_or(u64::MAX), state.entry)
        };
        let replaced = here.set_backs.take_replaced();
        let first_replaced = replaced.as_ref().map(|replaced| *replaced.start());
        let first = remembered.min(first_replaced.unwrap_or(u64::MAX));
        if first > last {
            return true;
        }
        let mut missed = 0_u64;
        let mut entries = self.engine.follow(here.number, first.saturating_sub(1));
        let mut next = first;
        while next <= last
            && let Ok(Some(entry)) = timeout(LOG_SILENCE_TIMEOUT, entries.recv()).await
            && entry.number <= last
        {
            next = entry.number + 1;
            let is_replaced = |replaced: &RangeInclusive<u64>| replaced.contains(&entry.number);
            let is_replaced = replaced.as_ref().is_some_and(is_replaced);
            let may_be_missed = is_replaced || entry.number >= remembered;
            if !may_be_missed || lock(&here.state).trail.has_read(&entry) {
                continue;
            }
            missed += 1;
            if !is_replaced {
                self.forget_read_at(here, entry.number);
            }
            if !self.read_late(here, &entry, local, publisher) {
                return false;
            }
        }
        lock(&here.recent).clear();
        if missed > 0 {
            error!(
                shard = here.number,
                entries = missed,
                "cluster: log had other entries than were read, as it was set back"
            );
        }
        true
    }

    /// Forgets what this node has read at a place of which another entry has become known.
    fn forget_read_at(&self, here: &Shard, number: u64) {
        let is_lost = |lost| lost == number;
        self.keep_lost_messages(here, is_lost);
        let ended = write(&self.fences).forget(here.number, is_lost);
        self.begin_fencing_again(ended);
    }

    /// Reads an entry that this node was past. Returns `false` if it ends this life.
    fn read_late(
        &self,
        here: &Shard,
        entry: &Entry,
        local: &dyn LocalSessions,
        publisher: &mut Publisher,
    ) -> bool {
        let (author, count, items) = match LogEntry::decode(&entry.bytes) {
            Ok(LogEntry::Fence(author)) => return self.read_fence(here, &author, entry.number),
            Ok(LogEntry::Batch {
                author,
                count,
                items,
                ..
            }) => (author, count, items),
            // The reader that came to it in its turn has said so.
            Err(_) => return true,
        };
        if self.is_fenced_off(&author, here.number, entry) {
            return true;
        }
        lock(&here.state).counts.is_new(&author, count);
        for (index, item) in items.into_iter().enumerate() {
            // Groups come whole.
            if let BatchItem::Message(item) = item {
                let position = LogPosition {
                    shard: here.number,
                    at: At::new(entry.number, index),
                };
                self.deliver_logged(position, item, local, publisher);
            }
        }
        true
    }

    fn begin_fencing_again(&self, ended: Vec<Author>) {
        if let Some(this) = self.this.upgrade().filter(|_| !ended.is_empty()) {
            self.runtime
                .spawn(async move { this.append_lost_fences(ended).await });
        }
    }
}
