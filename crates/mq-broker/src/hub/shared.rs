//! What a member of a shared subscription leaves to the others (§4.8.2).

use std::{collections::VecDeque, ops::RangeInclusive, sync::Arc};

use mq_codec::{QoS, TopicFilter};
use mq_proto::Delivery;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{Hub, read};
use crate::{
    clock,
    delivery::Marks as _,
    journal::Journal,
    mailbox::Waiting,
    session::{Session, State},
};

/// Payload bytes that are read of what a session had in the store, at most: its end waits for it.
const SPILLED: usize = 16 << 20;

/// What a session leaves, and the shared subscriptions that it had.
#[derive(Debug, Default)]
pub(super) struct Left {
    filters: Vec<TopicFilter>,
    deliveries: VecDeque<Delivery>,
}

impl Hub {
    /// The messages of an ending session that other members of its shared subscriptions get: queued
    /// ones, and those of QoS 1 that were sent and not acknowledged. A QoS 2 message that was sent
    /// goes to nobody else `[MQTT-4.8.2-5]`. Neither does a refused one, which is gone by now
    /// `[MQTT-4.8.2-6]`.
    ///
    /// Of messages in the store it finds those that are settled.
    pub(super) fn left_to_others(
        &self,
        session: &Session,
        state: &mut State,
        waiting: Waiting,
    ) -> Left {
        let filters: Vec<_> = {
            let subscriptions = state.subscriptions.lock();
            let shared = subscriptions
                .keys()
                .filter(|filter| filter.shared().is_some());
            shared.cloned().collect()
        };
        let mut deliveries = VecDeque::new();
        if !filters.is_empty() {
            if let Some(protocol) = &mut state.protocol {
                deliveries.extend(protocol.take_unacknowledged());
            }
            deliveries.retain(|delivery| delivery.qos == QoS::AtLeastOnce);
            deliveries.extend(waiting.in_memory);
            self.read_waiting(session, waiting.in_store, &mut deliveries);
            deliveries.retain(Delivery::is_shared);
        }
        Left {
            filters,
            deliveries,
        }
    }

    /// Reads what waits for a session in the store, up to [`SPILLED`].
    fn read_waiting(
        &self,
        session: &Session,
        in_store: Vec<RangeInclusive<u64>>,
        to: &mut VecDeque<Delivery>,
    ) {
        let (Some(store), false) = (&self.store, in_store.is_empty()) else {
            return;
        };
        let read = || {
            let mut most = SPILLED;
            for numbers in in_store {
                // A message that cannot be read is lost with the session, as it would be without
                // other members.
                let rows = store.queued(&session.client_id, numbers, most);
                for (_, message) in rows.unwrap_or_default() {
                    most = most.saturating_sub(message.message.payload.len());
                    to.push_back(message.into_delivery(0));
                }
            }
        };
        let runtime = Handle::try_current().map(|runtime| runtime.runtime_flavor());
        if matches!(runtime, Ok(RuntimeFlavor::MultiThread)) {
            // Other connections of this thread go on meanwhile.
            tokio::task::block_in_place(read);
        } else {
            read();
        }
    }

    /// Gives to other members what one of them has left. A message that no other takes is dropped.
    pub(super) fn pass_on(&self, left: Left, journal: &mut Journal) {
        let Left {
            filters,
            deliveries,
        } = left;
        if deliveries.is_empty() {
            return;
        }
        let mut publisher = self.publisher();
        let authorizer = self.guard.authorizer.as_deref();
        let routing = read(&self.routing);
        let ready = |key| routing.is_ready(key);
        let now = clock::now();
        for delivery in deliveries {
            let topic = &delivery.message.topic;
            let may_receive =
                |key| authorizer.is_none_or(|rules| routing.may_receive(key, rules, topic));
            let mut passed_on = false;
            if delivery.expires_at.is_none_or(|at| at > now) {
                for filter in filters.iter().filter(|filter| filter.matches(topic)) {
                    let member = routing.router.member(filter, &ready, Some(&may_receive));
                    let Some((session, member)) =
                        member.and_then(|member| Some((routing.session(member.session)?, member)))
                    else {
                        continue;
                    };
                    let mut again = Delivery::new(
                        Arc::clone(&delivery.message),
                        delivery.qos.min(member.options.qos),
                    );
                    again.set_shared();
                    again.retain = delivery.retain && member.options.retain_as_published;
                    again.expires_at = delivery.expires_at;
                    again.subscription_ids.extend(member.subscription_id);
                    publisher.ready.push((Arc::clone(session), again));
                    passed_on = true;
                }
            }
            if !passed_on {
                self.metrics.dropped.add(1);
            }
            publisher.queue_ready(&self.metrics, Vec::new());
            publisher.done();
        }
        publisher.finish(&self.metrics);
        drop(routing);
        publisher.tell_readers();
        // The request that ended the session is answered once the store has this, too.
        journal.join(&publisher.journal);
    }
}
