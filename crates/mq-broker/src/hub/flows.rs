//! Flows (MQTT-next), as far as a session keeps them: their subscriptions, and what the store knows of them.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use mq_codec::PacketId;
use mq_proto::{Delivery, FlowEnd, FlowId};

use super::{HeldSession, Hub, unqueued};
use crate::{
    delivery::{DeliveryTag as _, LaneSlot},
    journal::Journal,
    session::{Session, SessionState},
    store::{FlowRecord, SessionChange, StoreClock, StoredFlow, StoredMessage},
};

/// Records that a flow is kept: until `expires_at`, or while it has a lane and for `expiry` after it.
pub(crate) fn keep_flow(
    session: &Session,
    flow: FlowId,
    slot: LaneSlot,
    expiry: Duration,
    expires_at: Option<Instant>,
    journal: &mut Journal,
) {
    let clock = journal.store_clock();
    let kept = StoredFlow {
        slot: slot.number(),
        expiry,
        expires_at: expires_at.map(|at| clock.time_at(at)),
    };
    journal.record_of(session, SessionChange::FlowKept { flow, kept });
}

/// Returns the packet identifiers in flight by the slots that they wait for.
pub(super) fn sent_by_slot(
    in_flight: &[(PacketId, Option<StoredMessage>)],
    released_slots: &HashMap<PacketId, u16>,
) -> HashMap<u16, Vec<PacketId>> {
    let mut sent: HashMap<u16, Vec<PacketId>> = HashMap::new();
    for (id, message) in in_flight {
        let released = released_slots.get(id).copied().unwrap_or_default();
        let slot = message.as_ref().map_or(released, |message| message.slot);
        sent.entry(slot).or_default().push(*id);
    }
    sent
}

/// Restores the flows of a session from the store, whose clock is `clock`. `sent` has the messages in flight by their
/// slots.
pub(super) fn restore_flows(
    flows: HashMap<FlowId, FlowRecord>,
    mut sent: HashMap<u16, Vec<PacketId>>,
    now: Instant,
    clock: StoreClock<'_>,
    protocol: &mut mq_proto::Session,
    state: &mut SessionState,
) {
    for (flow, record) in flows {
        let StoredFlow {
            slot,
            expiry,
            expires_at,
        } = record.kept;
        // The end of the earlier broker was the end of its lanes.
        let end = now.checked_add(expiry).unwrap_or(now);
        let expires_at = expires_at.map_or(end, |time| clock.instant_of(time));
        let sent = sent.remove(&slot).unwrap_or_default();
        protocol.restore_flow(flow, expires_at, sent, record.received);
        let slot = LaneSlot::of_number(slot);
        state.flows.push((flow, slot));
        state.last_lane = state.last_lane.max(slot);
    }
}

/// Ends the parts of a flow that do not outlive its lane: subscriptions, and their messages in the mailbox and in
/// `unsent`, which were taken from it.
pub(crate) fn end_flow(
    hub: &Hub,
    hold: &mut HeldSession,
    end: FlowEnd,
    unsent: &mut VecDeque<Delivery>,
    journal: &mut Journal,
) {
    let FlowEnd {
        flow,
        keeps_subscriptions,
        expires_at,
    } = end;
    let Some(slot) = hold.state.slot_of(flow) else {
        return;
    };
    if !keeps_subscriptions {
        let filters: Vec<_> = {
            let subscriptions = hold.state.subscriptions.lock();
            let of_flow = subscriptions
                .iter()
                .filter(|(_, subscriber)| subscriber.lane == slot);
            of_flow.map(|(filter, _)| filter.clone()).collect()
        };
        for filter in filters {
            hub.unsubscribe(hold, &filter, journal);
        }
        let (kept, mut gone): (VecDeque<_>, VecDeque<_>) = unsent
            .drain(..)
            .partition(|delivery| delivery.lane() != slot);
        *unsent = kept;
        let mailbox = &hold.session.mailbox;
        gone.extend(mailbox.remove_unless(|delivery| delivery.lane() != slot));
        for delivery in gone {
            unqueued(&hold.session, &delivery, journal);
        }
    }
    if expires_at.is_some() {
        keep_flow(
            &hold.session,
            flow,
            slot,
            Duration::ZERO,
            expires_at,
            journal,
        );
    } else {
        hold.state.flows.retain(|(other, _)| *other != flow);
        journal.record_of(&hold.session, SessionChange::FlowEnded { flow });
    }
}
