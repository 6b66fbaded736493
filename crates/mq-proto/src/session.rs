//! The session, which outlives a connection: messages in flight, in both directions (§4.1).

#[cfg(feature = "mqtt-next")]
mod flows;
#[cfg(not(feature = "mqtt-next"))]
mod no_flows;

#[cfg(feature = "mqtt-next")]
use flows::Flows;
#[cfg(feature = "mqtt-next")]
pub(crate) use flows::KeptFlow;
use hashbrown::HashMap;
use mq_codec::{PacketId, QoS};
#[cfg(not(feature = "mqtt-next"))]
use no_flows::Flows;

use crate::{Delivery, FlowId, LaneId, limits::PeerLimits, seldom::SeldomMap};

/// The part of an MQTT session that the protocol itself needs: QoS 1 and 2 messages on their way.
///
/// A [`Connection`](crate::Connection) gets the session when it begins and returns it when it ends
/// ([`into_session`](crate::Connection::into_session)). The owner keeps subscriptions, unsent messages
/// and the rest of the session state of §4.1.
///
/// ```text
/// outgoing            publish            PUBACK
///             (none) --------> Published ------> (none)                QoS 1
///                                  | PUBREC
///                                  v       PUBCOMP
///                              Released --------> (none)               QoS 2
///
/// incoming            PUBLISH         ack()          PUBREL
/// (QoS 2)     (none) --------> Taken -------> Kept -------> (none)
/// ```
#[derive(Clone, Debug, Default)]
pub struct Session {
    outgoing: HashMap<PacketId, Outgoing>,
    /// Payload of all `outgoing` messages together, in bytes.
    outgoing_bytes: usize,
    pub(crate) incoming: Receiving,
    last_id: Option<PacketId>,
    next_order: u64,
    /// State that is kept of flows without a lane.
    flows: Flows,
    /// The number of `outgoing` messages that wait for the next lane of their flow.
    parked: usize,
    /// Client: the limits of the last CONNACK, which count for what is sent before the next one.
    pub(crate) server_limits: Option<Box<PeerLimits>>,
}

/// The lane of messages that wait for the next lane of their flow.
const PARKED_LANE: LaneId = LaneId(u64::MAX);

/// Received QoS 2 messages whose PUBREL was not received yet. The value of a message is `true` once the owner has
/// acknowledged the message, so that a repetition is answered and not delivered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receiving(SeldomMap<PacketId, bool>);

#[derive(Clone, Debug)]
struct Outgoing {
    /// Place in the order of first sending, in which messages are sent again `[MQTT-4.6.0-1]`.
    order: u64,
    /// The lane of the present connection on which the message was last sent.
    lane: LaneId,
    /// The flow that keeps the exchange; `None` if no flow does.
    #[cfg_attr(
        not(feature = "mqtt-next"),
        expect(dead_code, reason = "there are no flows")
    )]
    flow: Option<FlowId>,
    state: OutgoingState,
}

/// The state of an outgoing message.
#[derive(Clone, Debug)]
pub(crate) enum OutgoingState {
    /// PUBLISH sent; PUBACK or PUBREC is due.
    Published(Delivery),
    /// PUBREL sent; PUBCOMP is due.
    Released,
}

/// The meaning of a received QoS 2 PUBLISH, new or repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Incoming {
    New,
    /// Delivered already and not acknowledged by the owner yet.
    Taken,
    /// Delivered and acknowledged: a repetition is answered again.
    Kept,
}

impl Session {
    /// Makes an empty session.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Restores a session from elsewhere, such as a disk.
    ///
    /// `outgoing` has the messages in flight, in the order in which they were first sent; `None` stands for a
    /// QoS 2 message whose PUBREC was received. `incoming` has the identifiers of QoS 2 messages that were
    /// acknowledged and whose PUBREL was not received.
    #[must_use]
    pub fn restore(
        outgoing: impl IntoIterator<Item = (PacketId, Option<Delivery>)>,
        incoming: impl IntoIterator<Item = PacketId>,
    ) -> Self {
        let mut session = Self::new();
        for (id, delivery) in outgoing {
            let state = delivery.map_or(OutgoingState::Released, OutgoingState::Published);
            session.sent(id, state, LaneId::CONTROL, None);
            session.last_id = Some(id);
        }
        session.incoming = Receiving(incoming.into_iter().map(|id| (id, true)).collect());
        session
    }

    /// Returns `true` if no message is in flight in either direction, and no state of a flow is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.0.is_empty() && self.flows.is_empty()
    }

    /// Returns the number of outgoing messages that are not complete.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.outgoing.len()
    }

    /// Takes out the outgoing messages that may not have arrived, in the order in which they were first
    /// sent, for an owner that ends the session and gives them to another receiver.
    pub fn take_unacknowledged(&mut self) -> Vec<Delivery> {
        let ids = self.in_order();
        let states = ids.into_iter().filter_map(|id| self.completed(id));
        states.filter_map(OutgoingState::into_delivery).collect()
    }

    /// Replaces the outgoing messages that may not have arrived, in any order, for an owner that keeps them in
    /// another form than it sends. A message for which `change` returns `None` is not sent again; its exchange
    /// ends as if it had arrived, with PUBREL, so that the peer frees its identifier.
    pub fn change_outgoing(&mut self, mut change: impl FnMut(&Delivery) -> Option<Delivery>) {
        for outgoing in self.outgoing.values_mut() {
            let OutgoingState::Published(delivery) = &outgoing.state else {
                continue;
            };
            let changed = change(delivery);
            self.outgoing_bytes -= outgoing.state.bytes();
            outgoing.state = changed.map_or(OutgoingState::Released, OutgoingState::Published);
            self.outgoing_bytes += outgoing.state.bytes();
        }
    }

    /// Returns the identifiers of received QoS 2 messages whose PUBREL was not received, without those of
    /// flows.
    pub fn received(&self) -> impl Iterator<Item = PacketId> {
        self.incoming.0.iter().map(|(id, _)| *id)
    }

    /// Returns the identifiers of sent QoS 2 messages whose PUBREC was received and whose PUBCOMP was not.
    pub fn released(&self) -> impl Iterator<Item = PacketId> {
        let released = self.outgoing.iter();
        let released =
            released.filter(|(_, outgoing)| matches!(outgoing.state, OutgoingState::Released));
        released.map(|(id, _)| *id)
    }

    /// Returns the next packet identifier that is not in flight and not `taken`; `None` if there is none.
    pub(crate) fn allocate(&mut self, taken: impl Fn(PacketId) -> bool) -> Option<PacketId> {
        let mut id = self.last_id.map_or(PacketId::FIRST, PacketId::next);
        for _ in 0..u16::MAX {
            if !self.outgoing.contains_key(&id) && !taken(id) {
                self.last_id = Some(id);
                return Some(id);
            }
            id = id.next();
        }
        None
    }

    /// Adds a message that was sent on `lane`. `flow` keeps its exchange; the session itself if `None`.
    pub(crate) fn published(
        &mut self,
        id: PacketId,
        delivery: Delivery,
        lane: LaneId,
        flow: Option<FlowId>,
    ) {
        self.sent(id, OutgoingState::Published(delivery), lane, flow);
    }

    /// Returns the lane on which a message was last sent; `None` while it waits for its flow.
    pub(crate) fn lane_of(&self, id: PacketId) -> Option<LaneId> {
        let outgoing = self.outgoing.get(&id)?;
        Some(outgoing.lane).filter(|lane| *lane != PARKED_LANE)
    }

    /// Returns the number of outgoing messages that wait for the next lane of their flow.
    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// Moves the messages that were sent on a lane to the control lane. Returns their identifiers, in order.
    pub(crate) fn leave_lane(&mut self, lane: LaneId) -> Vec<PacketId> {
        self.move_lane(|outgoing| outgoing.lane == lane, LaneId::CONTROL)
    }

    fn move_lane(&mut self, which: impl Fn(&Outgoing) -> bool, to: LaneId) -> Vec<PacketId> {
        let all = self.outgoing.iter_mut();
        let mut ids: Vec<_> = all
            .filter(|(_, outgoing)| which(outgoing))
            .map(|(id, outgoing)| {
                outgoing.lane = to;
                (outgoing.order, *id)
            })
            .collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Moves the messages in flight to the control lane, the first lane of a new connection, except those that
    /// wait for a flow. Call it before the connection sends anything: afterwards some are on lanes of its own.
    pub(crate) fn leave_all_lanes(&mut self) {
        let all = self.outgoing.values_mut();
        for outgoing in all.filter(|outgoing| outgoing.lane != PARKED_LANE) {
            outgoing.lane = LaneId::CONTROL;
        }
    }

    /// Adds a message as the last in order.
    fn sent(&mut self, id: PacketId, state: OutgoingState, lane: LaneId, flow: Option<FlowId>) {
        let order = self.next_order;
        self.next_order += 1;
        self.outgoing_bytes += state.bytes();
        self.outgoing.insert(
            id,
            Outgoing {
                order,
                lane,
                flow,
                state,
            },
        );
    }

    /// Returns the payload bytes of outgoing messages that may have to be sent again.
    #[must_use]
    pub fn in_flight_bytes(&self) -> usize {
        self.outgoing_bytes
    }

    pub(crate) fn outgoing(&self, id: PacketId) -> Option<&OutgoingState> {
        self.outgoing.get(&id).map(|outgoing| &outgoing.state)
    }

    /// Records a PUBREC. Returns the message, which is not needed any more.
    pub(crate) fn release(&mut self, id: PacketId) -> Option<Delivery> {
        let outgoing = self.outgoing.get_mut(&id)?;
        self.outgoing_bytes -= outgoing.state.bytes();
        match core::mem::replace(&mut outgoing.state, OutgoingState::Released) {
            OutgoingState::Published(delivery) => Some(delivery),
            OutgoingState::Released => None,
        }
    }

    /// Removes a message whose exchange is complete.
    pub(crate) fn completed(&mut self, id: PacketId) -> Option<OutgoingState> {
        let Outgoing { state, lane, .. } = self.outgoing.remove(&id)?;
        self.outgoing_bytes -= state.bytes();
        self.parked -= usize::from(lane == PARKED_LANE);
        Some(state)
    }

    /// Returns the identifiers in flight, in the order in which they were first sent.
    pub(crate) fn in_order(&self) -> Vec<PacketId> {
        self.in_order_where(|_| true)
    }

    /// Returns the identifiers in flight that do not wait for a flow, in the order in which they were first
    /// sent.
    pub(crate) fn in_order_not_parked(&self) -> Vec<PacketId> {
        self.in_order_where(|outgoing| outgoing.lane != PARKED_LANE)
    }

    fn in_order_where(&self, which: impl Fn(&Outgoing) -> bool) -> Vec<PacketId> {
        let mut ids: Vec<_> = self
            .outgoing
            .iter()
            .filter(|(_, outgoing)| which(outgoing))
            .map(|(id, outgoing)| (outgoing.order, *id))
            .collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Drops received messages that were never acknowledged, once the connection is over: they count as not
    /// received.
    pub(crate) fn forget_unacknowledged(&mut self) {
        self.incoming.forget_unacknowledged();
        self.flows.forget_unacknowledged();
    }

    /// Returns the approximate number of bytes that the session holds between two connections, without the messages in
    /// flight themselves: their places, identifiers of received messages, and flows with the topics of their aliases.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.outgoing.allocation_size() + self.incoming.bytes() + self.flows.bytes()
    }

    /// Returns the approximate memory of the flows that have no lane, in bytes.
    pub(crate) fn flow_bytes(&self) -> usize {
        self.flows.bytes()
    }

    /// Keeps only the messages that may not have arrived, since the peer has lost its side of the session.
    pub(crate) fn peer_forgot(&mut self) {
        self.incoming.0.clear();
        self.flows.clear();
        self.outgoing
            .retain(|_, outgoing| matches!(outgoing.state, OutgoingState::Published(_)));
    }
}

impl Receiving {
    /// Records a received QoS 2 PUBLISH; returns whether the message is new or a repetition.
    pub(crate) fn published(&mut self, id: PacketId) -> Incoming {
        match self.0.get(&id) {
            None => {
                self.0.insert(id, false);
                Incoming::New
            }
            Some(false) => Incoming::Taken,
            Some(true) => Incoming::Kept,
        }
    }

    /// Records the owner's answer to a received QoS 2 message: with `success`, the packet identifier stays in use until
    /// PUBREL; otherwise the identifier is free at once.
    pub(crate) fn kept(&mut self, id: PacketId, success: bool) {
        if success {
            self.0.insert(id, true);
        } else {
            self.0.remove(&id);
        }
    }

    /// Returns `true` if the message was delivered and the owner has not acknowledged it yet.
    #[cfg(feature = "mqtt-next")]
    pub(crate) fn is_taken(&self, id: PacketId) -> bool {
        self.0.get(&id) == Some(&false)
    }

    /// Records a PUBREL; returns `true` if it releases a message. Before the PUBREC it releases none: the
    /// message still counts, and its owner still has to take it.
    pub(crate) fn released(&mut self, id: PacketId) -> bool {
        let may = self.0.get(&id).is_some_and(|kept| *kept);
        if may {
            self.0.remove(&id);
        }
        may
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the approximate memory of the identifiers, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn forget_unacknowledged(&mut self) {
        self.0.retain(|_, kept| *kept);
    }
}

impl OutgoingState {
    pub(crate) fn into_delivery(self) -> Option<Delivery> {
        match self {
            Self::Published(delivery) => Some(delivery),
            Self::Released => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Published(delivery) => delivery.message.payload.len(),
            Self::Released => 0,
        }
    }

    pub(crate) fn is_published_at(&self, qos: QoS) -> bool {
        matches!(self, Self::Published(delivery) if delivery.qos == qos)
    }
}
