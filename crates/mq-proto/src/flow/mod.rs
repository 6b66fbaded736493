//! Flows: data lanes with a name, whose state the session keeps after they have ended (the MQTT-next draft of
//! 5 March 2024). Their heads need the feature `mqtt-next`; without it no lane is a flow.

use core::fmt;

#[cfg(feature = "mqtt-next")]
mod head;

#[cfg(feature = "mqtt-next")]
pub(crate) use head::{
    Beginning, Dialect, Flow, FlowHead, INCOMPLETE_PACKET, PROTOCOL_L0, read_control, write_control,
};

/// Flow of a data lane; without the feature `mqtt-next` no lane has a flow.
#[cfg(not(feature = "mqtt-next"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flow {}

/// Name of a flow within its session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId(pub u64);

impl FlowId {
    /// Returns `true` if the server owns the flow: it has opened the first lane and chosen the identifier,
    /// which is odd.
    #[must_use]
    pub fn is_servers(self) -> bool {
        self.0 & 1 > 0
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.0)
    }
}

/// Error of a peer that has broken a rule of the MQTT-next draft for flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// A type of flow that the lane must not begin with, or no flow at all.
    #[error("the lane begins with a flow type that is not allowed there, or with none")]
    StreamType,
    /// An identifier that the opener does not own, or that belongs to the control flow.
    #[error("the flow's identifier is not the opener's")]
    BadFlowId,
    /// An optional header; the draft defines no such header.
    #[error("the flow has an optional header, and none is defined")]
    OptionalHeader,
    /// A flow to be recovered of which no state is kept.
    #[error("nothing is kept of the flow")]
    NoFlowState,
    /// A flow that is to be recovered and to begin anew at once; its state is discarded.
    #[error("the flow is to begin anew and to be recovered")]
    Contradiction,
    /// A user-defined flow, or one more flow than the session may have.
    #[error("the flow is user-defined, or the session has too many flows")]
    Refused,
    /// A newer lane has taken the flow over.
    #[error("a newer lane has taken the flow over")]
    TakenOver,
    /// A flow was to be recovered again after [`NoFlowState`](Self::NoFlowState), which ends the connection.
    #[error("the flow was to be recovered again, and nothing is kept of it")]
    TooManyRecoverAttempts,
}

/// Error code of the draft for a lane that ends, whose flow is kept.
pub(crate) const FLOW_CANCELLED: u32 = 0xBC;
/// Error code of the draft for a lane that ends, and its flow with it.
pub(crate) const DISCARD_STATE: u32 = 0xBF;

impl FlowError {
    /// Returns the draft's error code.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::TooManyRecoverAttempts | Self::NoFlowState => 0xB3,
            Self::StreamType => 0xB5,
            Self::BadFlowId => 0xB6,
            Self::OptionalHeader => 0xB9,
            Self::TakenOver => FLOW_CANCELLED,
            Self::Refused => 0xBE,
            Self::Contradiction => DISCARD_STATE,
        }
    }
}
