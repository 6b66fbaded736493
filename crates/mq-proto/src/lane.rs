//! Lanes: the ordered byte streams that one MQTT connection is made of.

use core::fmt;

/// Names one ordered byte stream of a connection.
///
/// TCP, TLS and WebSocket connections have exactly one, [`LaneId::CONTROL`]. Over QUIC a lane is a
/// client-opened bidirectional stream: the control lane is stream 0 and further lanes carry only
/// PUBLISH, SUBSCRIBE, UNSUBSCRIBE and their acknowledgements.
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
