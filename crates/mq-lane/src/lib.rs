//! Lanes: the ordered byte streams of a connection, the bytes that wait to be written to them, and the choice
//! of a lane for each message.
//!
//! This crate stands between the MQTT session and the link. `mq-proto` writes packets into an
//! [`Outbox`], each on the lane that [`LaneId`] names; `mq-transport` takes bytes off its front.
//! Neither of the two depends on the other: both depend on this crate. Bytes stay in the buffer in
//! which they were encoded, so nothing is copied or converted on the way. A [`Spreader`] chooses the lane of
//! each message, for a client as for a broker.
//!
//! The crate does no I/O, reads no clock and has no cargo features.
//!
//! ```
//! use mq_lane::{LaneId, Outbox};
//!
//! let mut outbox = Outbox::new();
//! outbox.put_body(LaneId::CONTROL, &vec![0xC0, 0x00].into()); // a PINGREQ
//! assert_eq!(outbox.len(), 2);
//! let chunk = outbox.take(LaneId::CONTROL).expect("one waits");
//! assert_eq!(chunk.bytes[..], [0xC0, 0x00]);
//! ```

mod lane;
mod outbox;
mod spread;

pub use lane::{LaneEnd, LaneId};
pub use outbox::{Chunk, Outbox};
pub use spread::{Spread, Spreader, UnknownSpread, Way};
