//! Spreading of messages over lanes: the choice of a lane for each message.

use core::{fmt, str::FromStr, time::Duration};
use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    time::Instant,
};

use crate::LaneId;

/// The shortest time between two checks of [`Spread::Auto`] for messages that are held up.
const CONGESTION_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Rule by which one side spreads the messages that it sends over data lanes.
///
/// Order is promised within a topic (§4.6), so a topic keeps its lane, except with
/// [`PerPublish`](Self::PerPublish).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spread {
    /// All messages go on the control lane.
    #[default]
    Control,
    /// Each topic has a lane, and keeps it. Topics beyond the number of lanes share these lanes.
    PerTopic {
        /// Bound of this rule: the greatest number of data lanes, besides the control lane.
        most: u16,
    },
    /// Each message has a lane of its own, which ends after it; the control lane if the peer grants no further
    /// lane.
    PerPublish,
    /// All messages go on the control lane until something holds them up, then as with
    /// [`PerTopic`](Self::PerTopic).
    Auto {
        /// Bound of this rule: the greatest number of data lanes, besides the control lane.
        most: u16,
    },
}

impl Spread {
    /// The default number of data lanes for [`PerTopic`](Self::PerTopic) and [`Auto`](Self::Auto): as many as
    /// this project's broker grants, without the control lane.
    pub const MOST: u16 = 63;

    /// Limits the number of data lanes to `limit`; 0 makes the rule [`Control`](Self::Control).
    /// [`PerPublish`](Self::PerPublish) has no number to limit.
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

    /// Parses `control`, `per-topic`, `per-publish` or `auto`; `per-topic:N` and `auto:N` have at most `N`
    /// lanes, 1 to 65,535.
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

/// The lane that was chosen for a message, if it may be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The message goes on this lane, which stays open.
    On(LaneId),
    /// The message goes on this lane, which ends after it.
    Alone(LaneId),
    /// The message has to wait: the peer's answer to everything on the control lane is outstanding.
    Wait,
}

/// Chooses a lane for each message of one connection.
///
/// Messages move from the control lane to lanes by topic in stages:
///
/// ```text
/// auto, or per-topic and resumed: NotYet -- look(), asked() --> Waiting -- answered() --> Done
/// per-topic on a new session:                                                             Done
/// control, per-publish:           NotYet, which means nothing to them
/// ```
#[derive(Debug)]
pub struct Spreader {
    spread: Spread,
    /// The index in `places` by the hash of a topic; `None` for topics whose first message went on the control
    /// lane. Two topics of one hash share a lane, which does no harm.
    topics: HashMap<u64, Option<usize>>,
    /// The lanes to share, in the order in which they were opened.
    places: Vec<Place>,
    /// `true` if no further lane is opened: topics without a lane of their own share the open ones.
    is_full: bool,
    hash: RandomState,
    stage: Stage,
}

/// The lane of one place that topics share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// A data lane, or the control lane if that lane has broken or could not be opened.
    On(LaneId),
    /// A place without a lane, since the peer closed it when idle; the next message opens one.
    Vacant,
}

/// Stage of the move from the control lane to lanes by topic.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The move has not begun: messages of all topics go on the control lane.
    NotYet { looked_at: Option<Instant> },
    /// The move is under way: the peer is asked for an answer to everything on the control lane, and no message
    /// is sent until it comes.
    Waiting,
    /// The move is over, or was not needed: each topic goes on the lane that is chosen for it, which is its own, one
    /// that topics share, or the control lane.
    Done,
}

impl Spreader {
    /// Builds the spreader of a new connection. If the connection is `resumed`, it sends messages of an earlier
    /// one again on the control lane, which further messages of their topics must not overtake on another.
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

    /// Chooses the lane of the next message of `topic`. `open` opens one more lane; `None` if the peer grants
    /// none. No lane is opened for a message that `is_early` (sent as early data): it goes on the control lane,
    /// and its topic stays there.
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

    /// Returns the choice for every topic before topics have lanes: the control lane, or to wait for the peer.
    /// `None` once topics have lanes of their own. With [`Spread::Control`] and [`Spread::PerPublish`] always
    /// the control lane.
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

    /// Picks a place by the hash of a topic; `None` if there is none.
    fn shared(&self, topic: u64) -> Option<usize> {
        let place = topic.checked_rem(self.places.len() as u64)?;
        usize::try_from(place).ok()
    }

    /// Returns the lane of a place, which is opened again if the peer has closed it.
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

    /// Chooses the lane of the next subscription, which topics share.
    pub fn of_subscription(&mut self, open: impl FnOnce() -> Option<LaneId>) -> LaneId {
        let lane = match self.spread {
            Spread::PerTopic { most } => self.open(most, open),
            _ => None,
        };
        lane.unwrap_or(LaneId::CONTROL)
    }

    /// Returns `true` if topics should move to lanes of their own now. With [`Spread::Auto`] that is
    /// `is_held_up`'s answer, which returns `true` if something holds messages up; it is called every 10 ms at
    /// most, with `true` the first time.
    ///
    /// The owner then asks the peer for an answer to everything on the control lane so far, and reports that
    /// with [`asked`](Self::asked), and the answer with [`answered`](Self::answered). In between no message is
    /// sent: a message on another lane could overtake those on the control lane.
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

    /// Records that the peer was asked for an answer to everything on the control lane; see
    /// [`look`](Self::look).
    pub fn asked(&mut self) {
        self.stage = Stage::Waiting;
    }

    /// Records the peer's answer: topics get lanes of their own from now on.
    pub fn answered(&mut self) {
        if let Stage::Waiting = self.stage {
            self.stage = Stage::Done;
        }
    }

    /// Moves the topics of a broken lane to the control lane.
    pub fn broken(&mut self, lane: LaneId) {
        self.replace(lane, Place::On(LaneId::CONTROL));
    }

    /// Gives up a lane that the peer has closed in order, as nothing was sent on it. The next message of its
    /// topics opens another.
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
