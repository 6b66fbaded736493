//! The data lanes on which a client has subscribed: its messages come back on them.

use hashbrown::HashMap;
use mq_codec::TopicFilter;
use mq_proto::{Connection, LaneId};

use crate::{delivery::LaneSlot, router::Subscriber};

/// Which lane each [`LaneSlot`] stands for, of this connection.
///
/// A subscription remembers its slot. The slots of lanes that have ended, and those of earlier connections,
/// stand for the control lane.
#[derive(Debug, Default)]
pub(super) struct SubscribedLanes(Vec<(LaneSlot, LaneId)>);

impl SubscribedLanes {
    /// The slot of the lane on which a SUBSCRIBE came. `last` is the last slot that the session has given.
    pub(super) fn slot_of(
        &mut self,
        lane: LaneId,
        connection: &Connection,
        last: &mut LaneSlot,
    ) -> LaneSlot {
        if lane == LaneId::CONTROL || !connection.is_lane_open(lane) {
            return LaneSlot::CONTROL;
        }
        if let Some((slot, _)) = self.0.iter().find(|(_, other)| *other == lane) {
            return *slot;
        }
        self.0.retain(|(_, lane)| connection.is_lane_open(*lane));
        *last = last.next();
        self.0.push((*last, lane));
        *last
    }

    /// The lane for a message.
    pub(super) fn lane_of(&self, slot: LaneSlot, connection: &Connection) -> LaneId {
        if slot == LaneSlot::CONTROL {
            return LaneId::CONTROL;
        }
        let known = self.0.iter().find(|(other, _)| *other == slot);
        match known {
            Some((_, lane)) if connection.is_lane_open(*lane) => *lane,
            _ => LaneId::CONTROL,
        }
    }

    /// Whether the messages of one of these subscriptions go on the lane.
    pub(super) fn carries(
        &self,
        lane: LaneId,
        subscriptions: &HashMap<TopicFilter, Subscriber>,
    ) -> bool {
        let known = self.0.iter().find(|(_, other)| *other == lane);
        known.is_some_and(|(slot, _)| subscriptions.values().any(|one| one.lane == *slot))
    }
}
