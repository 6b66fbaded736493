//! Flows: the server's part of the MQTT-next draft, by which the session keeps state of a data lane under a
//! name.
//!
//! | the lane of a flow ends | subscriptions | unfinished QoS 1 and 2 messages |
//! |---|---|---|
//! | in order (FIN) | end | end |
//! | out of order, within its expire interval, with the flag for it | wait for its next lane | the same |
//! | out of order otherwise, or with `DISCARD_STATE` | end | end |
//!
//! A flow without a persistent flag of a peer whose control lane had no head (mqtt5) is a name alone: its
//! lane ends as any other.

use core::time::Duration;
use std::time::Instant;

use bytes::{Buf as _, BytesMut};
use mq_codec::{PacketId, QoS, ReasonCode};

use super::{Connection, Role, State, incoming::acknowledgement, lanes::Leave};
use crate::{
    AckTicket, Event, FlowEnd, FlowError, FlowId, LaneEnd, LaneId, ProtocolError,
    alias::ReceiveAliases,
    flow::{
        Beginning, DISCARD_STATE, Dialect, FLOW_CANCELLED, Flow, FlowHead, INCOMPLETE_PACKET,
        PROTOCOL_L0, read_control, write_control,
    },
    session::{KeptFlow, Receiving},
};

/// Greatest number of flows that a session may keep, with a lane or without.
const MAX_FLOWS: usize = 256;

/// Greatest number of flows without kept state that a peer may try to recover on one connection, each once.
const MAX_REFUSED_FLOWS: usize = 64;

/// State of a connection's flows.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// `true` if the link has agreed on flows.
    agreed: bool,
    /// `true` if a lane of this connection was a flow.
    seen: bool,
    /// The encoding of the peer's heads.
    dialect: Dialect,
    /// Flows that the peer wanted to recover and of which no state was kept.
    refused: Vec<FlowId>,
    /// The application error code with which the connection ends.
    close_code: u32,
}

impl Connection {
    /// Allows lanes with the heads of flows, on which the link has agreed (the application protocol
    /// `MQTT-next`). A client that sends no head on its control lane is taken for one of mqtt5's.
    pub fn allow_flows(&mut self) {
        self.flows.agreed = true;
    }

    /// Returns the application error code with which the link is to be closed; 0 if no error has one.
    #[must_use]
    pub fn close_code(&self) -> u32 {
        self.flows.close_code
    }

    /// Returns the flow that a lane is, if it is one.
    #[must_use]
    pub fn flow_of(&self, lane: LaneId) -> Option<FlowId> {
        let flow = self.lanes.get(&lane)?.flow;
        flow.map(|flow| flow.id)
    }

    /// Returns `true` if state is kept of a flow that has no lane, for its next one. On a link without flows
    /// always `false`: messages for a flow of an earlier connection go on the control lane.
    #[must_use]
    pub fn keeps_flow(&self, flow: FlowId) -> bool {
        (self.flows.agreed || self.flows.seen) && self.session.keeps_flow(flow)
    }

    /// Continues the flows of an earlier connection, once this one is open.
    pub(super) fn resume_flows(&mut self, now: Instant) {
        self.expire_flows(now);
        if !self.flows.agreed {
            self.session.unpark_all();
        }
    }

    /// Returns the flow that keeps the exchanges on a lane.
    pub(super) fn keeper_of(&self, lane: LaneId) -> Option<FlowId> {
        if lane == LaneId::CONTROL || self.session_ids {
            return None;
        }
        let flow = self.lanes.get(&lane)?.flow;
        flow.filter(Flow::keeps_qos).map(|flow| flow.id)
    }

    /// Returns the present lane of a flow.
    #[must_use]
    pub fn lane_of_flow(&self, flow: FlowId) -> Option<LaneId> {
        let mut lanes = self.lanes.iter();
        let found = lanes.find(|(_, data)| data.flow.is_some_and(|of| of.id == flow));
        found.map(|(lane, _)| *lane)
    }

    /// Server: takes the head of the control flow; returns `false` while it is incomplete.
    pub(super) fn take_control_head(&mut self, buffer: &mut BytesMut) -> bool {
        let is_due = self.flows.agreed && self.role == Role::Server && self.state == State::Idle;
        if !is_due || self.flows.dialect == Dialect::Draft {
            return true;
        }
        match read_control(buffer) {
            Ok(None) => return false,
            Ok(Some(0)) => {}
            Ok(Some(length)) => {
                buffer.advance(length);
                self.flows.dialect = Dialect::Draft;
            }
            Err(error) => {
                buffer.clear();
                self.fail(error.into());
            }
        }
        true
    }

    /// Client: begins each lane with a head from now on, and the control lane with its own.
    pub(super) fn begin_control_flow(&mut self) {
        self.flows.dialect = Dialect::Draft;
        let written: Result<(), core::convert::Infallible> =
            self.outbox.put(LaneId::CONTROL, |out| {
                write_control(out);
                Ok(())
            });
        let Ok(()) = written;
    }

    /// Writes the head of a lane that this side has opened, before anything else goes on it.
    pub(super) fn begin_own_flow(&mut self, lane: LaneId) {
        if self.flows.dialect == Dialect::Mqtt5 || lane == LaneId::CONTROL || !self.is_own(lane) {
            return;
        }
        let data = self.data_lane(lane);
        if core::mem::replace(&mut data.begun, true) {
            return;
        }
        let flow = match self.role {
            Role::Server => self.session.next_server_flow(),
            // Names of earlier connections come again, and begin anew.
            Role::Client => FlowId(lane.0 / 2),
        };
        let written: Result<(), core::convert::Infallible> = self.outbox.put(lane, |out| {
            FlowHead::write_passing(flow, out);
            Ok(())
        });
        let Ok(()) = written;
    }

    /// Takes the head of a flow off the front of a lane that the peer has opened, if there is one; returns
    /// `false` while it is incomplete.
    pub(super) fn take_head(
        &mut self,
        now: Instant,
        lane: LaneId,
        buffer: &mut BytesMut,
    ) -> Result<bool, ProtocolError> {
        if buffer.is_empty() || self.is_own(lane) || self.data_lane(lane).begun {
            return Ok(true);
        }
        let of_server = self.role == Role::Client;
        match FlowHead::read(buffer, of_server, self.flows.dialect)? {
            Beginning::Incomplete => return Ok(false),
            Beginning::Packet => {}
            // Somebody's copy of a first flight must not end what a flow has become since.
            Beginning::Flow(head, _) if head.flags.clean && self.early.is_some() => {
                return Ok(false);
            }
            Beginning::Flow(head, length) => {
                buffer.advance(length);
                if self.role == Role::Server {
                    self.begin_flow(now, lane, head)?;
                }
            }
        }
        self.data_lane(lane).begun = true;
        Ok(true)
    }

    fn begin_flow(
        &mut self,
        now: Instant,
        lane: LaneId,
        head: FlowHead,
    ) -> Result<(), ProtocolError> {
        let FlowHead { id, expiry, flags } = head;
        if flags.clean && flags.abort_if_no_state {
            self.forget_flow(now, id);
            return Err(FlowError::Contradiction.into());
        }
        if flags.clean {
            self.forget_flow(now, id);
        } else if let Some(older) = self.lane_of_flow(id) {
            self.leave_lane(now, older, Leave::Broken);
            let code = FlowError::TakenOver.code();
            self.outbox.end(older, LaneEnd::Abort(code));
        }
        self.expire_flows(now);
        self.flows.seen = true;
        let kept = self.session.take_flow(id);
        if kept.is_none() && flags.abort_if_no_state {
            return Err(self.refuse_recovery(id).into());
        }
        let flow = Flow {
            id,
            expiry,
            flags,
            by_rules: self.flows.dialect == Dialect::Draft || flags.is_persistent(),
        };
        if kept.is_none() && flow.keeps_anything() && self.flows_in_use() >= MAX_FLOWS {
            return Err(FlowError::Refused.into());
        }
        let data = self.data_lane(lane);
        data.flow = Some(flow);
        if let Some(kept) = kept {
            data.receive_aliases.go_on(kept.aliases);
            // Their publisher may send as many new ones.
            let carried = kept.receiving.len();
            data.receiving = kept.receiving;
            data.carried = carried;
            self.lanes_at_qos2 += carried;
            self.lanes_carried += carried;
            let again = self.session.unpark(id, lane);
            self.window.send_later(again);
        }
        self.events.push_back(Event::FlowBegan {
            flow: id,
            lane,
            expiry: flow.keeps_anything().then_some(expiry),
        });
        self.send_again(now);
        Ok(())
    }

    fn flows_in_use(&self) -> usize {
        let lanes = self.lanes.values();
        let with_lane = lanes.filter(|data| data.flow.is_some_and(|flow| flow.keeps_anything()));
        self.session.kept_flows().len() + with_lane.count()
    }

    /// Records that a flow cannot be recovered. The first refusal of a flow ends its lane, the second the
    /// connection.
    fn refuse_recovery(&mut self, flow: FlowId) -> FlowError {
        let refused = &mut self.flows.refused;
        if refused.contains(&flow) || refused.len() >= MAX_REFUSED_FLOWS {
            return FlowError::TooManyRecoverAttempts;
        }
        refused.push(flow);
        FlowError::NoFlowState
    }

    /// Drops all state of a flow, and ends its lane if it has one.
    pub fn forget_flow(&mut self, now: Instant, flow: FlowId) {
        if let Some(lane) = self.lane_of_flow(flow) {
            self.leave_lane(now, lane, Leave::Discarded);
            self.outbox.end(lane, LaneEnd::Abort(DISCARD_STATE));
        }
        self.session.take_flow(flow);
        for id in self.session.in_order_of(flow) {
            self.complete(now, id, ReasonCode::UnspecifiedError);
        }
        self.events.push_back(Event::FlowEnded(FlowEnd {
            flow,
            keeps_subscriptions: false,
            expires_at: None,
        }));
    }

    /// Returns the time at which the first flow without a lane expires.
    pub(super) fn next_flow_expiry(&self) -> Option<Instant> {
        self.session
            .kept_flows()
            .map(|(_, kept)| kept.expires_at)
            .min()
    }

    pub(super) fn expire_flows(&mut self, now: Instant) {
        let over = self.session.kept_flows();
        let over: Vec<_> = over
            .filter(|(_, kept)| kept.expires_at <= now)
            .map(|(flow, _)| flow)
            .collect();
        for flow in over {
            self.forget_flow(now, flow);
        }
    }

    /// Takes the lanes of all flows from them, once the connection is over. Call it before
    /// [`into_session`](Self::into_session), which drops flows that have a lane; the events of flows that end
    /// may be acted on after [`Event::Closed`].
    pub fn leave_flows(&mut self, now: Instant) {
        let with_flow = self.lanes.iter().filter(|(_, data)| data.flow.is_some());
        let mut lanes: Vec<_> = with_flow.map(|(lane, _)| *lane).collect();
        lanes.sort_unstable();
        for lane in lanes {
            self.leave_lane(now, lane, Leave::Broken);
        }
    }

    /// Keeps or ends the messages that were sent on the lane of a flow, and the state of the flow. Returns
    /// `false` if the caller has to treat the messages like those of any other lane: the flow is a name alone,
    /// or identifiers are of the session.
    pub(super) fn leave_flow(
        &mut self,
        now: Instant,
        flow: Flow,
        sent: &[PacketId],
        receiving: Receiving,
        aliases: ReceiveAliases,
        leave: Leave,
    ) -> bool {
        if !flow.by_rules {
            return false;
        }
        // What waits for flows does not count in the window, and is as much as that at most.
        let waiting = self.session.parked() + sent.len();
        let is_too_much = waiting > usize::from(self.window.maximum());
        let keeps = leave == Leave::Broken && !is_too_much;
        let keeps_qos = keeps && flow.keeps_qos();
        if keeps_qos && !self.session_ids {
            self.session.park(sent);
            for id in sent {
                self.window.forget(*id);
            }
        } else if !self.session_ids {
            for id in sent {
                self.complete(now, *id, ReasonCode::UnspecifiedError);
            }
        }
        let expires_at = now.checked_add(flow.expiry);
        // A time beyond what the clock can say is never.
        let expires_at = expires_at.unwrap_or_else(|| now + NEVER);
        let keeps_anything = keeps && flow.keeps_anything();
        if keeps_anything {
            let kept = KeptFlow {
                expires_at,
                receiving: if keeps_qos {
                    receiving
                } else {
                    Receiving::default()
                },
                aliases: if flow.flags.persistent_aliases {
                    aliases
                } else {
                    ReceiveAliases::default()
                },
            };
            self.session.keep_flow(flow.id, kept);
        }
        self.events.push_back(Event::FlowEnded(FlowEnd {
            flow: flow.id,
            keeps_subscriptions: keeps && flow.keeps_subscriptions(),
            expires_at: keeps_anything.then_some(expires_at),
        }));
        !self.session_ids
    }

    /// Acknowledges a message that was received on an earlier lane of a flow.
    pub(super) fn ack_of_flow(
        &mut self,
        now: Instant,
        flow: FlowId,
        ticket: &AckTicket,
        reason: ReasonCode,
    ) {
        // A QoS 1 message comes again: a late PUBACK could be taken for the answer to that, and to a new
        // message of its identifier.
        if ticket.qos != QoS::ExactlyOnce {
            return;
        }
        let (id, kept) = (ticket.packet_id, self.keeps(reason));
        if let Some(lane) = self.lane_of_flow(flow) {
            if self.receiving_on(lane, |messages| messages.is_taken(id)) {
                self.receiving_on(lane, |messages| messages.kept(id, kept));
                if !self.is_closed() {
                    self.send_on(now, lane, &acknowledgement(id, ticket.qos, reason));
                }
            }
        } else if let Some(flow) = self.session.kept_flow(flow) {
            flow.receiving.kept(id, kept);
        }
    }

    /// Returns the way in which an error of the peer ends a lane, which keeps or discards its flow, and the
    /// error code.
    pub(super) fn end_by(&self, lane: LaneId, error: &ProtocolError) -> (Leave, u32) {
        let flow = self.lanes.get(&lane).and_then(|data| data.flow);
        if let ProtocolError::Flow(error) = error {
            return (Leave::Discarded, error.code());
        }
        match flow {
            None if self.flows.dialect == Dialect::Mqtt5 => {
                (Leave::Broken, error.reason_code() as u32)
            }
            _ if matches!(error, ProtocolError::Incomplete(_)) => {
                (Leave::Broken, INCOMPLETE_PACKET)
            }
            Some(flow) if flow.flags.error_tolerance < 2 => (Leave::Discarded, DISCARD_STATE),
            Some(_) => (Leave::Broken, FLOW_CANCELLED),
            None => (Leave::Discarded, DISCARD_STATE),
        }
    }

    /// Records the error code of a connection that ends by an error of the peer.
    pub(super) fn note_close_code(&mut self, error: &ProtocolError) {
        if self.flows.agreed {
            self.flows.close_code = match error {
                ProtocolError::Flow(error @ FlowError::TooManyRecoverAttempts) => error.code(),
                _ => PROTOCOL_L0,
            };
        }
    }

    /// Returns `true` if PINGREQ and PINGRESP may be on a data lane, which the draft alone allows.
    pub(super) fn may_ping(&self, lane: LaneId) -> bool {
        let is_flow = self
            .lanes
            .get(&lane)
            .is_some_and(|data| data.flow.is_some());
        is_flow || self.flows.dialect == Dialect::Draft
    }

    /// Returns `true` if the peer counts packet identifiers by flow on lanes that the server has opened, too.
    pub(super) fn counts_by_flow(&self) -> bool {
        self.flows.dialect == Dialect::Draft && !self.session_ids
    }
}

/// Duration that stands for never: a hundred years.
const NEVER: Duration = Duration::from_hours(100 * 365 * 24);
