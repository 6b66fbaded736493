//! The receivers of one message.

use mq_codec::{QoS, SubscriptionId};
use smallvec::SmallVec;

use super::{SessionKey, Subscriber};

/// The receivers of one message, each once. Made to be reused: clearing it keeps its memory.
#[derive(Debug, Default)]
pub struct FanOut {
    targets: Vec<Target>,
    /// For each session, where in `targets` it stands, if `stamp` says that the entry is of this
    /// message. An array, since a hash map would be most of the cost of a large fan-out.
    places: Vec<Place>,
    stamp: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    stamp: u64,
    index: u32,
}

/// One receiver: what its matching subscriptions ask for, together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Which session.
    pub session: SessionKey,
    /// The highest of the matching subscriptions' QoS `[MQTT-3.3.4-2]`.
    pub qos: QoS,
    /// Whether one of them wants the RETAIN flag kept.
    pub retain_as_published: bool,
    /// The identifiers of those that have one `[MQTT-3.3.4-3]`.
    pub subscription_ids: SmallVec<[SubscriptionId; 2]>,
}

impl FanOut {
    /// No receivers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the receivers of the last message.
    pub fn clear(&mut self) {
        self.targets.clear();
        self.stamp += 1;
    }

    /// The receivers.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Adds a matching subscription; overlapping ones of a session become one target.
    pub(super) fn add(&mut self, subscriber: &Subscriber) {
        let index = subscriber.session.index();
        if self.places.len() <= index {
            self.places.resize(index + 1, Place::default());
        }
        let stamp = self.stamp + 1;
        let place = &mut self.places[index];
        if place.stamp == stamp {
            let target = &mut self.targets[place.index as usize];
            target.qos = target.qos.max(subscriber.options.qos);
            target.retain_as_published |= subscriber.options.retain_as_published;
            target.subscription_ids.extend(subscriber.subscription_id);
            return;
        }
        *place = Place {
            stamp,
            index: u32::try_from(self.targets.len()).unwrap_or(u32::MAX),
        };
        self.targets.push(Target {
            session: subscriber.session,
            qos: subscriber.options.qos,
            retain_as_published: subscriber.options.retain_as_published,
            subscription_ids: subscriber.subscription_id.into_iter().collect(),
        });
    }
}
