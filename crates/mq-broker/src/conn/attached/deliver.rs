//! Delivers messages to an attached client: from its mailbox, from the store, and retained ones.

use std::{sync::Arc, time::Instant};

use mq_codec::ReasonCode;
use mq_proto::CommandError;
use tracing::{error, warn};

use super::{
    Attached,
    lanes::{Place, place_of},
};
use crate::{
    conn::{
        load::{Loaded, load},
        wire::{OUTBOX_LIMIT, Wire},
    },
    delivery::Marks as _,
    hub,
    shown::Shown,
    store::{SessionChange, StoreError},
};

/// Messages taken from the mailbox at a time.
const TAKE: usize = 256;

impl Attached<'_> {
    /// Moves messages from the mailbox, and retained ones that a subscription asked for, into the
    /// outbox: as many as the window and the link take. Returns whether it has looked for retained
    /// ones.
    pub(super) fn fill(&mut self, now: Instant) -> bool {
        let may_carry_more = self.wire.may_carry_more();
        let hold = &mut self.hold;
        let rules = self.wire.hub.guard.generation();
        if rules != self.client.rules {
            // Waiting messages were let through by other rules.
            self.client.rules = rules;
            hold.session.mailbox.put_back(self.outgoing.drain(..));
            let journal = &mut self.publisher.journal;
            self.wire.hub.remove_forbidden(&hold.session, journal);
        }
        let metrics = &self.wire.hub.metrics;
        let journal = &mut self.publisher.journal;
        let mut had_turn = false;
        self.parked
            .unpark(&self.wire.connection, &hold.state, &mut self.outgoing);
        while self.wire.connection.is_open() && self.wire.connection.outbox().len() < OUTBOX_LIMIT {
            if self.outgoing.is_empty() && may_carry_more {
                if !hold.state.wanted.is_empty() && !had_turn {
                    had_turn = true;
                    let to = &mut self.outgoing;
                    self.wire.hub.next_retained(hold, journal, now, to);
                }
                let mailbox = &hold.session.mailbox;
                let in_flight = self.wire.connection.in_flight_bytes();
                let wanted = mailbox.take(TAKE, &mut self.outgoing, in_flight);
                if self.loading.is_none()
                    && let (Some(wanted), Some(store)) = (wanted, self.wire.hub.store())
                {
                    let client_id = hold.session.client_id.clone();
                    self.loading = Some(load(Arc::clone(store), client_id, wanted));
                }
            }
            let Some(delivery) = self.outgoing.pop_front() else {
                break;
            };
            let session = &hold.session;
            if delivery.expires_at.is_some_and(|at| at <= now) {
                // `[MQTT-3.3.2-5]`
                hub::unqueued(session, &delivery, journal);
                continue;
            }
            let lane = match place_of(
                delivery.lane(),
                &self.lanes,
                &hold.state,
                &self.wire.connection,
            ) {
                Place::On(lane) if !self.parked.has(delivery.lane()) => lane,
                // Its flow has no lane now, or earlier ones wait for it.
                Place::On(_) | Place::Wait => {
                    self.parked.push(delivery);
                    continue;
                }
            };
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
                continue;
            }
            match connection.publish_on(now, lane, delivery) {
                Ok(packet_id) => {
                    metrics.messages_out.add(1);
                    if let (Some(number), Some(packet_id)) = (number, packet_id) {
                        journal.record_of(session, SessionChange::Sent { number, packet_id });
                    }
                }
                Err((CommandError::WindowFull, delivery)) => {
                    self.outgoing.push_front(delivery);
                    break;
                }
                // Larger than the client takes: dropped as if it had been sent `[MQTT-3.1.2-25]`.
                Err((_, delivery)) => hub::dropped(metrics, session, &delivery, journal),
            }
        }
        self.bound_parked(now);
        had_turn
    }

    /// A flow for which more waits than a session may have is given up, as if its time were over.
    fn bound_parked(&mut self, now: Instant) {
        let limits = self.wire.hub.mailbox_limits();
        while let Some(slot) = self.parked.over(limits) {
            let client = &self.hold.session.client_id;
            let Some(flow) = self.hold.state.flow_of(slot) else {
                self.parked.remove(slot);
                continue;
            };
            warn!(client = %Shown(client), %flow, "gave up a flow: too much waits for it");
            // The event for it follows; what waits goes now.
            self.wire.connection.forget_flow(now, flow);
            for delivery in self.parked.remove(slot) {
                let journal = &mut self.publisher.journal;
                hub::dropped(
                    &self.wire.hub.metrics,
                    &self.hold.session,
                    &delivery,
                    journal,
                );
            }
        }
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
