//! The choice of a lane for each message of a connection.

use std::time::Instant;

use mq_codec::TopicName;
use mq_proto::{Connection, LaneId, Spread, Spreader, Way};
use mq_transport::Link;

use crate::QuicStreams;

/// The data lanes of one connection, and which topics go on them.
#[derive(Debug)]
pub(super) struct Lanes {
    streams: QuicStreams,
    spreader: Spreader,
    /// Spreading of the messages of subscriptions by the server.
    deliveries: Spread,
    /// The lanes by priority.
    priorities: Vec<(i32, LaneId)>,
    taken: Taken,
}

/// Acceptance of the client's data lanes by the server, as far as its behaviour has shown.
///
/// ```text
/// Unknown -- bytes are received on one, or it is closed in order --> Yes
/// Unknown -- one is reset --> No
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    Unknown,
    Yes,
    /// The server resets data lanes: a further lane would be reset too, and its QoS 0 messages would be lost. mqtt5's
    /// broker resets bidirectional streams so.
    No,
}

impl Lanes {
    /// Makes the lanes of a new connection; a `resumed` one sends messages of an earlier connection again.
    pub(super) fn new(streams: QuicStreams, deliveries: Spread, resumed: bool) -> Self {
        Self {
            deliveries,
            spreader: Spreader::new(streams.spread(), resumed),
            streams,
            priorities: Vec::new(),
            taken: Taken::Unknown,
        }
    }

    /// Chooses the lane of the next message of this topic.
    pub(super) fn way(&mut self, topic: &TopicName, link: &mut Link, is_early: bool) -> Way {
        if let QuicStreams::ByPriority(rules) = &self.streams {
            if let Some(way) = self.spreader.together() {
                return way;
            }
            let rule = rules.iter().find(|rule| rule.topics.matches(topic));
            let priority = rule.map_or(0, |rule| rule.priority);
            return Way::On(self.of_priority(priority, link, is_early));
        }
        let taken = self.taken;
        self.spreader.way(topic, is_early, || open(taken, link))
    }

    fn of_priority(&mut self, priority: i32, link: &mut Link, is_early: bool) -> LaneId {
        if priority == 0 {
            return LaneId::CONTROL;
        }
        let known = self.priorities.iter().find(|(other, _)| *other == priority);
        if let Some((_, lane)) = known {
            return *lane;
        }
        let lane = match open(self.taken, link) {
            Some(lane) if !is_early => {
                link.prioritize_lane(lane, priority);
                lane
            }
            _ => LaneId::CONTROL,
        };
        self.priorities.push((priority, lane));
        lane
    }

    /// Returns the lane of the next subscription. Messages of a subscription on a data lane stay on that lane.
    pub(super) fn of_subscription(&mut self, link: &mut Link, is_early: bool) -> LaneId {
        if is_early || self.deliveries != Spread::Control {
            return LaneId::CONTROL;
        }
        let taken = self.taken;
        self.spreader.of_subscription(|| open(taken, link))
    }

    /// Looks whether topics are to go apart: with [`QuicStreams::Auto`] if the control lane holds messages up, else
    /// once the messages of an earlier connection are sent again. If so, a PINGREQ goes out, and topics go apart
    /// once its answer is there: then the server has read all that went on the control lane.
    pub(super) fn look(
        &mut self,
        now: Instant,
        link: &Link,
        connection: &mut Connection,
        backlogged: bool,
    ) {
        let is_held_up = |first: bool| {
            let lost = link.stats().packets_lost.is_some_and(|lost| lost > 0);
            lost || (backlogged && !first)
        };
        // Without a window, messages of an earlier connection may wait to be sent again.
        if connection.window() > 0 && self.spreader.look(now, is_held_up) && connection.ping(now) {
            self.spreader.asked();
        }
    }

    /// Records a PINGRESP.
    pub(super) fn ponged(&mut self) {
        self.spreader.answered();
    }

    /// Records that bytes were received on a lane.
    pub(super) fn heard(&mut self, lane: LaneId) {
        if lane != LaneId::CONTROL && !lane.is_server_opened() && self.taken == Taken::Unknown {
            self.taken = Taken::Yes;
        }
    }

    /// Deals with a lane that the server has reset: its topics move to the control lane. If the lane was this client's
    /// own, and the server has taken none of the client's lanes before, the client opens no further one.
    pub(super) fn broken_off(&mut self, lane: LaneId) {
        if !lane.is_server_opened() && self.taken == Taken::Unknown {
            tracing::debug!("server resets data streams; no further one is opened");
            self.taken = Taken::No;
        }
        self.broken(lane);
    }

    /// Moves the messages of a reset lane to the control lane, from now on.
    pub(super) fn broken(&mut self, lane: LaneId) {
        self.spreader.broken(lane);
        for (_, place) in &mut self.priorities {
            if *place == lane {
                *place = LaneId::CONTROL;
            }
        }
    }

    /// Records that the server has closed a lane in order, such as one without traffic. The next message for it opens
    /// another.
    pub(super) fn closed(&mut self, lane: LaneId) {
        self.heard(lane);
        self.spreader.closed(lane);
        self.priorities.retain(|(_, place)| *place != lane);
    }
}

/// Opens a data lane, unless the server resets them or grants no further stream.
fn open(taken: Taken, link: &mut Link) -> Option<LaneId> {
    if taken == Taken::No {
        return None;
    }
    link.open_lane()
}
