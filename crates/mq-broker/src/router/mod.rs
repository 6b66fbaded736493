//! Who gets a message: subscriptions in a trie, shared groups, retained messages. No I/O, no clock.
//!
//! ```
//! use mq_broker::router::{FanOut, Router, SessionKey, Subscriber};
//! use mq_codec::{QoS, TopicFilter};
//!
//! let mut router = Router::new();
//! let subscriber = Subscriber {
//!     session: SessionKey(7),
//!     options: QoS::AtLeastOnce.into(),
//!     subscription_id: None,
//! };
//! router.subscribe(&TopicFilter::new("plant/+/temperature")?, subscriber);
//! let mut receivers = FanOut::new();
//! router.route(b"plant/7/temperature", None, &|_| true, &mut receivers);
//! assert_eq!(receivers.targets()[0].session, SessionKey(7));
//! # Ok::<(), mq_codec::TopicError>(())
//! ```

mod fan_out;
mod retained;
mod shared;
mod trie;

pub use fan_out::{FanOut, Target};
pub use retained::{Retained, RetainedStore};
pub use trie::{Router, Subscriber};

/// Names a session inside the router: a small index that whoever keeps the sessions hands out and
/// reuses. Memory of a [`FanOut`] grows with the greatest one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionKey(pub u32);

impl SessionKey {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
