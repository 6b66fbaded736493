//! Small numbers with a meaning: QoS, packet identifiers, subscription identifiers.

use core::{
    fmt,
    num::{NonZeroU16, NonZeroU32},
};

/// Quality of service: how often a message may arrive (§4.3). Default: QoS 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum QoS {
    /// QoS 0: at most once; sent and forgotten.
    #[default]
    AtMostOnce = 0,
    /// QoS 1: at least once; acknowledged by PUBACK.
    AtLeastOnce = 1,
    /// QoS 2: exactly once; PUBREC, PUBREL and PUBCOMP.
    ExactlyOnce = 2,
}

impl QoS {
    /// Returns the QoS that the two bits on the wire mean; `None` for 3, which is reserved `[MQTT-3.3.1-4]`.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

/// `0`, `1` or `2`.
impl fmt::Display for QoS {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self as u8).fmt(f)
    }
}

/// A packet identifier: 1 to 65,535, never 0 `[MQTT-2.2.1-3]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PacketId(NonZeroU16);

impl PacketId {
    /// The smallest identifier.
    pub const FIRST: Self = Self(NonZeroU16::MIN);

    /// Makes the identifier of the number `id`; `None` for 0.
    #[must_use]
    pub fn new(id: u16) -> Option<Self> {
        NonZeroU16::new(id).map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }

    /// Returns the identifier after this one; 1 follows 65,535.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).unwrap_or(NonZeroU16::MIN))
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A subscription identifier (5.0, §3.8.2.1.2): 1 to 268,435,455.
///
/// The client chooses it; the server sends it back with each message that the subscription matched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubscriptionId(NonZeroU32);

impl SubscriptionId {
    /// Makes the identifier of the number `id`; `None` for 0 and above 268,435,455.
    #[must_use]
    pub fn new(id: u32) -> Option<Self> {
        NonZeroU32::new(id)
            .filter(|id| id.get() <= crate::MAX_REMAINING_LENGTH)
            .map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }
}
