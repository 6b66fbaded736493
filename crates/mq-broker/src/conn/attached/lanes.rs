//! The data lanes and flows on which a client has subscribed: its messages come back on them.

use std::{collections::VecDeque, time::Duration};

use mq_proto::{Connection, Delivery, FlowEnd, FlowId, LaneId};

use super::Attached;
use crate::{
    delivery::{LaneSlot, Marks as _},
    hub,
    mailbox::MailboxLimits,
    session::State,
};

/// Flows by which a session may know its subscriptions.
const MAX_FLOWS: usize = 512;

/// Which lane each [`LaneSlot`] stands for, of this connection.
///
/// A subscription remembers its slot. The slots of lanes that have ended, and those of earlier connections,
/// stand for the control lane. The slots of flows stand for whatever lane the flow has.
#[derive(Debug, Default)]
pub(super) struct SubscribedLanes(Vec<(LaneSlot, LaneId)>);

impl SubscribedLanes {
    /// The slot of the lane on which a SUBSCRIBE came.
    pub(super) fn slot_of(
        &mut self,
        lane: LaneId,
        connection: &Connection,
        state: &mut State,
    ) -> LaneSlot {
        if let Some(flow) = connection.flow_of(lane) {
            return slot_of_flow(flow, connection, state);
        }
        if lane == LaneId::CONTROL || !connection.is_lane_open(lane) {
            return LaneSlot::CONTROL;
        }
        if let Some((slot, _)) = self.0.iter().find(|(_, other)| *other == lane) {
            return *slot;
        }
        self.0.retain(|(_, lane)| connection.is_lane_open(*lane));
        let slot = state.new_slot();
        self.0.push((slot, lane));
        slot
    }

    fn lane_of(&self, slot: LaneSlot, connection: &Connection) -> LaneId {
        let known = self.0.iter().find(|(other, _)| *other == slot);
        match known {
            Some((_, lane)) if connection.is_lane_open(*lane) => *lane,
            _ => LaneId::CONTROL,
        }
    }
}

/// The slot of a flow, which gets one if it has none.
fn slot_of_flow(flow: FlowId, connection: &Connection, state: &mut State) -> LaneSlot {
    if let Some(slot) = state.slot_of(flow) {
        return slot;
    }
    if state.flows.len() >= MAX_FLOWS {
        // Those that are names alone, and nothing goes by.
        let subscriptions = &state.subscriptions;
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

/// Where a message goes.
pub(super) enum Place {
    /// On that lane, now.
    On(LaneId),
    /// On the next lane of its flow.
    Wait,
}

pub(super) fn place_of(
    slot: LaneSlot,
    lanes: &SubscribedLanes,
    state: &State,
    connection: &Connection,
) -> Place {
    if slot == LaneSlot::CONTROL {
        return Place::On(LaneId::CONTROL);
    }
    let Some(flow) = state.flow_of(slot) else {
        return Place::On(lanes.lane_of(slot, connection));
    };
    match connection.lane_of_flow(flow) {
        Some(lane) if connection.is_lane_open(lane) => Place::On(lane),
        None if connection.keeps_flow(flow) => Place::Wait,
        _ => Place::On(LaneId::CONTROL),
    }
}

/// Deliveries that wait for the next lanes of their flows.
#[derive(Debug, Default)]
pub(super) struct Parked {
    deliveries: VecDeque<Delivery>,
    /// The slots among them.
    slots: Vec<LaneSlot>,
    bytes: usize,
}

impl Parked {
    pub(super) fn push(&mut self, delivery: Delivery) {
        let slot = delivery.lane();
        if !self.slots.contains(&slot) {
            self.slots.push(slot);
        }
        self.bytes += delivery.message.payload.len();
        self.deliveries.push_back(delivery);
    }

    /// Whether messages of that slot wait.
    pub(super) fn has(&self, slot: LaneSlot) -> bool {
        self.slots.contains(&slot)
    }

    /// The approximate memory of what waits, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.deliveries.len() * size_of::<Delivery>()
    }

    /// Puts what waits no longer in front of `outgoing`.
    pub(super) fn unpark(
        &mut self,
        connection: &Connection,
        state: &State,
        outgoing: &mut VecDeque<Delivery>,
    ) {
        let waits = |slot: &LaneSlot| {
            let flow = state.flow_of(*slot);
            flow.is_some_and(|flow| {
                connection.lane_of_flow(flow).is_none() && connection.keeps_flow(flow)
            })
        };
        let (waiting, free): (Vec<_>, Vec<_>) = self.slots.iter().copied().partition(waits);
        if free.is_empty() {
            return;
        }
        self.slots = waiting;
        let is_free = |delivery: &Delivery| free.contains(&delivery.lane());
        self.take(is_free, outgoing);
    }

    /// What waits for a slot.
    pub(super) fn remove(&mut self, slot: LaneSlot) -> VecDeque<Delivery> {
        let mut removed = VecDeque::new();
        self.slots.retain(|other| *other != slot);
        self.take(|delivery| delivery.lane() == slot, &mut removed);
        removed
    }

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

    /// Puts everything in front of `outgoing`.
    pub(super) fn give_back(&mut self, outgoing: &mut VecDeque<Delivery>) {
        self.slots.clear();
        self.take(|_| true, outgoing);
    }

    /// The slot for which most waits, if too much does.
    pub(super) fn over(&self, limits: MailboxLimits) -> Option<LaneSlot> {
        if self.deliveries.len() <= limits.messages && self.bytes <= limits.bytes {
            return None;
        }
        let count = |slot: &&LaneSlot| {
            let of_slot = |delivery: &&Delivery| delivery.lane() == **slot;
            self.deliveries.iter().filter(of_slot).count()
        };
        self.slots.iter().max_by_key(count).copied()
    }
}

impl Attached<'_> {
    /// A flow has a lane again.
    pub(super) fn flow_began(&mut self, flow: FlowId, expiry: Option<Duration>) {
        let Some(expiry) = expiry else {
            return;
        };
        let connection = &self.wire.connection;
        let slot = slot_of_flow(flow, connection, &mut self.hold.state);
        let journal = &mut self.publisher.journal;
        hub::keep_flow(&self.hold.session, flow, slot, expiry, None, journal);
    }

    /// What a flow leaves behind.
    pub(super) fn flow_ended(&mut self, end: FlowEnd) {
        let FlowEnd {
            flow,
            keeps_subscriptions,
            ..
        } = end;
        if !keeps_subscriptions && let Some(slot) = self.hold.state.slot_of(flow) {
            let mut gone = self.parked.remove(slot);
            let outgoing = core::mem::take(&mut self.outgoing);
            let (of_flow, others) = outgoing
                .into_iter()
                .partition(|delivery| delivery.lane() == slot);
            self.outgoing = others;
            gone.extend::<VecDeque<_>>(of_flow);
            for delivery in gone {
                hub::unqueued(&self.hold.session, &delivery, &mut self.publisher.journal);
            }
        }
        let journal = &mut self.publisher.journal;
        self.wire.hub.flow_ended(&mut self.hold, end, journal);
    }
}
