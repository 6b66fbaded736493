//! Lanes: the ordered byte streams that one MQTT connection is made of.

use core::fmt;

/// Names one ordered byte stream of a connection.
///
/// In this version every connection has exactly one lane, [`LaneId::CONTROL`]: over TCP and TLS the
/// connection itself, over QUIC its first client-opened bidirectional stream. The identifier lets
/// later versions use more QUIC streams without a change to this interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LaneId(pub u64);

impl LaneId {
    /// The lane that carries CONNECT; the connection ends with it.
    pub const CONTROL: Self = Self(0);
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}", self.0)
    }
}
