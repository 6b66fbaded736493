//! Lanes: the ordered byte streams that one MQTT connection is made of.

use core::fmt;

/// Names one ordered byte stream of a connection.
///
/// Over TCP, TLS and WebSocket a connection has one lane, [`LaneId::CONTROL`]: the connection itself. Over
/// QUIC a lane is a stream, named by its stream identifier (RFC 9000 §2.1): the first client-opened
/// bidirectional stream, 0, is the control lane, and 4, 8, 12 are client-opened data lanes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LaneId(pub u64);

impl LaneId {
    /// The lane that carries CONNECT; the connection ends with it.
    pub const CONTROL: Self = Self(0);

    /// Returns `true` if the server opened the stream: bit 0 of its identifier (RFC 9000 §2.1).
    #[must_use]
    pub fn is_server_opened(self) -> bool {
        self.0 & 0b01 > 0
    }

    /// Returns `true` if only the side that opened the stream writes to it: bit 1 of its identifier (RFC 9000
    /// §2.1).
    #[must_use]
    pub fn is_unidirectional(self) -> bool {
        self.0 & 0b10 > 0
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}", self.0)
    }
}

/// End of a data lane: in order, or aborted with an error code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneEnd {
    /// The lane ends in order, after everything that was written (QUIC's FIN).
    Finish,
    /// Both directions of the lane end at once, with this application error code: `RESET_STREAM` and
    /// `STOP_SENDING` (RFC 9000 §19.4 and §19.5). Bytes that were not written yet are dropped.
    Abort(u32),
}
