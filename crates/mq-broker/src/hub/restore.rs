//! Sessions and retained messages that an earlier broker has kept.

use std::collections::HashSet;

use mq_codec::ByteStr;
use tracing::warn;

use super::Hub;
#[cfg(feature = "mqtt-next")]
use super::flows::{restore_flows, sent_by_slot};
use crate::{
    clock,
    escaped::Escaped,
    lock::write,
    router::{LaneSlot, Subscriber},
    store::{BRIDGE_PREFIX, Change, SessionChange, SessionRecord, Snapshot},
};

/// Puts back the sessions and retained messages of a snapshot, before the first connection.
///
/// Quotas may be smaller than they were; what was promised is kept all the same.
pub(super) struct Restore<'a>(pub(super) &'a Hub);

impl Restore<'_> {
    pub(super) fn run(&self, kept: Snapshot) {
        let Self(hub) = self;
        for message in kept.retained.into_values() {
            hub.retained
                .restore(message, hub.store_clock(), &hub.metrics);
        }
        for (client_id, record) in kept.sessions {
            let is_bridge = client_id.starts_with(BRIDGE_PREFIX);
            if is_bridge && !hub.sessions.has_bridge(&client_id) {
                self.end_bridge(client_id, &record);
            } else {
                self.restore_session(&client_id, record);
            }
        }
    }

    /// Ends the session of a bridge that is not configured any more: nobody would take its messages.
    fn end_bridge(&self, session: ByteStr, record: &SessionRecord) {
        let Some(store) = self.0.store() else {
            return;
        };
        let sent = record.in_flight.iter();
        let sent = sent.filter(|(_, message)| message.is_some()).count();
        let mut dropped = sent + record.queued.len();
        let spilled = record.spilled.as_ref();
        dropped += spilled.map_or(0, |spilled| spilled.messages);
        warn!(
            session = %Escaped(&session),
            dropped, "bridge: session ended, as its bridge is no longer configured"
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
        let Self(hub) = self;
        let clock = hub.store_clock();
        let user = user.as_ref();
        let sessions = &hub.sessions;
        let restored = sessions.find_or_restore(client_id, user, &hub.routing, &hub.metrics);
        let (session, mut state) = restored.expect("nobody else knows the hub yet");
        state.was_attached = true;
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
            .map(|(id, message)| (id, message.map(|message| message.into_delivery(0, clock))));
        let protocol = mq_proto::Session::restore(in_flight, received);
        #[cfg(feature = "mqtt-next")]
        let mut protocol = protocol;
        let now = clock::now();
        #[cfg(feature = "mqtt-next")]
        restore_flows(flows, sent_on_flows, now, clock, &mut protocol, &mut state);
        state.keep_protocol(protocol);
        for (filter, (options, subscription_id)) in subscriptions {
            let subscriber = Subscriber {
                session: session.key,
                options,
                lane: LaneSlot::of_number(slot_of(slots.get(&filter).copied().unwrap_or_default())),
                subscription_id,
            };
            let routing = &mut *write(&hub.routing);
            hub.restore_subscription(routing, &mut state, filter, subscriber);
        }
        session.make_persistent();
        let last_queued = queued.last_key_value().map(|(number, _)| *number);
        let last_spilled = spilled.as_ref().map(|spilled| *spilled.numbers.end());
        session.continue_numbers_after(last_queued.max(last_spilled).unwrap_or_default());
        let queued = queued.into_iter();
        let deliveries = queued.map(|(number, mut message)| {
            message.slot = slot_of(message.slot);
            message.into_delivery(number, clock)
        });
        session.mailbox.restore(deliveries, spilled);
        session.set_away(now, None, life.left(now, clock));
        drop(state);
        hub.timers.set(&session);
    }
}
