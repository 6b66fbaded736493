//! A radio channel that several stations share: its properties ([`Medium`]) and its work ([`Channel`]), as
//! arithmetic on nanoseconds, without a clock or sockets.

mod channel;
mod profile;

pub use channel::{Channel, StationCounts};
pub use profile::Medium;
