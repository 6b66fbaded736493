//! A hub that goes on from what an earlier broker kept.

use std::{collections::HashSet, sync::Arc};

use mq_codec::{ByteStr, TopicFilter};
use mq_proto::Delivery;
use tracing::warn;

#[cfg(feature = "mqtt-next")]
use super::flows::{restore_flows, sent_by_slot};
use super::{Hub, Routing, write};
use crate::{
    bridge, clock,
    router::{LaneSlot, Subscriber},
    session::State,
    shown::Shown,
    store::{Change, SessionChange, SessionRecord, Snapshot, StoredMessage},
};

impl Hub {
    /// Quotas may be smaller than they were. What was promised is kept all the same.
    pub(super) fn restore(&self, kept: Snapshot) {
        for message in kept.retained.into_values() {
            self.restore_retained(message);
        }
        for (client_id, record) in kept.sessions {
            let is_bridge = client_id.starts_with(bridge::PREFIX);
            if is_bridge && !self.bridges.contains_key(&client_id) {
                self.end_bridge(client_id, &record);
            } else {
                self.restore_session(&client_id, record);
            }
        }
    }

    pub(crate) fn restore_retained(&self, message: StoredMessage) {
        let Delivery {
            message,
            qos,
            expires_at,
            ..
        } = message.into_delivery(0);
        let message = Arc::new(self.ceiling.keep_anyway(&message));
        // Cannot fail: there is no limit here.
        let _ = self.set_retained(&message, qos, expires_at, usize::MAX);
    }

    /// Ends the session of a bridge that is not configured any more: nobody would take what waits for it.
    fn end_bridge(&self, session: ByteStr, record: &SessionRecord) {
        let Some(store) = &self.store else {
            return;
        };
        let sent = record.in_flight.iter();
        let sent = sent.filter(|(_, message)| message.is_some()).count();
        let mut dropped = sent + record.queued.len();
        let spilled = record.spilled.as_ref();
        dropped += spilled.map_or(0, |spilled| spilled.messages);
        warn!(
            session = %Shown(&session),
            dropped, "ended the session of a bridge that is not configured"
        );
        store.record(vec![Change::Session(session, SessionChange::Ended)]);
    }

    fn restore_session(&self, client_id: &ByteStr, record: SessionRecord) {
        let SessionRecord {
            life,
            user,
            subscriptions,
            queued,
            spilled,
            in_flight,
            received,
            flows,
            slots,
            released_slots,
        } = record;
        let session = self
            .find_or_create(client_id, user.as_ref(), usize::MAX)
            .expect("there is no limit here");
        let mut state = session
            .state
            .try_lock()
            .expect("nobody else knows the session yet");
        state.used = true;
        #[cfg(feature = "mqtt-next")]
        let kept: HashSet<_> = flows.values().map(|flow| flow.kept.slot).collect();
        // Flows of a build that had them are over: what was for them is the session's.
        #[cfg(not(feature = "mqtt-next"))]
        let (kept, _) = (HashSet::<u16>::new(), (flows, released_slots));
        // Slots of lanes ended with the earlier broker.
        let slot_of = |slot: u16| if kept.contains(&slot) { slot } else { 0 };
        #[cfg(feature = "mqtt-next")]
        let sent_on_flows = sent_by_slot(&in_flight, &released_slots);
        let in_flight = in_flight
            .into_iter()
            .map(|(id, message)| (id, message.map(|message| message.into_delivery(0))));
        let protocol = mq_proto::Session::restore(in_flight, received);
        #[cfg(feature = "mqtt-next")]
        let mut protocol = protocol;
        let now = clock::now();
        #[cfg(feature = "mqtt-next")]
        restore_flows(flows, sent_on_flows, now, &mut protocol, &mut state);
        state.protocol = Some(Box::new(protocol));
        for (filter, (options, subscription_id)) in subscriptions {
            let subscriber = Subscriber {
                session: session.key,
                options,
                lane: LaneSlot::of_number(slot_of(slots.get(&filter).copied().unwrap_or_default())),
                subscription_id,
            };
            let routing = &mut *write(&self.routing);
            self.restore_subscription(routing, &mut state, filter, subscriber);
        }
        session.keep();
        let last_queued = queued.last_key_value().map(|(number, _)| *number);
        let last_spilled = spilled.as_ref().map(|spilled| *spilled.numbers.end());
        session.skip_numbers(last_queued.max(last_spilled).unwrap_or_default());
        let queued = queued.into_iter();
        let deliveries = queued.map(|(number, mut message)| {
            message.slot = slot_of(message.slot);
            message.into_delivery(number)
        });
        session.mailbox.restore(deliveries, spilled);
        session.leave(now, None, life.left(now));
        drop(state);
        self.note_due(&session);
    }

    /// What was promised is kept, room or not.
    pub(super) fn restore_subscription(
        &self,
        routing: &mut Routing,
        state: &mut State,
        filter: TopicFilter,
        subscriber: Subscriber,
    ) {
        routing.router.subscribe(&filter, subscriber.clone());
        routing.share.set_anyway(routing.router.bytes());
        state.count_anyway(&filter);
        state.subscriptions.lock().insert(filter, subscriber);
        self.metrics.subscriptions.add(1);
    }
}
