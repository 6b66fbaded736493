//! Sessions that move between the nodes of a cluster: from another node to this one, and away.

use std::sync::Arc;

use mq_codec::{ByteStr, ReasonCode, SubscriptionId, SubscriptionOptions, TopicFilter};
use tokio::sync::OwnedMutexGuard;

use super::{Hub, attach::take_state};
use crate::{
    clock,
    lock::write,
    router::{LaneSlot, Subscriber},
    session::{KeptWill, MemberState, Session, SessionState},
    store::{SessionRecord, StoredWill, User},
};

/// Numbers below this one are for messages that a session of another node brings along: in front of those that are
/// queued here meanwhile.
const FIRST_NUMBER_HERE: u64 = 1 << 32;

/// A subscription of a session that comes from another node.
pub(crate) type ArrivingSubscription = (TopicFilter, SubscriptionOptions, Option<SubscriptionId>);

/// A session that comes from another node, while its messages are being read.
pub(crate) struct ArrivingSession {
    session: Arc<Session>,
    state: OwnedMutexGuard<SessionState>,
}

impl ArrivingSession {
    /// See [`LocalSessions::begin_arrival`](super::LocalSessions::begin_arrival). `None` if somebody has the state of a session
    /// of that client identifier here, such as a connection that finds that it may not have it.
    pub(super) fn begin(
        hub: &Hub,
        client_id: &ByteStr,
        user: Option<&User>,
        subscriptions: &mut dyn Iterator<Item = ArrivingSubscription>,
        then: &mut dyn FnMut(),
    ) -> Option<Self> {
        let sessions = &hub.sessions;
        let (session, mut state) =
            sessions.find_or_restore(client_id, user, &hub.routing, &hub.metrics)?;
        state.was_attached = true;
        session.make_persistent();
        session.continue_numbers_after(FIRST_NUMBER_HERE);
        let mut routing = write(&hub.routing);
        for (filter, options, subscription_id) in subscriptions {
            let subscriber = Subscriber {
                session: session.key,
                options,
                lane: LaneSlot::CONTROL,
                subscription_id,
            };
            hub.restore_subscription(&mut routing, &mut state, filter, subscriber);
        }
        then();
        drop(routing);
        if let Some(cluster) = &hub.cluster {
            for filter in state.subscriptions.lock().keys() {
                // Nobody waits for it: QoS 0 that other nodes pass on before is lost to a session that moves.
                let _ = cluster.note_filter(filter);
            }
        }
        Some(Self { session, state })
    }

    /// See [`LocalSessions::finish_arrival`](super::LocalSessions::finish_arrival).
    pub(super) fn finish(self, hub: &Hub, record: SessionRecord, will: Option<StoredWill>) {
        let Self { session, mut state } = self;
        let SessionRecord {
            life,
            queued,
            in_flight,
            received,
            ..
        } = record;
        let clock = hub.store_clock();
        let will = will.map(|will| Box::new(KeptWill::restore(will, &hub.memory.all)));
        let in_flight = in_flight
            .into_iter()
            .map(|(id, message)| (id, message.map(|message| message.into_delivery(0, clock))));
        state.keep_protocol(mq_proto::Session::restore(in_flight, received));
        let queued: Vec<_> = queued
            .into_iter()
            .map(|(number, message)| message.into_delivery(number, clock))
            .collect();
        session.mailbox.put_back(queued.into_iter());
        let now = clock::now();
        hub.update_memberships(&session, MemberState::Away, &mut hub.journal());
        session.set_away(now, will, life.left(now, clock));
        if let Some(will) = session.take_due_will(now) {
            hub.publish_will(&session, *will);
        }
        drop(state);
        hub.timers.set(&session);
    }

    /// See [`LocalSessions::abandon_arrival`](super::LocalSessions::abandon_arrival).
    pub(super) fn abandon(self, hub: &Hub) {
        let Self { session, mut state } = self;
        hub.forget(&session, &mut state, || {});
    }

    /// Returns the numbers for messages in front of those that are queued here meanwhile.
    pub(crate) fn numbers_in_front() -> std::ops::Range<u64> {
        1..FIRST_NUMBER_HERE
    }
}

impl Hub {
    /// See [`LocalSessions::release_session`](super::LocalSessions::release_session).
    pub(super) async fn release_session(
        &self,
        client_id: &ByteStr,
        is_settled: impl Future<Output = bool>,
        then: impl FnOnce(),
    ) -> bool {
        let session = self.sessions.get(client_id);
        let Some(session) = session else {
            let is_settled = is_settled.await;
            if is_settled {
                then();
            }
            return is_settled;
        };
        session.claim();
        let Some(mut state) = take_state(&session).await else {
            return false;
        };
        // What is published of it from here on would come behind what its next node publishes.
        let member_state = core::mem::replace(&mut *session.member_state(), MemberState::Gone);
        let is_released = is_settled.await && self.forget(&session, &mut state, then);
        if !is_released && !state.ended {
            *session.member_state() = member_state;
        }
        is_released
    }

    /// See [`LocalSessions::end_unkeepable`](super::LocalSessions::end_unkeepable).
    pub(super) async fn end_unkeepable(&self, client_id: &ByteStr) -> bool {
        let session = self.sessions.get(client_id);
        let Some(session) = session else {
            return true;
        };
        session.kick(ReasonCode::QuotaExceeded);
        let Some(mut state) = take_state(&session).await else {
            return false;
        };
        let read_ahead = self.prepare_end(&session).await;
        self.end_session(&session, &mut state, read_ahead, &mut self.journal());
        true
    }

    /// Takes a session away as if it had never been here. False if it has ended before.
    pub(super) fn forget(
        &self,
        session: &Arc<Session>,
        state: &mut SessionState,
        then: impl FnOnce(),
    ) -> bool {
        let is_there = self.remove_from_routing(session, state, then).is_some();
        if is_there {
            self.remove(session, state, || {});
        }
        is_there
    }
}
