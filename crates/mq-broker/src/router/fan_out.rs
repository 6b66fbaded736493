//! The receivers of one message.

use std::cell::RefCell;

use mq_codec::{QoS, SubscriptionId};
use smallvec::SmallVec;

use super::{SessionKey, Subscriber};
use crate::delivery::LaneSlot;

/// The receivers of one message: each session once, and once more for each shared subscription
/// whose chosen member it is. Made to be reused: clearing it keeps its memory.
#[derive(Debug, Default)]
pub struct FanOut {
    targets: Vec<Target>,
}

/// The index of each session among the targets of a message. An array, since a hash map would be
/// most of the cost of a large fan-out. One for each thread, since it is as long as there are
/// sessions.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: Vec<Place>,
    stamp: u64,
}

/// An index, valid if `stamp` is that of the present message.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    stamp: u64,
    index: u32,
}

thread_local! {
    static PLACES: RefCell<Places> = RefCell::default();
}

impl Places {
    /// Calls `use_it` with this thread's places, prepared for one message.
    pub(super) fn with<T>(use_it: impl FnOnce(&mut Self) -> T) -> T {
        PLACES.with_borrow_mut(|places| {
            places.stamp += 1;
            use_it(places)
        })
    }
}

/// A receiver, with the options of its matching subscriptions combined.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Target {
    /// The session that receives the message.
    pub session: SessionKey,
    /// The highest of the matching subscriptions' QoS `[MQTT-3.3.4-2]`.
    pub qos: QoS,
    /// `true` if one of the subscriptions has Retain As Published.
    pub retain_as_published: bool,
    /// `true` for the copy of a shared subscription.
    pub is_shared: bool,
    /// The identifiers of the matching subscriptions that have one `[MQTT-3.3.4-3]`.
    pub subscription_ids: SmallVec<[SubscriptionId; 2]>,
    /// The lane of all matching subscriptions, or the control lane where they differ.
    pub lane: LaneSlot,
}

impl FanOut {
    /// Returns an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the receivers of the last message.
    pub fn clear(&mut self) {
        self.targets.clear();
    }

    /// Returns the receivers.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Adds a matching subscription that is not shared. Overlapping ones of a session become one target.
    pub(super) fn add(&mut self, places: &mut Places, subscriber: &Subscriber) {
        let index = subscriber.session.index();
        let Places { places, stamp } = places;
        if places.len() <= index {
            places.resize(index + 1, Place::default());
        }
        let place = &mut places[index];
        if place.stamp == *stamp {
            let target = &mut self.targets[place.index as usize];
            target.qos = target.qos.max(subscriber.options.qos);
            target.lane = target.lane.or_control(subscriber.lane);
            target.retain_as_published |= subscriber.options.retain_as_published;
            target.subscription_ids.extend(subscriber.subscription_id);
            return;
        }
        *place = Place {
            stamp: *stamp,
            index: u32::try_from(self.targets.len()).unwrap_or(u32::MAX),
        };
        self.push(subscriber, false);
    }

    /// Adds the chosen member of a shared subscription. Each group's copy is a target of its own,
    /// also where the session has it by another subscription (§4.8.2).
    pub(super) fn add_member(&mut self, member: &Subscriber) {
        self.push(member, true);
    }

    fn push(&mut self, subscriber: &Subscriber, is_shared: bool) {
        self.targets.push(Target {
            session: subscriber.session,
            qos: subscriber.options.qos,
            retain_as_published: subscriber.options.retain_as_published,
            is_shared,
            subscription_ids: subscriber.subscription_id.into_iter().collect(),
            lane: subscriber.lane,
        });
    }
}
