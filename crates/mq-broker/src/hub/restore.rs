//! A hub that goes on from what an earlier broker kept.

use std::sync::Arc;

use mq_codec::ByteStr;
use mq_proto::Delivery;

use super::{Hub, write};
use crate::{
    clock,
    router::{LaneSlot, Subscriber},
    store::{Life, SessionRecord, Snapshot, from_wall_clock},
};

impl Hub {
    /// Quotas may be smaller than they were. What was promised is kept all the same.
    pub(super) fn restore(&self, kept: Snapshot) {
        for message in kept.retained.into_values() {
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
        for (client_id, record) in kept.sessions {
            self.restore_session(&client_id, record);
        }
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
        } = record;
        let session = self
            .find_or_create(client_id, user.as_ref(), usize::MAX)
            .expect("there is no limit here");
        let mut state = session
            .state
            .try_lock()
            .expect("nobody else knows the session yet");
        state.used = true;
        let in_flight = in_flight
            .into_iter()
            .map(|(id, message)| (id, message.map(|message| message.into_delivery(0))));
        state.protocol = mq_proto::Session::restore(in_flight, received);
        for (filter, (options, subscription_id)) in subscriptions {
            let subscriber = Subscriber {
                session: session.key,
                options,
                lane: LaneSlot::CONTROL,
                subscription_id,
            };
            let mut routing = write(&self.routing);
            routing.router.subscribe(&filter, subscriber.clone());
            let bytes = routing.router.bytes();
            routing.share.set_anyway(bytes);
            // What was promised is kept, room or not.
            state.count_anyway(&filter);
            state.subscriptions.insert(filter, subscriber);
            self.metrics.subscriptions.add(1);
        }
        session.keep();
        let last_queued = queued.last_key_value().map(|(number, _)| *number);
        let last_spilled = spilled.as_ref().map(|(numbers, _)| *numbers.end());
        session.skip_numbers(last_queued.max(last_spilled).unwrap_or_default());
        let queued = queued.into_iter();
        let deliveries = queued.map(|(number, message)| message.into_delivery(number));
        session.mailbox.restore(deliveries, spilled);
        let now = clock::now();
        // The end of the earlier broker was the end of its connections.
        let expiry = match life {
            Life::Connected(expiry) => expiry,
            Life::Away(expires_at) => {
                expires_at.map(|at| from_wall_clock(at).saturating_duration_since(now))
            }
        };
        session.leave(now, None, expiry);
        drop(state);
        self.note_due(&session);
    }
}
