//! Flows (MQTT-next), as far as a session keeps them: their subscriptions, and what the store knows of them.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use mq_proto::{Delivery, FlowEnd, FlowId};

use super::{HeldSession, Hub, unqueued};
use crate::{
    delivery::{DeliveryTag as _, LaneSlot},
    journal::Journal,
    session::Session,
    store::{SessionChange, StoredFlow, to_wall_clock},
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
    let kept = StoredFlow {
        slot: slot.number(),
        expiry,
        expires_at: expires_at.map(to_wall_clock),
    };
    journal.record_of(session, SessionChange::FlowKept { flow, kept });
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
