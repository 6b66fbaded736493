//! Stand-ins for flows in a build without the feature `mqtt-next`: subscriptions and messages know none.

#![expect(
    clippy::unused_self,
    clippy::needless_pass_by_ref_mut,
    reason = "the functions are those of a build with flows"
)]

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use mq_proto::{Connection, Delivery, FlowEnd, FlowId, LaneId};

use super::Attached;
use crate::{delivery::LaneSlot, session::SessionState};

pub(super) fn slot_of_flow(
    _flow: FlowId,
    _connection: &Connection,
    _state: &mut SessionState,
) -> LaneSlot {
    LaneSlot::CONTROL
}

pub(super) fn lane_of_flow(_flow: FlowId, _connection: &Connection) -> LaneId {
    LaneId::CONTROL
}

/// Deliveries that wait for the next lanes of their flows, of which there are none.
#[derive(Debug, Default)]
pub(super) struct Parked {}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        true
    }

    pub(super) fn push(&mut self, _delivery: Delivery) {}

    pub(super) fn takes(
        &self,
        _slot: LaneSlot,
        _state: &SessionState,
        _connection: &Connection,
    ) -> bool {
        false
    }

    pub(super) fn bytes(&self) -> usize {
        0
    }

    pub(super) fn unpark(
        &mut self,
        _connection: &Connection,
        _state: &SessionState,
        _outgoing: &mut VecDeque<Delivery>,
    ) {
    }

    pub(super) fn give_back(&mut self, _outgoing: &mut VecDeque<Delivery>) {}
}

impl Attached<'_> {
    pub(super) fn flow_began(&mut self, _flow: FlowId, _expiry: Option<Duration>) {}

    pub(super) fn flow_ended(&mut self, _end: FlowEnd) {}

    pub(super) fn bound_parked(&mut self, _now: Instant) {}
}
