//! The data lanes of messages to a client: those on which it has subscribed, and those that the
//! broker opens.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use mq_codec::TopicFilter;
use mq_proto::{Connection, Delivery, LaneId, Spread, Spreader, Way};
use mq_transport::{Link, Scheme};

#[cfg(feature = "mqtt-next")]
use super::flows::{lane_of_flow, slot_of_flow};
#[cfg(not(feature = "mqtt-next"))]
use super::no_flows::{lane_of_flow, slot_of_flow};
use crate::{
    Settings,
    conn::wire::{OUTBOX_LIMIT, Wire},
    delivery::{DeliveryTag as _, LaneSlot},
    router::Subscriber,
    session::SessionState,
};

/// The lanes of messages to one client.
#[derive(Debug)]
pub(super) struct DeliveryLanes {
    subscribed: SubscribedLanes,
    /// The spread over lanes that the broker opens; `None` if it opens none.
    spreading: Option<Box<Spreading>>,
}

/// The lanes that the broker opens.
#[derive(Debug)]
struct Spreading {
    spreader: Spreader,
    /// The most lanes that the broker opens.
    most: u16,
    /// The time since which the outbox has been full.
    full_since: Option<Instant>,
}

/// The time of a full outbox from which on the link counts as slower than the messages.
const SLOW_LINK_TIME: Duration = Duration::from_millis(10);

/// The lane of each [`LaneSlot`] of this connection.
///
/// A subscription stores its slot. The slots of lanes that have ended, and those of earlier
/// connections, refer to the control lane. Flows have slots of their own.
#[derive(Debug, Default)]
struct SubscribedLanes(Vec<(LaneSlot, LaneId)>);

impl DeliveryLanes {
    /// Returns the lanes of a client that was just accepted.
    pub(super) fn new(wire: &Wire) -> Self {
        let Wire {
            connection,
            link,
            settings,
            ..
        } = wire;
        let own = settings.listen.quic.max_bidi_streams.saturating_sub(1);
        let most = u16::try_from(own).unwrap_or(u16::MAX);
        let spread = spread(connection.deliveries(), settings, link).at_most(most);
        Self {
            subscribed: SubscribedLanes::default(),
            spreading: (spread != Spread::Control).then(|| {
                Box::new(Spreading {
                    spreader: Spreader::new(spread, connection.in_flight() > 0),
                    most,
                    full_since: None,
                })
            }),
        }
    }

    /// Returns the slot of the lane on which a SUBSCRIBE was received.
    pub(super) fn slot_of(
        &mut self,
        lane: LaneId,
        connection: &Connection,
        state: &mut SessionState,
    ) -> LaneSlot {
        match connection.flow_of(lane) {
            Some(flow) => slot_of_flow(flow, connection, state),
            None => self.subscribed.slot_of(lane, connection, state),
        }
    }

    /// Returns `true` if messages of subscriptions are sent on the lane, or may be later: a flow is
    /// the client's to end.
    pub(super) fn carries(
        &self,
        lane: LaneId,
        connection: &Connection,
        state: &SessionState,
    ) -> bool {
        connection.flow_of(lane).is_some()
            || self.subscribed.carries(lane, &state.subscriptions.lock())
    }

    /// Returns the lane of a message: that of its subscription, or else the spreader's choice.
    pub(super) fn way(
        &mut self,
        delivery: &Delivery,
        state: &SessionState,
        connection: &mut Connection,
        link: &mut Link,
    ) -> Way {
        let slot = delivery.lane();
        if slot != LaneSlot::CONTROL {
            if let Some(flow) = state.flow_of(slot) {
                return Way::On(lane_of_flow(flow, connection));
            }
            return Way::On(self.subscribed.lane_of(slot, connection));
        }
        let Some(spreading) = &mut self.spreading else {
            return Way::On(LaneId::CONTROL);
        };
        let most = usize::from(spreading.most);
        let open = || {
            let lane = (link.own_lanes() < most).then(|| link.open_lane());
            let lane = lane.flatten()?;
            connection.begin_lane(lane);
            Some(lane)
        };
        let spreader = &mut spreading.spreader;
        match spreader.way(&delivery.message.topic, false, open) {
            Way::On(lane) if lane != LaneId::CONTROL && !connection.is_lane_open(lane) => {
                spreader.broken(lane);
                Way::On(LaneId::CONTROL)
            }
            way => way,
        }
    }

    /// Checks whether topics must be sent on separate lanes from now on. If so the client receives
    /// PINGREQ, and no message is sent until it has answered.
    pub(super) fn look(&mut self, now: Instant, connection: &mut Connection, link: &Link) {
        let Some(spreading) = &mut self.spreading else {
            return;
        };
        let spreader = &mut spreading.spreader;
        let full_for = spreading
            .full_since
            .map(|at| now.saturating_duration_since(at));
        let backlogged = full_for.is_some_and(|time| time >= SLOW_LINK_TIME);
        let is_held_up = |_| {
            let lost = link.stats().packets_lost;
            backlogged || lost.is_some_and(|lost| lost > 0)
        };
        // Without a window, messages of an earlier connection may wait to be sent again.
        if connection.window() > 0 && spreader.look(now, is_held_up) && connection.ping(now) {
            spreader.asked();
        }
    }

    /// Records that the outbox has `outbox` bytes, after all messages that can be sent now were put
    /// in it.
    pub(super) fn filled(&mut self, now: Instant, outbox: usize) {
        if let Some(spreading) = &mut self.spreading {
            let since = spreading.full_since.unwrap_or(now);
            spreading.full_since = (outbox >= OUTBOX_LIMIT).then_some(since);
        }
    }

    /// Records that the client has answered.
    pub(super) fn ponged(&mut self) {
        if let Some(spreading) = &mut self.spreading {
            spreading.spreader.answered();
        }
    }
}

/// Returns the spread of messages to a client: as it requests, or else as configured; the
/// configuration may forbid it.
fn spread(asked: Option<Spread>, settings: &Settings, link: &Link) -> Spread {
    let spread = match (settings.deliveries, asked) {
        (Some(Spread::Control), _) => Spread::Control,
        (_, Some(asked)) => asked,
        (configured, None) => configured.unwrap_or_default(),
    };
    // Other transports have one lane alone.
    if spread == Spread::Control || link.info().scheme == Scheme::Quic {
        spread
    } else {
        Spread::Control
    }
}

impl SubscribedLanes {
    fn slot_of(
        &mut self,
        lane: LaneId,
        connection: &Connection,
        state: &mut SessionState,
    ) -> LaneSlot {
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

    /// Returns the lane for a message.
    fn lane_of(&self, slot: LaneSlot, connection: &Connection) -> LaneId {
        let known = self.0.iter().find(|(other, _)| *other == slot);
        match known {
            Some((_, lane)) if connection.is_lane_open(*lane) => *lane,
            _ => LaneId::CONTROL,
        }
    }

    /// Returns `true` if the messages of one of these subscriptions are sent on the lane.
    fn carries(&self, lane: LaneId, subscriptions: &HashMap<TopicFilter, Subscriber>) -> bool {
        let known = self.0.iter().find(|(_, other)| *other == lane);
        known.is_some_and(|(slot, _)| subscriptions.values().any(|one| one.lane == *slot))
    }
}
