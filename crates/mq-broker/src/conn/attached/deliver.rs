//! Delivers messages to an attached client: from its mailbox, from the store, and retained ones.

use std::{sync::Arc, time::Instant};

use mq_codec::{QoS, ReasonCode};
use mq_proto::Way;
use tracing::error;

use super::{Attached, bridged};
use crate::{
    conn::{
        held::FREE,
        load::{Loaded, load},
        wire::{OUTBOX_LIMIT, Wire},
    },
    delivery::Marks as _,
    hub,
    shown::Shown,
    store::{SessionChange, StoreError},
};

/// Messages taken from the mailbox at a time. For a bridge few: they delay those that go past the others.
const TAKE: usize = 256;
const TAKE_FOR_BRIDGE: usize = 32;

impl Attached<'_> {
    /// Moves messages from the mailbox, and retained ones that a subscription asked for, into the
    /// outbox: as many as the window and the link take. Returns whether it has looked for retained
    /// ones.
    pub(super) fn fill(&mut self, now: Instant) -> bool {
        let may_carry_more = self.wire.may_carry_more();
        self.bridge_tells(now);
        self.look_at_rules();
        let hold = &mut self.hold;
        let metrics = &self.wire.hub.metrics;
        let journal = &mut self.publisher.journal;
        let count = self.bridged.as_ref().map_or(TAKE, |_| TAKE_FOR_BRIDGE);
        let (mut had_turn, mut is_drained) = (false, false);
        self.parked
            .unpark(&self.wire.connection, &hold.state, &mut self.outgoing);
        self.lanes
            .look(now, &mut self.wire.connection, &self.wire.link);
        while self.wire.connection.is_open() && self.wire.connection.outbox().len() < OUTBOX_LIMIT {
            if self.outgoing.is_empty() && may_carry_more && !is_drained {
                if !hold.state.wanted.is_empty() && !had_turn {
                    had_turn = true;
                    let to = &mut self.outgoing;
                    self.wire.hub.next_retained(hold, journal, now, to);
                }
                let mailbox = &hold.session.mailbox;
                let in_flight = self.wire.connection.in_flight_bytes();
                let wanted = mailbox.take(count, &mut self.outgoing, in_flight, now.into());
                // What comes from here on rings the bell.
                is_drained = self.outgoing.len() < count;
                if self.loading.is_none()
                    && let (Some(wanted), Some(store)) = (wanted, self.wire.hub.store())
                {
                    let client_id = hold.session.client_id.clone();
                    self.loading = Some(load(Arc::clone(store), client_id, wanted));
                }
            }
            let Some(mut delivery) = self.outgoing.pop_front() else {
                break;
            };
            let session = &hold.session;
            if delivery.expires_at.is_some_and(|at| at <= now) {
                // `[MQTT-3.3.2-5]`
                hub::expired(metrics, session, &delivery, journal);
                continue;
            }
            if self
                .parked
                .takes(delivery.lane(), &hold.state, &self.wire.connection)
            {
                self.parked.push(delivery);
                continue;
            }
            let number = delivery.number();
            let Wire {
                connection, link, ..
            } = self.wire;
            let fits = |size| link.takes_datagram(size);
            if connection.wants_datagrams()
                && let Some(datagram) = connection.datagram(now, &delivery, fits)
                && link.send_datagram(datagram)
            {
                metrics.messages_out.add(1);
                self.messages_sent += 1;
                continue;
            }
            if delivery.qos > QoS::AtMostOnce && connection.window() == 0 {
                self.outgoing.push_front(delivery);
                break;
            }
            let (lane, ends) = match self.lanes.way(&delivery, &hold.state, connection, link) {
                Way::On(lane) => (lane, false),
                Way::Alone(lane) => (lane, true),
                Way::Wait => {
                    self.outgoing.push_front(delivery);
                    break;
                }
            };
            let passes = bridged::rename(self.bridged.as_deref(), connection, &mut delivery);
            if !passes || delivery.qos == QoS::AtMostOnce {
                // The other broker of a bridge may take it at QoS 0 alone.
                hub::unqueued(session, &delivery, journal);
            }
            if !passes {
                continue;
            }
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
                        session.mailbox.unqueued(number, journal.position());
                    }
                }
                // Larger than the client takes: dropped as if it had been sent `[MQTT-3.1.2-25]`.
                Err((_, delivery)) => hub::dropped(metrics, session, &delivery, journal),
            }
        }
        let outbox = self.wire.connection.outbox().len();
        self.lanes.filled(now, outbox);
        self.bound_parked(now);
        had_turn
    }

    /// Takes back what waits and was let through by other rules, if the present ones forbid it.
    fn look_at_rules(&mut self) {
        let rules = self.wire.hub.guard.generation();
        if rules != self.client.rules {
            self.client.rules = rules;
            self.parked.give_back(&mut self.outgoing);
            let session = &self.hold.session;
            session.mailbox.put_back(self.outgoing.drain(..));
            let journal = &mut self.publisher.journal;
            self.wire.hub.remove_forbidden(session, journal);
        }
    }

    /// Whether a turn is of use once the link has taken what is in the outbox: `fill` has left something that it
    /// could send then, or bytes are counted that are free then.
    pub(super) fn has_more_to_send(&mut self) -> bool {
        self.wire.connection.outbox().len() >= FREE
            || !self.outgoing.is_empty()
            || !self.parked.is_empty()
            || self.loading.is_some()
            || !self.wire.may_carry_more()
    }

    /// Whether retained messages can be taken now.
    pub(super) fn takes_more_retained(&mut self) -> bool {
        !self.hold.state.wanted.is_empty()
            && self.wire.may_carry_more()
            && self.outgoing.is_empty()
            && self.wire.connection.is_open()
            && self.wire.connection.outbox().len() < OUTBOX_LIMIT
    }

    /// Messages of the session have come from the store.
    pub(super) fn loaded(&mut self, loaded: Result<Loaded, StoreError>) {
        self.loading = None;
        let session = &self.hold.session;
        match loaded {
            Ok(Loaded { numbers, messages }) => {
                let messages = messages.into_iter();
                let deliveries = messages.map(|(number, message)| message.into_delivery(number));
                session.mailbox.loaded(numbers, deliveries);
                // The rules of an earlier time let them through.
                let journal = &mut self.publisher.journal;
                self.wire.hub.remove_forbidden(session, journal);
            }
            Err(error) => {
                error!(client = %Shown(&session.client_id), %error, "messages cannot be read");
                self.wire.leave(ReasonCode::UnspecifiedError);
            }
        }
    }
}
