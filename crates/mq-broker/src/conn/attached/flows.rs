//! The flows of a client (MQTT-next): their subscriptions' slots, and what waits for their next lanes.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use mq_proto::{Connection, Delivery, FlowEnd, FlowId, LaneId};
use tracing::warn;

use super::Attached;
use crate::{
    delivery::{DeliveryTag as _, LaneSlot},
    escaped::Escaped,
    hub,
    mailbox::MailboxLimits,
    session::SessionState,
    store::SessionChange,
};

/// Flows by which a session may know its subscriptions.
const MAX_FLOWS: usize = 512;

/// Returns the slot of a flow, which gets one if it has none.
pub(super) fn slot_of_flow(
    flow: FlowId,
    connection: &Connection,
    state: &mut SessionState,
) -> LaneSlot {
    if let Some(slot) = state.slot_of(flow) {
        return slot;
    }
    if state.flows.len() >= MAX_FLOWS {
        // Those that are names alone, and nothing goes by.
        let subscriptions = state.subscriptions.lock();
        let has_any = |slot| subscriptions.values().any(|one| one.lane == slot);
        state.flows.retain(|(flow, slot)| {
            let is_alive = connection.keeps_flow(*flow) || connection.lane_of_flow(*flow).is_some();
            is_alive || has_any(*slot)
        });
        if state.flows.len() >= MAX_FLOWS {
            return LaneSlot::CONTROL;
        }
    }
    let slot = state.new_slot();
    state.flows.push((flow, slot));
    slot
}

/// Returns the lane for a message of a flow: the flow's if it is open, else the control lane.
pub(super) fn lane_of_flow(flow: FlowId, connection: &Connection) -> LaneId {
    let lane = connection.lane_of_flow(flow);
    lane.filter(|lane| connection.is_lane_open(*lane))
        .unwrap_or(LaneId::CONTROL)
}

/// Returns `true` if a message waits for the next lane of its flow.
fn waits(slot: LaneSlot, state: &SessionState, connection: &Connection) -> bool {
    state
        .flow_of(slot)
        .is_some_and(|flow| connection.keeps_flow(flow) && connection.lane_of_flow(flow).is_none())
}

/// Deliveries that wait for the next lanes of their flows, which most clients do not have.
#[derive(Debug, Default)]
pub(super) struct Parked(Option<Box<ParkedDeliveries>>);

#[derive(Debug, Default)]
struct ParkedDeliveries {
    deliveries: VecDeque<Delivery>,
    /// The slots among them.
    slots: Vec<LaneSlot>,
    bytes: usize,
}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        let waiting = self.0.as_ref();
        waiting.is_none_or(|waiting| waiting.deliveries.is_empty())
    }

    pub(super) fn push(&mut self, delivery: Delivery) {
        let waiting = self.0.get_or_insert_default();
        let slot = delivery.lane();
        if !waiting.slots.contains(&slot) {
            waiting.slots.push(slot);
        }
        waiting.bytes += delivery.message.payload.len();
        waiting.deliveries.push_back(delivery);
    }

    /// Returns `true` if a message of that slot has to wait: its flow has no lane now, or earlier ones wait for it.
    pub(super) fn takes(
        &self,
        slot: LaneSlot,
        state: &SessionState,
        connection: &Connection,
    ) -> bool {
        let has_earlier = || {
            let waiting = self.0.as_ref();
            waiting.is_some_and(|waiting| waiting.slots.contains(&slot))
        };
        slot != LaneSlot::CONTROL && (has_earlier() || waits(slot, state, connection))
    }

    /// Returns the approximate memory of what waits, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let waiting = self.0.as_ref();
        waiting.map_or(0, |waiting| {
            waiting.bytes + waiting.deliveries.len() * size_of::<Delivery>()
        })
    }

    /// Puts what waits no longer in front of `outgoing`.
    pub(super) fn unpark(
        &mut self,
        connection: &Connection,
        state: &SessionState,
        outgoing: &mut VecDeque<Delivery>,
    ) {
        let Some(waiting) = &mut self.0 else {
            return;
        };
        let slots = waiting.slots.iter().copied();
        let (still, free): (Vec<_>, Vec<_>) =
            slots.partition(|slot| waits(*slot, state, connection));
        if free.is_empty() {
            return;
        }
        waiting.slots = still;
        let is_free = |delivery: &Delivery| free.contains(&delivery.lane());
        waiting.take(is_free, outgoing);
    }

    /// Removes the deliveries that wait for a slot.
    pub(super) fn remove(&mut self, slot: LaneSlot) -> VecDeque<Delivery> {
        let mut removed = VecDeque::new();
        if let Some(waiting) = &mut self.0 {
            waiting.slots.retain(|other| *other != slot);
            waiting.take(|delivery| delivery.lane() == slot, &mut removed);
        }
        removed
    }

    /// Puts everything in front of `outgoing`.
    pub(super) fn give_back(&mut self, outgoing: &mut VecDeque<Delivery>) {
        if let Some(mut waiting) = self.0.take() {
            waiting.take(|_| true, outgoing);
        }
    }

    /// Returns the slot for which most waits, if more waits than the limits allow.
    pub(super) fn over(&self, limits: MailboxLimits) -> Option<LaneSlot> {
        let ParkedDeliveries {
            deliveries,
            slots,
            bytes,
        } = self.0.as_deref()?;
        if deliveries.len() <= limits.messages && *bytes <= limits.bytes {
            return None;
        }
        let count = |slot: &&LaneSlot| {
            let of_slot = |delivery: &&Delivery| delivery.lane() == **slot;
            deliveries.iter().filter(of_slot).count()
        };
        slots.iter().max_by_key(count).copied()
    }
}

impl ParkedDeliveries {
    /// Moves deliveries in front of others.
    fn take(&mut self, which: impl Fn(&Delivery) -> bool, to: &mut VecDeque<Delivery>) {
        let all = core::mem::take(&mut self.deliveries);
        let (taken, left): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(which);
        self.deliveries = left;
        for delivery in taken.into_iter().rev() {
            self.bytes -= delivery.message.payload.len();
            to.push_front(delivery);
        }
    }
}

impl Attached<'_> {
    /// Records that a flow has a lane again: with an expiry the flow is kept, without one what was kept of it ends.
    pub(super) fn flow_began(&mut self, flow: FlowId, expiry: Option<Duration>) {
        let Some(expiry) = expiry else {
            // What was kept of it is taken over, and nothing more is kept.
            if self.hold.state.slot_of(flow).is_some() {
                self.record(SessionChange::FlowEnded { flow });
            }
            return;
        };
        let connection = &self.wire.connection;
        let slot = slot_of_flow(flow, connection, &mut self.hold.state);
        let journal = &mut self.publisher.journal;
        hub::keep_flow(&self.hold.session, flow, slot, expiry, None, journal);
    }

    /// Ends the subscriptions and messages that do not outlive a flow.
    pub(super) fn flow_ended(&mut self, end: FlowEnd) {
        if !end.keeps_subscriptions
            && let Some(slot) = self.hold.state.slot_of(end.flow)
        {
            self.outgoing.append(&mut self.parked.remove(slot));
        }
        let journal = &mut self.publisher.journal;
        let (hub, outgoing) = (&self.wire.hub, &mut self.outgoing);
        hub::end_flow(hub, &mut self.hold, end, outgoing, journal);
    }

    /// Gives up each flow for which more waits than a session may have, as if its time were over.
    pub(super) fn bound_parked(&mut self, now: Instant) {
        let limits = self.wire.hub.mailbox_limits();
        while let Some(slot) = self.parked.over(limits) {
            let client = &self.hold.session.client_id;
            let Some(flow) = self.hold.state.flow_of(slot) else {
                self.parked.remove(slot);
                continue;
            };
            warn!(client = %Escaped(client), %flow, "flow abandoned; too many messages wait for it");
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
}
