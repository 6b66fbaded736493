//! What a node of a cluster does with messages and sessions that come from other nodes, or go there.

use std::{fmt, pin::Pin, sync::Arc};

use mq_codec::{
    ByteStr, PacketId, QoS, ReasonCode, SubscriptionId, SubscriptionOptions, TopicFilter,
};
use mq_proto::{AckTicket, Delivery, Message};
use tokio::sync::OwnedMutexGuard;

use super::{Hub, Publisher, in_time, publisher::AtHand, read, write};
use crate::{
    auth::TakeOver,
    clock,
    journal::Journal,
    lock::lock,
    router::{LaneSlot, SessionKey, Subscriber},
    session::{KeptWill, Session, State},
    store::{
        Change, LogPosition, Position, SessionChange, SessionRecord, StoredMessage, StoredWill,
        User, from_wall_clock,
    },
};

/// What the other nodes answer.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The other nodes of a cluster, as one of them sees them.
pub(crate) trait Nodes: fmt::Debug + Send + Sync {
    /// Appends a message of a client of this node. It reaches the sessions of all nodes, this one's included, in the
    /// order of its log, and the position is settled then.
    ///
    /// # Errors
    /// If too much waits already: the engine does not answer, or is too slow.
    fn append(
        &self,
        from: &ByteStr,
        packet_id: Option<PacketId>,
        message: StoredMessage,
    ) -> Result<Position, Overfull>;

    /// Sends a message of QoS 0 to the other nodes, or loses it. Returns which members of shared subscriptions it is for,
    /// at any node.
    fn tell(&self, from: &ByteStr, message: StoredMessage) -> Vec<ByteStr>;

    /// Has all nodes know what a session is to one of its shared subscriptions; settled when they can. `lasts`: whether the
    /// session outlives its connection.
    fn member(
        &self,
        client: &ByteStr,
        filter: &TopicFilter,
        state: MemberState,
        lasts: bool,
    ) -> Position;

    /// Makes the session of a client identifier this node's, with what it has, or a new one.
    ///
    /// # Errors
    /// The reason for the client.
    fn claim<'a>(
        &'a self,
        id: &'a ByteStr,
        user: &'a User,
        take_over: TakeOver,
    ) -> Later<'a, Result<(), ReasonCode>>;

    /// Whether another node that lives has a session, or may have it.
    fn is_elsewhere<'a>(&'a self, id: &'a ByteStr) -> Later<'a, bool>;

    /// Whether a session is this node's, and stays.
    fn has(&self, id: &ByteStr) -> bool;

    /// Ends a session that its client, or its time, has ended.
    fn ended(&self, id: &ByteStr);
}

/// Whether a member of a shared subscription gets messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberState {
    /// It has a connection.
    Present,
    /// It has none: it gets messages if nobody is present.
    Away,
    /// It is no member any more.
    Gone,
}

/// So much waits to be appended that there is no room for more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overfull;

/// How often a session may have gone to another connection while one waited for it, which then gets none: clients that
/// have the same identifier would take it from each other for ever.
pub(crate) const RIVALS: u32 = 3;

/// Numbers below this one are for messages that a session of another node brings along: in front of those that are
/// queued here meanwhile.
const FIRST_HERE: u64 = 1 << 32;

/// A session that comes from another node, while what it has is being read.
pub(crate) struct Restoring {
    session: Arc<Session>,
    state: OwnedMutexGuard<State>,
}

/// Which sessions get a message of the cluster, apart from their subscriptions.
#[derive(Clone, Copy)]
pub(crate) struct Receivers<'a> {
    /// Of members of shared subscriptions, these.
    pub(crate) chosen: &'a [ByteStr],
    /// It is too late for these.
    pub(crate) late: &'a [ByteStr],
}

/// A message of a client for the cluster.
#[derive(Clone, Copy)]
pub(super) struct ToAll<'a> {
    pub(super) from: &'a Session,
    pub(super) message: &'a Arc<Message>,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) expires_at: Option<std::time::Instant>,
    pub(super) ticket: Option<&'a AckTicket>,
}

impl Hub {
    /// Whether it is a node of a cluster.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.cluster.is_some()
    }

    /// Whether a client's session is at another node, or may be.
    pub(crate) async fn is_elsewhere(&self, client: &ByteStr) -> bool {
        match &self.cluster {
            Some(cluster) => cluster.is_elsewhere(client).await,
            None => false,
        }
    }

    /// Gives a message to the cluster, if this is a node of one. Returns whether its own sessions get it from there.
    pub(super) fn publish_to_all(&self, publish: ToAll<'_>, publisher: &mut Publisher) -> bool {
        let Some(cluster) = &self.cluster else {
            return false;
        };
        let ToAll {
            from,
            message,
            qos,
            retain,
            expires_at,
            ticket,
        } = publish;
        let mut delivery = Delivery::new(Arc::clone(message), qos);
        delivery.retain = retain;
        delivery.expires_at = expires_at;
        let stored = StoredMessage::new(&delivery);
        if qos == QoS::AtMostOnce && !retain {
            let chosen = cluster.tell(&from.client_id, stored);
            publisher.only = Some(self.keys_of(&chosen));
            return false;
        }
        let packet_id = ticket
            .filter(|ticket| qos == QoS::ExactlyOnce && ticket.is_of_session())
            .filter(|_| publisher.journal.keeps(from))
            .map(AckTicket::packet_id);
        match cluster.append(&from.client_id, packet_id, stored) {
            Ok(position) => {
                publisher.journal.note(position);
                publisher.at_hand = AtHand::passed_on();
            }
            Err(Overfull) => publisher.at_hand = AtHand::refused(&message.topic),
        }
        true
    }

    /// Those that are sessions of this node.
    fn keys_of(&self, clients: &[ByteStr]) -> Vec<SessionKey> {
        if clients.is_empty() {
            return Vec::new();
        }
        let sessions = lock(&self.sessions);
        let here = clients.iter().filter_map(|id| sessions.by_id.get(id));
        here.map(|session| session.key).collect()
    }

    /// Has the cluster, if it is one of its nodes, know what a session is to all its shared subscriptions.
    pub(crate) fn tell_of_member(
        &self,
        session: &Session,
        state: MemberState,
        journal: &mut Journal,
    ) {
        if self.cluster.is_none() {
            return;
        }
        let filters: Vec<_> = {
            let all = session.subscriptions.lock();
            let shared = all.keys().filter(|filter| filter.shared().is_some());
            shared.cloned().collect()
        };
        for filter in filters {
            self.tell_of_membership(session, &filter, state, journal);
        }
    }

    /// The same of one of them, if it is a shared one.
    pub(super) fn tell_of_membership(
        &self,
        session: &Session,
        filter: &TopicFilter,
        state: MemberState,
        journal: &mut Journal,
    ) {
        if let Some(cluster) = &self.cluster
            && filter.shared().is_some()
        {
            let (id, lasts) = (&session.client_id, session.is_kept());
            journal.note(cluster.member(id, filter, state, lasts));
        }
    }

    /// Queues a message of the cluster for the sessions of this node that it is for. `begin` is called at the moment at which its receivers are found, and says where it is in the logs.
    pub(crate) fn deliver(
        &self,
        from: ByteStr,
        packet_id: Option<PacketId>,
        message: StoredMessage,
        to: Receivers<'_>,
        publisher: &mut Publisher,
        begin: impl FnOnce() -> Option<LogPosition>,
    ) {
        let StoredMessage {
            message,
            qos,
            retain,
            expires_at,
            ..
        } = message;
        let expires_at = expires_at.map(from_wall_clock);
        let sender = lock(&self.sessions).by_id.get(&from).map(|from| from.key);
        publisher.only = Some(self.keys_of(to.chosen));
        publisher.late = self.keys_of(to.late);
        let routing = read(&self.routing);
        let mut changes = Vec::new();
        changes.extend(begin().map(Change::At));
        if retain {
            // Without room for it, others have it.
            let _ = self.retain(&message, qos, expires_at, &publisher.journal);
        }
        if let Some(packet_id) = packet_id {
            let change = SessionChange::Received {
                packet_id,
                flow: None,
            };
            changes.push(Change::Session(from, change));
        }
        let flags = (qos, retain, expires_at, clock::now());
        self.fan_out(&routing, &message, flags, sender, changes, publisher);
        publisher.finish(&self.metrics);
    }

    /// Begins a session that another node had, with its subscriptions: messages are queued for it from here on. `then`
    /// is called at that moment.
    pub(crate) fn begin_restored<T>(
        &self,
        client_id: &ByteStr,
        user: Option<&User>,
        subscriptions: impl Iterator<Item = (TopicFilter, SubscriptionOptions, Option<SubscriptionId>)>,
        then: impl FnOnce() -> T,
    ) -> (Restoring, T) {
        let session = self
            .find_or_create(client_id, user, usize::MAX)
            .expect("there is no limit here");
        let mut state = Arc::clone(&session.state)
            .try_lock_owned()
            .expect("nobody else knows the session yet");
        state.used = true;
        session.keep();
        session.skip_numbers(FIRST_HERE);
        let mut routing = write(&self.routing);
        for (filter, options, subscription_id) in subscriptions {
            let subscriber = Subscriber {
                session: session.key,
                options,
                lane: LaneSlot::CONTROL,
                subscription_id,
            };
            self.restore_subscription(&mut routing, &mut state, filter, subscriber);
        }
        let value = then();
        drop(routing);
        (Restoring { session, state }, value)
    }

    /// Gives it what it has.
    pub(crate) fn finish_restored(
        &self,
        restoring: Restoring,
        record: SessionRecord,
        will: Option<StoredWill>,
    ) {
        let Restoring { session, mut state } = restoring;
        let SessionRecord {
            life,
            queued,
            in_flight,
            received,
            ..
        } = record;
        let will = will.map(|will| Box::new(KeptWill::restore(will, &self.memory_limit)));
        let in_flight = in_flight
            .into_iter()
            .map(|(id, message)| (id, message.map(|message| message.into_delivery(0))));
        state.protocol = Some(Box::new(mq_proto::Session::restore(in_flight, received)));
        let queued: Vec<_> = queued
            .into_iter()
            .map(|(number, message)| message.into_delivery(number))
            .collect();
        session.mailbox.put_back(queued.into_iter());
        let now = clock::now();
        self.tell_of_member(&session, MemberState::Away, &mut self.journal());
        session.leave(now, will, life.left(now));
        if let Some(will) = session.take_due_will(now) {
            self.publish_will(&session, *will);
        }
        drop(state);
        self.note_due(&session);
    }

    /// Forgets a session that could not be restored; nothing of it is lost but what this node knew.
    pub(crate) fn abandon(&self, restoring: Restoring) {
        let Restoring { session, mut state } = restoring;
        self.forget(&session, &mut state, || {});
    }

    /// Lets a session go to another node, once its connection has ended and `is_settled` says so. `then` is called at the
    /// moment from which on no message is queued for it here, even if there is none. False if it is not settled, has ended
    /// meanwhile, or its connection does not end in time.
    pub(crate) async fn let_go(
        &self,
        client_id: &ByteStr,
        is_settled: impl Future<Output = bool>,
        then: impl FnOnce(),
    ) -> bool {
        let session = lock(&self.sessions).by_id.get(client_id).cloned();
        let Some(session) = session else {
            let is_settled = is_settled.await;
            if is_settled {
                then();
            }
            return is_settled;
        };
        session.claim();
        let Some(mut state) = in_time(&session).await else {
            return false;
        };
        is_settled.await && self.forget(&session, &mut state, then)
    }

    /// Ends a session that the cluster cannot keep, with 0x97 (Quota exceeded) for its client. False if its connection does
    /// not end in time.
    pub(crate) async fn end_kept(&self, client_id: &ByteStr) -> bool {
        let session = lock(&self.sessions).by_id.get(client_id).cloned();
        let Some(session) = session else {
            return true;
        };
        session.kick(ReasonCode::QuotaExceeded);
        let Some(mut state) = in_time(&session).await else {
            return false;
        };
        self.end_subscriptions(&session).await;
        self.end_session(&session, &mut state, &mut self.journal());
        true
    }

    /// Takes a session away as if it had never been here. False if it has ended before.
    pub(super) fn forget(
        &self,
        session: &Arc<Session>,
        state: &mut State,
        then: impl FnOnce(),
    ) -> bool {
        let is_there = self.remove_from_routing(session, state, then).is_some();
        if is_there {
            self.remove(session, state, || {});
        }
        is_there
    }
}

impl Restoring {
    /// So many numbers for messages that are in front.
    pub(crate) fn numbers_in_front() -> std::ops::Range<u64> {
        1..FIRST_HERE
    }
}
