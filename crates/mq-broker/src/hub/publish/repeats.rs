//! The bound on equal messages a second to one bridge, by which what goes round between brokers ends.

use std::{
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::Mutex,
    time::Instant,
};

use mq_proto::Message;

use crate::{clock, lock::lock, router::SessionKey};

/// Slots of the table that counts equal messages: 8,192 of 24 bytes, each for one message to one bridge. If all
/// [`WAYS`] slots of a new message are taken, it displaces the message of them that was counted longest ago, or among
/// those of one second the rarest.
const SLOTS: usize = 8_192;

/// Slots in which the count of one message may stand; its hash decides which.
const WAYS: usize = 4;

/// Counts of the equal messages of each second to each bridge.
///
/// More messages than the bound, equal in topic and payload, are a loop, or as bad: brokers that bridge the same topics
/// in a circle, where nothing on the wire marks a message that was here (before MQTT 5.0, and with other makes). Those
/// beyond the bound are left out, which ends the loop. In the second after one that passed the bound, one message
/// passes.
#[derive(Debug)]
pub(in crate::hub) struct Repeats {
    started: Instant,
    hasher: RandomState,
    /// Counts by hash; empty until the first message for a bridge.
    slots: Mutex<Vec<Slot>>,
}

/// Count of one message to one bridge in one second.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    /// Hash of bridge, topic and payload.
    key: u64,
    /// The second that is counted, in seconds since the table was made.
    second: u64,
    count: u32,
    /// `true` if the second before had more messages than the bound.
    was_over: bool,
}

/// The verdict about one message to one bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repeat {
    /// The message passes: the bound is not passed.
    Passes,
    /// The message is left out, as the first of this second.
    FirstLeftOut,
    /// The message is left out, and was so before in this second.
    LeftOut,
}

impl Repeats {
    pub(in crate::hub) fn new() -> Self {
        Self {
            started: clock::now(),
            hasher: RandomState::new(),
            slots: Mutex::default(),
        }
    }

    /// Counts a message to a bridge, and decides if it passes: the bridge gets at most `most` equal messages a second.
    pub(super) fn count(
        &self,
        bridge: SessionKey,
        message: &Message,
        most: u32,
        now: Instant,
    ) -> Repeat {
        let mut hasher = self.hasher.build_hasher();
        bridge.hash(&mut hasher);
        message.topic.as_bytes().hash(&mut hasher);
        message.payload.hash(&mut hasher);
        let key = hasher.finish();
        let second = now.saturating_duration_since(self.started).as_secs();
        let mut slots = lock(&self.slots);
        if slots.is_empty() {
            slots.resize(SLOTS, Slot::default());
        }
        let set = usize::try_from(key % (SLOTS / WAYS) as u64).expect("less than the slots") * WAYS;
        let set = &mut slots[set..set + WAYS];
        let slot = if let Some(at) = set.iter().position(|slot| slot.key == key) {
            &mut set[at]
        } else {
            let rarest = set.iter_mut().min_by_key(|slot| (slot.second, slot.count));
            let rarest = rarest.expect("there are some ways");
            *rarest = Slot {
                key,
                second,
                ..Slot::default()
            };
            rarest
        };
        slot.count(second, most)
    }
}

impl Slot {
    fn count(&mut self, second: u64, most: u32) -> Repeat {
        if self.second != second {
            self.was_over = self.second + 1 == second && self.count > most;
            self.second = second;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        let most = if self.was_over { 1 } else { most };
        match self.count {
            count if count <= most => Repeat::Passes,
            count if count == most + 1 => Repeat::FirstLeftOut,
            _ => Repeat::LeftOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mq_codec::TopicName;

    use super::*;

    const MOST: u32 = 20;

    fn message(topic: &str, payload: &str) -> Message {
        Message::new(TopicName::new(topic).unwrap(), payload.to_owned())
    }

    #[test]
    fn a_bridge_gets_a_bounded_number_of_equal_messages_a_second_and_one_while_more_come() {
        let repeats = Repeats::new();
        let at = |seconds| repeats.started + Duration::from_secs(seconds);
        let passing = |text: &str, second, count: usize| {
            let message = message("t", text);
            let each = (0..count).map(|_| repeats.count(SessionKey(1), &message, MOST, at(second)));
            let each: Vec<_> = each.collect();
            let first = each.iter().filter(|one| **one == Repeat::FirstLeftOut);
            let first = first.count();
            let passed = each.iter().filter(|one| **one == Repeat::Passes).count();
            (passed, first)
        };
        assert_eq!(passing("x", 0, 1_000), (20, 1));
        assert_eq!(passing("x", 1, 1_000), (1, 1), "it goes on");
        assert_eq!(passing("x", 2, 20), (1, 1), "as many as may be");
        assert_eq!(passing("x", 3, 20), (20, 0), "fewer came");
        assert_eq!(passing("x", 4, 21), (20, 1));
        assert_eq!(passing("x", 6, 20), (20, 0), "a quiet second");
        // Others are not concerned.
        let many: usize = (0..1_000).map(|n| passing(&n.to_string(), 0, 1).0).sum();
        assert_eq!(many, 1_000);
        let other = repeats.count(SessionKey(2), &message("t", "x"), MOST, at(0));
        assert_eq!(other, Repeat::Passes);
    }

    #[test]
    fn of_many_different_messages_those_that_come_often_stay_counted() {
        let repeats = Repeats::new();
        let now = repeats.started;
        let looping = message("t", "loop");
        let mut passed = 0;
        for n in 0..100_000 {
            let other = message("t", &n.to_string());
            repeats.count(SessionKey(1), &other, MOST, now);
            let verdict = repeats.count(SessionKey(1), &looping, MOST, now);
            passed += u32::from(verdict == Repeat::Passes);
        }
        assert!(passed < 3 * MOST, "{passed}");
    }
}
