//! A radio channel that several stations share: what it is like ([`Medium`]), and how it works
//! ([`Channel`]), as arithmetic on nanoseconds: no clock, no sockets.

mod channel;
mod profile;

pub use channel::{Channel, StationCounts};
pub use profile::Medium;
