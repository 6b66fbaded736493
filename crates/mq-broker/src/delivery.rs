//! The broker's own marks on a delivery, in its tag.

use mq_proto::Delivery;

/// Bit that is set on a delivery that came by a shared subscription.
const SHARED_BIT: u64 = 1 << 63;

/// The place of the lane's slot in the tag, and its mask.
const LANE_SHIFT: u32 = 48;
const LANE_MASK: u64 = 0x7FFF;

/// Bit that is set on a delivery whose message counts against the memory limit.
const COUNTED_BIT: u64 = 1 << 47;

/// Mask of the number, which is below the other marks.
const NUMBER_MASK: u64 = COUNTED_BIT - 1;

/// A data lane on which a session has subscribed, by a number of the session's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct LaneSlot(u16);

impl LaneSlot {
    /// The control lane.
    pub const CONTROL: Self = Self(0);

    /// Returns a slot for another lane. After 32,767 slots the first comes again.
    pub(crate) fn next(self) -> Self {
        Self(if self.0 == 0x7FFF { 1 } else { self.0 + 1 })
    }

    /// Returns the slot as a number that can be kept.
    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Returns the slot of a number that was kept.
    pub(crate) fn of_number(number: u16) -> Self {
        Self(number & 0x7FFF)
    }

    /// Returns the slot for a message that two subscriptions match: the control lane's if their slots differ.
    pub(crate) fn or_control(self, other: Self) -> Self {
        if self == other { self } else { Self::CONTROL }
    }
}

/// The broker's own marks on a delivery, which are not sent.
pub(crate) trait DeliveryTag {
    /// Returns its number in the store, if it is there.
    fn number(&self) -> Option<u64>;

    /// Notes its number in the store.
    fn set_number(&mut self, number: u64);

    /// Returns `true` if it came by a shared subscription: another member may get it if this one ends (§4.8.2).
    fn is_shared(&self) -> bool;

    fn set_shared(&mut self);

    /// Returns `true` if its message counts against the memory limit by itself.
    fn is_counted(&self) -> bool;

    fn set_counted(&mut self);

    /// Returns the lane of the subscription that it came by.
    fn lane(&self) -> LaneSlot;

    fn set_lane(&mut self, lane: LaneSlot);
}

impl DeliveryTag for Delivery {
    fn number(&self) -> Option<u64> {
        Some(self.tag & NUMBER_MASK).filter(|number| *number > 0)
    }

    fn set_number(&mut self, number: u64) {
        self.tag = (number & NUMBER_MASK) | (self.tag & !NUMBER_MASK);
    }

    fn is_shared(&self) -> bool {
        self.tag & SHARED_BIT > 0
    }

    fn set_shared(&mut self) {
        self.tag |= SHARED_BIT;
    }

    fn is_counted(&self) -> bool {
        self.tag & COUNTED_BIT > 0
    }

    fn set_counted(&mut self) {
        self.tag |= COUNTED_BIT;
    }

    fn lane(&self) -> LaneSlot {
        let slot = (self.tag >> LANE_SHIFT) & LANE_MASK;
        LaneSlot(u16::try_from(slot).unwrap_or_default())
    }

    fn set_lane(&mut self, lane: LaneSlot) {
        let others = self.tag & !(LANE_MASK << LANE_SHIFT);
        self.tag = others | (u64::from(lane.0) << LANE_SHIFT);
    }
}
