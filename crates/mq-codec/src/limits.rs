//! Limits of the protocol.

/// The largest remaining length, and the largest variable byte integer: four bytes (§1.5.5).
pub const MAX_REMAINING_LENGTH: u32 = 268_435_455;
