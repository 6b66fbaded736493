//! The MQTT session as a state machine without I/O, clocks or threads.

mod lane;
mod outbox;

pub use lane::LaneId;
pub use outbox::Outbox;
