//! The broker's own marks on a delivery, in its tag.

use mq_proto::Delivery;

/// Set on a delivery that came by a shared subscription.
const SHARED: u64 = 1 << 63;

/// The broker's own marks on a delivery, which are not sent.
pub(crate) trait Marks {
    /// Its number in the store, if it is there.
    fn number(&self) -> Option<u64>;

    /// Notes its number in the store.
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
