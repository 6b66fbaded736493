//! Subscriptions in the router, and lists of them.

use hashbrown::HashMap;
use mq_codec::{SubscriptionId, SubscriptionOptions};

use super::SessionKey;
use crate::delivery::LaneSlot;

/// A subscription of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscriber {
    /// The session that subscribed.
    pub session: SessionKey,
    /// The options of SUBSCRIBE.
    pub options: SubscriptionOptions,
    /// The subscription identifier, if it has one.
    pub subscription_id: Option<SubscriptionId>,
    /// The lane on which its messages are sent.
    pub lane: LaneSlot,
}

/// The number of subscriptions from which on a table has the index of each.
const LONG: usize = 64;

/// The subscriptions of one filter, one for each session.
///
/// All devices of a fleet may have the same filter. Finding one of a million takes as long as
/// finding one of a few: the router's lock holds up every message meanwhile.
#[derive(Debug, Default)]
pub(super) struct Subscribers {
    list: Vec<Subscriber>,
    /// The index of each session in a long list; `None` for a short one.
    places: Option<Box<HashMap<SessionKey, u32>>>,
}

impl Subscribers {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn as_slice(&self) -> &[Subscriber] {
        &self.list
    }

    /// Adds or replaces a subscription; returns `true` if the session had one before.
    pub(super) fn insert(&mut self, subscriber: Subscriber) -> bool {
        if let Some(place) = self.place(subscriber.session) {
            self.list[place] = subscriber;
            return true;
        }
        let place = self.list.len();
        if let Some(places) = &mut self.places {
            places.insert(subscriber.session, short(place));
        }
        self.list.push(subscriber);
        if self.list.len() == LONG && self.places.is_none() {
            let sessions = self.list.iter().map(|one| one.session);
            self.places = Some(Box::new(sessions.zip(0..).collect()));
        }
        false
    }

    /// Removes a session's subscription; returns `true` if it had one.
    pub(super) fn remove(&mut self, session: SessionKey) -> bool {
        let Some(place) = self.place(session) else {
            return false;
        };
        self.list.swap_remove(place);
        if let Some(places) = &mut self.places {
            places.remove(&session);
            if let Some(moved) = self.list.get(place) {
                places.insert(moved.session, short(place));
            }
        }
        if self.list.len() < LONG / 2 {
            self.places = None;
        }
        // A list that has become much shorter returns its memory.
        if self.list.len() < self.list.capacity() / 4 {
            let room = 2 * self.list.len();
            self.list.shrink_to(room);
            if let Some(places) = &mut self.places {
                places.shrink_to(room);
            }
        }
        true
    }

    fn place(&self, session: SessionKey) -> Option<usize> {
        match &self.places {
            Some(places) => places.get(&session).map(|place| *place as usize),
            None => self.list.iter().position(|one| one.session == session),
        }
    }
}

/// Converts an index, which fits as there are fewer than 2^32 sessions.
fn short(place: usize) -> u32 {
    u32::try_from(place).expect("fewer than 2^32 sessions")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mq_codec::QoS;
    use proptest::prelude::*;

    use super::*;

    fn subscriber(session: u32, id: u32) -> Subscriber {
        Subscriber {
            session: SessionKey(session),
            options: QoS::AtLeastOnce.into(),
            subscription_id: SubscriptionId::new(id),
            lane: LaneSlot::CONTROL,
        }
    }

    /// Returns `true` if the table, where there is one, has the index of each session.
    fn is_in_order(all: &Subscribers) -> bool {
        all.places.as_ref().is_none_or(|places| {
            let mut list = all.list.iter().zip(0..);
            places.len() == all.list.len()
                && list.all(|(one, place)| places.get(&one.session) == Some(&place))
        })
    }

    #[test]
    fn a_long_list_knows_the_place_of_each_and_gives_its_memory_back() {
        let mut all = Subscribers::default();
        for session in 0..10_000 {
            assert!(!all.insert(subscriber(session, 1)));
        }
        assert!(all.places.is_some() && is_in_order(&all));
        for session in 1..10_000 {
            assert!(all.remove(SessionKey(session)));
        }
        assert_eq!(all.as_slice(), [subscriber(0, 1)]);
        assert!(all.places.is_none());
        assert!(all.list.capacity() < 16, "{}", all.list.capacity());
    }

    proptest! {
        #[test]
        fn subscribers_are_those_of_a_map(
            changes in prop::collection::vec((0..200_u32, 0..3_u32), 0..2_000),
        ) {
            let (mut all, mut map) = (Subscribers::default(), BTreeMap::new());
            for (session, change) in changes {
                let known = map.contains_key(&session);
                if change == 0 {
                    map.remove(&session);
                    prop_assert_eq!(all.remove(SessionKey(session)), known);
                } else {
                    map.insert(session, subscriber(session, change));
                    prop_assert_eq!(all.insert(subscriber(session, change)), known);
                }
                prop_assert!(is_in_order(&all));
            }
            let mut list = all.as_slice().to_vec();
            list.sort_by_key(|one| one.session);
            prop_assert_eq!(list, map.into_values().collect::<Vec<_>>());
        }
    }
}
