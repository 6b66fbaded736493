//! Protocol versions.

use core::fmt;

/// A version of MQTT, as CONNECT names it by protocol name and level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Version {
    /// MQTT 3.1: name `MQIsdp`, level 3.
    V3_1,
    /// MQTT 3.1.1: name `MQTT`, level 4.
    V3_1_1,
    /// MQTT 5.0: name `MQTT`, level 5.
    V5,
}

impl Version {
    /// Returns the protocol name in CONNECT.
    #[must_use]
    pub fn protocol_name(self) -> &'static str {
        match self {
            Self::V3_1 => "MQIsdp",
            Self::V3_1_1 | Self::V5 => "MQTT",
        }
    }

    /// Returns the protocol level (5.0 says protocol version) in CONNECT.
    #[must_use]
    pub fn level(self) -> u8 {
        match self {
            Self::V3_1 => 3,
            Self::V3_1_1 => 4,
            Self::V5 => 5,
        }
    }

    pub(crate) fn from_wire(name: &[u8], level: u8) -> Option<Self> {
        let mut all = [Self::V3_1, Self::V3_1_1, Self::V5].into_iter();
        all.find(|one| one.protocol_name().as_bytes() == name && one.level() == level)
    }
}

/// `3.1`, `3.1.1` or `5.0`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3_1 => "3.1",
            Self::V3_1_1 => "3.1.1",
            Self::V5 => "5.0",
        })
    }
}
