//! Lanes: the ordered byte streams of a connection, and what waits to be written to them.
//!
//! Here the session meets the link. `mq-proto` writes packets into an [`Outbox`], each on the lane
//! that [`LaneId`] names; `mq-transport` takes bytes off its front. Neither of the two knows the
//! other, and both have this alone in common: bytes are handed over in the buffer in which they were
//! encoded, without a copy or a conversion between.
//!
//! ```
//! use mq_lane::{LaneId, Outbox};
//!
//! let mut outbox = Outbox::new();
//! outbox.put_body(LaneId::CONTROL, &vec![0xC0, 0x00].into()); // a PINGREQ
//! assert_eq!(outbox.len(), 2);
//! let (lane, bytes) = outbox.take().expect("one waits");
//! assert_eq!((lane, &bytes[..]), (LaneId::CONTROL, &[0xC0, 0x00][..]));
//! ```

mod lane;
mod outbox;

pub use lane::LaneId;
pub use outbox::Outbox;
