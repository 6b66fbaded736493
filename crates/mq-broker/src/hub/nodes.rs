//! Interface of the hub to the other nodes of a cluster.

use std::{fmt, pin::Pin, sync::Arc};

use mq_codec::{ByteStr, PacketId, ReasonCode, TopicFilter};

use super::{AppendAnswers, Hub};
use crate::{
    auth::TakeOverPolicy,
    journal::Journal,
    session::{MemberState, Session},
    store::{Change, LogPosition, Position, StoredMessage, StoredWill, User},
};

/// The answer of other nodes, once it has come.
pub(crate) type NodeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The other nodes of a cluster, as one of them sees them.
pub(crate) trait Nodes: fmt::Debug + Send + Sync {
    /// Appends a message of a client of this node. It reaches the sessions of all nodes, this one's included, in the
    /// order of its log, and the position is settled then: or it is refused in `answers`, if its publisher can be
    /// answered so.
    ///
    /// # Errors
    /// If too much waits already, as the engine does not answer or is too slow, or if its storage is full.
    fn append(
        &self,
        from: &ByteStr,
        mark: LogMark,
        message: StoredMessage,
        answers: Option<&Arc<AppendAnswers>>,
    ) -> Result<Position, NotAppended>;

    /// Sends a message of QoS 0 to the other nodes, or loses it. Returns the members of shared subscriptions that it is
    /// for, at any node.
    fn send_qos0(&self, from: &ByteStr, message: StoredMessage) -> Vec<ByteStr>;

    /// Notes a filter of a session of this node, for which messages of QoS 0 come from then on. Returns a position that is
    /// settled when they come, unless they come already.
    fn note_filter(&self, filter: &TopicFilter) -> Option<Position>;

    /// Returns `true` if no session can become a member of a shared subscription, as a log that may have messages for it
    /// has no room.
    fn refuses_members(&self, filter: &TopicFilter) -> bool;

    /// Publishes to all nodes whether a session is a member of one of its shared subscriptions; settled when they can
    /// know. `lasts` is `true` if the session outlives its connection.
    fn update_membership(
        &self,
        client: &ByteStr,
        filter: &TopicFilter,
        state: MemberState,
        lasts: bool,
    ) -> Position;

    /// Records changes that follow from a message of the cluster: as [`Store::record`](crate::store::Store::record), with
    /// the message's place in the logs.
    fn record_logged(&self, origin: LogPosition, changes: Vec<Change>) -> Position;

    /// Records the will of a session, which is published if this node dies, or that it has none.
    fn record_will(&self, client: &ByteStr, will: Option<Box<StoredWill>>) -> Position;

    /// Records that the will of a session was published: that it is on its way to a log.
    fn record_published_will(&self, client: &ByteStr) -> Position;

    /// Makes the session of a client identifier this node's, with what it has, or a new one.
    ///
    /// # Errors
    /// The reason for the client.
    fn claim<'a>(
        &'a self,
        id: &'a ByteStr,
        user: &'a User,
        take_over: TakeOverPolicy,
    ) -> NodeFuture<'a, Result<(), ReasonCode>>;

    /// Resolves to `true` if another node that lives has a session, or may have it.
    fn is_elsewhere<'a>(&'a self, id: &'a ByteStr) -> NodeFuture<'a, bool>;

    /// Returns `true` if a session is this node's, and stays.
    fn owns(&self, id: &ByteStr) -> bool;

    /// Ends a session that its client, or its time, has ended.
    fn session_ended(&self, id: &ByteStr);
}

/// The mark by which the next owner of a session knows a message of its client in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogMark {
    /// The owner need not know the message.
    None,
    /// The packet identifier of a QoS 2 message, which the client has not released.
    PacketId(PacketId),
    /// The message is the session's will, which is not published again.
    Will,
}

/// There is no room for a message: too many wait to be appended to the logs, or the cluster's storage is full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotAppended;

/// Times that a session may go to another connection while one waits for it, which then gets none: clients that
/// have the same identifier would take it from each other for ever.
pub(crate) const MAX_RIVALS: u32 = 3;

impl Hub {
    /// Returns `true` if this broker is a node of a cluster.
    pub(crate) fn is_clustered(&self) -> bool {
        self.cluster.is_some()
    }

    /// Makes a client's session one of this node, if this broker is a node of a cluster: once, before the session is
    /// [attached](Self::attach).
    ///
    /// # Errors
    /// The reason for the client: the session is another user's, or the other nodes did not release it in time.
    pub(crate) async fn claim_from_nodes(
        &self,
        client: &ByteStr,
        user: &User,
    ) -> Result<(), ReasonCode> {
        match &self.cluster {
            Some(cluster) => cluster.claim(client, user, self.settings.take_over).await,
            None => Ok(()),
        }
    }

    /// Resolves to `true` if a client's session is at another node, or may be.
    pub(crate) async fn is_elsewhere(&self, client: &ByteStr) -> bool {
        match &self.cluster {
            Some(cluster) => cluster.is_elsewhere(client).await,
            None => false,
        }
    }

    /// Returns `true` if this is a node of a cluster whose logs have no room for new members of a shared subscription.
    pub(super) fn has_no_room_for_members(&self, filter: &TopicFilter) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.is_some_and(|cluster| cluster.refuses_members(filter))
    }

    /// Publishes the part that a session has in all its shared subscriptions, if this is a node of a cluster.
    pub(crate) fn update_memberships(
        &self,
        session: &Session,
        state: MemberState,
        journal: &mut Journal,
    ) {
        if self.cluster.is_none() {
            return;
        }
        let mut published = session.member_state();
        *published = state;
        for position in self.publish_memberships(session, state) {
            journal.note_recorded(position);
        }
    }

    /// Publishes the part that a session has in one subscription, if that is a shared one.
    pub(super) fn update_membership(
        &self,
        session: &Session,
        filter: &TopicFilter,
        state: MemberState,
        journal: &mut Journal,
    ) {
        if let Some(cluster) = &self.cluster
            && filter.shared().is_some()
        {
            let _published = session.member_state();
            let (id, lasts) = (&session.client_id, session.is_persistent());
            journal.note_recorded(cluster.update_membership(id, filter, state, lasts));
        }
    }

    /// Publishes once more what the nodes know of the memberships of a session.
    pub(super) fn publish_memberships_again(&self, session: &Session) {
        let published = session.member_state();
        if *published != MemberState::Gone {
            self.publish_memberships(session, *published);
        }
    }

    /// Publishes once more whether a client's session at this node is a member of a shared subscription.
    pub(super) fn publish_membership_again(&self, client: &ByteStr, filter: &TopicFilter) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        if let Some(session) = self.sessions.get(client) {
            let published = session.member_state();
            let is_member = session.subscriptions.lock().contains_key(filter);
            let state = if is_member {
                *published
            } else {
                MemberState::Gone
            };
            cluster.update_membership(client, filter, state, session.is_persistent());
            return;
        }
        cluster.update_membership(client, filter, MemberState::Gone, true);
        // A session that has begun meanwhile may have published before.
        if let Some(session) = self.sessions.get(client) {
            self.publish_memberships_again(&session);
        }
    }

    /// Publishes the part that a session has in all its shared subscriptions; by a caller that has locked it.
    fn publish_memberships(&self, session: &Session, state: MemberState) -> Vec<Position> {
        let Some(cluster) = &self.cluster else {
            return Vec::new();
        };
        let all = session.subscriptions.lock();
        let shared = all.keys().filter(|filter| filter.shared().is_some());
        let (id, lasts) = (&session.client_id, session.is_persistent());
        shared
            .map(|filter| cluster.update_membership(id, filter, state, lasts))
            .collect()
    }
}
