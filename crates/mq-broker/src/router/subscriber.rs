//! One subscription, and lists of them.

use mq_codec::{SubscriptionId, SubscriptionOptions};

use super::SessionKey;
use crate::delivery::LaneSlot;

/// One subscription of one session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscriber {
    /// Whose it is.
    pub session: SessionKey,
    /// What it asks for.
    pub options: SubscriptionOptions,
    /// Its identifier, if it has one.
    pub subscription_id: Option<SubscriptionId>,
    /// The lane on which its messages go.
    pub lane: LaneSlot,
}

/// Adds or replaces; whether it was there.
pub(super) fn insert(list: &mut Vec<Subscriber>, subscriber: Subscriber) -> bool {
    if let Some(old) = list
        .iter_mut()
        .find(|old| old.session == subscriber.session)
    {
        *old = subscriber;
        true
    } else {
        list.push(subscriber);
        false
    }
}

/// Removes; whether it was there.
pub(super) fn remove(list: &mut Vec<Subscriber>, session: SessionKey) -> bool {
    match list.iter().position(|old| old.session == session) {
        Some(index) => {
            list.swap_remove(index);
            true
        }
        None => false,
    }
}
