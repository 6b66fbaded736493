//! Stand-ins for flows in a build without the feature `mqtt-next`: no lane is one, and lanes begin with packets.

#![expect(
    clippy::unused_self,
    reason = "the methods are those of a build with flows"
)]

use std::time::Instant;

use bytes::BytesMut;
use mq_codec::{PacketId, ReasonCode};

use super::{Connection, lanes::Leave};
use crate::{
    AckTicket, FlowId, LaneId, ProtocolError, alias::ReceiveAliases, flow::Flow, session::Receiving,
};

impl Connection {
    /// Returns the application's error code with which the link is to be closed: 0, none.
    #[must_use]
    pub fn close_code(&self) -> u32 {
        0
    }

    /// Returns the flow that a lane is: none.
    #[must_use]
    pub fn flow_of(&self, _lane: LaneId) -> Option<FlowId> {
        None
    }

    /// Ends the lanes of flows, of which there are none.
    pub fn leave_flows(&mut self, _now: Instant) {}

    pub(super) fn resume_flows(&mut self, _now: Instant) {}

    pub(super) fn keeper_of(&self, _lane: LaneId) -> Option<FlowId> {
        None
    }

    pub(super) fn take_control_head(&mut self, _buffer: &mut BytesMut) -> bool {
        true
    }

    pub(super) fn begin_own_flow(&mut self, _lane: LaneId) {}

    #[expect(clippy::unnecessary_wraps, reason = "a head may be wrong")]
    pub(super) fn take_head(
        &mut self,
        _now: Instant,
        lane: LaneId,
        buffer: &mut BytesMut,
    ) -> Result<bool, ProtocolError> {
        if !buffer.is_empty() && !self.is_own(lane) {
            self.data_lane(lane).begun = true;
        }
        Ok(true)
    }

    pub(super) fn next_flow_expiry(&self) -> Option<Instant> {
        None
    }

    pub(super) fn expire_flows(&mut self, _now: Instant) {}

    pub(super) fn leave_flow(
        &mut self,
        _now: Instant,
        flow: Flow,
        _sent: &[PacketId],
        _receiving: Receiving,
        _aliases: ReceiveAliases,
        _leave: Leave,
    ) -> bool {
        match flow {}
    }

    pub(super) fn ack_of_flow(
        &mut self,
        _now: Instant,
        _flow: FlowId,
        _ticket: &AckTicket,
        _reason: ReasonCode,
    ) {
    }

    /// Returns how a lane ends with an error of the peer, and the error code.
    pub(super) fn end_by(&self, _lane: LaneId, error: &ProtocolError) -> (Leave, u32) {
        (Leave::Broken, error.reason_code() as u32)
    }

    pub(super) fn note_close_code(&mut self, _error: &ProtocolError) {}

    pub(super) fn may_ping(&self, _lane: LaneId) -> bool {
        false
    }

    pub(super) fn counts_by_flow(&self) -> bool {
        false
    }
}
