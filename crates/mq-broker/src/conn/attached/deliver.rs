//! Delivers messages to an attached client: from its mailbox, from the store, and retained ones.

use std::{sync::Arc, time::Instant};

use mq_codec::{QoS, ReasonCode};
use mq_proto::{Delivery, Way};
use tracing::error;

use super::Attached;
use crate::{
    conn::{
        memory::UNCOUNTED_BYTES,
        queue_read::{ReadMessages, read_queue},
        wire::{OUTBOX_LIMIT, Wire},
    },
    delivery::DeliveryTag as _,
    escaped::Escaped,
    hub,
    store::{SessionChange, StoreError},
};

/// Messages taken from the mailbox at a time. For a bridge few: they delay those that go past the others.
const MESSAGES_A_TAKE: usize = 256;
const MESSAGES_A_TAKE_OF_BRIDGE: usize = 32;

/// The sources of one turn's deliveries.
struct Sources {
    /// `true` if retained messages had their turn.
    had_retained: bool,
    /// `true` if the mailbox has no more, or the link takes no more than the connection has already.
    is_drained: bool,
}

impl Attached<'_> {
    /// Moves messages from the mailbox, and retained ones that a subscription asked for, into the
    /// outbox: as many as the window and the link take. Returns `true` if it has looked for retained
    /// ones.
    ///
    /// ```text
    ///  mailbox, retained, store --refill--> outgoing --withhold--> send --> outbox
    ///                                          ^                     |
    ///                                          +-- no window, lane --+
    /// ```
    pub(super) fn fill(&mut self, now: Instant) -> bool {
        let mut sources = Sources {
            had_retained: false,
            is_drained: !self.wire.may_carry_more(),
        };
        if let Some(bridge) = &mut self.bridge {
            bridge.send_own(now, &mut self.wire.connection);
        }
        self.apply_changed_rules();
        let Wire {
            connection, link, ..
        } = &mut *self.wire;
        self.parked
            .unpark(connection, &self.hold.state, &mut self.outgoing);
        self.lanes.look(now, connection, link);
        while self.wire.connection.is_open() && self.wire.connection.outbox().len() < OUTBOX_LIMIT {
            if self.outgoing.is_empty() && !sources.is_drained {
                self.refill(now, &mut sources);
            }
            let Some(delivery) = self.outgoing.pop_front() else {
                break;
            };
            let Some(delivery) = self.withhold(now, delivery) else {
                continue;
            };
            if let Err(delivery) = self.send(now, delivery) {
                self.outgoing.push_front(delivery);
                break;
            }
        }
        let outbox = self.wire.connection.outbox().len();
        self.lanes.filled(now, outbox);
        self.bound_parked(now);
        sources.had_retained
    }

    /// Takes the next messages: retained ones once in a turn, then those of the mailbox. Begins to read what the
    /// mailbox has in the store.
    fn refill(&mut self, now: Instant, sources: &mut Sources) {
        let hold = &mut self.hold;
        if !hold.state.retained_searches.is_empty() && !sources.had_retained {
            sources.had_retained = true;
            let journal = &mut self.publisher.journal;
            let hub = &self.wire.hub;
            hub.next_retained(hold, journal, now, &mut self.outgoing);
        }
        let count = match self.bridge {
            None => MESSAGES_A_TAKE,
            Some(_) => MESSAGES_A_TAKE_OF_BRIDGE,
        };
        let in_flight = self.wire.connection.in_flight_bytes();
        let mailbox = &hold.session.mailbox;
        let wanted = mailbox.take(count, &mut self.outgoing, in_flight, now.into());
        // What comes from here on rings the bell.
        sources.is_drained = self.outgoing.len() < count;
        if self.queue_read.is_none()
            && let (Some(wanted), Some(store)) = (wanted, self.wire.hub.store())
        {
            let client_id = hold.session.client_id.clone();
            self.queue_read = Some(read_queue(Arc::clone(store), client_id, wanted));
        }
    }

    /// Drops a delivery that has expired, and parks one whose flow has no lane now. Returns any other.
    #[inline]
    fn withhold(&mut self, now: Instant, delivery: Delivery) -> Option<Delivery> {
        if delivery.expires_at.is_some_and(|at| at <= now) {
            // `[MQTT-3.3.2-5]`
            let metrics = &self.wire.hub.metrics;
            let journal = &mut self.publisher.journal;
            hub::expired(metrics, &self.hold.session, &delivery, journal);
            return None;
        }
        let (state, connection) = (&self.hold.state, &self.wire.connection);
        if self.parked.takes(delivery.lane(), state, connection) {
            self.parked.push(delivery);
            return None;
        }
        Some(delivery)
    }

    /// Gives a delivery to the state machine, which puts it into the outbox, or to the link as a datagram.
    ///
    /// # Errors
    /// The delivery, if the window or its lane has no room for it now.
    #[inline]
    fn send(&mut self, now: Instant, mut delivery: Delivery) -> Result<(), Delivery> {
        let Wire {
            connection,
            link,
            hub,
            ..
        } = &mut *self.wire;
        let (session, state) = (&self.hold.session, &self.hold.state);
        let (metrics, journal) = (&hub.metrics, &mut self.publisher.journal);
        let number = delivery.number();
        let fits = |size| link.takes_datagram(size);
        if connection.wants_datagrams()
            && let Some(datagram) = connection.datagram(now, &delivery, fits)
            && link.send_datagram(datagram)
        {
            metrics.messages_out.add(1);
            self.messages_sent += 1;
            self.note_delivered(&delivery);
            return Ok(());
        }
        if delivery.qos > QoS::AtMostOnce && connection.window() == 0 {
            return Err(delivery);
        }
        let (lane, ends) = match self.lanes.way(&delivery, state, connection, link) {
            Way::On(lane) => (lane, false),
            Way::Alone(lane) => (lane, true),
            Way::Wait => return Err(delivery),
        };
        let bridge = self.bridge.as_ref();
        let passes = bridge.is_none_or(|bridge| bridge.rename_outgoing(connection, &mut delivery));
        if !passes || delivery.qos == QoS::AtMostOnce {
            // The remote broker of a bridge may take it at QoS 0 alone.
            hub::unqueued(session, &delivery, journal);
        }
        if !passes {
            return Ok(());
        }
        let shown = (hub.hooks.is_some() && delivery.qos == QoS::AtMostOnce)
            .then(|| Arc::clone(&delivery.message));
        let sent = connection.publish_on(now, lane, delivery);
        if ends {
            connection.finish_lane(lane);
        }
        match sent {
            Ok(packet_id) => {
                metrics.messages_out.add(1);
                self.messages_sent += 1;
                if let (Some(number), Some(packet_id)) = (number, packet_id) {
                    journal.record_of(session, SessionChange::Sent { number, packet_id });
                    session.mailbox.unqueued(number, journal.position().0);
                }
                if let Some(message) = shown {
                    self.note_delivered_at(&message, QoS::AtMostOnce);
                }
            }
            // Larger than the client takes: dropped as if it had been sent `[MQTT-3.1.2-25]`.
            Err((_, delivery)) => hub::dropped(metrics, session, &delivery, journal),
        }
        Ok(())
    }

    /// Takes back what waits and was let through by other rules, if the present ones forbid it.
    fn apply_changed_rules(&mut self) {
        let rules = self.wire.hub.access_control.generation();
        if rules != self.client.rules {
            self.client.rules = rules;
            self.parked.give_back(&mut self.outgoing);
            let session = &self.hold.session;
            session.mailbox.put_back(self.outgoing.drain(..));
            let journal = &mut self.publisher.journal;
            self.wire.hub.remove_forbidden(session, journal);
        }
    }

    /// Returns `true` if a turn is of use once the link has taken what is in the outbox: `fill` has left something that
    /// it could send then, or the outbox holds memory that counts against the quota until then.
    pub(super) fn has_more_to_send(&mut self) -> bool {
        self.wire.connection.outbox().len() >= UNCOUNTED_BYTES
            || !self.outgoing.is_empty()
            || !self.parked.is_empty()
            || self.queue_read.is_some()
            || !self.wire.may_carry_more()
    }

    /// Returns `true` if retained messages can be taken now.
    pub(super) fn takes_more_retained(&mut self) -> bool {
        !self.hold.state.retained_searches.is_empty()
            && self.wire.may_carry_more()
            && self.outgoing.is_empty()
            && self.wire.connection.is_open()
            && self.wire.connection.outbox().len() < OUTBOX_LIMIT
    }

    /// Takes messages of the session that have come from the store.
    pub(super) fn queue_was_read(&mut self, messages: Result<ReadMessages, StoreError>) {
        self.queue_read = None;
        let session = &self.hold.session;
        match messages {
            Ok(ReadMessages { numbers, messages }) => {
                let clock = self.wire.hub.store_clock();
                let messages = messages.into_iter();
                let deliveries =
                    messages.map(|(number, message)| message.into_delivery(number, clock));
                session.mailbox.add_read(numbers, deliveries);
                // The rules of an earlier time let them through.
                let journal = &mut self.publisher.journal;
                self.wire.hub.remove_forbidden(session, journal);
            }
            Err(error) => {
                error!(client = %Escaped(&session.client_id), %error, "store: cannot read queued messages");
                self.wire.disconnect_for(ReasonCode::UnspecifiedError);
            }
        }
    }
}
