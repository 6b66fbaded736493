//! The end of a session: its subscriptions, its key, and the messages that it leaves to others (§4.8.2).

use std::{collections::VecDeque, ops::RangeInclusive, sync::Arc};

use mq_codec::{QoS, TopicFilter};
use mq_proto::Delivery;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{Hub, RoutedMessage};
use crate::{
    clock,
    delivery::DeliveryTag as _,
    journal::Journal,
    lock::{read, write},
    mailbox::LeftMessages,
    session::{MemberState, Session, SessionState},
    store::SessionChange,
};

/// Subscriptions of a session that ends at a time: messages wait meanwhile.
const ENDED_AT_ONCE: usize = 64;

/// Most payload bytes that are read of what a session had in the store: the session's end waits for the read.
const MAX_READ_BYTES: usize = 16 << 20;

/// Messages that a session leaves, and the shared subscriptions that it had.
#[derive(Debug, Default)]
struct Inheritance {
    filters: Vec<TopicFilter>,
    deliveries: VecDeque<Delivery>,
}

impl Hub {
    /// Ends the subscriptions of a session that has many and is about to end: a few at a time, and of one session at a
    /// time, so that a crowd that leaves holds up no messages. Shared ones stay, whose messages others get.
    ///
    /// Cancel-safe: the others stay as well.
    pub(crate) async fn end_subscriptions(&self, session: &Session) {
        let all = &session.subscriptions;
        if all.lock().len() <= ENDED_AT_ONCE {
            return;
        }
        let _turn = self.unsubscribing.lock().await;
        loop {
            let some: Vec<TopicFilter> = all
                .lock()
                .extract_if(|filter, _| filter.shared().is_none())
                .take(ENDED_AT_ONCE)
                .map(|(filter, _)| filter)
                .collect();
            if some.is_empty() {
                return;
            }
            {
                let mut routing = write(&self.routing);
                for filter in &some {
                    routing.unsubscribe(filter, session.key);
                }
            }
            self.metrics.subscriptions.sub(some.len());
            tokio::task::yield_now().await;
        }
    }

    /// Ends a session. Its subscriptions and queued messages go, but for messages that other
    /// members of its shared subscriptions get.
    pub(super) fn end_session(
        &self,
        session: &Arc<Session>,
        state: &mut SessionState,
        journal: &mut Journal,
    ) {
        let Some(waiting) = self.remove_from_routing(session, state, || {}) else {
            return;
        };
        self.update_memberships(session, MemberState::Gone, journal);
        let inheritance = self.inheritance_of(session, state, waiting);
        // Before another session of the same name can begin.
        self.remove(session, state, || {
            journal.record_of(session, SessionChange::Ended);
            if let Some(cluster) = &self.cluster {
                cluster.session_ended(&session.client_id);
            }
        });
        self.pass_on(inheritance, journal);
    }

    /// Takes a session out of the routing, and returns the messages that wait for it; `None` if it has ended before.
    /// `then` is called at the moment from which on no publisher finds it.
    pub(super) fn remove_from_routing(
        &self,
        session: &Session,
        state: &mut SessionState,
        then: impl FnOnce(),
    ) -> Option<LeftMessages> {
        if core::mem::replace(&mut state.ended, true) {
            return None;
        }
        let mut routing = write(&self.routing);
        let subscriptions = state.subscriptions.lock();
        for filter in subscriptions.keys() {
            routing.unsubscribe(filter, session.key);
        }
        self.metrics.subscriptions.sub(subscriptions.len());
        drop(subscriptions);
        routing.remove_session(session.key);
        let waiting = session.mailbox.end();
        then();
        Some(waiting)
    }

    /// Takes a session off the list. `then` is done before another of the same name can begin.
    pub(super) fn remove(
        &self,
        session: &Arc<Session>,
        state: &mut SessionState,
        then: impl FnOnce(),
    ) {
        self.sessions.remove(session, then);
        state.subscriptions.lock().clear();
        #[cfg(feature = "mqtt-next")]
        state.flows.clear();
        state.retained_searches.clear();
        state.share.set_anyway(0);
        self.metrics.sessions.sub(1);
    }

    /// Returns the messages of an ending session that other members of its shared subscriptions get: queued
    /// ones, and those of QoS 1 that were sent and not acknowledged. A QoS 2 message that was sent
    /// goes to nobody else `[MQTT-4.8.2-5]`. Neither does a refused one, which is gone by now
    /// `[MQTT-4.8.2-6]`.
    ///
    /// Messages in the store are found once they are settled.
    fn inheritance_of(
        &self,
        session: &Session,
        state: &mut SessionState,
        waiting: LeftMessages,
    ) -> Inheritance {
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
                deliveries.extend(protocol.session_mut().take_unacknowledged());
            }
            deliveries.retain(|delivery| delivery.qos == QoS::AtLeastOnce);
            deliveries.extend(waiting.in_memory);
            self.read_waiting(session, waiting.in_store, &mut deliveries);
            deliveries.retain(Delivery::is_shared);
        }
        Inheritance {
            filters,
            deliveries,
        }
    }

    /// Reads the messages that wait for a session in the store, up to [`MAX_READ_BYTES`].
    fn read_waiting(
        &self,
        session: &Session,
        in_store: Vec<RangeInclusive<u64>>,
        to: &mut VecDeque<Delivery>,
    ) {
        let (Some(store), false) = (self.store(), in_store.is_empty()) else {
            return;
        };
        let read = || {
            let mut most = MAX_READ_BYTES;
            for numbers in in_store {
                // A message that cannot be read is lost with the session, as it would be without
                // other members.
                let rows = store.queued(&session.client_id, numbers, most);
                for (_, message) in rows.unwrap_or_default() {
                    most = most.saturating_sub(message.message.payload.len());
                    to.push_back(message.into_delivery(0, self.store_clock()));
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

    /// Gives to other members the messages that one of them has left. A message that no other takes is dropped.
    fn pass_on(&self, inheritance: Inheritance, journal: &mut Journal) {
        let Inheritance {
            filters,
            deliveries,
        } = inheritance;
        if deliveries.is_empty() {
            return;
        }
        let (mut publisher, mut routed) = (self.publisher(), RoutedMessage::default());
        let mut delivering = publisher.delivering(&self.metrics, &mut routed);
        let authorizer = self.access_control.authorizer.as_deref();
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
                    delivering.add_ready(session, again);
                    passed_on = true;
                }
            }
            if !passed_on {
                self.metrics.dropped.add(1);
            }
            delivering.record_and_queue(Vec::new());
            delivering.next_message();
        }
        delivering.finish();
        drop(routing);
        publisher.wake_readers();
        // The request that ended the session is answered once the store has this, too.
        journal.join(&publisher.journal);
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

    use mq_codec::{ByteStr, Subscription};

    use super::*;
    use crate::{Quotas, router::LaneSlot, store::User};

    #[tokio::test]
    async fn a_session_ends_many_subscriptions_a_few_at_a_time() {
        const COUNT: usize = 1_000;
        let hub = Hub::for_test(Quotas::default(), None);
        let mut journal = hub.journal();
        let id = ByteStr::new("many").unwrap();
        let hold = hub.attach(&id, true, &User::Anonymous, None, &mut journal);
        let mut hold = hold.await.unwrap();
        let own = (0..COUNT).map(|number| format!("level/{number}"));
        for filter in own.chain(["$share/group/level".into()]) {
            let filter = TopicFilter::new(filter).unwrap();
            let options = QoS::AtMostOnce.into();
            let wanted = Subscription { filter, options };
            let granted = hub.subscribe(&mut hold, &wanted, None, LaneSlot::CONTROL, &mut journal);
            assert!(!granted.is_error());
        }
        let left = || read(&hub.routing).router.len();
        let mut counts = vec![left()];
        {
            let mut ending = pin!(hub.end_subscriptions(&hold.session));
            while poll_fn(|cx| Poll::Ready(ending.as_mut().poll(cx).is_pending())).await {
                counts.push(left());
            }
        }
        let steps: Vec<_> = counts.windows(2).map(|two| two[0] - two[1]).collect();
        assert!(steps.len() >= COUNT / ENDED_AT_ONCE, "{steps:?}");
        assert!(steps.iter().all(|step| *step <= ENDED_AT_ONCE), "{steps:?}");
        assert_eq!(left(), 1, "of the shared one others get what is left");
        assert_eq!(hub.metrics.subscriptions.get(), 1);
        let end = Some(Duration::ZERO);
        hub.detach(hold, clock::now(), None, end, &mut journal);
        assert_eq!(left(), 0);
        assert_eq!(hub.metrics.subscriptions.get(), 0);
    }
}
