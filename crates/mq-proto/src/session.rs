//! The session, which outlives a connection: messages in flight, in both directions (§4.1).

use hashbrown::HashMap;
use mq_codec::{PacketId, QoS};

use crate::{Delivery, LaneId};

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
    /// Payload bytes of `outgoing`.
    outgoing_bytes: usize,
    pub(crate) incoming: Receiving,
    last_id: Option<PacketId>,
    next_order: u64,
}

/// Received QoS 2 messages whose PUBREL has not come. `true` once the owner has acknowledged the
/// message, so that a repetition is answered and not delivered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receiving(HashMap<PacketId, bool>);

#[derive(Clone, Debug)]
struct Outgoing {
    /// Messages are sent again in the order in which they were first sent `[MQTT-4.6.0-1]`.
    order: u64,
    /// The lane that it was last sent on, of the present connection.
    lane: LaneId,
    state: OutgoingState,
}

/// The state of an outgoing message.
#[derive(Clone, Debug)]
pub(crate) enum OutgoingState {
    /// Sent; PUBACK or PUBREC is due.
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
    /// Delivered and acknowledged: answer again.
    Kept,
}

impl Session {
    /// An empty session.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A session restored from elsewhere, such as a disk.
    ///
    /// `outgoing` has the messages in flight, in the order in which they were first sent; `None` stands
    /// for a QoS 2 message whose PUBREC has come. `incoming` has the identifiers of QoS 2 messages that
    /// were acknowledged and whose PUBREL has not come.
    #[must_use]
    pub fn restore(
        outgoing: impl IntoIterator<Item = (PacketId, Option<Delivery>)>,
        incoming: impl IntoIterator<Item = PacketId>,
    ) -> Self {
        let mut session = Self::new();
        for (id, delivery) in outgoing {
            let state = delivery.map_or(OutgoingState::Released, OutgoingState::Published);
            session.sent(id, state, LaneId::CONTROL);
            session.last_id = Some(id);
        }
        session.incoming = Receiving(incoming.into_iter().map(|id| (id, true)).collect());
        session
    }

    /// Whether nothing is in flight in either direction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.0.is_empty()
    }

    /// The number of outgoing messages that are not complete.
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

    /// The next free identifier that `taken` does not use either.
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

    pub(crate) fn published(&mut self, id: PacketId, delivery: Delivery, lane: LaneId) {
        self.sent(id, OutgoingState::Published(delivery), lane);
    }

    /// The lane that a message was last sent on.
    pub(crate) fn lane_of(&self, id: PacketId) -> Option<LaneId> {
        self.outgoing.get(&id).map(|outgoing| outgoing.lane)
    }

    /// The messages that were sent on a lane go to the control lane. Returns their identifiers, in order.
    pub(crate) fn leave_lane(&mut self, lane: LaneId) -> Vec<PacketId> {
        let on_it = self.outgoing.iter_mut();
        let mut ids: Vec<_> = on_it
            .filter(|(_, outgoing)| outgoing.lane == lane)
            .map(|(id, outgoing)| {
                outgoing.lane = LaneId::CONTROL;
                (outgoing.order, *id)
            })
            .collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// A new connection has one lane to begin with.
    pub(crate) fn leave_all_lanes(&mut self) {
        for outgoing in self.outgoing.values_mut() {
            outgoing.lane = LaneId::CONTROL;
        }
    }

    /// The last in order.
    fn sent(&mut self, id: PacketId, state: OutgoingState, lane: LaneId) {
        let order = self.next_order;
        self.next_order += 1;
        self.outgoing_bytes += state.bytes();
        self.outgoing.insert(id, Outgoing { order, lane, state });
    }

    /// Payload bytes of outgoing messages that may have to be sent again.
    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.outgoing_bytes
    }

    pub(crate) fn outgoing(&self, id: PacketId) -> Option<&OutgoingState> {
        self.outgoing.get(&id).map(|outgoing| &outgoing.state)
    }

    /// PUBREC came. Returns the message, which is not needed any more.
    pub(crate) fn released(&mut self, id: PacketId) -> Option<Delivery> {
        let outgoing = self.outgoing.get_mut(&id)?;
        self.outgoing_bytes -= outgoing.state.bytes();
        match core::mem::replace(&mut outgoing.state, OutgoingState::Released) {
            OutgoingState::Published(delivery) => Some(delivery),
            OutgoingState::Released => None,
        }
    }

    /// The exchange is complete.
    pub(crate) fn completed(&mut self, id: PacketId) -> Option<OutgoingState> {
        let state = self.outgoing.remove(&id)?.state;
        self.outgoing_bytes -= state.bytes();
        Some(state)
    }

    /// The identifiers in flight, in the order in which they were first sent.
    pub(crate) fn in_order(&self) -> Vec<PacketId> {
        let mut ids: Vec<_> = self
            .outgoing
            .iter()
            .map(|(id, outgoing)| (outgoing.order, *id))
            .collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// The peer has lost its side of the session: keeps only the messages that may not have arrived.
    pub(crate) fn peer_forgot(&mut self) {
        self.incoming.0.clear();
        self.outgoing
            .retain(|_, outgoing| matches!(outgoing.state, OutgoingState::Published(_)));
    }
}

impl Receiving {
    /// What a PUBLISH with this identifier means.
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

    /// The owner acknowledged a received QoS 2 message, or refused it.
    pub(crate) fn kept(&mut self, id: PacketId, success: bool) {
        if success {
            self.0.insert(id, true);
        } else {
            self.0.remove(&id);
        }
    }

    /// PUBREL came; returns whether its identifier was known. Before the PUBREC it releases nothing: the
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

    /// The connection is over: received messages that were never acknowledged count as not received.
    pub(crate) fn forget_unacknowledged(&mut self) {
        self.0.retain(|_, kept| *kept);
    }
}

/// QoS 2 messages that were sent and not released stand for themselves; see [`Session`].
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
