//! Messages of QoS 0 go to the nodes that may have a subscriber, and to no other.
//!
//! Each node sends the others a summary of its filters (`summary.rs`) and answers a SUBSCRIBE once they know the new one,
//! or have not answered for [`ANNOUNCE_TIMEOUT`]: a message that is published after SUBACK reaches the subscriber. A node
//! whose summary is not known gets every message. Filters that ended leave the summary when it is made anew.
//!
//! ```text
//!  SUBSCRIBE --> own.rs: a new entry --announce--> others.rs of the other nodes --confirm--> SUBACK
//!  PUBLISH of QoS 0 --> others.rs: receivers of the topic --> qos0.rs of each of them
//! ```

mod message;
mod others;
mod own;
mod summary;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use mq_codec::TopicFilter;
use tokio::{
    sync::Notify,
    task::{JoinSet, spawn_blocking},
    time::{MissedTickBehavior, interval, timeout},
};

use super::{Cluster, engine::Malformed, log::Author, question::Question};
use crate::{hub::LocalSessions, lock::lock, store::Position};
use message::Announcement;
use others::OtherSummaries;
use own::OwnSummary;
use summary::Summary;

/// Time that a node has to confirm an announcement. A SUBSCRIBE waits no longer for it.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_millis(250);

/// Interval at which nodes that have not confirmed are sent the summary again.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);

/// Retries after which the summary is made anew, if filters have ended.
const RETRIES_PER_REBUILD: u32 = 10;

/// Answers to an announcement.
const CONFIRMED: &[u8] = &[1];
const WHOLE_NEEDED: &[u8] = &[2];

/// The summaries of all nodes.
#[derive(Debug)]
pub(super) struct Interest {
    own: Mutex<OwnSummary>,
    others: Mutex<OtherSummaries>,
    /// Wakes the task that announces.
    changed: Notify,
}

impl Interest {
    pub(super) fn new(own: Author) -> Self {
        Self {
            own: Mutex::new(OwnSummary::new(own)),
            others: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Returns the other nodes that may have a subscriber of the topic.
    pub(super) fn receivers(&self, topic: &str) -> Vec<String> {
        lock(&self.others).receivers(topic)
    }

    /// Notes which other nodes may still send or receive something.
    pub(super) fn keep_nodes(&self, nodes: &[String], own: &str) {
        let others = nodes.iter().map(|node| &**node);
        let others: HashSet<_> = others.filter(|node| *node != own).collect();
        lock(&self.others).keep_nodes(&others);
        lock(&self.own).keep_nodes(&others);
    }
}

impl Cluster {
    /// See [`Nodes::note_filter`](crate::hub::Nodes::note_filter).
    pub(super) fn announce_filter(&self, filter: &TopicFilter) -> Option<Position> {
        let mut own = lock(&self.interest.own);
        let call = own.add(filter).then(|| {
            let call = self.ledger.begin(1);
            own.wait(call);
            call
        });
        drop(own);
        if call.is_some() {
            self.interest.changed.notify_one();
        }
        call
    }

    /// Sends this node's summary to the others whenever it has changed.
    pub(super) async fn announce_summary(self: Arc<Self>, local: Arc<dyn LocalSessions>) {
        let mut retries = interval(ANNOUNCE_INTERVAL);
        retries.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut until_rebuild, mut ended) = (RETRIES_PER_REBUILD, 0);
        // Nodes that did not confirm in time hold up no SUBSCRIBE until the next retry.
        let mut silent = HashSet::new();
        loop {
            tokio::select! {
                () = self.interest.changed.notified() => {}
                _ = retries.tick() => {
                    silent.clear();
                    until_rebuild -= 1;
                }
            }
            let is_too_large = lock(&self.interest.own).is_too_large();
            if is_too_large || until_rebuild == 0 {
                until_rebuild = RETRIES_PER_REBUILD;
                let have_ended = core::mem::replace(&mut ended, local.filters_ended());
                if is_too_large || have_ended < ended {
                    self.rebuild_summary(Arc::clone(&local)).await;
                }
            }
            self.announce_once(&mut silent).await;
        }
    }

    /// Makes the summary anew of the filters of all sessions, which may be a million.
    async fn rebuild_summary(self: &Arc<Self>, local: Arc<dyn LocalSessions>) {
        let this = Arc::clone(self);
        let rebuilding = spawn_blocking(move || {
            // Not locked while it looks at the sessions: whoever has one of them locked may be adding a filter.
            lock(&this.interest.own).begin_rebuild();
            let summary = Summary::of(|take| local.filters(take));
            lock(&this.interest.own).end_rebuild(summary);
        });
        // It ends early with the broker alone.
        let _ = rebuilding.await;
    }

    /// Sends the present version to the nodes that do not know it, but the silent ones, and ends the calls that wait for it.
    async fn announce_once(&self, silent: &mut HashSet<String>) {
        let mut nodes = self.live_nodes();
        nodes.retain(|node| *node != self.author.node && !silent.contains(node));
        let (version, announcements) = lock(&self.interest.own).announcements(&nodes);
        let mut announcing = JoinSet::new();
        for (node, announcement) in announcements {
            let engine = Arc::clone(&self.engine);
            let question = Question::Summary(&announcement.encode()).encode();
            announcing.spawn(async move {
                let request = engine.request(&node, question);
                let reply = timeout(ANNOUNCE_TIMEOUT, request).await;
                (node, reply.ok().and_then(Result::ok))
            });
        }
        while let Some(Ok((node, reply))) = announcing.join_next().await {
            let mut own = lock(&self.interest.own);
            match reply.as_deref() {
                Some(CONFIRMED) => own.note_known(&node, Some(version)),
                Some(_) => {
                    own.note_known(&node, None);
                    self.interest.changed.notify_one();
                }
                None => {
                    silent.insert(node);
                }
            }
        }
        let done = lock(&self.interest.own).end_announcement(version);
        for call in done {
            self.ledger.complete_part(call);
        }
    }

    /// Notes the summary of another node, and returns the answer.
    pub(super) fn receive_summary(&self, announcement: &[u8]) -> Result<Bytes, Malformed> {
        let announcement = Announcement::decode(announcement)?;
        let Author { node, life } = announcement.author.clone();
        let mut others = lock(&self.interest.others);
        let known_life = others.life(&node);
        let is_known = others.note(announcement);
        drop(others);
        if known_life != Some(life) {
            // A life that begins knows no summary of this node.
            lock(&self.interest.own).note_known(&node, None);
            self.interest.changed.notify_one();
        }
        let reply = if is_known { CONFIRMED } else { WHOLE_NEEDED };
        Ok(Bytes::from_static(reply))
    }
}
