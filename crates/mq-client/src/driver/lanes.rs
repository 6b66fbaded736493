//! Which lane of a connection each message goes on.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use mq_codec::TopicName;
use mq_proto::{Connection, LaneId};
use mq_transport::Link;

use crate::QuicStreams;

/// How often [`QuicStreams::Auto`] looks whether something was lost.
const LOOK: Duration = Duration::from_millis(10);

/// The data lanes of one connection, and which topics go on them.
#[derive(Debug)]
pub(super) struct Lanes {
    streams: QuicStreams,
    /// By topic, the index in `places`; `None` for topics whose first message went on the control lane.
    topics: HashMap<TopicName, Option<usize>>,
    /// The lanes that topics and subscriptions share, in the order in which they were opened.
    places: Vec<Place>,
    /// The lanes by priority.
    priorities: Vec<(i32, LaneId)>,
    /// No further lane is opened: topics without one of their own share those that there are.
    is_full: bool,
    hash: RandomState,
    spreading: Spreading,
}

/// What goes on one lane at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// A lane, or the control lane.
    On(LaneId),
    /// The server has closed its lane in order, as nothing went on it: the next message opens another.
    Vacant,
}

/// How far [`QuicStreams::Auto`] is.
#[derive(Clone, Copy, Debug)]
enum Spreading {
    /// Everything goes on the control lane.
    NotYet { looked_at: Option<Instant> },
    /// A PINGREQ is under way, and no message is sent.
    Waiting,
    /// Each topic has a lane of its own.
    Done,
}

/// Where a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// On this lane.
    On(LaneId),
    /// On this lane, which ends behind it.
    Alone(LaneId),
    /// Nowhere for now.
    Wait,
}

impl Lanes {
    pub(super) fn new(streams: QuicStreams) -> Self {
        let spreading = match streams {
            QuicStreams::Auto { .. } => Spreading::NotYet { looked_at: None },
            _ => Spreading::Done,
        };
        Self {
            streams,
            topics: HashMap::new(),
            places: Vec::new(),
            priorities: Vec::new(),
            is_full: false,
            hash: RandomState::new(),
            spreading,
        }
    }

    /// Where the next message of that topic goes.
    pub(super) fn way(&mut self, topic: &TopicName, link: &mut Link, is_early: bool) -> Way {
        match &self.streams {
            QuicStreams::Control => Way::On(LaneId::CONTROL),
            QuicStreams::PerPublish if is_early => Way::On(LaneId::CONTROL),
            QuicStreams::PerPublish => link
                .open_lane()
                .map_or(Way::On(LaneId::CONTROL), Way::Alone),
            QuicStreams::PerTopic { most } | QuicStreams::Auto { most } => {
                let most = *most;
                match self.spreading {
                    Spreading::NotYet { .. } => Way::On(LaneId::CONTROL),
                    Spreading::Waiting => Way::Wait,
                    Spreading::Done => Way::On(self.of_topic(topic, link, most, is_early)),
                }
            }
            QuicStreams::ByPriority(rules) => {
                let rule = rules.iter().find(|rule| rule.topics.matches(topic));
                let priority = rule.map_or(0, |rule| rule.priority);
                Way::On(self.of_priority(priority, link, is_early))
            }
        }
    }

    fn of_topic(
        &mut self,
        topic: &TopicName,
        link: &mut Link,
        most: u16,
        is_early: bool,
    ) -> LaneId {
        if let Some(place) = self.topics.get(topic) {
            return place.map_or(LaneId::CONTROL, |place| self.at(place, link));
        }
        if self.topics.len() >= usize::from(most) {
            self.is_full = true;
        }
        if is_early && !self.is_full {
            // A later message on a lane of its own could overtake this one.
            self.topics.insert(topic.detached(), None);
            return LaneId::CONTROL;
        }
        if !self.is_full {
            // Without a stream for it now the topic stays on the control lane, where its first message goes.
            let lane = self.open(link, most);
            let place = lane.map(|_| self.places.len() - 1);
            self.topics.insert(topic.detached(), place);
            return lane.unwrap_or(LaneId::CONTROL);
        }
        if self.places.is_empty() {
            return LaneId::CONTROL;
        }
        let place = self.hash.hash_one(topic) % self.places.len() as u64;
        usize::try_from(place).map_or(LaneId::CONTROL, |place| self.at(place, link))
    }

    /// The lane of a place, which is opened again if the server has closed it.
    fn at(&mut self, place: usize, link: &mut Link) -> LaneId {
        match self.places[place] {
            Place::On(lane) => lane,
            Place::Vacant => {
                // Without a stream for it now it stays on the control lane.
                let lane = link.open_lane().unwrap_or(LaneId::CONTROL);
                self.places[place] = Place::On(lane);
                lane
            }
        }
    }

    fn of_priority(&mut self, priority: i32, link: &mut Link, is_early: bool) -> LaneId {
        if priority == 0 {
            return LaneId::CONTROL;
        }
        let known = self.priorities.iter().find(|(other, _)| *other == priority);
        if let Some((_, lane)) = known {
            return *lane;
        }
        let lane = match link.open_lane() {
            Some(lane) if !is_early => {
                link.prioritize_lane(lane, priority);
                lane
            }
            _ => LaneId::CONTROL,
        };
        self.priorities.push((priority, lane));
        lane
    }

    /// Opens one more lane to share.
    fn open(&mut self, link: &mut Link, most: u16) -> Option<LaneId> {
        if self.is_full || self.places.len() >= usize::from(most) {
            // From now on the places of the lanes stay as they are.
            self.is_full = true;
            return None;
        }
        let lane = link.open_lane();
        self.places.extend(lane.map(Place::On));
        lane
    }

    /// The lane of the next subscription.
    pub(super) fn of_subscription(&mut self, link: &mut Link, is_early: bool) -> LaneId {
        match self.streams {
            QuicStreams::PerTopic { most } if !is_early => self.open(link, most),
            _ => None,
        }
        .unwrap_or(LaneId::CONTROL)
    }

    /// [`QuicStreams::Auto`]: looks whether the control lane holds messages up. If so, a PINGREQ goes out, and
    /// topics go apart once its answer is there: then the server has read all that went on the control
    /// lane.
    pub(super) fn look(
        &mut self,
        now: Instant,
        link: &Link,
        connection: &mut Connection,
        backlogged: bool,
    ) {
        let Spreading::NotYet { looked_at } = &mut self.spreading else {
            return;
        };
        let first = looked_at.is_none();
        if looked_at.is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return;
        }
        *looked_at = Some(now);
        let lost = link.stats().packets_lost.is_some_and(|lost| lost > 0);
        if (lost || (backlogged && !first)) && connection.ping(now) {
            self.spreading = Spreading::Waiting;
        }
    }

    /// A PINGRESP has come.
    pub(super) fn ponged(&mut self) {
        if let Spreading::Waiting = self.spreading {
            self.spreading = Spreading::Done;
        }
    }

    /// A lane has broken. What went on it goes on the control lane from now on.
    pub(super) fn broken(&mut self, lane: LaneId) {
        self.replace(lane, Place::On(LaneId::CONTROL));
        for (_, place) in &mut self.priorities {
            if *place == lane {
                *place = LaneId::CONTROL;
            }
        }
    }

    /// The server has closed a lane in order, as one on which nothing went. The next message that would go on
    /// it opens another.
    pub(super) fn closed(&mut self, lane: LaneId) {
        self.replace(lane, Place::Vacant);
        self.priorities.retain(|(_, place)| *place != lane);
    }

    fn replace(&mut self, lane: LaneId, by: Place) {
        for place in &mut self.places {
            if *place == Place::On(lane) {
                *place = by;
            }
        }
    }
}
