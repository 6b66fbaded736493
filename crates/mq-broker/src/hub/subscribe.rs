//! Subscriptions, and the retained messages that they ask for.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use mq_codec::{QoS, ReasonCode, RetainHandling, SubscriptionId, TopicFilter};
use mq_proto::Delivery;

use super::{HeldSession, Hub, Routing, queued};
use crate::{
    auth::Grant,
    delivery::DeliveryTag as _,
    journal::Journal,
    lock::write,
    router::{Cursor, LaneSlot, Retained, Subscriber},
    session::{MemberState, RetainedSearch, SessionState},
    store::SessionChange,
};

/// Retained messages that a connection takes before others get their turn.
const MESSAGES_A_TURN: usize = 64;

/// Payload bytes of retained messages after which others get their turn.
const BYTES_A_TURN: usize = 32 * 1024;

/// Levels of topics that a connection looks at before others get their turn.
const LEVELS_A_TURN: usize = 512;

impl Hub {
    /// Makes or replaces a subscription. The retained messages that it asks for are taken by
    /// [`next_retained`](Self::next_retained).
    pub(crate) fn subscribe(
        &self,
        hold: &mut HeldSession,
        subscription: &mq_codec::Subscription,
        subscription_id: Option<SubscriptionId>,
        lane: LaneSlot,
        journal: &mut Journal,
    ) -> ReasonCode {
        let session = &hold.session;
        let (count, is_known) = {
            let subscriptions = hold.state.subscriptions.lock();
            let is_known = subscriptions.contains_key(&subscription.filter);
            (subscriptions.len(), is_known)
        };
        if count >= self.settings.quotas.subscriptions && !is_known {
            return ReasonCode::QuotaExceeded;
        }
        let who = session.principal();
        let grant = self
            .access_control
            .subscription(who.as_ref(), &subscription.filter);
        match grant {
            Grant::All => {}
            Grant::Some => session.note_partial_grant(),
            Grant::None => {
                self.metrics.not_authorized.add(1);
                return ReasonCode::NotAuthorized;
            }
        }
        let options = subscription.options;
        let subscriber = Subscriber {
            session: session.key,
            options,
            subscription_id,
            lane,
        };
        let filter = subscription.filter.detached();
        if !is_known && filter.shared().is_some() && self.has_no_room_for_members(&filter) {
            return ReasonCode::QuotaExceeded;
        }
        if !is_known && !hold.state.count_subscription(&filter) {
            return ReasonCode::QuotaExceeded;
        }
        let session = &hold.session;
        let (existed, since) = {
            let mut routing = write(&self.routing);
            let Ok(existed) = routing.subscribe(&filter, subscriber.clone()) else {
                hold.state.uncount_subscription(&filter);
                return ReasonCode::QuotaExceeded;
            };
            // At one moment with the subscription: a message that is retained later comes by it.
            (existed, self.retained.last_sequence())
        };
        if !existed {
            self.metrics.subscriptions.add(1);
        }
        // A shared subscription gets no retained messages (§4.8.2).
        let wanted = match options.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => !existed,
            RetainHandling::DoNotSend => false,
        } && filter.shared().is_none();
        if wanted {
            let all = &mut hold.state.retained_searches;
            if existed {
                // A client may have thousands of new ones, none of which is among them.
                all.retain(|wanted| wanted.filter != filter);
            }
            all.push_back(RetainedSearch {
                filter: filter.clone(),
                qos: options.qos,
                subscription_id,
                lane,
                cursor: Cursor::default(),
                since,
                since_qos0: since,
            });
        }
        let change = SessionChange::Subscribed {
            filter: filter.clone(),
            options,
            subscription_id,
            slot: hold.state.kept_slot(lane),
        };
        journal.record_of(session, change);
        let subscriptions = &hold.state.subscriptions;
        subscriptions.lock().insert(filter.clone(), subscriber);
        self.update_membership(session, &filter, MemberState::Present, journal);
        let cluster = self.cluster.as_ref();
        if let Some(position) = cluster.and_then(|cluster| cluster.note_filter(&filter)) {
            journal.note_recorded(position);
        }
        ReasonCode::granted(options.qos)
    }

    /// Ends a subscription. Retained messages that the client has not got yet are not sent any more.
    pub(crate) fn unsubscribe(
        &self,
        hold: &mut HeldSession,
        filter: &TopicFilter,
        journal: &mut Journal,
    ) -> ReasonCode {
        if hold.state.subscriptions.lock().remove(filter).is_none() {
            return ReasonCode::NoSubscriptionExisted;
        }
        hold.state
            .retained_searches
            .retain(|wanted| wanted.filter != *filter);
        hold.state.uncount_subscription(filter);
        write(&self.routing).unsubscribe(filter, hold.session.key);
        self.metrics.subscriptions.sub(1);
        let filter = filter.detached();
        self.update_membership(&hold.session, &filter, MemberState::Gone, journal);
        journal.record_of(&hold.session, SessionChange::Unsubscribed { filter });
        ReasonCode::Success
    }

    /// Resumes the searches of a session that a connection has again. Topics that changed at QoS 0 while it was away
    /// are still wanted.
    pub(super) fn resume_retained_searches(&self, searches: &mut VecDeque<RetainedSearch>) {
        if !searches.is_empty() {
            let sequence = self.retained.last_sequence();
            for search in searches {
                search.since_qos0 = sequence;
            }
        }
    }

    /// Takes the next few retained messages that the session's subscriptions ask for and the
    /// present rules allow. Call it again until [`SessionState::retained_searches`](crate::session::SessionState) is empty: there may
    /// be more although none came this time.
    pub(crate) fn next_retained(
        &self,
        hold: &mut HeldSession,
        journal: &mut Journal,
        now: Instant,
        to: &mut VecDeque<Delivery>,
    ) {
        let session = &hold.session;
        let all = &mut hold.state.retained_searches;
        let Some(wanted) = all.front_mut() else {
            return;
        };
        let authorizer = self.access_control.authorizer.as_deref();
        let keeps = journal.records_session(session);
        let clock = journal.store_clock();
        let mut changes = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        let RetainedSearch {
            filter,
            qos,
            subscription_id,
            lane,
            cursor,
            since,
            since_qos0,
        } = wanted;
        let take = &mut |retained: &Retained, sequence| {
            let qos = retained.qos.min(*qos);
            let came_by_subscription = if qos == QoS::AtMostOnce {
                sequence > *since_qos0
            } else {
                sequence > *since
            };
            let message = &retained.message;
            let is_forbidden =
                || authorizer.is_some_and(|rules| !session.may_receive(rules, &message.topic));
            if came_by_subscription || is_forbidden() {
                return true;
            }
            let mut delivery = Delivery::new(Arc::clone(message), qos);
            delivery.retain = true;
            delivery.set_lane(*lane);
            delivery.set_counted();
            delivery.expires_at = retained.expires_at;
            delivery.subscription_ids.extend(*subscription_id);
            if keeps && qos > QoS::AtMostOnce {
                changes.push(queued(session, &mut delivery, clock));
            }
            count += 1;
            bytes += message.payload.len();
            to.push_back(delivery);
            count < MESSAGES_A_TURN && bytes < BYTES_A_TURN
        };
        self.retained
            .search(filter, cursor, now, LEVELS_A_TURN, take);
        if cursor.is_at_end() {
            all.pop_front();
        }
        journal.record(changes);
    }

    /// Makes a subscription that was promised before, room or not.
    pub(super) fn restore_subscription(
        &self,
        routing: &mut Routing,
        state: &mut SessionState,
        filter: TopicFilter,
        subscriber: Subscriber,
    ) {
        routing.restore_subscription(&filter, subscriber.clone());
        state.count_subscription_anyway(&filter);
        state.subscriptions.lock().insert(filter, subscriber);
        self.metrics.subscriptions.add(1);
    }
}
