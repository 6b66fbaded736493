//! Flows that a session keeps, and the messages that wait for their next lanes.

use std::time::Instant;

use mq_codec::PacketId;

use super::{Outgoing, PARKED_LANE, Receiving, Session};
use crate::{FlowId, LaneId, alias::ReceiveAliases, seldom::SeldomMap};

/// Flows of a session that have no lane now, and the number of those that this side has opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Flows {
    kept: SeldomMap<FlowId, KeptFlow>,
    opened: u64,
}

/// State of a flow between its lanes.
#[derive(Clone, Debug)]
pub(crate) struct KeptFlow {
    pub(crate) expires_at: Instant,
    /// Received QoS 2 messages of the flow.
    pub(crate) receiving: Receiving,
    pub(crate) aliases: ReceiveAliases,
}

impl Flows {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }

    pub(super) fn forget_unacknowledged(&mut self) {
        for flow in self.kept.values_mut() {
            flow.receiving.forget_unacknowledged();
        }
    }

    /// Returns the approximate memory of the flows, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let each = self.kept.values().map(|flow| {
            2 * size_of::<(FlowId, KeptFlow)>() + flow.receiving.bytes() + flow.aliases.bytes()
        });
        each.sum()
    }
}

impl Session {
    /// Restores a flow that is kept until `expires_at`. `outgoing` has those messages of
    /// [`restore`](Self::restore) that were sent on the flow; `incoming` has the identifiers of QoS 2 messages
    /// received on it that were acknowledged and whose PUBREL was not received.
    pub fn restore_flow(
        &mut self,
        flow: FlowId,
        expires_at: Instant,
        outgoing: impl IntoIterator<Item = PacketId>,
        incoming: impl IntoIterator<Item = PacketId>,
    ) {
        let receiving = Receiving(incoming.into_iter().map(|id| (id, true)).collect());
        let kept = KeptFlow {
            expires_at,
            receiving,
            aliases: ReceiveAliases::default(),
        };
        self.flows.kept.insert(flow, kept);
        for id in outgoing {
            if let Some(outgoing) = self.outgoing.get_mut(&id) {
                outgoing.flow = Some(flow);
                outgoing.lane = PARKED_LANE;
                self.parked += 1;
            }
        }
    }

    /// Returns `true` if something is kept of a flow that has no lane now.
    #[must_use]
    pub fn keeps_flow(&self, flow: FlowId) -> bool {
        self.flows.kept.contains_key(&flow)
    }

    /// Makes messages that were sent on a flow wait for its next lane.
    pub(crate) fn park(&mut self, ids: &[PacketId]) {
        for id in ids {
            if let Some(outgoing) = self.outgoing.get_mut(id) {
                outgoing.lane = PARKED_LANE;
                self.parked += 1;
            }
        }
    }

    /// Moves the messages that wait for a flow to `lane`. Returns their identifiers, in order.
    pub(crate) fn unpark(&mut self, flow: FlowId, lane: LaneId) -> Vec<PacketId> {
        let waiting =
            |outgoing: &Outgoing| outgoing.flow == Some(flow) && outgoing.lane == PARKED_LANE;
        let ids = self.move_lane(waiting, lane);
        self.parked -= ids.len();
        ids
    }

    /// Moves all messages that wait for flows to the control lane.
    pub(crate) fn unpark_all(&mut self) {
        self.move_lane(|outgoing| outgoing.lane == PARKED_LANE, LaneId::CONTROL);
        self.parked = 0;
    }

    /// Keeps a flow that has no lane any more.
    pub(crate) fn keep_flow(&mut self, flow: FlowId, kept: KeptFlow) {
        self.flows.kept.insert(flow, kept);
    }

    /// Takes out the state that is kept of a flow.
    pub(crate) fn take_flow(&mut self, flow: FlowId) -> Option<KeptFlow> {
        self.flows.kept.remove(&flow)
    }

    pub(crate) fn kept_flow(&mut self, flow: FlowId) -> Option<&mut KeptFlow> {
        self.flows.kept.get_mut(&flow)
    }

    pub(crate) fn kept_flows(&self) -> impl ExactSizeIterator<Item = (FlowId, &KeptFlow)> {
        self.flows.kept.iter().map(|(id, flow)| (*id, flow))
    }

    /// Server: returns the identifier of the next flow that it opens, an odd number.
    pub(crate) fn next_server_flow(&mut self) -> FlowId {
        self.flows.opened += 1;
        FlowId(self.flows.opened * 2 - 1)
    }

    /// Returns the identifiers in flight of a flow, with a lane or without, in the order in which they were first sent.
    pub(crate) fn in_order_of(&self, flow: FlowId) -> Vec<PacketId> {
        self.in_order_where(|outgoing| outgoing.flow == Some(flow))
    }
}
