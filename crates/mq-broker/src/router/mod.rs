//! Routing of messages: subscriptions in a trie, shared groups, retained messages. No I/O, no
//! clock.
//!
//! ```
//! use mq_broker::router::{FanOut, LaneSlot, Router, SessionKey, Subscriber};
//! use mq_codec::{QoS, TopicFilter};
//!
//! let mut router = Router::new();
//! let subscriber = Subscriber {
//!     session: SessionKey(7),
//!     options: QoS::AtLeastOnce.into(),
//!     subscription_id: None,
//!     lane: LaneSlot::CONTROL,
//! };
//! router.subscribe(&TopicFilter::new("plant/+/temperature")?, subscriber);
//! let mut receivers = FanOut::new();
//! router.route(b"plant/7/temperature", None, &|_| true, &mut receivers);
//! assert_eq!(receivers.targets()[0].session, SessionKey(7));
//! # Ok::<(), mq_codec::TopicError>(())
//! ```

mod fan_out;
mod names;
mod retained;
mod shared;
mod subscriber;
mod trie;

pub use crate::delivery::LaneSlot;
pub use fan_out::{FanOut, Target};
pub use retained::{Cursor, Retained, RetainedStore};
pub use subscriber::Subscriber;
pub use trie::Router;
pub(crate) use trie::Who;

/// The most levels that a topic name or a filter may have in the router.
///
/// Each level is a node, so 64 KiB of slashes would take megabytes, and the walk over nodes is as
/// deep as there are levels. Mosquitto allows 200 as well, far more than anybody uses.
pub const MAX_LEVELS: usize = 200;

/// Returns `true` if a topic name or a filter has more levels than [`MAX_LEVELS`].
pub(crate) fn is_too_deep(topic: &[u8]) -> bool {
    // Most are too short for so many levels.
    topic.len() >= MAX_LEVELS && topic.split(|byte| *byte == b'/').nth(MAX_LEVELS).is_some()
}

/// The key of a session in the router: a small index that the owner of the sessions assigns and
/// reuses. Each thread that routes has memory for as many sessions as the greatest key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionKey(pub u32);

impl SessionKey {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_levels_as_are_allowed_are_not_too_deep() {
        let deepest = "/".repeat(MAX_LEVELS - 1);
        assert!(!is_too_deep(deepest.as_bytes()));
        assert!(is_too_deep(format!("{deepest}/").as_bytes()));
        assert!(!is_too_deep("x".repeat(60_000).as_bytes()));
    }
}
