//! Who gets a message: subscriptions in a trie, shared groups, retained messages. No I/O, no clock.

mod fan_out;
mod retained;
mod shared;
mod trie;

pub use fan_out::{FanOut, Target};
pub use retained::{Retained, RetainedStore};
pub use trie::{Router, Subscriber};

/// Names a session inside the router: an index that the hub hands out and reuses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionKey(pub u32);

impl SessionKey {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
