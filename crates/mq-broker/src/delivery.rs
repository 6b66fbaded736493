//! The broker's own marks on a delivery, in its tag.

use mq_proto::Delivery;

/// Set on what came by a shared subscription.
const SHARED: u64 = 1 << 63;

/// What the broker knows of a delivery besides what is sent.
pub(crate) trait Marks {
    /// What it is known by in the store, if it is there.
    fn number(&self) -> Option<u64>;

    /// It is in the store from now on.
    fn set_number(&mut self, number: u64);

    /// Whether it came by a shared subscription: another member may get it if this one ends (§4.8.2).
    fn is_shared(&self) -> bool;

    fn set_shared(&mut self);
}

impl Marks for Delivery {
    fn number(&self) -> Option<u64> {
        Some(self.tag & !SHARED).filter(|number| *number > 0)
    }

    fn set_number(&mut self, number: u64) {
        self.tag = number | (self.tag & SHARED);
    }

    fn is_shared(&self) -> bool {
        self.tag & SHARED > 0
    }

    fn set_shared(&mut self) {
        self.tag |= SHARED;
    }
}
