//! Which lane each message goes on.

use core::{fmt, str::FromStr, time::Duration};
use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    time::Instant,
};

use crate::LaneId;

/// How often [`Spread::Auto`] looks whether something holds messages up.
const CONGESTION_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How one side spreads the messages that it sends over data lanes.
///
/// Order is promised within a topic (§4.6), so a topic keeps its lane, except with
/// [`PerPublish`](Self::PerPublish).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spread {
    /// Everything on the control lane.
    #[default]
    Control,
    /// A lane for each topic. Further topics share these lanes, each always the same one.
    PerTopic {
        /// How many lanes at most.
        most: u16,
    },
    /// A lane for each message; on the control lane where the peer grants no further lane.
    PerPublish,
    /// The control lane for as long as nothing holds messages up, then as [`PerTopic`](Self::PerTopic).
    Auto {
        /// How many lanes at most.
        most: u16,
    },
}

impl Spread {
    /// How many lanes [`PerTopic`](Self::PerTopic) and [`Auto`](Self::Auto) use at most if nobody says: as
    /// many as this project's broker grants, but for the control lane.
    pub const MOST: u16 = 63;

    /// The same with no more than `limit` lanes; none is [`Control`](Self::Control).
    #[must_use]
    pub fn at_most(self, limit: u16) -> Self {
        match self {
            _ if limit == 0 => Self::Control,
            Self::PerTopic { most } => Self::PerTopic {
                most: most.min(limit),
            },
            Self::Auto { most } => Self::Auto {
                most: most.min(limit),
            },
            other => other,
        }
    }
}

impl FromStr for Spread {
    type Err = UnknownSpread;

    /// `control`, `per-topic`, `per-publish` or `auto`; `per-topic:N` and `auto:N` for at most `N` lanes.
    fn from_str(text: &str) -> Result<Self, UnknownSpread> {
        let unknown = || UnknownSpread(text.to_owned());
        let (name, most) = match text.split_once(':') {
            None => (text, None),
            Some((name, most)) => (name, Some(most.parse().map_err(|_| unknown())?)),
        };
        let or_default = most.unwrap_or(Self::MOST);
        match (name, most) {
            (_, Some(0)) => Err(unknown()),
            ("control", None) => Ok(Self::Control),
            ("per-topic", _) => Ok(Self::PerTopic { most: or_default }),
            ("per-publish", None) => Ok(Self::PerPublish),
            ("auto", _) => Ok(Self::Auto { most: or_default }),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, most) = match self {
            Self::Control => ("control", None),
            Self::PerTopic { most } => ("per-topic", Some(*most)),
            Self::PerPublish => ("per-publish", None),
            Self::Auto { most } => ("auto", Some(*most)),
        };
        match most {
            Some(most) if most != Self::MOST => write!(f, "{name}:{most}"),
            _ => f.write_str(name),
        }
    }
}

/// A text that names no [`Spread`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownSpread(String);

impl fmt::Display for UnknownSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        write!(
            f,
            "it cannot be `{text}`: use one of control, per-topic[:N], per-publish, auto[:N]"
        )
    }
}

impl core::error::Error for UnknownSpread {}

/// Where a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// On this lane.
    On(LaneId),
    /// On this lane, which ends behind it.
    Alone(LaneId),
    /// Nowhere for now: an answer of the peer is under way.
    Wait,
}

/// Chooses a lane for each message of one connection.
///
/// ```text
/// auto, or resumed: NotYet -- look(), asked() --> Waiting -- answered() --> Done
/// others:                                                                   Done
/// ```
#[derive(Debug)]
pub struct Spreader {
    spread: Spread,
    /// By the hash of a topic, the index in `places`; `None` for topics whose first message went on the control
    /// lane. Two topics of one hash share a lane, which does no harm.
    topics: HashMap<u64, Option<usize>>,
    /// The lanes to share, in the order in which they were opened.
    places: Vec<Place>,
    /// No further lane is opened: topics without one of their own share those that there are.
    is_full: bool,
    hash: RandomState,
    stage: Stage,
}

/// What goes on one lane at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// A lane, or the control lane.
    On(LaneId),
    /// The peer has closed its lane in order, as nothing went on it: the next message opens another.
    Vacant,
}

/// How far topics have gone apart.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Everything goes on the control lane.
    NotYet { looked_at: Option<Instant> },
    /// The peer is asked whether it has read the control lane so far, and no message is sent.
    Waiting,
    /// Each topic has a lane of its own.
    Done,
}

impl Spreader {
    /// For a new connection. One that is `resumed` sends messages of an earlier connection again on the control
    /// lane, and their topics must not overtake them.
    #[must_use]
    pub fn new(spread: Spread, resumed: bool) -> Self {
        let stage = match spread {
            Spread::PerTopic { .. } if !resumed => Stage::Done,
            _ => Stage::NotYet { looked_at: None },
        };
        Self {
            spread,
            topics: HashMap::new(),
            places: Vec::new(),
            is_full: false,
            hash: RandomState::new(),
            stage,
        }
    }

    /// Where the next message of that topic goes. `open` opens one more lane, if the peer grants it. No lane is
    /// opened for a message that `is_early`: it goes on the control lane, and its topic stays there.
    pub fn way(
        &mut self,
        topic: &str,
        is_early: bool,
        open: impl FnOnce() -> Option<LaneId>,
    ) -> Way {
        match self.spread {
            Spread::Control => Way::On(LaneId::CONTROL),
            Spread::PerPublish if is_early => Way::On(LaneId::CONTROL),
            Spread::PerPublish => open().map_or(Way::On(LaneId::CONTROL), Way::Alone),
            Spread::PerTopic { most } | Spread::Auto { most } => {
                let together = self.together();
                together.unwrap_or_else(|| Way::On(self.of_topic(topic, most, is_early, open)))
            }
        }
    }

    /// Where all messages go for as long as topics have not gone apart; then `None`.
    #[must_use]
    pub fn together(&self) -> Option<Way> {
        match self.stage {
            Stage::NotYet { .. } => Some(Way::On(LaneId::CONTROL)),
            Stage::Waiting => Some(Way::Wait),
            Stage::Done => None,
        }
    }

    fn of_topic(
        &mut self,
        topic: &str,
        most: u16,
        is_early: bool,
        open: impl FnOnce() -> Option<LaneId>,
    ) -> LaneId {
        let topic = self.hash.hash_one(topic);
        if let Some(place) = self.topics.get(&topic) {
            return place.map_or(LaneId::CONTROL, |place| self.at(place, open));
        }
        if self.topics.len() >= usize::from(most) {
            self.is_full = true;
        }
        if is_early && !self.is_full {
            // A later message on a lane of its own could overtake this one.
            self.topics.insert(topic, None);
            return LaneId::CONTROL;
        }
        if !self.is_full {
            // Without a lane of its own now the topic stays where its first message goes.
            let own = self.open(most, open);
            let place = match own {
                Some(_) => Some(self.places.len() - 1),
                None => self.shared(topic),
            };
            self.topics.insert(topic, place);
            // A vacant place gets its lane with the next message.
            return place.map_or(LaneId::CONTROL, |place| self.at(place, || None));
        }
        let place = self.shared(topic);
        place.map_or(LaneId::CONTROL, |place| self.at(place, open))
    }

    /// One of the places, by the hash of a topic.
    fn shared(&self, topic: u64) -> Option<usize> {
        let place = topic.checked_rem(self.places.len() as u64)?;
        usize::try_from(place).ok()
    }

    /// The lane of a place, which is opened again if the peer has closed it.
    fn at(&mut self, place: usize, open: impl FnOnce() -> Option<LaneId>) -> LaneId {
        match self.places[place] {
            Place::On(lane) => lane,
            Place::Vacant => {
                // Without a lane for it now it stays on the control lane.
                let lane = open().unwrap_or(LaneId::CONTROL);
                self.places[place] = Place::On(lane);
                lane
            }
        }
    }

    /// Opens one more lane to share.
    fn open(&mut self, most: u16, open: impl FnOnce() -> Option<LaneId>) -> Option<LaneId> {
        if self.is_full || self.places.len() >= usize::from(most) {
            // From now on the places of the lanes stay as they are.
            self.is_full = true;
            return None;
        }
        let lane = open();
        self.places.extend(lane.map(Place::On));
        lane
    }

    /// The lane of the next subscription, which topics share.
    pub fn of_subscription(&mut self, open: impl FnOnce() -> Option<LaneId>) -> LaneId {
        let lane = match self.spread {
            Spread::PerTopic { most } => self.open(most, open),
            _ => None,
        };
        lane.unwrap_or(LaneId::CONTROL)
    }

    /// Whether topics are to go apart now. With [`Spread::Auto`] `is_held_up` decides: whether something holds
    /// messages up. It is asked every 10 ms at most, and gets whether it is the first time. The owner then asks the
    /// peer for an answer to everything on the control lane so far, says so with [`asked`](Self::asked), and with
    /// [`answered`](Self::answered) once it is there. In between no message is sent: a message on another lane
    /// could overtake those on the control lane.
    ///
    /// After a resumption, call it once the messages of the earlier connection are written.
    pub fn look(&mut self, now: Instant, is_held_up: impl FnOnce(bool) -> bool) -> bool {
        let Stage::NotYet { looked_at } = &mut self.stage else {
            return false;
        };
        match self.spread {
            Spread::Control | Spread::PerPublish => return false,
            Spread::PerTopic { .. } => return true,
            Spread::Auto { .. } => {}
        }
        let first = looked_at.is_none();
        if looked_at.is_some_and(|at| now.saturating_duration_since(at) < CONGESTION_CHECK_INTERVAL)
        {
            return false;
        }
        *looked_at = Some(now);
        is_held_up(first)
    }

    /// The peer is asked for its answer.
    pub fn asked(&mut self) {
        self.stage = Stage::Waiting;
    }

    /// The peer has answered.
    pub fn answered(&mut self) {
        if let Stage::Waiting = self.stage {
            self.stage = Stage::Done;
        }
    }

    /// A lane has broken. What went on it goes on the control lane from now on.
    pub fn broken(&mut self, lane: LaneId) {
        self.replace(lane, Place::On(LaneId::CONTROL));
    }

    /// The peer has closed a lane in order, as one on which nothing went. The next message that would go on it
    /// opens another.
    pub fn closed(&mut self, lane: LaneId) {
        self.replace(lane, Place::Vacant);
    }

    fn replace(&mut self, lane: LaneId, by: Place) {
        for place in &mut self.places {
            if *place == Place::On(lane) {
                *place = by;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes that a server opens, of which its peer grants so many.
    fn granting(count: u64) -> impl FnMut() -> Option<LaneId> {
        let mut lanes = (0..count).map(|number| LaneId(4 * number + 1));
        move || lanes.next()
    }

    fn lanes_of(spreader: &mut Spreader, topics: usize, granted: u64) -> Vec<Way> {
        let mut open = granting(granted);
        (0..topics)
            .map(|topic| spreader.way(&topic.to_string(), false, &mut open))
            .collect()
    }

    #[test]
    fn a_topic_keeps_its_lane_and_further_topics_share() {
        let mut spreader = Spreader::new(Spread::PerTopic { most: 3 }, false);
        let first = lanes_of(&mut spreader, 40, 64);
        assert_eq!(
            first[..3],
            [1, 5, 9].map(|lane| Way::On(LaneId(lane))),
            "the first three have one each"
        );
        assert!(first[3..].iter().all(|way| first[..3].contains(way)));
        assert_eq!(lanes_of(&mut spreader, 40, 64), first);
    }

    #[test]
    fn topics_share_as_many_lanes_as_the_peer_grants_and_each_keeps_its_lane_when_there_are_more() {
        let mut spreader = Spreader::new(Spread::PerTopic { most: 63 }, false);
        assert_eq!(lanes_of(&mut spreader, 1, 0), [Way::On(LaneId::CONTROL)]);
        let granted: Vec<_> = [0, 1, 5, 9].map(|lane| Way::On(LaneId(lane))).into();
        let first = lanes_of(&mut spreader, 40, 3);
        assert_eq!(first[..4], granted);
        assert!(first[4..].iter().all(|way| granted[1..].contains(way)));
        let mut more = (10..).map(|number| LaneId(4 * number + 1));
        let later: Vec<_> = (0..41)
            .map(|topic| spreader.way(&topic.to_string(), false, || more.next()))
            .collect();
        assert_eq!(later[..40], first);
        assert_eq!(later[40], Way::On(LaneId(41)));
    }

    #[test]
    fn a_topic_of_a_broken_lane_goes_on_on_the_control_lane() {
        let mut spreader = Spreader::new(Spread::PerTopic { most: 1 }, false);
        assert_eq!(lanes_of(&mut spreader, 2, 1), [Way::On(LaneId(1)); 2]);
        spreader.broken(LaneId(1));
        assert_eq!(lanes_of(&mut spreader, 2, 1), [Way::On(LaneId::CONTROL); 2]);
    }

    #[test]
    fn the_next_message_of_a_closed_lane_opens_another() {
        let mut spreader = Spreader::new(Spread::PerTopic { most: 1 }, false);
        assert_eq!(lanes_of(&mut spreader, 2, 1), [Way::On(LaneId(1)); 2]);
        spreader.closed(LaneId(1));
        let mut next = Some(LaneId(5));
        let ways = ["1", "0"].map(|topic| spreader.way(topic, false, || next.take()));
        assert_eq!(ways, [Way::On(LaneId(5)); 2]);
        spreader.closed(LaneId(5));
        assert_eq!(lanes_of(&mut spreader, 2, 0), [Way::On(LaneId::CONTROL); 2]);
    }

    #[test]
    fn messages_beyond_the_granted_lanes_go_on_the_control_lane() {
        let mut spreader = Spreader::new(Spread::PerPublish, false);
        let ways = lanes_of(&mut spreader, 2, 1);
        assert_eq!(ways, [Way::Alone(LaneId(1)), Way::On(LaneId::CONTROL)]);
    }

    #[test]
    fn auto_sends_nothing_while_the_peer_has_not_answered() {
        let mut spreader = Spreader::new(Spread::Auto { most: 8 }, false);
        let now = Instant::now();
        assert!(!spreader.look(now, |_| false));
        assert_eq!(lanes_of(&mut spreader, 1, 1), [Way::On(LaneId::CONTROL)]);
        assert!(spreader.look(now + CONGESTION_CHECK_INTERVAL, |first| !first));
        spreader.asked();
        assert_eq!(lanes_of(&mut spreader, 1, 1), [Way::Wait]);
        spreader.answered();
        assert_eq!(lanes_of(&mut spreader, 1, 1), [Way::On(LaneId(1))]);
    }

    #[test]
    fn no_topic_overtakes_what_a_resumed_session_sends_again() {
        let mut spreader = Spreader::new(Spread::PerTopic { most: 8 }, true);
        assert_eq!(lanes_of(&mut spreader, 1, 1), [Way::On(LaneId::CONTROL)]);
        assert!(spreader.look(Instant::now(), |_| false));
        spreader.asked();
        assert_eq!(lanes_of(&mut spreader, 1, 1), [Way::Wait]);
        spreader.answered();
        assert_eq!(lanes_of(&mut spreader, 1, 1), [Way::On(LaneId(1))]);
    }

    #[test]
    fn a_limit_of_lanes_counts_for_each_spread() {
        let auto = Spread::Auto { most: 63 };
        assert_eq!(auto.at_most(9), Spread::Auto { most: 9 });
        assert_eq!(auto.at_most(64), auto);
        assert_eq!(Spread::PerPublish.at_most(1), Spread::PerPublish);
        assert_eq!(Spread::PerPublish.at_most(0), Spread::Control);
    }

    #[test]
    fn a_name_is_read_back_as_it_is_written() {
        for name in [
            "control",
            "per-topic",
            "per-topic:3",
            "per-publish",
            "auto",
            "auto:1",
        ] {
            assert_eq!(
                name.parse::<Spread>().map(|spread| spread.to_string()),
                Ok(name.to_owned())
            );
        }
        for wrong in [
            "",
            "per-topic:0",
            "per-publish:2",
            "auto:",
            "per-topic:99999",
            "Auto",
        ] {
            assert!(wrong.parse::<Spread>().is_err(), "{wrong}");
        }
    }
}
