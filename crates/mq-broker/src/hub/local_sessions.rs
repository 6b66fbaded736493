//! The hub, as the cluster sees it: the sessions of this node.

use std::time::Duration;

use mq_codec::{ByteStr, TopicFilter};

use super::{
    Hub,
    nodes::NodeFuture,
    publish::{ClusterMessage, Publisher},
    relocate::{ArrivingSession, ArrivingSubscription},
};
use crate::{
    clock,
    lock::read,
    store::{LogPosition, SessionRecord, StoredMessage, StoredWill, User},
};

/// The sessions and retained messages of this node, as its cluster changes them.
pub(crate) trait LocalSessions: Send + Sync {
    /// Makes the publishing side for messages that come from the cluster.
    fn publisher(&self) -> Publisher;

    /// Queues a message of the cluster for the sessions of this node that it is for. `begin` is called once, at the moment
    /// at which its receivers are found, and returns its position in the logs.
    fn publish_from_cluster(
        &self,
        message: ClusterMessage<'_>,
        publisher: &mut Publisher,
        begin: &mut dyn FnMut() -> Option<LogPosition>,
    );

    /// Retains a message that the cluster has kept.
    fn restore_retained(&self, message: StoredMessage);

    /// Begins a session that another node had, with its subscriptions: messages are queued for it from here on. `then`
    /// is called once, at that moment. `None`, and nothing is done, if somebody has a session of that client identifier here.
    fn begin_arrival(
        &self,
        client_id: &ByteStr,
        user: Option<&User>,
        subscriptions: &mut dyn Iterator<Item = ArrivingSubscription>,
        then: &mut dyn FnMut(),
    ) -> Option<ArrivingSession>;

    /// Gives an arriving session its messages and its will; a connection can have it from then on.
    fn finish_arrival(
        &self,
        arriving: ArrivingSession,
        record: SessionRecord,
        will: Option<StoredWill>,
    );

    /// Forgets a session that could not be restored; nothing of it is lost but what this node knew.
    fn abandon_arrival(&self, arriving: ArrivingSession);

    /// Lets a session go to another node, once its connection has ended and `is_settled` resolves to `true`. `then` is
    /// called at the moment from which on no message is queued for it here, even if there is none. Resolves to `false` if
    /// it is not settled, has ended meanwhile, or its connection does not end in time.
    fn release_session<'a>(
        &'a self,
        client_id: &'a ByteStr,
        is_settled: NodeFuture<'a, bool>,
        then: Box<dyn FnOnce() + Send + 'a>,
    ) -> NodeFuture<'a, bool>;

    /// Returns how long ago the client of a session at this node has last connected; `None` if it has not connected here.
    fn connected_before(&self, client_id: &ByteStr) -> Option<Duration>;

    /// Ends a session that the cluster cannot keep, with 0x97 (Quota exceeded) for its client. Resolves to `false` if its
    /// connection does not end in time.
    fn end_unkeepable<'a>(&'a self, client_id: &'a ByteStr) -> NodeFuture<'a, bool>;

    /// Counts messages that a session has lost.
    fn count_dropped(&self, messages: usize);

    /// Calls `take` with the filter of each subscription of this node's sessions, until it returns `false`.
    fn filters(&self, take: &mut dyn FnMut(&TopicFilter) -> bool);

    /// Returns the number of subscriptions that have ended.
    fn filters_ended(&self) -> u64;

    /// Publishes once more the part of each session of this node in its shared subscriptions.
    fn publish_memberships_again(&self);

    /// Publishes once more whether a client's session at this node is a member of a shared subscription.
    fn publish_membership_again(&self, client_id: &ByteStr, filter: &TopicFilter);
}

impl LocalSessions for Hub {
    fn publisher(&self) -> Publisher {
        self.publisher()
    }

    fn publish_from_cluster(
        &self,
        message: ClusterMessage<'_>,
        publisher: &mut Publisher,
        begin: &mut dyn FnMut() -> Option<LogPosition>,
    ) {
        self.publish_from_cluster(message, publisher, begin);
    }

    fn restore_retained(&self, message: StoredMessage) {
        self.retained
            .restore(message, self.store_clock(), &self.metrics);
    }

    fn begin_arrival(
        &self,
        client_id: &ByteStr,
        user: Option<&User>,
        subscriptions: &mut dyn Iterator<Item = ArrivingSubscription>,
        then: &mut dyn FnMut(),
    ) -> Option<ArrivingSession> {
        ArrivingSession::begin(self, client_id, user, subscriptions, then)
    }

    fn finish_arrival(
        &self,
        arriving: ArrivingSession,
        record: SessionRecord,
        will: Option<StoredWill>,
    ) {
        arriving.finish(self, record, will);
    }

    fn abandon_arrival(&self, arriving: ArrivingSession) {
        arriving.abandon(self);
    }

    fn release_session<'a>(
        &'a self,
        client_id: &'a ByteStr,
        is_settled: NodeFuture<'a, bool>,
        then: Box<dyn FnOnce() + Send + 'a>,
    ) -> NodeFuture<'a, bool> {
        Box::pin(self.release_session(client_id, is_settled, then))
    }

    fn connected_before(&self, client_id: &ByteStr) -> Option<Duration> {
        let connected = self.sessions.get(client_id)?.last_connected()?;
        Some(clock::now().saturating_duration_since(connected))
    }

    fn end_unkeepable<'a>(&'a self, client_id: &'a ByteStr) -> NodeFuture<'a, bool> {
        Box::pin(self.end_unkeepable(client_id))
    }

    fn count_dropped(&self, messages: usize) {
        self.metrics.dropped.add(messages);
    }

    fn filters(&self, take: &mut dyn FnMut(&TopicFilter) -> bool) {
        self.session_turns()
            .flatten()
            .all(|session| session.subscriptions.lock().keys().all(&mut *take));
    }

    fn filters_ended(&self) -> u64 {
        read(&self.routing).ended
    }

    fn publish_memberships_again(&self) {
        for session in self.session_turns().flatten() {
            self.publish_memberships_again(&session);
        }
    }

    fn publish_membership_again(&self, client_id: &ByteStr, filter: &TopicFilter) {
        self.publish_membership_again(client_id, filter);
    }
}
